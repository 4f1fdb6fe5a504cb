"""Speculative Jacobi Decoding keeps the model's law under every random choice, and wrong ways to
store or keep guesses do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from draftwood.costs.budget import Budget
from draftwood.drafters import (
    Drafter,
    DraftRequest,
    JacobiSampled,
    Nothing,
    RacedJacobi,
    StartFromLeft,
    StartUniform,
)
from draftwood.drafters.drafter import DraftSession
from draftwood.drafters.jacobi_sampled import LONGEST, STEADY, PayingWindow
from draftwood.drafters.window_starts import Row, StartRow
from draftwood.engine import Options, generate
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.testing import TableModel
from draftwood.testing.windows import WRONG_WINDOWS, WindowCase
from draftwood.tree import Draw
from draftwood.verifiers import Match, Rejection, Verifier

PROMPT, VOCAB, TOKENS = [2, 0, 1], 3, 3
LOGITS = 1.6 * np.random.default_rng(5).normal(size=(VOCAB,) * 3).astype(np.float32)
MODEL = TableModel(LOGITS)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class EarlierRow:
    """A start of another package: from the row that an earlier token came from."""

    reach: int

    def row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        known = len(rows) >= self.reach
        return rows[-self.reach] if known else StartUniform().row(before, rows, vocab)


STARTS: list[StartRow] = [StartUniform(), StartFromLeft(), EarlierRow(2)]


def off(drafter: Drafter, sampling: Sampling) -> float:
    """Distance of the law of three tokens from the model's, by all random choices."""
    return WindowCase(MODEL, PROMPT, sampling, TOKENS).off(drafter)


SAMPLINGS = [
    Sampling(1.0),
    Sampling(0.9, top_k=2, repetition_penalty=1.3, presence_penalty=0.3),
]


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["temperature", "cuts and penalties"])
def test_law_of_three_tokens(start: StartRow, window: int, sampling: Sampling) -> None:
    assert off(JacobiSampled(window, start), sampling) < TOLERANCE


@pytest.mark.parametrize("wrong", WRONG_WINDOWS)
@pytest.mark.parametrize("start", STARTS, ids=str)
def test_planted_rules_are_caught(wrong: str, start: StartRow) -> None:
    sampling = Sampling(1.0, top_k=2) if "top-k" in wrong else Sampling(1.0)
    assert off(WRONG_WINDOWS[wrong](2, start), sampling) > 0.004


@dataclass(frozen=True)
class Spending(RacedJacobi):
    """Wrong: its guesses use up the numbers that the target's own draws need."""

    name: ClassVar[str] = "spending"

    def start(self, request: DraftRequest) -> DraftSession:
        session = super().start(request)
        session._picker = lambda: request.rng.draw  # type: ignore[attr-defined]
        return session


def written(drafter: Drafter, temperature: float, seed: int) -> tuple[list[int], int]:
    """A text, and the passes that it took."""
    asked = Options(Sampling(temperature, top_p=0.9), 60, seed=seed)
    steps = list(generate(MODEL, drafter, Match(), PROMPT, asked))
    return [token for step in steps for token in step.tokens], len(steps)


@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_seed_writes_one_text_whatever_was_drafted(start: StartRow, temperature: float) -> None:
    passes = 0
    for seed in range(8):
        plain, alone = written(Nothing(), temperature, seed)
        for window in (1, 3, LONGEST):
            found, steps = written(RacedJacobi(window, start), temperature, seed)
            assert found == plain
            passes += steps / 3 / alone
    assert passes < 0.9 * 8 or temperature == 0.0


def test_guesses_that_use_up_numbers_are_caught() -> None:
    assert written(Spending(2), 1.0, 0)[0] != written(Nothing(), 1.0, 0)[0]


def test_races_keep_more_guesses_than_draws() -> None:
    def passes(drafter: Drafter, rule: Verifier) -> int:
        asked = Options(Sampling(1.0), 2000, seed=1)
        return len(list(generate(MODEL, drafter, rule, PROMPT, asked)))

    assert passes(RacedJacobi(8), Match()) < 0.95 * passes(JacobiSampled(8), Rejection())


@dataclass(frozen=True)
class Listening(EarlierRow):
    """Remembers what it was told."""

    told: list[tuple[list[int], list[Row]]] = field(default_factory=list)

    def row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        self.told.append((list(before), list(rows)))
        return super().row(before, rows, vocab)


@pytest.mark.parametrize(("kind", "rule"), [(JacobiSampled, Rejection()), (RacedJacobi, Match())])
def test_starts_are_told_the_rows_of_the_text(kind: type[JacobiSampled], rule: Verifier) -> None:
    start, cut = Listening(3), Sampling(0.9, top_k=2)
    list(generate(MODEL, kind(1, start), rule, PROMPT, Options(cut, 60, seed=3)))
    assert not start.told[0][1]  # nothing is known of the prompt
    assert {len(rows) for _, rows in start.told[3:]} == {3}
    for before, rows in start.told:  # one draft token: all before it is text
        for back, row in enumerate(reversed(rows), 1):
            context = LOGITS[tuple(before[-back - 2 : -back])]
            np.testing.assert_allclose(row, cut.probs(context[None])[0], atol=1e-6)


LINEAR = Budget(lambda nodes: 1.0 + 0.1 * nodes, per_draft_token=0.0)
FREE = Budget(lambda nodes: 1.0 + 1e-4 * nodes, per_draft_token=0.0)


def test_the_window_is_as_long_as_pays() -> None:
    kept, lost = PayingWindow(LONGEST, LINEAR), PayingWindow(LONGEST, LINEAR)
    sizes = []
    for _ in range(200):
        kept.learn(kept.size(), kept.size())
        sizes.append(lost.size())
        lost.learn(lost.size(), 0)
    assert kept.size() == LONGEST
    assert 0 < sizes[0] < LONGEST
    assert sum(size == 0 for size in sizes) > 140  # the others are trials
    assert any(sizes[100:])  # it tries again
    assert PayingWindow(5, None).size() == 5


def test_the_window_keeps_its_size_for_some_steps_however_many_are_made_in_a_row() -> None:
    window, sizes = PayingWindow(LONGEST, LINEAR), list[int]()
    for step in range(5 * STEADY):
        assert window.steady_steps == STEADY - step % STEADY
        sizes.append(window.size())
        window.learn(sizes[-1], min(sizes[-1], 2 + step // 9))
    runs = [sizes[place : place + STEADY] for place in range(0, len(sizes), STEADY)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len(set(sizes)) > 1


def test_the_window_shrinks_with_the_cost_of_a_guess() -> None:
    def size(budget: Budget) -> int:
        window = PayingWindow(LONGEST, budget)
        for _ in range(40):
            window.learn(window.size(), min(2, window.size()))
        return window.size()

    assert 2 <= size(LINEAR) <= size(FREE)


@pytest.mark.parametrize("window", [0, LONGEST + 1])
def test_windows_out_of_range_are_refused(window: int) -> None:
    with pytest.raises(ValueError, match="window must be"):
        JacobiSampled(window)


@pytest.mark.parametrize(
    ("kind", "draw"), [(JacobiSampled, "independent"), (RacedJacobi, "coupled")]
)
def test_drafters_name_their_draws(kind: type[JacobiSampled], draw: Draw) -> None:
    assert kind.labels(None) == {draw}
    request = DraftRequest(Sampling(1.0), Rng(0), MODEL.start())
    assert kind(3).start(request).propose(1, Context([2, 0], 2)).draw == draw
