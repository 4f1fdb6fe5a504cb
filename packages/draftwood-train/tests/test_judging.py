"""The block efficiency that is told from held-out text."""

from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

from draftwood_torch.heads.eagle import EagleHead
from draftwood_train.by_kind import HeadJudge, KindFigures
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.judging import (
    NODES,
    RANKS,
    all_counted,
    best_tree,
    block_efficiency,
    judged_steps,
    means,
    path_counts,
    ranks_of,
    summed,
)
from draftwood_train.recipe import Judged, PackedRows
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


def efficiency(ranks: torch.Tensor, nodes: int) -> float:
    """Tokens of a step with the best tree for these places."""
    counts = path_counts(ranks)
    return block_efficiency(counts, best_tree(counts, nodes), len(ranks))


@pytest.mark.parametrize("nodes", [1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_that_of_the_best_of_all_trees(nodes: int, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    ranks = torch.multinomial(torch.tensor([0.5, 0.2, 0, 0, 0.3]), 90, True, generator=drawn)
    ranks = ranks.reshape(30, 3)
    rows = [tuple(row) for row in ranks.tolist()]
    assert efficiency(ranks, nodes) == pytest.approx(by_force(rows, nodes), abs=1e-9)
    tree = best_tree(path_counts(ranks), nodes)
    assert all(len(node) == 1 or node[:-1] in tree for node in tree)


def test_no_guess_gives_one_token_and_sure_guesses_all() -> None:
    assert efficiency(torch.full((5, 3), RANKS), 8) == 1
    assert efficiency(torch.zeros(5, 3, dtype=torch.long), 8) == 4
    assert efficiency(torch.zeros(5, 3, dtype=torch.long), 2) == 3


def test_deep_trees_take_no_more_memory() -> None:
    assert efficiency(torch.full((5, 64), RANKS - 1), 100) == 65
    ranks = torch.full((4, 40), RANKS - 1)
    ranks[2:, 0] = 0
    assert efficiency(ranks, 2) == 2
    assert efficiency(ranks, 80) == 41


def knowing_nothing(places: int) -> torch.Tensor:
    """Ranks that say nothing of each other, over four levels."""
    drawn = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.6])
    return torch.multinomial(chances, 4 * places, True, generator=drawn).reshape(-1, 4)


def test_one_tree_is_chosen_for_all_batches_together() -> None:
    """Trees chosen batch by batch would make a head look better that knows nothing."""
    ranks = knowing_nothing(4000)
    pieces = [
        Judged(len(each), {"guess_1": 1.0}, {"block_efficiency": path_counts(each)})
        for each in ranks.split(20)
    ]
    found = means(summed(pieces))
    assert found["block_efficiency"] == pytest.approx(efficiency(ranks, NODES), abs=1e-9)
    assert found["guess_1"] == 1 / 20
    apart = sum(means(each)["block_efficiency"] for each in pieces) / len(pieces)
    assert apart > found["block_efficiency"] + 0.1  # negative control


def test_kinds_are_counted_under_the_tree_of_all() -> None:
    recipe, weights = EagleRecipe(start_from="random"), target()
    head = trained(recipe, next(packing(texts(9, seed=5)).batches()), 20)
    judge = HeadJudge(SimpleNamespace(config=head.config, network=head), weights)  # type: ignore[arg-type]
    parts = {kind: TextsInMemory(texts(5, seed), STORED) for kind, seed in (("a", 6), ("b", 7))}
    together, counted = judge.kinds(parts), {kind: judge._sums(parts[kind], 64) for kind in parts}
    tree = best_tree(summed(counted.values()).paths["block_efficiency"])
    for found in together:
        own = counted[found.kind]
        paths = own.paths["block_efficiency"]
        assert found.block_efficiency == block_efficiency(paths, tree, own.places)
        (alone,) = judge.kinds({found.kind: parts[found.kind]})
        assert alone.block_efficiency >= found.block_efficiency
        assert replace(alone, block_efficiency=found.block_efficiency) == found
    pooled = judge.kinds({"every": TextsInMemory([*parts["a"], *parts["b"]], STORED)})[0]
    mean = sum(each.places * each.block_efficiency for each in together) / pooled.places
    assert pooled.block_efficiency == pytest.approx(mean)


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
    assert means(judged)["overlap"] == pytest.approx(1, rel=1e-3)
    assert judged.figures["kl"] == pytest.approx(0, abs=1e-3)
    wrong = judged_steps([-state for state in states], rows, weights)
    assert means(wrong)["block_efficiency"] < 0.5 * means(judged)["block_efficiency"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_a_head_that_tells_no_token_apart_ranks_none(value: float) -> None:
    weights = target()
    states = torch.full((VOCAB, weights.head.shape[1]), value)
    assert ranks_of(states, torch.arange(VOCAB), weights).tolist() == VOCAB * [RANKS]


def test_figures_depend_on_no_rows_that_are_judged_together() -> None:
    """Texts drawn, greedy and too short for a place, whose overlaps differ."""
    weights, rows = target(), next(packing(texts(9, seed=5), rows=9).batches())
    rows.is_greedy[0] = False
    rows.segments[1, 6:] = -1
    states = [torch.roll(rows.final, -ahead, 1) for ahead in range(1, 5)]
    states[0] = states[0] * torch.linspace(-1, 1, len(rows.tokens))[:, None, None]
    parts = [
        judged_steps(
            [state[each] for state in states],
            PackedRows(**{name: value[each] for name, value in vars(rows).items()}),
            weights,
        )
        for each in torch.arange(len(rows.tokens)).split(1)
    ]
    together, apart = judged_steps(states, rows, weights), summed(parts)
    assert means(apart) == pytest.approx(means(together))
    assert (apart.places, apart.paths) == (together.places, together.paths)
    assert [each.places for each in parts[:2]] == [0, 0]
    assert min(each.counts["overlap"] for each in parts) > 0
    shares = [means(each)["overlap"] for each in parts]
    assert max(shares) - min(shares) > 0.5  # so that each counts by its own places


def test_all_answers_count_where_that_is_asked() -> None:
    weights, rows = target(), next(packing(texts(9, seed=5)).batches())
    drawn = replace(rows, is_greedy=torch.zeros_like(rows.is_greedy))
    states = 4 * [rows.final]
    assert judged_steps(states, drawn, weights).places == 0
    every, some = (judged_steps(states, each, weights) for each in (all_counted(drawn), rows))
    assert every.places > some.places > 0
    assert means(every)["overlap"] == means(some)["overlap"]


def test_a_head_is_judged_by_its_own_output_rows() -> None:
    weights, recipe = target(), EagleRecipe(start_from="random")
    rows = next(packing(texts(9, seed=5)).batches())
    torch.manual_seed(0)
    plain = recipe.build(weights)
    own = EagleHead(replace(plain.config, own_head=len(weights.head))).eval()
    same = {**plain.state_dict(), "lm_head.weight": weights.head}
    own.load_state_dict(same)
    judged = means(recipe.judge(plain.eval(), rows, weights))
    assert means(recipe.judge(own, rows, weights)) == pytest.approx(judged)
    own.load_state_dict({**same, "lm_head.weight": -weights.head})
    other = means(recipe.judge(own, rows, weights))
    assert other["block_efficiency"] != judged["block_efficiency"]
    assert other["overlap"] != pytest.approx(judged["overlap"])


def test_what_a_kind_tells_depends_on_no_rows_that_texts_share() -> None:
    """Only greedy answers tell which tokens are right, though rows may hold none."""
    recipe, weights = EagleRecipe(start_from="random"), target()
    head = trained(recipe, next(packing(texts(9, seed=5)).batches()), 60)
    judge = HeadJudge(SimpleNamespace(config=head.config, network=head), weights)  # type: ignore[arg-type]
    every = TextsInMemory(texts(24, seed=6), STORED)

    def figures(texts: list[StoredText], row: int) -> KindFigures:
        (found,) = judge.kinds({"a": TextsInMemory(texts, STORED)}, row)
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
    assert 1 <= means(judged)["block_efficiency"] < 2
