import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from draftwood.models.model import ForwardInput, Layers
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes.widths import Widths
from draftwood.testing import (
    TableModel,
    chi_square,
    distance,
    drafting,
    emitted_law,
    mean_accepted,
    outcomes,
    plain_tree,
    ranked_chi_square,
    sampled_law,
    target_law,
    tiny_llama,
    walks,
)
from draftwood.testing.acceptance import likeliest_p_value
from draftwood.tree import DraftTree
from draftwood.verifiers import GreedyPlusOne, Rejection


def tables(seed: int, *shape: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).softmax(-1).numpy()


class TestOutcomes:
    def test_every_outcome_with_its_probability(self) -> None:
        def act(rng: Rng) -> tuple[int, bool]:
            token = rng.draw(np.array([1.0, 0.0, 3.0]))
            return token, rng.accept(0.25) if token == 2 else False

        assert sorted(outcomes(act)) == [
            (0.1875, (2, True)),
            (0.25, (0, False)),
            (0.5625, (2, False)),
        ]

    def test_certain_choices_do_not_fork(self) -> None:
        def act(rng: Rng) -> tuple[bool, bool, int]:
            return rng.accept(1.7), rng.accept(0.0), rng.draw(np.array([0.0, 2.0]))

        assert outcomes(act) == [(1.0, (True, False, 1))]

    def test_an_act_without_chance_has_one_outcome(self) -> None:
        assert outcomes(lambda rng: "always") == [(1.0, "always")]

    def test_rows_are_drawn_one_after_the_other(self) -> None:
        rows = tables(1, 2, 3)
        found = outcomes(lambda rng: rng.draw_independent(rows, 2).tolist())
        assert len(found) == 3**4
        assert sum(probability for probability, _ in found) == pytest.approx(1.0, abs=1e-12)
        for probability, tokens in found:
            expected = 1.0
            for row, drawn in zip(rows, tokens, strict=True):
                expected *= float(row[drawn].prod())
            assert probability == pytest.approx(expected, abs=1e-12)

    def test_spent_rows_are_filled_up_as_chance_does(self) -> None:
        rows = np.array([[0.0, 1.0, 0.0]])
        assert outcomes(lambda rng: rng.draw_distinct(rows, 3).tolist()) == [
            (1.0, Rng(0).draw_distinct(rows, 3).tolist())
        ]

    @pytest.mark.parametrize("weights", [[0.0, 0.0], [float("nan"), 1.0], [-0.5, 1.5]])
    def test_refuses_weights_that_are_no_law(self, weights: list[float]) -> None:
        with pytest.raises(ValueError, match="draw a token with the weights"):
            outcomes(lambda rng: rng.draw(np.array(weights)))

    def test_refuses_what_cannot_be_enumerated(self) -> None:
        with pytest.raises(ValueError, match="not a number"):
            outcomes(lambda rng: rng.accept(float("nan")))
        with pytest.raises(NotImplementedError, match="use accept or draw"):
            outcomes(lambda rng: rng.uniform())
        with pytest.raises(NotImplementedError, match="by sampling"):
            outcomes(lambda rng: rng.exponential(1, 1))
        with pytest.raises(NotImplementedError, match="by sampling"):
            outcomes(lambda rng: rng.exponential_noise([1]))
        with pytest.raises(NotImplementedError, match="by sampling"):
            outcomes(lambda rng: rng.next_draw)


