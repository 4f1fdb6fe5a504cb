"""Drawn trees in whole steps of the library: the steps that Python makes, and the target's law."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import (
    Drafter,
    DraftModel,
    Eagle,
    JacobiSampled,
    Lm,
    Nothing,
    RacedJacobi,
    StartFromLeft,
    StartUniform,
)
from draftwood.drafters.window_starts import StartRow
from draftwood.engine import Options
from draftwood.engine.scheduler import Scheduler
from draftwood.models import drafting
from draftwood.models.model import extend_in_chunks
from draftwood.models.native import NativeModel
from draftwood.models.shared import shared_passes
from draftwood.native import drawn_trees, library
from draftwood.native.structures import CDrawnShape
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Independent, Shape, StochasticBeam, Widths
from draftwood.stats import Step
from draftwood.testing.statistics import ranked_chi_square
from draftwood.verifiers import KSeq, Match, Rejection, Traversal
from draftwood.verifiers.verifier import Verifier
from library_steps import steps, trees_made
from roads import head_of, tiny_llama, with_noise
from tiny_heads import tiny_eagle, tiny_lm

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 1, 4, 1, 5]
SHAPES = [
    Widths((1, 1, 1, 1)),
    Widths((3, 2, 1)),
    Widths((3, 2, 2), budget=8),
    StochasticBeam(3, 3),
    StochasticBeam(4, 4, budget=10),
    Widths((3, 1, 1), "independent"),
    Independent(3, 3),
]


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=4, context=256), "float32")


def draft_model(target: NativeModel, shape: Shape, **options: Any) -> DraftModel:
    """A model whose laws lie near the target's, and differ from them."""
    hf_model = with_noise(tiny_llama(0, layers=4, **options), 0.02)
    return DraftModel(shared_passes(NativeModel(hf_model, "float32")), shape)


def sure_draft_model(shape: Shape) -> DraftModel:
    """A model whose laws are the target's to the fourth power: what it drafts is often refused."""
    hf_model = tiny_llama(0, layers=4)
    head_of(hf_model)[:] *= 4
    return DraftModel(NativeModel(hf_model, "float32"), shape)


DRAFTERS: dict[str, Callable[[NativeModel, Shape], Drafter]] = {
    "eagle": lambda target, shape: Eagle(tiny_eagle(target), target, shape),
    "lm": lambda target, shape: Lm(tiny_lm(target, layers=2, window=5), target, shape),
    "draft model": draft_model,
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return trees_made(monkeypatch)


def sequence(
    target: NativeModel,
    drafter: Drafter,
    verifier: Verifier,
    **options: Any,
) -> engine.Sequence:
    wanted = Options(**{"max_new_tokens": 40, "seed": 5, **options})
    return engine.Sequence(target, drafter, verifier, PROMPT, wanted)


def facts(found: Sequence[Step]) -> list[object]:
    return [
        (step.tokens, step.path, step.tree.token_list, step.tree.parent_list, step.tree.draw)
        for step in found
        if step.tree is not None
    ]


def both_ways(
    target: NativeModel,
    drafter: Drafter,
    verifier: Verifier,
    temperature: float,
    seed: int,
    **rules: Any,
) -> tuple[list[Step], list[Step]]:
    options = {"sampler": Sampling(temperature, **rules), "seed": seed}
    whole, pieces = (
        list(steps(sequence(target, drafter, verifier, **options), whole=each))
        for each in (True, False)
    )
    return whole, pieces


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.label)
@pytest.mark.parametrize(
    "verifier", [Rejection(), Traversal(), Match()], ids=lambda rule: rule.name
)
def test_whole_steps_equal_those_in_pieces(
    target: NativeModel, made: list[int], name: str, shape: Shape, verifier: Verifier
) -> None:
    drafter, accepted = DRAFTERS[name](target, shape), 0
    for temperature, seed in ((0.3, 1), (1.0, 2), (1.0, 3), (1.7, 4)):
        made.clear()
        whole, pieces = both_ways(target, drafter, verifier, temperature, seed)
        assert facts(whole) == facts(pieces)
        assert len(made) == len(whole) - 1  # all but the prompt's
        accepted += sum(step.accepted for step in whole)
    assert max(made) == 1 + shape.nodes
    assert accepted > 0


