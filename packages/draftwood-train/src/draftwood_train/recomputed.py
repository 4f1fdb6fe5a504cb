"""Texts whose states are not stored: their target computes them just before they are needed."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.models.model import Model, PromptInput
from draftwood_train.data.states import PREFILL, stacked
from draftwood_train.data.texts import StoredText

AT_ONCE = 2
"""Texts that share forward passes; larger ones are no faster on a CPU, 8 texts a tenth slower."""


@runtime_checkable
class UnrunTexts(Protocol):
    """Texts that can be read without running their target.

    Attributes:
        model: the target; None where nothing is recomputed.
        layers: whose inputs a text's states are.
    """

    model: Model | None
    layers: tuple[int, ...]

    def tokens_of(self, index: int) -> Any:
        """Tokens of a text, and as ``top`` the target's stored distribution at its answer."""
        ...

    def __getitem__(self, index: int, /) -> Any: ...


def read(texts: Any, numbers: Iterable[int]) -> dict[int, StoredText]:
    """Read texts by their numbers; states that are not stored come from shared passes.

    Raises:
        ValueError: for states that are no numbers.
    """
    wanted, found = sorted(set(numbers)), dict[int, StoredText]()
    if isinstance(texts, UnrunTexts) and texts.model is not None:
        alone = {number: texts.tokens_of(number) for number in wanted}
        late = [number for number, text in alone.items() if text.top is not None]
        every = states_together(
            texts.model, [alone[number].tokens.tolist() for number in late], texts.layers
        )
        for number, states in zip(late, every, strict=True):
            found[number] = _with_states(alone[number], states)
    found |= {number: texts[number] for number in wanted if number not in found}
    for number, text in found.items():
        _require_numbers(number, text)
    return found


def _with_states(text: Any, states: Tensor) -> StoredText:
    """A text with states; the normaliser is known from the place before its answer on."""
    normalizers = torch.zeros(len(text.tokens))
    normalizers[text.answer - 1 :] = text.top.log_normalizer
    known = [each.name for each in fields(StoredText) if hasattr(text, each.name)]
    facts = {name: getattr(text, name) for name in known}
    return StoredText(**facts, states=states, log_normalizer=normalizers)


def _require_numbers(number: int, text: StoredText) -> None:
    if not bool(text.states.sum().isfinite() & text.log_normalizer.sum().isfinite()):
        raise ValueError(
            f"the states of text {number} ({text.source}) are no finite numbers; delete its shard,"
            " make the data again, or check the target's weights"
        )


@torch.no_grad()
def states_together(
    model: Model, texts: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[Float[Tensor, "places layers dim"]]:
    """States at all places of several texts, a piece of each in every pass, without logits."""
    found: list[Tensor] = []
    for first in range(0, len(texts), AT_ONCE):
        found += _states_of_group(model, texts[first : first + AT_ONCE], layers)
    return found


def _states_of_group(
    model: Model, texts: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[Tensor]:
    pieces: list[list[Tensor]] = [[] for _ in texts]
    with ExitStack() as stack:
        sessions = [model.start() for _ in texts]
        for session in sessions:
            stack.callback(session.close)
        for start in range(0, max(map(len, texts)), PREFILL):
            here = [number for number, text in enumerate(texts) if len(text) > start]
            inputs = [
                PromptInput(
                    sessions[number],
                    texts[number][start : start + PREFILL],
                    "none",
                    tuple(layers),
                )
                for number in here
            ]
            for number, output in zip(here, model.forward(inputs), strict=True):
                pieces[number].append(stacked([output], layers).float())
    return [torch.cat(each) for each in pieces]
