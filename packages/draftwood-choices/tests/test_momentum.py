"""Momentum decoding: the paper's rule, and drafts that change none of its texts."""

from collections.abc import Sequence

import numpy as np
import pytest

from draftwood import engine
from draftwood.drafters import Drafter, DraftModel, MultiSource, Nothing, PromptLookup
from draftwood.engine import Method, Options
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Shape, StochasticBeam, Widths
from draftwood.stats import Stats
from draftwood.testing.rules import AtTheRoot
from draftwood.verifiers import Match, Rejection, Traversal, Verifier
from draftwood_choices.momentum import CANDIDATES, LONGEST, choose, repeats
from law_cases import DISTANCE, contextual, text_distance
from roads import TransformersModel, tiny_llama

VOCAB, PROMPT, ALPHA = 8, [0, 3, 1, 4, 2, 2, 0], 0.2
RANDOM = np.random.default_rng(5)
DRAFTED: list[tuple[Drafter, Verifier]] = [
    (PromptLookup(1, 2, 3), Match()),
    (MultiSource(), Match()),
    *(
        (DraftModel(contextual(VOCAB, 1)[1], Widths((1, 1, 1))), rule)
        for rule in (Match(), Rejection())
    ),
    (DraftModel(contextual(VOCAB, 1)[1], Widths((2, 2))), Rejection()),
    (DraftModel(contextual(VOCAB, 1)[1], BestFirst(3, 3, 6)), Match()),
    (DraftModel(contextual(VOCAB, 1)[1], StochasticBeam(2, 3)), Traversal()),
]
pytestmark = pytest.mark.usefixtures("unchecked")


def longest(text: Sequence[int], token: int) -> int:
    """The paper's definition, place by place."""
    if token not in text:
        return 0
    whole = [*text, token]
    found = [
        size
        for size in range(2, LONGEST + 1)
        for start in range(len(text) - size + 1)
        if text[start : start + size] == whole[-size:]
    ]
    return max(found, default=1)


@pytest.mark.parametrize("length", [0, 1, 2, 4, 5, 6, 40])
def test_repeats_are_those_of_the_definition(length: int) -> None:
    for _ in range(30):
        text = RANDOM.integers(0, 3, length).tolist()
        candidates = np.arange(4)
        found = repeats(np.array(text, np.int64), candidates)
        assert found == [longest(text, token) for token in candidates]


def chosen(row: np.ndarray, text: Sequence[int], alpha: float) -> int:
    """The paper's rule, in 64 bits."""
    shares = np.exp(row.astype(np.float64) - row.max())
    top = np.argsort(-row, kind="stable")[:CANDIDATES]
    worth = {int(t): shares[t] / shares.sum() - alpha * longest(text, int(t)) for t in top}
    return max(worth, key=lambda token: worth[token])


@pytest.mark.parametrize("alpha", [0.0, 0.05, ALPHA, 1.0])
def test_greedily_it_is_the_paper_s_rule(alpha: float) -> None:
    differing = 0
    for _ in range(100):
        text = RANDOM.integers(0, VOCAB, 12).tolist()
        row = RANDOM.normal(0, 1.5, VOCAB).astype(np.float32)
        expected = chosen(row, text, alpha)
        differing += expected != row.argmax()
        probs = Sampling(rules={"momentum": alpha}).probs(row[None], [Context(text, 3)])
        assert probs[0].argmax() == expected
    assert (differing > 0) == (alpha > 0)


def test_strengths_end_where_they_mean_nothing_more() -> None:
    for strength in (1.01, 7.0, -0.1, np.inf):
        with pytest.raises(ValueError, match=r"rules\['momentum'\] must be between 0 and 1, got"):
            Sampling(rules={"momentum": strength})
    below, above = 0, 0
    for _ in range(100):
        text = RANDOM.integers(0, VOCAB, 12).tolist()
        row = RANDOM.normal(0, 1.5, VOCAB).astype(np.float32)
        above += chosen(row, text, 1.0) != chosen(row, text, 7.0)
        below += chosen(row, text, ALPHA) != chosen(row, text, 1.0)
    assert above == 0
    assert below > 0  # the control


def test_at_temperature_1_tokens_are_drawn_by_their_worth() -> None:
    row = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.03, 0.02], np.float32))
    probs = Sampling(1.0, rules={"momentum": 0.1}).probs(row[None], [Context([0, 1, 0], 1)])[0]
    worth = np.array([0.3, 0.1, 0.15, 0.1, 0.03, 0.0])  # 0 is known, and 1 would repeat 0 1
    assert probs == pytest.approx(worth / worth.sum(), abs=1e-6)


