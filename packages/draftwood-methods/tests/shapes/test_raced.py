"""Chains of the tokens that the target will draw, and what such a coupling keeps."""

import numpy as np
import pytest

from draftwood.drafters import DraftModel, PromptLookup
from draftwood.engine import Options, generate
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.shapes import Shape, Widths
from draftwood.stats import Stats
from draftwood.testing import TableModel, check_shape
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.cascade import LenientCascade
from draftwood_methods.drafters.merged import MergedDrafters
from draftwood_methods.shapes import RacedChain, Until

VOCAB = 40


@pytest.fixture(scope="module")
def models() -> tuple[TableModel, TableModel]:
    """A target and a draft model near it; many tokens are likely."""
    random = np.random.default_rng(1)
    logits = random.normal(size=(VOCAB, VOCAB))
    near = logits + 0.5 * random.normal(size=logits.shape)
    return TableModel(logits.astype(np.float32)), TableModel(near.astype(np.float32))


def law(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def first_kept(models: tuple[TableModel, TableModel], shape: Shape) -> float:
    """Share of steps whose first draft token matching keeps, at temperature 1."""
    target, near = models
    options = Options(Sampling(1.0), 4000, seed=3)
    found = Stats.of(generate(target, DraftModel(near, shape), Match(), [0, 3], options))
    return found.accepted_by_depth[0] / found.target_runs


def test_it_is_a_sound_shape() -> None:
    check_shape(RacedChain(3))


@pytest.mark.parametrize("noise", [True, False])
def test_it_foresees_what_the_same_rows_will_draw(noise: bool) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(VOCAB), VOCAB).astype(np.float32)
    for seed in range(20):
        rng = Rng(seed, noise=noise)
        tree = RacedChain(4).grow(5, lambda tree, first: rows[tree.tokens[first:]], rng)
        after, drawn = 5, []
        for _ in range(4):
            after = rng.draw(rows[after]) if noise else int(rows[after].argmax())
            drawn.append(after)
        assert tree.token_list[1:] == drawn
        assert (tree.draw, tree.probs) == ("coupled", None)


def test_a_coupled_token_is_kept_as_often_as_daliri_et_al_promise(
    models: tuple[TableModel, TableModel],
) -> None:
    pairs = [
        (law(ours), law(theirs))
        for ours, theirs in zip(models[0].logits, models[1].logits, strict=True)
    ]
    apart = [np.abs(ours - theirs).sum() / 2 for ours, theirs in pairs]
    promised = float(np.mean([(1 - d) / (1 + d) for d in apart]))
    by_chance = float(np.mean([(ours * theirs).sum() for ours, theirs in pairs]))
    assert first_kept(models, RacedChain(1)) > promised - 0.03
    control = first_kept(models, Widths((1,)))  # drawn with numbers of its own
    assert control == pytest.approx(by_chance, abs=0.03)
    assert control < promised / 2


def test_what_is_matched_is_drawn_with_the_targets_numbers(
    models: tuple[TableModel, TableModel],
) -> None:
    target, near = models

    def tokens_per_pass(drafter, rule, temperature: float) -> float:
        options = Options(Sampling(temperature), 2000, seed=4)
        return Stats.of(generate(target, drafter, rule, [0, 3], options)).block_efficiency

    chain = Widths((1,) * 4)
    drawn = tokens_per_pass(DraftModel(near, chain), Rejection(), 1.0)
    merged = MergedDrafters((DraftModel(near, RacedChain()), PromptLookup()))
    for drafter in (merged, LenientCascade(near)):
        assert tokens_per_pass(drafter, Match(), 1.0) > 0.75 * drawn
    apart = MergedDrafters((DraftModel(near, chain), PromptLookup()))
    assert tokens_per_pass(apart, Match(), 1.0) < 0.7 * drawn  # control
    assert tokens_per_pass(merged, Match(), 0.0) >= tokens_per_pass(apart, Match(), 0.0)


def test_a_length_below_one_is_refused() -> None:
    assert RacedChain().with_length(2) == RacedChain(2) != Until(2)
    with pytest.raises(ValueError, match="length"):
        RacedChain(0)
