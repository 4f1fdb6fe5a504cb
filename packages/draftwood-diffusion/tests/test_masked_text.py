"""The loop on lists: blocks, ends, batches, and what it refuses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest

from draftwood.engine import Limits, Options, StepBudget, run_all
from draftwood.models.model import ModelInput, ModelOutput, RowsInput
from draftwood.sampling import Sampling
from draftwood.testing.models import TableModel
from draftwood_diffusion import loop
from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.lists.list_model import ListModel, ListSession, list_model
from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.loop import MaskedText, WrittenText, written
from draftwood_diffusion.masked_model import DiffusionSettings, MaskedModel
from draftwood_diffusion.proof import PastEnds, mixtures, places
from draftwood_diffusion.revision.edit import TokenEditing
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.unmasking import Unmasking, parse
from draftwood_diffusion.view import View

KINDS = [(False, False), (True, False), (False, True), (True, True)]
LONG = ListedTexts.of([(5, 4, 0, 1, 2, 0, 1, 2, 3), (5, 4, 2, 1, 0, 2, 1, 0, 3)], [0.6, 0.4], 7)
"""Texts of nine places behind two tokens of a prompt."""


def text(
    masked: MaskedModel,
    method: str | Unmasking,
    prompt: Sequence[int] = (5, 4),
    length: int = 7,
    seed: int = 0,
    temperature: float = 0.0,
    ends: frozenset[int] = frozenset(),
) -> WrittenText:
    parsed = parse(method) if isinstance(method, str) else method
    options = Options(Sampling(temperature=temperature), length, ends, seed)
    return written(masked, prompt, options, parsed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 9])
def test_a_text_of_the_list_is_written_one_place_a_pass(
    length: int, kind: tuple[bool, bool]
) -> None:
    found = text(list_model(LONG, length, *kind), "one-by-one")
    assert found.tokens == [0, 1, 2, 0, 1, 2, 3]
    assert found.runs == 7
    assert sorted(each.place for each in found.fixings) == list(range(7))
    assert [each.run for each in found.fixings] == list(range(1, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_sure_places_of_a_block_are_fixed_together(kind: tuple[bool, bool]) -> None:
    # what both texts hold, then a place that tells which text it is, then all the others
    found = text(list_model(LONG, 9, *kind), "threshold,tau=0.7")
    assert found.tokens == [0, 1, 2, 0, 1, 2, 3]
    assert [each.place for each in found.fixings] == [1, 4, 6, 0, 2, 3, 5]
    assert found.runs == 3
    assert text(list_model(LONG, 9, *kind), "threshold,tau=0.5").runs == 1
    assert text(list_model(LONG, 3, *kind), "threshold,tau=0.5").runs == 3


def test_a_block_begins_with_the_rest_of_the_prompt() -> None:
    # two tokens of prompt in blocks of four: two places are filled, then four, then one
    asked = list[list[int]]()

    @dataclass(frozen=True, eq=False)
    class Watched(ListModel):
        def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
            (given,) = inputs
            assert isinstance(given, RowsInput)
            asked.append(list(given.tokens))
            return super().forward(inputs)

    masked = MaskedModel(Watched(np.zeros((1, LONG.vocab)), LONG), DiffusionSettings(LONG.mask, 4))
    found = text(masked, "top-k,k=9")
    assert found.tokens == [0, 1, 2, 0, 1, 2, 3]
    assert asked == [[5, 4, 6, 6], [5, 4, 0, 1, 6, 6, 6, 6], [2, 0, 1, 2, 6]]
    assert found.rows == 17


def test_whole_blocks_of_a_prompt_enter_the_cache_before() -> None:
    listed = ListedTexts.of([tuple(range(12))])
    masked = list_model(listed, 2)
    found = text(masked, "top-k,k=9", prompt=range(7), length=5)
    assert found.tokens == [7, 8, 9, 10, 11]
    assert found.runs == 3  # places 6 and 7, 8 and 9, 10 and 11
    assert found.prompt_seconds > 0 == text(masked, "random", range(3), 9).prompt_seconds


def test_a_text_ends_at_an_end_token_once_all_before_it_is_written() -> None:
    masked = list_model(LONG, 9)
    found = text(masked, "one-by-one", ends=frozenset({2}))
    assert found.tokens == [0, 1, 2]
    assert [each.place for each in found.fixings] == [1, 4, 6, 0, 2]
    right_to_left = RightToLeft()
    late = text(masked, Unmasking(rule=right_to_left), ends=frozenset({2}))
    assert late.tokens == [0, 1, 2]
    assert late.runs == 7  # of the text, every place but those behind the end had to be known


@dataclass(frozen=True)
class RightToLeft(UnmaskingRule):
    """The last open place."""

    name: ClassVar[str] = "right-to-left"

    def choose(self, view: View) -> np.ndarray:
        return view.open[-1:]


@pytest.mark.parametrize("kind", [(False, False), (False, True)])
def test_end_cut_writes_nothing_behind_an_end(kind: tuple[bool, bool]) -> None:
    masked = list_model(LONG, 9, *kind)
    cut = replace(parse("end-cut"), rule=RightToLeft())
    found = text(masked, cut, ends=frozenset({2}))
    assert found.tokens == [0, 1, 2]
    assert [each.place for each in found.fixings] == [6, 5, 4, 3, 2, 1, 0]
    usual = text(masked, "one-by-one+end-cut", ends=frozenset({3}))
    assert usual.tokens == [0, 1, 2, 0, 1, 2, 3]
    short = text(masked, "left-to-right+end-cut", ends=frozenset({1}))
    assert (short.tokens, short.runs) == ([0, 1], 2)
    known = text(masked, "top-k,k=2+end-cut", ends=frozenset({0}))
    assert known.rows < text(masked, "top-k,k=2", ends=frozenset({3})).rows


TWINS = ListedTexts.of([(2, 0, 0, 0), (2, 1, 1, 1)], vocab=4)
"""Two texts: where two of three tokens agree, the list's model changes the third."""


