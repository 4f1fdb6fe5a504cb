"""Laws that are too rich to enumerate, at sizes that find a total variation of 0.02 in 95 of 100
cases.

Where a method matches, its text for a seed must be plain decoding's, token by token. Were its law
0.02 from plain decoding's, 149 pairs of draws would differ somewhere in 95 of 100 cases, however
they are coupled; and no right method is ever called wrong. Other methods, and plain decoding
itself, are held to the laws of their tokens: each given all tokens before it, under every subset of
sampling options in turn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import (
    Drafter,
    DraftModel,
    JacobiSampled,
    MultiSource,
    Nothing,
    PromptLookup,
    RacedJacobi,
    SuffixDecoding,
)
from draftwood.drafters.int4_self_draft import Int4SelfDraft
from draftwood.engine import Options, generate_batch
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Paths, StochasticBeam, Widths
from draftwood.sources import BigramPrior, Datastore, NearestState, NGrams, Suffix
from draftwood.sources.int4_self_draft import Int4SelfDraftSource
from draftwood.sources.token_index import TokenIndex
from draftwood.stats import Stats
from draftwood.testing import TableModel, ranked_chi_square
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Match, Rejection, Traversal, Verifier
from law_cases import (
    DISTANCE,
    LEVEL,
    SHAPES,
    Slipping,
    contextual,
    coupled_size,
    exact_pairs,
    options,
    sample_size,
)
from roads import (
    Aded,
    EarlyExit,
    Exits,
    InputGuided,
    Jacobi,
    LayerSkip,
    LenientCascade,
    Lookahead,
    MergedDrafters,
    Pruned,
    Stand,
    TokenRecycling,
    TransformersModel,
    Windowed,
    numbers,
    tiny_llama,
    torch,
)
from thinning import thinned

VOCAB, PROMPT, LENGTH, SHORT = 5, [0, 3, 1, 4, 2, 2, 0], 160, 40
OPTIONS = options()
WIDE = Budget(lambda nodes: 1.0 + 0.002 * nodes, per_draft_token=0.0, max_draft_tokens=6)
pytestmark = pytest.mark.usefixtures("unchecked")

Written = list[tuple[Sampling, list[int]]]
"""Texts without their prompt, and how each was sampled."""


def written(
    model: Model,
    drafter: Drafter,
    rule: Verifier,
    tokens: int,
    length: int,
    kinds: Sequence[Sampling],
    seed: int = 0,
) -> tuple[Written, Stats]:
    """Write at least so many tokens in texts of this length, sampled in all these ways in turn;
    return them with sums over their steps.
    """
    count = len(kinds) * math.ceil(tokens / length / len(kinds))
    asked = [
        Options(kinds[number % len(kinds)], length, seed=seed + number) for number in range(count)
    ]
    texts: list[list[int]] = [[] for _ in asked]
    stats = Stats()
    for start in range(0, count, 64):
        together = asked[start : start + 64]
        for number, step in generate_batch(
            [engine.Sequence(model, drafter, rule, PROMPT, each) for each in together]
        ):
            texts[start + number] += step.tokens
            stats.add(step)
    return [(each.sampler, text) for each, text in zip(asked, texts, strict=True)], stats


def p_value(model: Model, texts: Written) -> float:
    """Test that each token follows the distribution that plain decoding's options give it behind
    all tokens before.
    """
    tokens, laws = [], []
    for sampling, text in texts:
        session = model.start()
        logits = session.extend([*PROMPT, *text[:-1]]).rows[len(PROMPT) - 1 :]
        session.close()
        before = [Context([*PROMPT, *text[:place]], len(PROMPT)) for place in range(len(text))]
        laws.append(sampling.probs(logits, before if sampling.reads_context else ()))
        tokens += text
    return ranked_chi_square(np.array(tokens), np.concatenate(laws))


MATCHED = [
    *(
        pytest.param(DraftModel(contextual(VOCAB)[1], s), id=str(s))
        for s, rule in exact_pairs(SHAPES)
        if rule == Match()
    ),
    *(
        pytest.param(drafter, id=name)
        for name, drafter in {
            "lookup": PromptLookup(1, 2, 2),
            "recycling": TokenRecycling(Paths(((0,), (1,), (0, 0))), 2),
            "combined": MultiSource(budget=WIDE),
            "suffix": SuffixDecoding(budget=WIDE),
            "aded": Aded(4, 2),
            "stand": Stand(4, order=2, width=2),
            "jacobi": Jacobi(2),
            "raced-jacobi": RacedJacobi(4),
            "lookahead": Lookahead(2, 3, 2),
            "input-guided": InputGuided(2, 2),
            "merged": MergedDrafters(
                (DraftModel(contextual(VOCAB)[1], Widths((2, 1))), Aded(4, 2))
            ),
            "lenient-cascade": LenientCascade(contextual(VOCAB)[1], 3, width=2),
        }.items()
    ),
]


@pytest.fixture(scope="module")
def native() -> NativeModel:
    """A model whose next token depends on all tokens before."""
    if not library.available():
        pytest.skip("no C++ compiler")
    return NativeModel(tiny_llama(3, layers=4, vocab=VOCAB))


_PLAIN: dict[tuple[Model, int, str, int], Written] = {}


def plainly(model: Model, size: int, kinds: Sequence[Sampling], seed: int) -> Written:
    """Texts of plain decoding, written once for all drafters."""
    key = (model, size, repr(kinds), seed)
    if key not in _PLAIN:
        _PLAIN[key] = written(model, Nothing(), Match(), size, SHORT, kinds, seed)[0]
    return _PLAIN[key]


def differing(
    model: Model, drafter: Drafter, rule: Verifier, kinds: Sequence[Sampling], seed: int = 0
) -> list[Sampling]:
    """The options under which some text is not plain decoding's, of enough tokens under each."""
    size = coupled_size() * len(kinds)
    plain = plainly(model, size, kinds, seed)
    other, stats = written(model, drafter, rule, size, SHORT, kinds, seed)
    assert sum(len(text) for _, text in plain) >= size
    assert isinstance(drafter, Nothing) or stats.accepted > 0, (
        "nothing was drafted, so nothing is tested"
    )
    return [one[0] for one, another in zip(plain, other, strict=True) if one != another]


