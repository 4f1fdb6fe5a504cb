"""Decode held-out prompts with a head, and compare its drafts with those of training."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int

from draftwood.heads.trained import TrainedHead
from draftwood.text.language_model import LanguageModel
from draftwood_train.data.states import spread_of
from draftwood_train.doctor.differences import Difference, Drafted
from draftwood_train.doctor.head import guesses, head_of, rows_of
from draftwood_train.doctor.texts import NEW_TOKENS, HeldText, kind_of, read
from draftwood_train.judging import JUDGED_STEPS
from draftwood_train.recipe import TargetWeights

AGREES = 0.85
"""Least share of drafts that are the same where decoding rounds a head to 4 and 8 bits."""


@dataclass(frozen=True)
class ReplayedStep:
    """One step of decoding.

    Attributes:
        place: of the newest state that the head reads.
        tokens: that it drafted, one behind the other.
        accepted: how many of them.
    """

    place: int
    tokens: tuple[int, ...]
    accepted: int


@dataclass
class Replay:
    """Drafts of decoding beside those of training at the same places.

    Attributes:
        decoding, training: accepted drafts by task kind and depth.
        every: drafts of training at every place by task kind, each after the true tokens, as cards
            count them.
        same, compared: drafts that are the same tokens, and all that were compared.
        first: text, place and depth of the first that differs.
        wandered: text and place at which decoding left a stored greedy text.
    """

    decoding: dict[str, Drafted] = field(default_factory=dict)
    training: dict[str, Drafted] = field(default_factory=dict)
    every: dict[str, Drafted] = field(default_factory=dict)
    same: int = 0
    compared: int = 0
    first: tuple[int, int, int] | None = None
    wandered: tuple[int, int] | None = None


def decoded(
    lm: LanguageModel, prompt: Sequence[int], most: int
) -> tuple[list[int], list[ReplayedStep]]:
    """Decode greedily; return the text and the drafts of its steps."""
    stream = lm.stream(prompt, max_new_tokens=most, temperature=0.0)
    for _ in stream:
        pass
    tokens, found = [*prompt], []
    for step in stream.steps:
        if step.tree is not None and len(step.tree) > 1:
            drafted = tuple(step.tree.token_list[1:])
            found.append(ReplayedStep(len(tokens) - 2, drafted, step.accepted))
        tokens += step.tokens
    return tokens, found


def replay(
    trained: TrainedHead, lm: LanguageModel, texts: Sequence[HeldText], target: TargetWeights
) -> Replay:
    """Decode the prompts with the head, and draft the same places as training does."""
    head, found = head_of(trained), Replay()
    reads = head.config.reads
    spread = spread_of(lm.model, reads)
    drafting = lm.with_method("eagle", draft_model=trained, tree=str(JUDGED_STEPS))
    for number, text in enumerate(texts):
        stored = text.stored
        most = min(max(len(stored.tokens) - stored.answer, 2), NEW_TOKENS)
        tokens, steps = decoded(drafting, stored.tokens[: stored.answer].tolist(), most)
        _watch(found, number, text, tokens)
        own = read(lm, torch.tensor(tokens), stored.answer, reads, spread)
        guessed = guesses(head, rows_of(own, range(len(reads)), 0), target)
        ids = trained.draft_tokens[guessed.numpy()]
        kind = kind_of(stored)
        _judge(found.every.setdefault(kind, Drafted()), ids, tokens, stored.answer)
        for step in steps:
            _compare(found, number, kind, step, ids[:, step.place].tolist(), tokens)
    return found


def _judge(
    found: Drafted, ids: Int[np.ndarray, "steps places"], tokens: Sequence[int], answer: int
) -> None:
    """Count the drafts of every place of an answer that has as many further tokens as steps."""
    for place in range(max(answer - 1, 0), len(tokens) - 1 - len(ids)):
        true = tokens[place + 2 : place + 2 + len(ids)]
        found.add_each((ids[:, place] == true).tolist())


def _watch(found: Replay, number: int, text: HeldText, tokens: Sequence[int]) -> None:
    """Remember where decoding writes another text than the target did, where it was greedy."""
    stored = text.stored.tokens.tolist()
    pairs = zip(stored, tokens, strict=False)
    other = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    if other is not None and text.stored.is_greedy and found.wandered is None:
        found.wandered = (number, other)


def _compare(
    found: Replay,
    number: int,
    kind: str,
    step: ReplayedStep,
    guessed: list[int],
    tokens: Sequence[int],
) -> None:
    found.decoding.setdefault(kind, Drafted()).add(step.accepted, len(step.tokens))
    true = tokens[step.place + 2 :]
    right = 0
    while right < min(len(step.tokens), len(true)) and guessed[right] == true[right]:
        right += 1
    found.training.setdefault(kind, Drafted()).add(right, len(step.tokens))
    for depth, token in enumerate(step.tokens[: step.accepted + 1]):
        found.compared += 1
        found.same += token == guessed[depth]
        if token != guessed[depth] and found.first is None:
            found.first = (number, step.place, depth + 1)


def drafts(found: Replay) -> Difference | None:
    """Find a head whose drafts in decoding are not those of training."""
    if not found.compared or found.same >= AGREES * found.compared:
        return None
    assert found.first is not None
    text, place, depth = found.first
    says = (
        f"from equal states decoding drafts the token of training in"
        f" {found.same / found.compared:.2f}, first another at depth {depth}; rounded weights"
        " explain less: train with smaller weights, or decode with --dtype float32"
    )
    return Difference("precision", says, text, place)
