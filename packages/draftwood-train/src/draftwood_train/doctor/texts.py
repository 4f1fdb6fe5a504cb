"""Held-out texts for the doctor: of a data set, or written by the target on the spot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftwood.text.language_model import LanguageModel
from draftwood_train.data.barred import Bars
from draftwood_train.data.dataset import Dataset
from draftwood_train.data.jobs import SECOND_TURN
from draftwood_train.data.prompts import collect
from draftwood_train.data.shards import Shard
from draftwood_train.data.states import in_bytes, spread_of, states_of
from draftwood_train.data.texts import StoredText
from draftwood_train.recomputed import read as read_texts

NEW_TOKENS = 64


@dataclass(frozen=True, eq=False)
class HeldText:
    """A held-out text as training reads it.

    Attributes:
        prompt: as it was asked; None where nobody knows.
        stored: tokens, and states of ``layers``, in training's arithmetic.
        layers: whose states these are.
    """

    prompt: str | None
    stored: StoredText
    layers: tuple[int, ...]


def of_data(dataset: Dataset, most: int) -> list[HeldText]:
    """Held-out texts of a data set, greedy ones first.

    Raises:
        ValueError: where it holds none.
    """
    texts = dataset.texts("held-out")
    if not len(texts):
        raise ValueError("these data hold out no texts; make more of them")
    found = [pair for shard in dataset.shards for pair in _held_out(shard)]
    order = sorted(range(len(texts)), key=lambda number: not found[number][1])[:most]
    every = read_texts(texts, order)
    return [
        HeldText(_asked(found[number][0], every[number]), every[number], dataset.layers)
        for number in order
    ]


def _held_out(shard: Shard) -> list[tuple[str, bool]]:
    """Prompts of the held-out texts of a shard, and whether their answers are greedy."""
    prompts, greedy = shard.prompt_texts(), shard.array("is_greedy")
    return [(prompts[n], bool(greedy[n])) for n in np.flatnonzero(shard.held_out).tolist()]


def kind_of(text: StoredText) -> str:
    """Kind of a text's task; its source where none is known."""
    return getattr(text, "kind", "") or text.source


def _asked(prompt: str, text: StoredText) -> str | None:
    """The prompt of a text; None for a later turn, of which only the user's part is kept."""
    return None if kind_of(text) == SECOND_TURN else prompt


def of_target(lm: LanguageModel, layers: Sequence[int], most: int) -> list[HeldText]:
    """Greedy answers of the target to prompts that draftwood composes."""
    prompts = collect(("composed",), [], 0, Bars([]))[:most]
    plain, found = lm.with_method("plain"), []
    spread = spread_of(lm.model, layers)
    for prompt in prompts:
        tokens = lm.encode(prompt.text)
        made = plain.generate(prompt.text, max_new_tokens=NEW_TOKENS)
        every = torch.tensor([*tokens, *made.token_ids])
        stored = read(lm, every, len(tokens), layers, spread)
        found.append(HeldText(prompt.text, stored, tuple(layers)))
    return found


def read(
    lm: LanguageModel,
    tokens: torch.Tensor,
    answer: int,
    layers: Sequence[int],
    spread: torch.Tensor,
) -> StoredText:
    """Read a greedy text as training does, with states in 8 bits."""
    with torch.no_grad():
        states, normalizers = states_of(lm.model, tokens, layers)
        kept = in_bytes(states, normalizers, spread)
    return StoredText(tokens, answer, True, "composed", kept.floats(), kept.log_normalizer)