@pytest.mark.parametrize("drafter", thinned(MATCHED, 5))
def test_by_matching_every_text_is_that_of_plain_decoding(drafter: Drafter) -> None:
    assert differing(contextual(VOCAB)[0], drafter, Match(), list(OPTIONS.values())) == []


@pytest.mark.proof
def test_by_matching_every_text_of_a_real_model_is_that_of_plain_decoding(
    native: NativeModel,
) -> None:
    store = TokenIndex.of([[0, 3, 1, 4, 2, 2] * 4], VOCAB)
    copies = (Datastore(store, shortest=1), NearestState(2, native.hidden_size))
    auto = MultiSource((Suffix(), NGrams(), BigramPrior.of(native), *copies), WIDE)
    int4 = [MultiSource((Int4SelfDraftSource(1e-6),), WIDE)] if "int4" in native.abilities else []
    others = [] if torch is None else [*in_part(native), Stand(4, order=2, width=2)]
    for drafter in (auto, *int4, *others):
        assert differing(native, drafter, Match(), list(OPTIONS.values())) == [], drafter.name


@pytest.mark.proof
def test_texts_of_a_law_that_is_wrong_by_so_much_differ() -> None:
    target, _ = contextual(VOCAB)
    kinds, tries = [OPTIONS["penalties + bias"]], 40
    caught = sum(
        bool(differing(target, Nothing(), Slipping(Match()), kinds, 100 * number))
        for number in range(tries)
    )
    # at 0.95 fewer than that come once in 20 times; the seeds are fixed
    assert caught >= 0.9 * tries


def law_of_texts(model: Model, ways: Sequence[tuple[Drafter, Verifier]], size: int) -> float:
    """p-value of so many tokens, written in all these ways in turn and under every subset of
    options.
    """
    texts = []
    for drafter, rule in ways:
        found, stats = written(
            model, drafter, rule, size // len(ways), LENGTH, list(OPTIONS.values())
        )
        texts += found
        assert isinstance(drafter, Nothing) or stats.accepted > 0.1 * size / len(ways)
    assert sum(len(text) for _, text in texts) >= 0.99 * size
    return p_value(model, texts)


def test_law_of_plain_decoding() -> None:
    assert law_of_texts(contextual(VOCAB)[0], [(Nothing(), Match())], sample_size(VOCAB)) > LEVEL


