"""What storing or multiplying weights in few bits costs.

Told by perplexity on a text, and by the divergence of each next-token distribution from that of
the same file of weights in float32.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.bench.plan.measurements import REFERENCE, FormatQuality
from draftwood.bench.plan.prompts import load_text
from draftwood.bench.records.files import Record
from draftwood.bench.run.blank import blank
from draftwood.interfaces.model import Model
from draftwood.loading.models import LoadedModel, load_model


def read_text(asked: FormatQuality) -> str:
    """The text that all models read. Raises as ``prompts.load_text``."""
    return load_text(asked.text)


def described(asked: FormatQuality, text: str) -> dict[str, Any]:
    """The text as ``RunInfo.prompts``."""
    return {
        "source": asked.text,
        "note": "",
        "count": asked.windows,
        "rule": f"windows of {asked.window} tokens, spread evenly",
        "digest": sha256(text.encode()).hexdigest()[:16],
    }


def records(asked: FormatQuality, model: str, number: int) -> list[Record]:
    """One for float32 and one for each other format, on one window of the text; without stats."""
    return [
        blank(each, model=model, prompt=f"window {number}", prompt_tokens=asked.window)
        for each in dict.fromkeys((REFERENCE, *asked.formats))
    ]


class Formats:
    """One model in every format, loaded when it is first needed.

    Args:
        asked: formats and windows.
        name: of the model, as ``draftwood.load`` takes it.
        device: likewise.
        text: is read in windows.
    """

    def __init__(self, asked: FormatQuality, name: str, device: str | None, text: str) -> None:
        self.asked, self.name, self.device, self.text = asked, name, device, text
        self._models: dict[str, Model] = {}

    @cached_property
    def reference(self) -> LoadedModel:
        return load_model(self.name, REFERENCE, self.device)

    @cached_property
    def tokens(self) -> list[int]:
        """Of the whole text.

        Raises:
            ValueError: where it is too short, or a window longer than the model reads.
        """
        asked, room = self.asked, self.reference.model.context_length
        if room is not None and asked.window > room:
            raise ValueError(
                f"{self.name} reads {room} tokens at a time, fewer than a window of {asked.window};"
                " ask for --window of at most that"
            )
        found: list[int] = self.reference.tokenizer(self.text)["input_ids"]  # type: ignore[assignment]
        if len(found) < asked.windows * asked.window:
            raise ValueError(
                f"{asked.text} has {len(found)} tokens, too few for {asked.windows} windows of"
                f" {asked.window}; ask for less with --windows or --window"
            )
        return found

    def window(self, number: int) -> list[int]:
        """The tokens of a window; windows are spread evenly over the text."""
        step = (len(self.tokens) - self.asked.window) // self.asked.windows
        return self.tokens[number * step : number * step + self.asked.window]

    def measure(self, number: int, wanted: Sequence[Record]) -> list[dict[str, Any]]:
        """Means over the tokens of a window after its first, for each of these formats.

        Perplexity; Kullback-Leibler divergence from float32, in nats; the share of places where
        the likeliest token is the same.
        """
        window = self.window(number)
        exact = _log_probs(self.reference.model, window)
        found = []
        for record in wanted:
            is_exact = record.method == REFERENCE
            got = exact if is_exact else _log_probs(self._model(record.method), window)
            loss = -got.gather(1, torch.tensor(window[1:])[:, None]).mean().item()
            divergence = (exact.exp() * (exact - got)).sum(-1).mean().item()
            same = (exact.argmax(-1) == got.argmax(-1)).double().mean().item()
            found.append(
                {
                    "tokens": len(got),
                    "perplexity": math.exp(loss),
                    "divergence": divergence,
                    "same_likeliest": same,
                }
            )
        return found

    def _model(self, each: str) -> Model:
        if each not in self._models:
            self._models[each] = load_model(self.name, each, self.device).model
        return self._models[each]


def _log_probs(model: Model, tokens: list[int]) -> Float[Tensor, "tokens vocab"]:
    """Log-probabilities in float64 after each token but the last, on the CPU."""
    with closing(model.start()) as session:
        return session.extend(tokens).logits[:-1].double().cpu().log_softmax(-1)