class TestLaws:
    def test_law_of_the_target_is_the_product_along_the_chain(self) -> None:
        table = tables(2, 3, 3)
        law = target_law(table, 2)
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
        assert law[1, 2] == pytest.approx(float(table[0, 1] * table[1, 2]), abs=1e-15)

    def test_targets_may_depend_on_the_last_two_tokens(self) -> None:
        target, draft = tables(3, 2, 3, 3, 3)
        grow = plain_tree((2, 1), "distinct", draft)
        for length in (1, 2, 3, 4):
            law = emitted_law(Rejection(), grow, target, length)
            assert distance(law, target_law(target, length)) < 1e-12

    def test_a_draft_for_the_wrong_context_is_noticed(self) -> None:
        target, draft = tables(4, 2, 3, 3)

        def stale(rng: Rng) -> DraftTree:  # the second level is drawn from the row of the root
            tokens = [0, rng.draw(draft[0])]
            tokens.append(rng.draw(draft[0]))
            bare = DraftTree.chain(tokens)
            return DraftTree(bare.tokens, bare.parents, draft[bare.tokens[:2]], "distinct")

        assert distance(emitted_law(Rejection(), stale, target, 3), target_law(target, 3)) > 1e-3

    @pytest.mark.parametrize("draw", ["distinct", "independent", "greedy-plus-one"])
    def test_widths_grow_the_plain_tree(self, draw: str) -> None:
        draft = tables(5, 3, 3)

        def law(grow) -> dict[tuple[int, ...], float]:
            found: dict[tuple[int, ...], float] = {}
            for probability, tree in outcomes(grow):
                key = (*tree.token_list, *tree.parents.tolist())
                found[key] = found.get(key, 0.0) + probability
                assert np.allclose(tree.probs, draft[tree.tokens[: len(tree.probs)]])
            return found

        shape = Widths((2, 1), draw)
        assert distance(law(drafting(shape, draft)), law(plain_tree((2, 1), draw, draft))) < 1e-12

    def test_mean_accepted_counts_kept_tokens(self) -> None:
        target, draft = tables(6, 2, 3, 3)
        grow = plain_tree((1,), "greedy-plus-one", draft)
        overlap = float(np.minimum(target[0], draft[0]).sum())
        assert mean_accepted(GreedyPlusOne(), grow, target) == pytest.approx(overlap, abs=1e-12)
        assert all(
            len(walk.tokens) == len(walk.verdict.path) + 1
            for walk in walks(Rejection(), grow, target)
        )

    def test_distance_is_total_variation(self) -> None:
        assert distance({(0,): 0.5, (1,): 0.5}, {(1,): 0.25, (2,): 0.75}) == pytest.approx(0.75)


class TestChiSquare:
    def test_equals_scipy(self) -> None:
        counts, law = {"a": 30, "b": 45, "c": 25}, {"a": 0.3, "b": 0.5, "c": 0.2}
        expected = stats.chisquare([30, 45, 25], [30, 50, 20]).pvalue
        assert chi_square(counts, law) == pytest.approx(expected, abs=1e-12)

        as_tensors = torch.tensor([30, 45, 25]), torch.tensor([0.3, 0.5, 0.2], dtype=torch.float64)
        assert chi_square(*as_tensors) == pytest.approx(expected, abs=1e-12)

    def test_merges_rare_cells(self) -> None:
        counts, law = (
            {"a": 60, "b": 36, "c": 3, "d": 1},
            {"a": 0.6, "b": 0.34, "c": 0.04, "d": 0.02},
        )
        expected = stats.chisquare([60, 36, 4], [60, 34, 6]).pvalue
        assert chi_square(counts, law) == pytest.approx(expected, abs=1e-12)

    def test_is_uniform_for_a_correct_sampler_and_tiny_for_a_wrong_one(self) -> None:
        law = {token: float(chance) for token, chance in enumerate(tables(7, 6))}
        values = []
        for seed in range(60):
            rng = Rng(seed)
            values.append(
                chi_square(Counter(rng.draw(np.array(list(law.values()))) for _ in range(100)), law)
            )
        assert 0.4 < sum(values) / len(values) < 0.6
        assert 0.02 <= sum(value < 0.1 for value in values) / len(values) <= 0.25
        assert chi_square(Counter(Rng(seed).draw(np.ones(6)) for seed in range(2000)), law) < 1e-6

    def test_something_impossible_gives_0_and_one_cell_gives_1(self) -> None:
        assert chi_square({"a": 99, "b": 1}, {"a": 1.0}) == 0.0
        assert chi_square({"a": 100}, {"a": 1.0}) == 1.0
        with pytest.raises(ValueError, match="at least one observation"):
            chi_square({}, {"a": 1.0})