def test_what_is_banned_stays_banned() -> None:
    """Though all that is allowed repeats the text, and is worth less than nothing."""
    row = np.array([-np.inf, 1.0, 0.5, -np.inf], np.float32)
    choose(row, Context([1, 2, 1], 1), 3.0)
    assert row.argmax() == 1
    assert np.isneginf(row[[0, 2, 3]]).all()
    for logits in (np.full(4, -np.inf, np.float32), np.array([0, np.nan, 1, 2], np.float32)):
        with np.errstate(invalid="ignore"):
            choose(logits, Context([1, 2, 1], 1), 0.2)
        assert not np.isfinite(logits.max())


def test_an_end_that_min_tokens_bans_is_no_candidate() -> None:
    row = np.array([[5.0, 0.0, -1.0]], np.float32)
    sampling = Sampling(rules={"momentum": 1.0}, min_tokens=2, end_tokens=frozenset({0}))
    assert sampling.probs(row, [Context([1, 2, 1], 3)])[0].argmax() == 1


def models() -> dict[str, Model]:
    network = tiny_llama(3, layers=2, vocab=VOCAB)
    native = {"native": NativeModel(network)} if library.available() else {}
    return {"table": contextual(VOCAB, 1)[0], **native}


def written(
    model: Model, drafter: Drafter, verifier: Verifier, sampling: Sampling, seed: int
) -> tuple[list[int], Stats]:
    tokens, stats = list[int](), Stats()
    for step in engine.generate(model, drafter, verifier, PROMPT, Options(sampling, 60, seed=seed)):
        tokens += step.tokens
        stats.add(step)
    return tokens, stats


def differing(
    model: Model, drafter: Drafter, verifier: Verifier, temperature: float, texts: int
) -> int:
    """Texts that differ from those without drafts."""
    sampling, found, accepted = Sampling(temperature, rules={"momentum": ALPHA}), 0, 0
    for seed in range(texts):
        plain, _ = written(model, Nothing(), Match(), sampling, seed)
        drafted, stats = written(model, drafter, verifier, sampling, seed)
        found += plain != drafted
        accepted += stats.accepted
    assert accepted > 0, "nothing was accepted, so nothing is tested"
    return found


@pytest.mark.parametrize("name", ["table", "native"])
@pytest.mark.parametrize(("drafter", "verifier"), DRAFTED, ids=lambda part: part.name)
def test_drafted_texts_are_those_without_drafts(
    name: str, drafter: Drafter, verifier: Verifier
) -> None:
    model = models().get(name) or pytest.skip("no C++ compiler")
    assert differing(model, drafter, verifier, 0.0, 1) == 0
    if verifier == Match():
        assert differing(model, drafter, verifier, 1.0, 4) == 0


def test_drafted_texts_in_pytorch_are_those_without_drafts() -> None:
    model = TransformersModel(tiny_llama(3, layers=2, vocab=VOCAB))
    for drafter, verifier in DRAFTED:
        assert differing(model, drafter, verifier, 0.0, 1) == 0, drafter.name


def test_a_rule_that_reads_the_root_s_context_writes_another_text() -> None:
    model, draft = contextual(VOCAB, 1)
    assert differing(model, DraftModel(draft, Widths((1, 1, 1))), AtTheRoot(), 0.0, 1) == 1


def law(shape: Shape, verifier: Verifier, strength: float) -> float:
    target, draft = contextual(3, seed=8)
    sampling = Sampling(0.9, rules={"momentum": strength})
    method = Method(DraftModel(draft, shape), verifier)
    with pytest.MonkeyPatch.context() as patch:
        return text_distance(patch, method, target, Options(sampling, 12), sampling)


@pytest.mark.parametrize("strength", [0.05, ALPHA])
@pytest.mark.parametrize("shape", [Widths((1, 1)), Widths((2, 1))], ids=str)
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_the_distribution_of_drafted_texts_is_that_without_drafts(
    shape: Shape, rule: Verifier, strength: float
) -> None:
    assert law(shape, rule, strength) < 1e-5


@pytest.mark.parametrize("shape", [Widths((1, 1)), Widths((2, 1))], ids=str)
def test_a_rule_that_reads_the_root_s_context_has_another_distribution(shape: Shape) -> None:
    assert law(shape, AtTheRoot(), 0.05) > DISTANCE