@pytest.mark.parametrize("kind", KINDS)
def test_editing_goes_on_over_a_written_block_until_nothing_changes(
    kind: tuple[bool, bool],
) -> None:
    masked, method = list_model(TWINS, 4, *kind), "top-k,k=3+edit,above=0.6"
    runs = set[int]()
    for seed in range(12):
        drawn, found, cut = (
            text(masked, f"{method}{more}", [2], 3, seed, 1.0, ends)
            for more, ends in ((",passes=0", frozenset()), ("", frozenset()), ("", frozenset({1})))
        )
        usual = max(drawn.tokens, key=drawn.tokens.count)
        assert found.tokens == [usual] * 3
        assert found.runs == drawn.runs + (1 if len({*drawn.tokens}) == 1 else 2)
        assert cut.tokens == ([1] if usual else [0, 0, 0])  # ends may be edited too
        runs.add(found.runs)
        for lookahead in ("freedave", "freedave,d=9,w=9"):  # there are fewer tokens to try
            looked = text(masked, f"{method}+{lookahead}", [2], 3, seed, 1.0)
            assert (looked.tokens, places(looked)) == (found.tokens, places(found))
    assert runs == {2, 3}


def test_editing_takes_no_more_passes_than_it_is_given() -> None:
    @dataclass(frozen=True)
    class Restless(TokenEditing):
        """Every written place changes in every pass."""

        def changes(self, view: View) -> np.ndarray:
            return np.flatnonzero(~view.is_open)

    @dataclass(frozen=True, eq=False)
    class Turning(ListModel):
        """Every place is likeliest to be another token."""

        def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
            (given,) = inputs
            assert isinstance(given, RowsInput)
            super().forward(inputs)
            others = [(token + 1) % 3 for token in given.tokens]
            return [ModelOutput(np.eye(LONG.vocab, dtype=np.float32)[others])]

    masked = MaskedModel(Turning(np.zeros((1, LONG.vocab)), LONG), DiffusionSettings(LONG.mask, 4))
    for passes in (0, 1, 16):
        restless = replace(parse("top-k,k=9"), revision=Restless(passes=passes))
        assert text(masked, restless, (5, 4, 0, 1), 4).runs == 1 + passes


def test_an_edit_may_lead_back_to_the_state_that_is_certain() -> None:
    usual = parse("random+edit,above=0.5")
    for masked, seed in product([list_model(mixtures(), n) for n in (2, 3, 5)], range(8)):
        one, looked = (
            text(masked, replace(usual, **given), [5], 5, seed, 1.0)
            for given in ({}, {"lookahead": FreeDave(8)})
        )
        assert (looked.tokens, places(looked)) == (one.tokens, places(one))


def test_a_lookahead_stops_where_an_end_token_does() -> None:
    masked = list_model(mixtures(), 3, shifted=True)
    usual, wrong = parse("random+edit,above=0.5,passes=0"), 0
    for seed in range(20):
        one, looked, past = (
            text(masked, replace(usual, **given), [5], 5, seed, 1.0, frozenset({0}))
            for given in ({}, {"lookahead": FreeDave(4)}, {"lookahead": PastEnds(4)})
        )
        assert (looked.tokens, places(looked)) == (one.tokens, places(one))
        wrong += past.tokens != one.tokens
    assert wrong  # edits reach places before the end


