"""Value head: the chance that an answer which begins like this ends right."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from draftwood.arrays import as_array
from draftwood.heads.trained import TargetFingerprint
from draftwood.models.model import Model, PrefixStore, PromptInput, chunks
from draftwood.storage.atomic import write_file
from draftwood_choices.logistic import probabilities

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel
    from draftwood_choices.search.proposals import Proposal

FILE = "value.json"
FORMAT = "draftwood value head 1"
OF_TEXT = 3
"""Features beside the states: mean and least log-probability, and logarithm of the length."""


@dataclass(frozen=True, eq=False)
class ValueHead:
    """Logistic regression on a model's hidden states behind a token of an answer.

    Attributes:
        weights: [features], of the states of ``layers`` one after the other, then ``OF_TEXT``.
        bias: beside them.
        layers: whose inputs are read.
        target: the model that wrote the answers it learnt from.
        about: where it comes from, and what it ranks on prompts held out.
    """

    weights: Float[np.ndarray, " features"]
    bias: float
    layers: tuple[int, ...]
    target: TargetFingerprint
    about: Mapping[str, Any] = field(default_factory=dict)

    def values(self, features: Float[np.ndarray, "rows features"]) -> Float[np.ndarray, " rows"]:
        """Chances that answers are right."""
        return probabilities(features @ self.weights + self.bias)

    def save(self, folder: Path) -> None:
        """Write the head into a folder, whole or not at all.

        Raises:
            OSError: where the disk refuses.
        """
        told = {"format": FORMAT, "layers": self.layers, "target": asdict(self.target)}
        told |= {"about": dict(self.about), "bias": self.bias, "weights": self.weights.tolist()}
        write_file(folder / FILE, json.dumps(told) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "ValueHead":
        """Read a head from its folder.

        Raises:
            ValueError: for a folder without a whole one.
        """
        try:
            told = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError("another format")
            layers, target = tuple(map(int, told["layers"])), told["target"]
            target = TargetFingerprint(**{**target, "probe": tuple(map(float, target["probe"]))})
            weights = np.array(told["weights"], np.float64)
            if weights.shape != (len(layers) * target.hidden_size + OF_TEXT,):
                raise ValueError(f"{len(weights)} weights do not fit")
            bias = float(told["bias"])
            if not np.isfinite([*weights, bias]).all():
                raise ValueError("weights with NaN or infinity")
            return cls(weights, bias, layers, target, told["about"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{folder} holds no whole value head ({error}); make one with 'draftwood train"
                " value'"
            ) from None

    def require_model(self, lm: "LanguageModel") -> None:
        """Raise ValueError unless this is the model that the head reads."""
        try:
            self.target.require_model(lm.model, lm.name)
        except ValueError:
            raise ValueError(
                f"the value head was trained on {self.target.name} and reads no states of"
                f" {lm.name}; train one with 'draftwood train value FOLDER --model {lm.name}'"
            ) from None


def read_layers(model: Model) -> tuple[int, ...]:
    """Layers that a head reads: the input of one at two thirds of the depth, and of the last.

    Raises:
        ValueError: for a model that shows no hidden states.
    """
    if "hidden" not in model.abilities or not model.layers:
        raise ValueError("a value head reads hidden states, which this model does not give")
    return tuple(sorted({2 * model.layers // 3, model.layers - 1}))


def states_behind(
    model: Model,
    texts: Sequence[Sequence[int]],
    counts: Sequence[int],
    layers: Sequence[int],
    prefixes: PrefixStore | None = None,
) -> tuple[list[Float[np.ndarray, "count features"]], int]:
    """Hidden states behind the newest tokens of texts, which share forward passes.

    Args:
        counts: of newest tokens, for each text.
        prefixes: remembers what was computed, and knows it the next time.

    Returns:
        The states of the layers side by side, and how many passes it took.
    """
    known = [
        (model.start(), 0) if prefixes is None else prefixes.start(text[: len(text) - count + 1])
        for text, count in zip(texts, counts, strict=True)
    ]
    left = [list(chunks(text[begin:])) for text, (_, begin) in zip(texts, known, strict=True)]
    found: list[list[np.ndarray]] = [[] for _ in texts]
    passes = 0
    try:
        while running := [place for place, each in enumerate(left) if each]:
            asked = [
                PromptInput(known[place][0], left[place].pop(0), "none", tuple(layers))
                for place in running
            ]
            for place, output in zip(running, model.forward(asked), strict=True):
                found[place].append(np.hstack([as_array(output.hidden[each]) for each in layers]))
            passes += 1
        if prefixes is not None:
            for text, (session, _) in zip(texts, known, strict=True):
                prefixes.remember(session, text)
    finally:
        for session, _ in known:
            session.close()
    return [np.vstack(each)[-count:] for each, count in zip(found, counts, strict=True)], passes


def valued(
    head: ValueHead,
    model: Model,
    prompt: Sequence[int],
    proposals: "Sequence[Proposal]",
    prefixes: PrefixStore | None = None,
) -> tuple[list[float], int]:
    """Values of answers to a prompt, and how many passes that took."""
    texts = [[*prompt, *each.token_ids] for each in proposals]
    states, passes = states_behind(model, texts, [1] * len(texts), head.layers, prefixes)
    beside = [of_text(each.logprobs or [0.0])[-1:] for each in proposals]
    rows = np.hstack([np.vstack(states), np.vstack(beside)])
    return head.values(rows).tolist(), passes


def of_text(logprobs: Sequence[float]) -> Float[np.ndarray, "tokens 3"]:
    """Features beside the states, at each token of an answer.

    Args:
        logprobs: of its tokens, before temperature.
    """
    told = np.asarray(logprobs, np.float64)
    length = np.arange(1, len(told) + 1)
    mean = np.cumsum(told) / length
    return np.column_stack([mean, np.minimum.accumulate(told), np.log1p(length)])