RULES: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.02},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "top_k": 30},
    {"logit_bias": {3: -float("inf"), 7: 2.0}},
]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: ",".join(rules))
def test_rules_of_sampling_are_those_of_python(
    target: NativeModel, made: list[int], name: str, rules: dict[str, Any]
) -> None:
    """Trees are drawn by the rules too, each node's path being its context."""
    for shape, verifier in (
        (Widths((3, 2, 1)), Rejection()),
        (StochasticBeam(3, 3), Traversal()),
        (Widths((2, 2, 1)), Match()),
        (Widths((4, 1, 1), "independent"), KSeq()),
    ):
        drafter = DRAFTERS[name](target, shape)
        for temperature, seed in ((0.7, 1), (1.0, 2)):
            made.clear()
            whole, pieces = both_ways(target, drafter, verifier, temperature, seed, **rules)
            assert facts(whole) == facts(pieces)
            assert len(made) == len(whole) - 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_k_seq_equals_that_of_python(target: NativeModel, made: list[int], name: str) -> None:
    for shape in (Independent(3, 3), Widths((4, 1, 1), "independent"), Independent(1, 3)):
        drafter = DRAFTERS[name](target, shape)
        for seed in range(4):
            made.clear()
            whole, pieces = both_ways(target, drafter, KSeq(), 1.0, seed)
            assert facts(whole) == facts(pieces)
            assert len(made) == len(whole) - 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_certain_texts_equal_those_in_pieces(
    target: NativeModel, made: list[int], name: str
) -> None:
    """At temperature 0 the likeliest tokens are drafted, and kept where the target says them."""
    for shape in SHAPES:
        whole, pieces = both_ways(target, DRAFTERS[name](target, shape), Rejection(), 0.0, 1)
        assert facts(whole) == facts(pieces)
    assert made


def test_chances_are_those_of_the_rows(target: NativeModel, made: list[int]) -> None:
    for name in DRAFTERS:
        drafter = DRAFTERS[name](target, StochasticBeam(3, 3))
        found, wanted = both_ways(target, drafter, Rejection(), 1.0, 1)
        for step, other in zip(found[1:], wanted[1:], strict=True):
            assert step.tree is not None
            assert other.tree is not None
            own, others = step.tree.without_probs().chances, other.tree.without_probs().chances
            assert (own is None) == (others is None)
            if own is not None and others is not None:
                assert own.tolist() == pytest.approx(others.tolist(), rel=1e-5)
    assert made


@pytest.mark.parametrize("products", ["int8", "int4", "bfloat16"])
def test_every_type_of_weights_gives_the_same_both_ways(products: Any, made: list[int]) -> None:
    target = NativeModel(tiny_llama(0, layers=4), products)
    for name in DRAFTERS:
        drafter = DRAFTERS[name](target, StochasticBeam(3, 3))
        whole, pieces = both_ways(target, drafter, Rejection(), 1.0, 9)
        assert facts(whole) == facts(pieces)
    assert made


@pytest.mark.parametrize("vocab", [48, 80])
def test_draft_models_of_other_vocabularies(
    target: NativeModel, made: list[int], vocab: int
) -> None:
    drafter = draft_model(target, Widths((3, 2, 1)), vocab=vocab)
    for seed in range(4):
        made.clear()
        whole, pieces = both_ways(target, drafter, Rejection(), 1.5, seed)
        assert facts(whole) == facts(pieces)
        assert made
        assert max(made) == 1 + drafter.shape.nodes


def test_a_draft_models_context_may_end_before_the_texts(
    target: NativeModel, made: list[int]
) -> None:
    """Python makes the steps there."""
    drafter = draft_model(target, Widths((2, 1, 1)), context=40)
    whole, pieces = both_ways(target, drafter, Rejection(), 1.0, 3)
    assert facts(whole) == facts(pieces)
    assert 0 < len(made) < len(whole) - 1


def test_texts_in_company_are_those_alone(target: NativeModel, made: list[int]) -> None:
    """Steps of draft models, whose passes they share, are then conducted by Python."""
    for name in DRAFTERS:
        drafter, batch = DRAFTERS[name](target, StochasticBeam(3, 3)), Scheduler()

        def text(seed: int, most: int = 40, drafter: Drafter = drafter) -> engine.Sequence:
            return sequence(
                target, drafter, Rejection(), sampler=Sampling(1.0), seed=seed, max_new_tokens=most
            )

        wanted = [
            [token for step in steps(text(seed, most)) for token in step.tokens]
            for seed, most in ((1, 40), (2, 9))
        ]
        made.clear()
        numbers = [batch.add(text(1)), batch.add(text(2, 9))]
        found: dict[int, list[int]] = {number: [] for number in numbers}
        while batch:
            for event in batch.step():
                found[event.number] += event.progress.tokens if event.progress else []
        assert list(found.values()) == wanted
        assert made  # the longer text ends alone


@pytest.mark.parametrize("min_tokens", [1, 6])
def test_python_makes_the_steps_before_an_end_may_come(
    target: NativeModel, made: list[int], min_tokens: int
) -> None:
    for name in DRAFTERS:
        drafter = DRAFTERS[name](target, Widths((2, 1)))
        sampler = Sampling(1.0, min_tokens=min_tokens, end_tokens=frozenset({7}))
        options = {"sampler": sampler, "seed": 2}
        whole, pieces = (
            list(steps(sequence(target, drafter, Rejection(), **options), whole=each))
            for each in (True, False)
        )
        assert facts(whole) == facts(pieces)
    assert made