@pytest.mark.parametrize("rule", ["ccd,passes=2", "ccd-agreement,warm=1,most=2"])
def test_rules_that_remember_go_on_in_a_block_that_was_cut(rule: str) -> None:
    assert parse(rule).rule.remembers
    masked = list_model(mixtures(), 6, bidirectional=True)
    ends, cut = frozenset({0}), 0
    for seed in range(20):
        found = text(masked, f"{rule}+end-cut", [5], 5, seed, 1.0, ends)
        cut += len(found.tokens) < 5 and found.fixings[-1].token not in ends
        assert not ends & {*found.tokens[:-1]}
    assert cut  # some were cut and went on


@pytest.mark.parametrize(
    ("rule", "runs"),
    [
        *((f"ccd,passes={passes}", runs) for passes, runs in ((1, 4), (3, 6), (4, 7), (9, 10))),
        ("ccd-agreement", 9),
        ("ccd-agreement,warm=0,most=2", 9),
        ("ccd-agreement,warm=0,most=1", 16),
    ],
)
def test_rules_see_all_the_passes_that_they_remember(rule: str, runs: int) -> None:
    """Sixteen places are certain, so that a rule fixes what its history lets it."""
    certain = ListedTexts.of([(0, *range(1, 17))])
    found = text(list_model(certain, 17), rule, [0], 16)
    assert found.tokens == list(range(1, 17))
    assert found.runs == runs


def test_adablock_ends_blocks_at_delimiters() -> None:
    masked = list_model(LONG, 4, bidirectional=True)
    lines = replace(parse("threshold,tau=0.5"), blocks=AdaBlock(0.3, frozenset({0})))
    found = text(masked, lines, (5,), 8)
    assert found.tokens == [4, 0, 1, 2, 0, 1, 2, 3]
    assert [(each.run, each.place) for each in found.fixings][:2] == [(1, 0), (1, 1)]
    assert found.runs == 3  # 4 0, then four places of the model's own length, then the last
    with pytest.raises(ValueError, match="no token for a line break"):
        text(masked, "adablock")