@pytest.mark.proof
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_law_of_stochastic_beams(rule: Verifier) -> None:
    target, draft = contextual(VOCAB)
    ways = [(DraftModel(draft, StochasticBeam(*size)), rule) for size in ((2, 2), (3, 2, 5))]
    assert law_of_texts(target, ways, sample_size(VOCAB)) > LEVEL


@pytest.mark.proof
def test_law_of_guesses_drawn_from_the_last_pass() -> None:
    ways = [(JacobiSampled(window), Rejection()) for window in (2, 5)]
    assert law_of_texts(contextual(VOCAB)[0], ways, sample_size(VOCAB)) > LEVEL


@pytest.mark.proof
def test_law_of_stand() -> None:
    ways = [(Stand(4, order=2, width=2), rule) for rule in (Rejection(), Traversal())]
    assert law_of_texts(contextual(VOCAB)[0], ways, sample_size(VOCAB)) > LEVEL


def in_part(model: Model) -> list[Drafter]:
    """Drafters that run the target itself, in part; others of them are enumerated."""
    if torch is None:
        pytest.skip("layers left out and exits are parts of draftwood-methods, which needs PyTorch")
    tree = Widths((2, 1))
    return [LayerSkip(frozenset({1, 2}), tree), EarlyExit(2, Exits.of(model, most=256), tree)]


@pytest.mark.proof
def test_laws_of_parts_of_a_real_model(native: NativeModel) -> None:
    (skipping, exiting), tree = in_part(native), Widths((2, 1))
    ways = [(skipping, Rejection()), (skipping, Traversal()), (exiting, Rejection())]
    ways += [(Windowed(0, 16, tree), Rejection())]
    ways += [(Int4SelfDraft(tree), Rejection())] if "int4" in native.abilities else []
    assert law_of_texts(native, ways, sample_size(VOCAB)) > LEVEL


@dataclass(frozen=True, eq=False)
class CalledDrawn(Pruned):
    """A wrong label: what the target's own layers left is called drawn."""

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def cut(self, tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
        return tree.keep(nodes)


def test_a_pruned_tree_must_not_be_called_drawn() -> None:
    """The last layer adds nothing, so that the pass knows before it what will be said."""
    if torch is None:
        pytest.skip("the model is one of PyTorch")
    network = tiny_llama(3, layers=4, vocab=VOCAB)
    last: Any = network.model.layers[-1]
    for matrix in (last.self_attn.o_proj, last.mlp.down_proj):
        matrix.weight.data.zero_()
    model = (NativeModel if library.available() else TransformersModel)(network)
    inner = DraftModel(TableModel(numbers(np.zeros((VOCAB, VOCAB)))), Widths((VOCAB,)))
    values = []
    for kind, rule in ((Pruned, Match()), (CalledDrawn, Rejection())):
        drafter = kind(inner, 3, least=0.4)
        texts, stats = written(model, drafter, rule, 900, SHORT, [Sampling(1.0)])
        assert 0 < stats.drafted < 2 * stats.target_runs
        values.append(p_value(model, texts))
    assert values[0] > LEVEL > values[1]


def test_a_law_that_is_wrong_by_so_much_is_caught() -> None:
    target, _ = contextual(VOCAB)
    # where no row is certain
    kinds = [sampling for sampling in OPTIONS.values() if not sampling.cuts]
    texts, _ = written(target, Nothing(), Slipping(Match()), sample_size(VOCAB), LENGTH, kinds)
    assert p_value(target, texts) < LEVEL


@pytest.mark.parametrize("cells", thinned([2, VOCAB], 2))
def test_so_many_draws_find_the_hardest_law_as_often_as_promised(cells: int) -> None:
    right = np.full(cells, 0.5 / (cells - 1))
    right[0] = 0.5
    wrong = right * np.where(np.arange(cells) == 0, 1 + 2 * DISTANCE, 1 - 2 * DISTANCE)
    assert abs(wrong - right).sum() / 2 == pytest.approx(DISTANCE)
    size, tries, rng = sample_size(cells), 200, np.random.default_rng(cells)
    laws = np.broadcast_to(right, (size, cells))

    def found(law: np.ndarray) -> int:
        counts = rng.multinomial(size, law, tries)
        tokens = [np.repeat(np.arange(cells), count) for count in counts]
        return sum(ranked_chi_square(drawn, laws) < LEVEL for drawn in tokens)

    assert 0.90 * tries <= found(wrong) <= 0.99 * tries  # neither too small nor needlessly large
    assert found(right) == 0