class TestRankedChiSquare:
    # every token has a law of its own
    laws = torch.from_numpy(np.stack([tables(seed, 5) for seed in range(2000)]))

    def p_value(self, seed: int, laws: torch.Tensor) -> float:
        rng = torch.Generator().manual_seed(seed)
        return ranked_chi_square(laws.multinomial(1, generator=rng)[:, 0], self.laws)

    def test_is_uniform_for_tokens_that_follow_their_laws(self) -> None:
        values = [self.p_value(seed, self.laws) for seed in range(100)]
        assert 0.4 < sum(values) / len(values) < 0.6
        assert 0.02 <= sum(value < 0.1 for value in values) / len(values) <= 0.2

    def test_is_tiny_where_what_is_likely_comes_too_often(self) -> None:
        assert self.p_value(0, self.laws**1.3 / (self.laws**1.3).sum(-1, keepdim=True)) < 1e-4

    def test_equals_the_plain_test_where_all_laws_are_one(self) -> None:
        law, tokens = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0] * 55 + [1] * 20 + [2] * 25)
        assert ranked_chi_square(tokens, law.expand(100, -1)) == pytest.approx(
            stats.chisquare([55, 20, 25], [50, 30, 20]).pvalue, abs=1e-6
        )

    def test_something_impossible_gives_0_and_certain_tokens_give_1(self) -> None:
        law = torch.tensor([[1.0, 0.0]]).expand(20, -1)
        assert ranked_chi_square(torch.zeros(20, dtype=torch.long), law) == 1.0
        assert ranked_chi_square(torch.tensor([0] * 19 + [1]), law) == 0.0
        with pytest.raises(ValueError, match="at least one token"):
            ranked_chi_square(torch.zeros(0, dtype=torch.long), law[:0])