def test_a_broken_draft_is_left_out_from_then_on(
    target: NativeModel, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "_roundings", lambda model: (None, model.products))
    hf_model = tiny_llama(1)
    head_of(hf_model)[9] = np.nan
    drafter = DraftModel(NativeModel(hf_model, "float32"), Widths((2, 1)))
    for whole in (True, False):
        with pytest.warns(UserWarning, match="NaN"):
            found = list(
                steps(sequence(target, drafter, Rejection(), sampler=Sampling(1.0)), whole)
            )
        assert [step.drafted for step in found[1:4]] == [4, 0, 0]
    assert made[:3] == [5, 1, 1]


def tokens_and_laws(
    target: NativeModel,
    drafter: Drafter,
    verifier: Verifier,
    sampler: Sampling = Sampling(1.0),  # noqa: B008  a frozen object
    law: Sampling | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of many texts, and the target's law before each; ``law`` is a wrong one."""
    tokens, laws = list[int](), list[np.ndarray]()
    for seed in range(30):
        text = sequence(target, drafter, verifier, sampler=sampler, seed=seed, max_new_tokens=100)
        found = [token for step in steps(text) for token in step.tokens]
        session = target.start()
        extend_in_chunks(session, PROMPT[:-1])
        logits = session.extend([PROMPT[-1], *found[:-1]]).rows.astype(np.float64)
        before = [Context([*PROMPT, *found[:n]], len(PROMPT)) for n in range(len(found))]
        laws.append((law or sampler).probs(logits, before))
        session.close()
        tokens += found
    return np.array(tokens), np.concatenate(laws)


LEAST = 1e-4


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(
    ("shape", "verifier"),
    [
        (StochasticBeam(3, 3), Rejection()),
        (Widths((3, 2, 1)), Traversal()),
        (Independent(3, 3), Rejection()),
        (Independent(3, 3), KSeq()),
    ],
    ids=["beam", "traversal", "independent", "k-seq"],
)
def test_texts_have_the_targets_law(
    target: NativeModel, made: list[int], name: str, shape: Shape, verifier: Verifier
) -> None:
    drafter = DRAFTERS[name](target, shape)
    assert ranked_chi_square(*tokens_and_laws(target, drafter, verifier)) > LEAST
    assert made


RULES_OF_LAWS = Sampling(1.0, top_k=20, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.2)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("verifier", [Rejection(), Traversal(), Match()], ids=lambda v: v.name)
def test_texts_have_the_law_of_their_rules(
    target: NativeModel, made: list[int], name: str, verifier: Verifier
) -> None:
    drafter = DRAFTERS[name](target, Widths((3, 2, 1)))
    assert ranked_chi_square(*tokens_and_laws(target, drafter, verifier, RULES_OF_LAWS)) > LEAST
    assert made


def test_a_rule_that_is_not_kept_is_found(target: NativeModel) -> None:
    drafter = DRAFTERS["lm"](target, Widths((3, 2, 1)))
    wrong = replace(RULES_OF_LAWS, frequency_penalty=0.0)
    found = tokens_and_laws(target, drafter, Rejection(), RULES_OF_LAWS, wrong)
    assert ranked_chi_square(*found) < LEAST


def test_uniforms_that_are_none_are_found(
    target: NativeModel, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: all tokens are drawn and tested with the same number."""
    coming = Rng.coming

    def repeated(self: Rng, count: int) -> list[float]:
        return [0.4 for _ in coming(self, count)]

    monkeypatch.setattr(Rng, "coming", repeated)
    drafter = draft_model(target, Widths((1, 1, 1)))
    assert ranked_chi_square(*tokens_and_laws(target, drafter, Rejection())) < LEAST
    assert made


@pytest.mark.parametrize(
    ("shape", "verifier"),
    [
        (StochasticBeam(3, 3), Rejection()),
        (Widths((3, 2, 1)), Rejection()),
        (Widths((3, 2, 1)), Traversal()),
    ],
    ids=["beam", "widths", "traversal"],
)
def test_a_rule_for_other_draws_is_found(
    target: NativeModel,
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    verifier: Verifier,
) -> None:
    """The planted fault: siblings without replacement, judged as independent."""
    drafter = sure_draft_model(shape)
    assert ranked_chi_square(*tokens_and_laws(target, drafter, verifier)) > LEAST

    def misjudged(**settings: Any) -> CDrawnShape:
        return CDrawnShape(**{**settings, "is_judged_distinct": False})

    monkeypatch.setattr(drawn_trees, "CDrawnShape", misjudged)
    assert ranked_chi_square(*tokens_and_laws(target, drafter, verifier)) < LEAST
    assert made


def test_k_seq_for_other_draws_is_found(
    target: NativeModel, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: siblings without replacement for a rule of independent ones."""
    drafter = sure_draft_model(Independent(3, 3))
    assert ranked_chi_square(*tokens_and_laws(target, drafter, KSeq())) > LEAST
    monkeypatch.setattr(KSeq, "exact_for", frozenset({"distinct"}))
    drafter = sure_draft_model(Widths((3, 1, 1)))
    assert ranked_chi_square(*tokens_and_laws(target, drafter, KSeq())) < LEAST
    assert made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nodes_that_ran_in_a_draft_model_do_not_run_again(
    target: NativeModel, temperature: float
) -> None:
    """Its cache is behind the text by what no pass of it has read: the leaf and the root."""
    drafter = draft_model(target, Widths((1, 1, 1)))
    for whole in (True, False):
        text = sequence(target, drafter, Rejection(), sampler=Sampling(temperature))
        late = []
        for step in steps(text, whole):
            late.append(len(text.draft.late))  # type: ignore[attr-defined]
            assert step.tokens
        assert max(late[1:]) <= 1


@dataclass(frozen=True)
class StartFromFurtherBack:
    """Start with the token four places back, and two back from the third place on."""

    @property
    def reach(self) -> int:
        return 0

    def backs(self, before: Sequence[int]) -> list[int]:
        return [4] * max(0, 2 + len(PROMPT) - len(before)) + [2]

    def row(self, before: Sequence[int], rows: Sequence[np.ndarray], vocab: int) -> np.ndarray:
        back = 4 if len(before) < 3 + len(PROMPT) else 2
        return StartFromLeft().row(before[: len(before) + 1 - back], rows, vocab)


STARTS: list[StartRow] = [StartFromLeft(), StartFromFurtherBack()]
WINDOWS = {"sjd": (JacobiSampled, Rejection()), "raced-jacobi": (RacedJacobi, Match())}
FEW = {"top_k": 3, "logit_bias": {3: -float("inf"), 7: 2.0}}
"""Rules under which drafts of the last pass's rows are often right."""


def trees(found: Sequence[Step]) -> list[object]:
    """All but the names of draws, of which the library reports those alone that have rows."""
    return [
        (step.tokens, step.path, step.tree.token_list, step.tree.parent_list)
        for step in found
        if step.tree is not None
    ]


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("start", STARTS, ids=lambda start: type(start).__name__)
def test_windows_of_the_last_pass_are_those_of_python(
    target: NativeModel, made: list[int], name: str, start: StartRow
) -> None:
    (kind, verifier), accepted = WINDOWS[name], 0
    for window in (1, 3, 16):
        for temperature, seed in ((0.0, 1), (0.7, 2), (1.0, 3)):
            made.clear()
            drafter = kind(window, start)
            whole, pieces = both_ways(target, drafter, verifier, temperature, seed, **FEW)
            assert trees(whole) == trees(pieces)
            assert len(made) == len(whole) - 1
            accepted += sum(step.accepted for step in whole)
    assert max(made) == 17
    assert accepted >= 10


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_keep_the_targets_law(target: NativeModel, made: list[int], name: str) -> None:
    """Penalties included, which go by what is drafted now and not by what the pass read."""
    kind, verifier = WINDOWS[name]
    rules = Sampling(1.0, top_k=4, repetition_penalty=1.2, frequency_penalty=0.2)
    drafter = kind(4, StartUniform())
    assert ranked_chi_square(*tokens_and_laws(target, drafter, verifier, rules)) > LEAST
    assert max(made) == 5
    wrong = tokens_and_laws(target, drafter, verifier, rules, replace(rules, top_k=5))
    assert ranked_chi_square(*wrong) < LEAST


@pytest.mark.parametrize("start", [*STARTS, StartUniform()], ids=lambda start: type(start).__name__)
def test_races_write_the_plain_text_whatever_rests(
    target: NativeModel, made: list[int], start: StartRow
) -> None:
    """Python makes steps between, and the windows begin anew behind them."""
    dear = Budget(lambda nodes: 1.0 + 0.4 * nodes, per_draft_token=0.0)
    drafter = RacedJacobi(8, start, dear)
    for seed in range(4):
        options = {"sampler": Sampling(1.0, top_k=3), "seed": seed, "max_new_tokens": 120}
        plain, raced = (
            [
                token
                for step in steps(sequence(target, each, Match(), **options))
                for token in step.tokens
            ]
            for each in (Nothing(), drafter)
        )
        assert raced == plain
    assert {1} < set(made)