def test_the_oracle_knows_the_one_by_one_text() -> None:
    for length in (3, 9):
        masked = list_model(LONG, length)
        found = text(masked, "oracle")
        assert found.tokens == text(masked, "one-by-one").tokens
        assert found.runs == -(-9 // length)
    with pytest.raises(ValueError, match="takes temperature 0"):
        text(masked, "oracle", temperature=1.0)


def test_the_seconds_of_a_known_text_are_of_its_own_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    @dataclass(frozen=True, eq=False)
    class Clocked(ListModel):
        def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
            clock[0] += 1.0
            return super().forward(inputs)

    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    model = Clocked(np.zeros((1, LONG.vocab)), LONG)
    masked = MaskedModel(model, DiffusionSettings(LONG.mask, 9))
    one, known = text(masked, "one-by-one"), text(masked, "oracle")
    assert (one.runs, one.seconds) == (7, 7.0)
    assert (known.runs, known.seconds) == (1, 1.0)


def test_texts_of_a_batch_are_those_of_single_requests() -> None:
    masked, method = list_model(mixtures(), 2), parse("threshold,tau=0.7+freedave,d=2")
    options = [Options(Sampling(temperature=1.0), 5, seed=seed) for seed in range(5)]
    tasks = [MaskedText(masked, [5], each, method) for each in options]
    for _ in run_all(tasks):
        pass
    for task, each in zip(tasks, options, strict=True):
        alone = written(masked, [5], each, method)
        assert (task.text.tokens, places(task.text)) == (alone.tokens, places(alone))
        assert task.finish_reason == "length"


def test_a_long_prompt_leaves_room_in_each_pass_for_other_texts() -> None:
    rows = list[int]()

    @dataclass(frozen=True, eq=False)
    class Counted(ListModel):
        def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
            rows.append(sum(each.rows for each in inputs))
            return super().forward(inputs)

    listed = ListedTexts.of([tuple(range(40))])
    model = Counted(np.zeros((1, listed.vocab)), listed)
    masked = MaskedModel(model, DiffusionSettings(listed.mask, 4))
    options = [Options(Sampling(), count) for count in (30, 4)]
    tasks = [
        MaskedText(masked, range(40 - each.max_new_tokens - 6 * n), each, Unmasking())
        for n, each in enumerate(options)
    ]
    assert [each.prompt_left for each in tasks] == [4, 24]
    for _ in run_all(tasks, Limits(prompt_rows=9)):
        pass
    assert max(rows) <= 8 + 2 * 4  # whole blocks of a prompt, beside a block and the one before
    assert len(rows) >= 30
    assert [each.text.tokens for each in tasks] == [[*range(10, 40)], [*range(30, 34)]]
    assert tasks[1].text.prompt_seconds > 0
    narrow = MaskedText(masked, range(30), options[1], Unmasking())
    assert [each.rows for each in narrow.plan(StepBudget(prompt_rows=1))] == [4]  # at least a block


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("reuse", ["prefix-cache", "dual-cache"])
def test_kept_places_are_seen_where_they_stand(reuse: str, shifted: bool) -> None:
    """A list's rows know tokens alone, so that nothing kept is stale."""
    for length in (2, 3, 5):
        masked = list_model(mixtures(), length, shifted, bidirectional=True)
        for method in ("one-by-one", "random+freedave,d=3", "top-k,k=2", "threshold,tau=0.6"):
            for seed in range(2):
                plain = text(masked, method, [5], 5, seed, 1.0)
                kept = text(masked, f"{method}+{reuse}", [5], 5, seed, 1.0)
                assert (kept.tokens, places(kept)) == (plain.tokens, places(plain))
                assert kept.rows <= plain.rows
    cut = list_model(LONG, 9, shifted, bidirectional=True)
    found = text(cut, f"left-to-right+end-cut+{reuse}", ends=frozenset({1}))
    assert (found.tokens, found.runs) == ([0, 1], 2)
    with pytest.raises(ValueError, match="keeps finished blocks, which is exact: leave it out"):
        text(list_model(LONG, 4), f"one-by-one+{reuse}")


def test_cuts_of_sampling_reach_every_place() -> None:
    masked = list_model(mixtures(), 6)
    greedy = Options(Sampling(temperature=0.0), 5, seed=3)
    for cut in (Sampling(temperature=1.0, top_k=1), Sampling(temperature=1.0, top_p=1e-6)):
        found = written(masked, [5], replace(greedy, sampler=cut), Unmasking())
        assert found.tokens == written(masked, [5], greedy, Unmasking()).tokens


@dataclass(frozen=True)
class Naming(UnmaskingRule):
    """Names the same places in every pass."""

    name: ClassVar[str] = "naming"
    always: tuple[int, ...] = ()

    def choose(self, view: View) -> np.ndarray:
        return np.array(self.always, np.int64)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ((), "rule 'naming' fixed no place; a rule names at least one of the 7 open ones"),
        ((0,), "rule 'naming' fixed place 0, which is not open; it may name"),
        ((99,), "rule 'naming' fixed place 99, which is not open"),
        ((-1,), "rule 'naming' fixed place -1, which is not open"),
    ],
)
def test_rules_that_are_wrong_are_caught(named: tuple[int, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        text(list_model(LONG, 9), Unmasking(rule=Naming(named)))


def test_texts_that_cannot_be_filled_are_refused() -> None:
    masked = list_model(LONG, 4)
    with pytest.raises(ValueError, match="token 1 of the prompt is the mask token 6"):
        text(masked, "random", prompt=[5, 6])
    with pytest.raises(ValueError, match="behind a prompt of at least one token, got none"):
        text(masked, "random", prompt=[])
    with pytest.raises(ValueError, match="exceed the model's context of 9; shorten the prompt"):
        text(masked, "random", length=8)
    with pytest.raises(ValueError, match="blocks of 10 tokens are longer than the model's context"):
        text(list_model(LONG, 10), "random")
    with pytest.raises(ValueError, match="mask token 7 is outside the model's 7 tokens"):
        text(MaskedModel(masked.model, DiffusionSettings(7, 4)), "random")
    table = MaskedModel(TableModel(np.zeros((4, 4), np.float32)), DiffusionSettings(3, 4))
    with pytest.raises(ValueError, match="needs a model that lets rows of a pass see later ones"):
        text(table, "random")
    with pytest.raises(ValueError, match="at least one token, not 0"):
        DiffusionSettings(3, 0)
    with pytest.raises(ValueError, match="a token number from 0 on, not -1"):
        DiffusionSettings(-1)


def test_logits_that_are_no_numbers_are_refused() -> None:
    masked = list_model(LONG, 9)

    @dataclass(frozen=True, eq=False)
    class Broken(ListModel):
        def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
            (output,) = super().forward(inputs)
            output.rows[5] = np.nan
            return [output]

    with pytest.raises(
        ValueError, match="token 4 of the text cannot be chosen: the model's logits"
    ):
        text(replace(masked, model=Broken(np.zeros((1, LONG.vocab)), LONG)), "random")


def test_sessions_are_given_back() -> None:
    masked = list_model(LONG, 4)
    task = MaskedText(masked, [5, 4], Options(Sampling(), 7), Unmasking())
    for _ in run_all([task]):
        pass
    session = task._passes.session
    assert isinstance(session, ListSession)
    assert session.length == 0