class TestTableModel:
    def test_may_look_at_several_tokens_in_texts_and_in_trees(self) -> None:
        logits = torch.arange(27.0).reshape(3, 3, 3)
        session = TableModel(logits).start()
        assert torch.equal(
            session.extend([1, 2, 0]).logits,
            torch.stack([logits[1, 1], logits[1, 2], logits[2, 0]]),
        )
        tree = DraftTree.of([1, 2, 0, 1], [-1, 0, 0, 2])
        rows = session.forward(tree).logits
        assert torch.equal(
            rows, torch.stack([logits[0, 1], logits[1, 2], logits[1, 0], logits[0, 1]])
        )
        assert torch.equal(TableModel(logits).start().forward(tree, 0).logits[0], logits[1, 1])

    def test_its_law_under_sampling_options_counts_the_text_written(self) -> None:
        model, prompt = TableModel(torch.zeros(2, 2)), Context([0], 1)
        law = sampled_law(model, Sampling(1.0, presence_penalty=math.log(3)), prompt, 2)
        assert law == pytest.approx({(0, 0): 1 / 8, (0, 1): 3 / 8, (1, 0): 3 / 8, (1, 1): 1 / 8})

    def test_logits_follow_the_last_token(self) -> None:
        model = TableModel(torch.arange(9.0).reshape(3, 3))
        session = model.start()
        assert session.extend([2, 0]).logits.tolist() == [[6, 7, 8], [0, 1, 2]]
        assert session.extend([1, 2], keep="last").logits.tolist() == [[6, 7, 8]]
        assert (session.tokens, session.length, model.vocab_size) == ([2, 0, 1, 2], 4, 3)
        assert model.context_length is None

    def test_trees_grow_and_one_path_is_kept(self) -> None:
        model = TableModel(torch.eye(4))
        first, second = model.start(), model.start()
        first.extend([0])
        bare = DraftTree.of([1, 2], [-1, 0])
        first.forward(bare)
        grown = DraftTree.of([1, 2, 3, 0], [-1, 0, 0, 2])
        outputs = model.forward(
            [ForwardInput(first, grown, 2), ForwardInput(second, DraftTree.chain([3]))]
        )
        assert [output.logits.argmax(-1).tolist() for output in outputs] == [[3, 0], [3]]
        first.commit([0, 2, 3])
        assert (first.tokens, second.tokens) == ([0, 1, 3, 0], [])

    def test_rewound_tokens_count_as_run(self) -> None:
        session = TableModel(torch.eye(4)).start()
        session.extend([0, 1, 2])
        session.rewind(2)
        assert session.tokens == [0]
        assert session.forward(DraftTree.of([1, 2, 3], [-1, 0, 0]), first=2).logits.argmax(
            -1
        ).tolist() == [3]
        session.commit([0, 1])
        assert session.tokens == [0, 1, 2]

    def test_a_fork_has_the_committed_tokens_alone(self) -> None:
        session = TableModel(torch.eye(4)).start()
        session.extend([0, 1])
        session.forward(DraftTree.chain([2, 3]))
        fork = session.fork()
        with pytest.raises(ValueError, match="must have been run"):
            fork.forward(DraftTree.chain([2, 3]), first=1)
        session.commit([0])
        fork.extend([3])
        assert (session.tokens, fork.tokens) == ([0, 1, 2], [0, 1, 3])
        session.close()
        assert fork.tokens == [0, 1, 3]

    def test_refuses_calls_out_of_order(self) -> None:
        session = TableModel(torch.eye(4)).start()
        tree = DraftTree.of([0, 1, 2], [-1, 0, 0])
        skipped = Layers(without_mlp=frozenset({1}))
        with pytest.raises(ValueError, match="must have been run"):
            session.forward(tree, first=1)
        session.forward(tree)
        with pytest.raises(ValueError, match="path from the root"):
            session.commit([0, 1, 2])
        with pytest.raises(ValueError, match="take back 1 of 0"):
            session.rewind(1)
        with pytest.raises(ValueError, match=r"'partial'.*TableModel does not"):
            session.model.forward([ForwardInput(session, tree, layers=skipped)])
        with pytest.raises(ValueError, match=r"'hidden'.*TableModel does not"):
            session.extend([1], hidden=[0])


class TestTinyLlama:
    def test_is_the_same_for_the_same_seed_and_leaves_global_chance_alone(self) -> None:
        before = torch.random.get_rng_state()
        first, again, other = tiny_llama(1), tiny_llama(1), tiny_llama(2)
        assert torch.equal(torch.random.get_rng_state(), before)
        tokens = torch.tensor([[1, 2, 3]])
        assert torch.equal(first(tokens).logits, again(tokens).logits)
        assert not torch.equal(first(tokens).logits, other(tokens).logits)

    def test_writes_varied_text_that_nothing_ends(self) -> None:
        written = (
            tiny_llama()
            .generate(torch.tensor([[1, 2, 3]]), max_new_tokens=40, do_sample=False)[0]
            .tolist()
        )
        assert len(written) == 43
        assert len(set(written)) > 10


def test_rare_ranks_of_wide_laws_count_as_one() -> None:
    law = np.array([0.5] + [0.5 / 999] * 999)
    laws = np.tile(law, (100, 1))
    drawn = [np.random.default_rng(seed).choice(1000, 100, p=law) for seed in range(200)]
    found = [ranked_chi_square(each, laws) for each in drawn]
    assert min(found) > 1e-4
    assert sum(each < 0.01 for each in found) <= 10
    wrong = np.random.default_rng(0).choice(1000, 100, p=law[::-1])
    assert ranked_chi_square(wrong, laws) < 1e-4


def test_tokens_that_are_equally_likely_count_as_the_likeliest() -> None:
    assert likeliest_p_value([0, 1, 2] * 7, np.full((21, 3), 1 / 3)) == 1.0


def test_what_is_continuous_is_not_enumerated() -> None:
    with pytest.raises(NotImplementedError, match="too many values"):
        outcomes(lambda rng: rng.coming(1)[0] < 0.5)
