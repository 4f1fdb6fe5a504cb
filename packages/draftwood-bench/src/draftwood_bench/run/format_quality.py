"""Measure the cost of storing or multiplying weights in few bits.

The cost is the perplexity on a text, and the divergence of next-token distributions from those of
the same weights in float32.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.loading.models import LoadedModel, load_model
from draftwood.models.model import Model
from draftwood_bench.plan.measurements import REFERENCE, FormatQuality
from draftwood_bench.records.files import Record
from draftwood_bench.run.blank import blank
from draftwood_bench.run.formats import load_format


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
    """Every format of one model at a time, loaded when the model is first asked for.

    Args:
        asked: formats and windows.
        device: as ``draftwood.load`` takes it.
        text: is read in windows.
    """

    def __init__(self, asked: FormatQuality, device: str | None, text: str) -> None:
        self.asked, self.device, self.text = asked, device, text
        self._name = ""
        self._models: dict[str, Model] = {}
        self._tokens: list[int] = []

    def use(self, name: str) -> None:
        """Load a model in every format, and drop the previous one.

        Raises:
            ValueError: where it cannot be had in one of them, the text is too short, or a window
                longer than the model reads.
        """
        if name == self._name:
            return
        self._name, self._models = "", {}
        reference = load_model(name, REFERENCE, self.device)
        self._tokens = self._read(name, reference)
        self._models = {REFERENCE: reference.model}
        for each in self.asked.formats:
            if each != REFERENCE:
                self._models[each] = load_format(name, each, self.device).model
        self._name = name

    def window(self, number: int) -> list[int]:
        """The tokens of a window; windows are spread evenly over the text."""
        step = (len(self._tokens) - self.asked.window) // self.asked.windows
        return self._tokens[number * step : number * step + self.asked.window]

    def measure(self, number: int, wanted: Sequence[Record]) -> list[dict[str, Any]]:
        """Means over the tokens of a window after its first, for these formats of one model.

        Perplexity; Kullback-Leibler divergence from float32, in nats; the share of places where
        the likeliest token is the same.
        """
        self.use(wanted[0].model or "")
        window = self.window(number)
        exact = _log_probs(self._models[REFERENCE], window)
        found = []
        for record in wanted:
            is_exact = record.method == REFERENCE
            got = exact if is_exact else _log_probs(self._models[record.method], window)
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

    def _read(self, name: str, loaded: LoadedModel) -> list[int]:
        asked, room = self.asked, loaded.model.context_length
        if room is not None and asked.window > room:
            raise ValueError(
                f"{name} reads {room} tokens at a time, fewer than a window of {asked.window};"
                " ask for --window of at most that"
            )
        found: list[int] = loaded.tokenizer(self.text)["input_ids"]  # type: ignore[assignment]
        if len(found) < asked.windows * asked.window:
            raise ValueError(
                f"{asked.text} has {len(found)} tokens, too few for {asked.windows} windows of"
                f" {asked.window}; ask for less with --windows or --window"
            )
        return found


def _log_probs(model: Model, tokens: list[int]) -> Float[Tensor, "tokens vocab"]:
    """Log-probabilities in float64 after each token but the last, on the CPU."""
    with closing(model.start()) as session:
        return session.extend(tokens).logits[:-1].double().cpu().log_softmax(-1)
