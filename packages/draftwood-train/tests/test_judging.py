"""The block efficiency that is told from held-out text."""

from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

from draftwood_torch.heads.eagle import EagleHead
from draftwood_train.by_kind import HeadJudge, KindFigures
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.judging import RANKS, block_efficiency, judged_steps, ranks_of
from draftwood_train.recipes.eagle import EagleRecipe
from training_cases import STORED, VOCAB, packing, target, texts, trained


def by_force(ranks: list[tuple[int, ...]], nodes: int) -> float:
    """The best tree of all trees: its nodes on the true path, at each place, counted."""
    levels = len(ranks[0])
    places = [path for level in range(1, levels + 1) for path in product(range(2), repeat=level)]
    best = 0
    for tree in combinations(places, nodes):
        if all(len(path) == 1 or path[:-1] in tree for path in tree):
            best = max(best, sum(row[: len(path)] == path for row in ranks for path in tree))
    return 1 + best / len(ranks)


@pytest.mark.parametrize("nodes", [1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_that_of_the_best_of_all_trees(nodes: int, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    ranks = torch.multinomial(torch.tensor([0.5, 0.2, 0, 0, 0.3]), 90, True, generator=drawn)
    ranks = ranks.reshape(30, 3)
    rows = [tuple(row) for row in ranks.tolist()]
    assert block_efficiency(ranks, nodes) == pytest.approx(by_force(rows, nodes), abs=1e-9)


def test_no_guess_gives_one_token_and_sure_guesses_all() -> None:
    assert block_efficiency(torch.full((5, 3), RANKS), 8) == 1
    assert block_efficiency(torch.zeros(5, 3, dtype=torch.long), 8) == 4
    assert block_efficiency(torch.zeros(5, 3, dtype=torch.long), 2) == 3


def test_deep_trees_take_no_more_memory() -> None:
    assert block_efficiency(torch.full((5, 64), RANKS - 1), 100) == 65
    ranks = torch.full((4, 40), RANKS - 1)
    ranks[2:, 0] = 0
    assert block_efficiency(ranks, 2) == 2
    assert block_efficiency(ranks, 80) == 41


def test_ranks_are_places_among_the_guesses() -> None:
    weights = target()
    torch.manual_seed(0)
    states, tokens = torch.randn(50, weights.head.shape[1]), torch.arange(50) % 40
    found = ranks_of(states, tokens, weights).tolist()
    order = (states @ weights.head.T).argsort(-1, descending=True)
    for row, token, rank in zip(order.tolist(), tokens.tolist(), found, strict=True):
        place = int(weights.draft_index[token])
        true = min(row.index(place), RANKS) if place >= 0 else RANKS
        assert rank == true
    assert set(found) == {0, 1, 2, 3, RANKS}


def test_a_drafter_that_knows_the_next_states_is_right_but_for_its_vocabulary() -> None:
    weights = target(40)
    rows = next(packing(texts(9, seed=5)).batches())
    states = [torch.roll(rows.final, -ahead, 1) for ahead in range(1, 5)]
    judged = judged_steps(states, rows, weights)
    assert judged.places > 20
    assert judged.figures["guess_1"] > 0.95 * judged.places
    assert judged.figures["overlap"] == pytest.approx(judged.places, rel=1e-3)
    assert judged.figures["kl"] == pytest.approx(0, abs=1e-3)
    wrong = judged_steps([-state for state in states], rows, weights)
    assert wrong.figures["block_efficiency"] < 0.5 * judged.figures["block_efficiency"]


def test_a_head_is_judged_by_its_own_output_rows() -> None:
    weights, recipe = target(), EagleRecipe(start_from="random")
    rows = next(packing(texts(9, seed=5)).batches())
    torch.manual_seed(0)
    plain = recipe.build(weights)
    own = EagleHead(replace(plain.config, own_head=len(weights.head))).eval()
    same = {**plain.state_dict(), "lm_head.weight": weights.head}
    own.load_state_dict(same)
    judged = recipe.judge(plain.eval(), rows, weights).figures
    assert recipe.judge(own, rows, weights).figures == pytest.approx(judged)
    own.load_state_dict({**same, "lm_head.weight": -weights.head})
    other = recipe.judge(own, rows, weights).figures
    assert other["block_efficiency"] != judged["block_efficiency"]
    assert other["overlap"] != pytest.approx(judged["overlap"])


def test_what_a_kind_tells_depends_on_no_rows_that_texts_share() -> None:
    """Only greedy answers tell which tokens are right, though rows may hold none."""
    recipe, weights = EagleRecipe(start_from="random"), target()
    head = trained(recipe, next(packing(texts(9, seed=5)).batches()), 60)
    judge = HeadJudge(SimpleNamespace(config=head.config, network=head), weights)  # type: ignore[arg-type]
    every = TextsInMemory(texts(24, seed=6), STORED)

    def figures(texts: list[StoredText], row: int) -> KindFigures:
        found = judge.kind("a", TextsInMemory(texts, STORED), row)
        assert found is not None
        return found

    others = [
        text if text.is_greedy else replace(text, tokens=3 * text.tokens % VOCAB) for text in every
    ]
    small, large = (figures(others, row) for row in (32, 400))
    alone = figures([text for text in every if text.is_greedy], 400)
    wanted = (alone.places, alone.depth_1, alone.depth_2)
    for found in (small, large):
        assert (found.places, found.depth_1, found.depth_2) == wanted
    assert large.texts == 24
    drawn = figures([replace(text, is_greedy=False) for text in others], 400)
    assert drawn.places > large.places
    assert (drawn.depth_1 or 0.0) < (large.depth_1 or 0.0) - 0.1  # negative control
    assert drawn.overlap == pytest.approx(large.overlap, abs=0.02)  # that of all


def test_an_untrained_head_is_judged() -> None:
    recipe, rows = EagleRecipe(start_from="random"), next(packing(texts(9, seed=5)).batches())
    judged = recipe.judge(recipe.build(target()).eval(), rows, target())
    assert judged.places <= judged.figures["block_efficiency"] < 2 * judged.places
