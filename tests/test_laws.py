"""Every drafter x shape x verifier that is allowed: output law by chi-square, and greedy identity
in fp32.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pytest

from draftwood.arrays import as_array
from draftwood.costs.budget import Budget
from draftwood.drafters import (
    DraftModel,
    DraftRequest,
    DraftSession,
    JacobiSampled,
    MultiSource,
    Nothing,
    PromptLookup,
    RacedJacobi,
    SuffixDecoding,
    VerifiedTree,
)
from draftwood.drafters.drafter import Drafter, Reads
from draftwood.engine import Options, generate
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Paths, Shape, Widths
from draftwood.sources import NGrams
from draftwood.stats import Stats
from draftwood.testing import TableModel, chi_square, target_law
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import KSeq, Match, NodeProbs, Rejection, Traversal, Verdict, Verifier
from law_cases import SHAPES, ThrownAway, exact_pairs
from reference.estimates import Noise
from reference.merger import PythonMerger
from roads import (
    Aded,
    Cascade,
    InputGuided,
    Jacobi,
    LayerSkip,
    LenientCascade,
    Lookahead,
    MergedDrafters,
    MergedDrawn,
    NGramSource,
    PerLevel,
    Pruned,
    Stand,
    TokenRecycling,
    TransformersModel,
    normals,
    softmax,
    tiny_llama,
    torch,
)
from thinning import thinned

PAIRS = [
    pytest.param(shape, rule, id=f"{shape}-{rule.name}") for shape, rule in exact_pairs(SHAPES)
]

TOKENS, LENGTH, LEVEL = 3, 3000, 1e-3


def tables() -> tuple[Any, Any]:
    target, draft = normals(3, (4, 4), (4, 4))
    return target * 1.2, draft * 1.2


def p_value(drafter: Drafter, verifier: Verifier, logits: Any) -> float:
    """Test that a long text follows the distribution of its table.

    The text is cut into threes. Given the token before, each three is a draw of its own from the
    enumerated law, wherever the borders of steps fall. One test per token before; the smallest
    p-value, corrected for their number.
    """
    options = Options(Sampling(1.0), LENGTH, seed=5)
    text = [
        0,
        *(
            t
            for step in generate(TableModel(logits), drafter, verifier, [0], options)
            for t in step.tokens
        ),
    ]
    counts: dict[int, Counter[tuple[int, ...]]] = {token: Counter() for token in range(4)}
    for start in range(0, len(text) - TOKENS, TOKENS):
        counts[text[start]][tuple(text[start + 1 : start + 1 + TOKENS])] += 1
    table = softmax(as_array(logits).astype(np.float64))
    values = [
        chi_square(seen, target_law(table, TOKENS, (token,)))
        for token, seen in counts.items()
        if seen
    ]
    return min(1.0, min(values) * len(values))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("shape", "verifier"), thinned(PAIRS, 5))
def test_output_law(shape: Shape, verifier: Verifier) -> None:
    target, draft = tables()
    assert p_value(DraftModel(TableModel(draft), shape), verifier, target) > LEVEL


WIDE = Budget(lambda nodes: 1.0 + 0.002 * nodes, per_draft_token=0.0, max_draft_tokens=6)
WITHOUT_A_MODEL: list[tuple[Drafter, Verifier]] = [
    (Nothing(), Match()),
    (PromptLookup(1, 2, 2), Match()),
    (TokenRecycling(Paths(((0,), (1,), (0, 0))), 2), Match()),
    (MultiSource(budget=WIDE), Match()),
    (SuffixDecoding(budget=WIDE), Match()),
    (Aded(4, 2), Match()),
    *(
        (Stand(4, order=2, width=width), verifier)
        for width in (1, 2)
        for verifier in (Rejection(), Traversal())
    ),
    (Jacobi(2), Match()),
    (JacobiSampled(3), Rejection()),
    (RacedJacobi(3), Match()),
    (Lookahead(2, 3, 2), Match()),
    (InputGuided(2, 1), Match()),
]


def composed(small: Model) -> list[tuple[Drafter, Verifier]]:
    """Drafters that are made of others, or of a model and tables."""
    chain, pair = DraftModel(small, Widths((1, 1))), DraftModel(small, Widths((2, 1)))
    stand = Stand(3, order=2, width=2)
    return [
        (MergedDrafters((chain, PromptLookup(1, 2))), Match()),
        (MergedDrawn((chain, stand)), Rejection()),
        (MergedDrawn((pair, DraftModel(small, Widths((2,), "independent")))), Rejection()),
        (Cascade(small, 3), Rejection()),
        (Cascade(small, 3, width=2), Traversal()),
        (LenientCascade(small, 3), Match()),
        (PerLevel(chain, NGramSource(order=2), 2), Rejection()),
        (PerLevel(pair, NGramSource(order=1), 1), Traversal()),
        (PerLevel(DraftModel(small, BestFirst(2, 2, 3)), NGramSource(order=2), 2), Match()),
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("drafter", "verifier"),
    thinned(
        [
            pytest.param(d, v, id=f"{d.name}-{v.name}")
            for d, v in [*WITHOUT_A_MODEL, *composed(TableModel(tables()[1]))]
        ],
        4,
    ),
)
def test_output_law_of_drafters_that_take_no_shape(drafter: Drafter, verifier: Verifier) -> None:
    target, _ = tables()
    assert p_value(drafter, verifier, target) > LEVEL


@dataclass(frozen=True)
class Relabelled:
    """A rule that is told a wrong draw label."""

    rule: Verifier
    draw: str
    name = "relabelled"
    exact_for = frozenset({"distinct", "independent"})

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        return self.rule(replace(tree, draw=self.draw), target_probs, rng)


@dataclass(frozen=True)
class LikeliestFirst:
    """Siblings are put in order of probability before they are tested."""

    name = "likeliest first"
    exact_for = frozenset({"distinct", "independent"})

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        if len(tree) == 1:
            return Rejection()(tree, target_probs, rng)

        def key(node: int) -> tuple[int, float]:
            parent = int(tree.parents[node])
            chance = float(tree.probs[parent, tree.tokens[node]]) if node else 1.0
            return int(tree.depths[node]), (place[parent] if node else 0), -chance

        place, order = {}, []
        for depth in range(tree.depth + 1):
            level = sorted((n for n in range(len(tree)) if int(tree.depths[n]) == depth), key=key)
            place.update({node: len(order) + i for i, node in enumerate(level)})
            order += level
        # rows of probabilities follow the nodes
        rows = np.zeros((len(tree), tree.probs.shape[1]), np.float32)
        rows[: len(tree.probs)] = tree.probs
        shuffled = DraftTree(
            tree.tokens[order],
            np.array([-1 if n == 0 else place[int(tree.parents[n])] for n in order]),
            rows[order],
            tree.draw,
        )
        verdict = Rejection()(shuffled, [target_probs[n] for n in order], rng)
        return Verdict([order[node] for node in verdict.path], verdict.next_token)


WRONG: list[tuple[str, Shape, Verifier]] = [
    ("probability order", Widths((3, 2)), LikeliestFirst()),
    (
        "distinct drafts taken for independent",
        Widths((3, 3)),
        Relabelled(Rejection(), "independent"),
    ),
    ("k-seq on distinct siblings", Widths((3, 3)), Relabelled(KSeq(), "independent")),
    ("a drawn token thrown away", ThrownAway(), Rejection()),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("shape", "rule"), [pytest.param(s, r, id=name) for name, s, r in WRONG])
def test_wrong_rules_are_caught(shape: Shape, rule: Verifier) -> None:
    target, draft = tables()
    assert p_value(DraftModel(TableModel(draft), shape), rule, target) < LEVEL


@dataclass(frozen=True)
class Sharpened(Drafter, DraftSession):
    """STAND with rows other than those its children were drawn from."""

    drafter: Stand
    name: ClassVar[str] = "sharpened"

    def start(self, request: DraftRequest) -> DraftSession:
        self.sessions.append(self.drafter.start(request))
        return self

    @property
    def sessions(self) -> list[DraftSession]:
        return self.__dict__.setdefault("_sessions", [])

    @property
    def reads(self) -> Reads:
        return Reads(logits=True)

    def propose(self, root: int, context: Context) -> DraftTree:
        tree = self.sessions[-1].propose(root, context)
        assert tree.probs is not None
        rows = tree.probs**2
        return replace(tree, probs=rows / rows.sum(-1, keepdims=True).clip(1e-9))

    def update(self, accepted: VerifiedTree) -> None:
        self.sessions[-1].update(accepted)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("width", [1, 2])
def test_wrong_rows_of_stand_are_caught(width: int) -> None:
    target, _ = tables()
    assert p_value(Sharpened(Stand(4, order=2, width=width)), Rejection(), target) < LEVEL


class Claiming(LenientCascade):
    """A lenient cascade that calls its chain drawn."""

    @property
    def draw(self) -> Draw:
        return "distinct"


class Swapped(MergedDrawn):
    """Two chains of one token, each with the other's row."""

    def join(self, root: int, trees: Sequence[DraftTree]) -> DraftTree:
        tree = super().join(root, trees)
        if tree.drawn_from is None:
            return tree
        return replace(tree, drawn_from=tree.drawn_from[[0, 2, 1]])


@pytest.mark.usefixtures("unchecked")
def test_compositions_that_lie_about_their_rows_are_caught() -> None:
    target, draft = tables()
    small = TableModel(draft)
    one, other = (DraftModel(TableModel(logits), Widths((1,))) for logits in (draft, target))
    for honest, liar in (
        (Cascade(small, 3), Claiming(small, 3)),
        (MergedDrawn((one, other)), Swapped((one, other))),
    ):
        assert p_value(honest, Rejection(), target) > LEVEL
        assert p_value(liar, Rejection(), target) < LEVEL


def test_the_engine_refuses_what_is_not_exact() -> None:
    target, draft = (TableModel(logits) for logits in tables())
    for shape, verifier in [(Widths((2, 2)), KSeq()), (BestFirst(2, 2, 4), Rejection())]:
        with pytest.raises(ValueError, match="exact=False"):
            list(
                generate(
                    target,
                    DraftModel(draft, shape),
                    verifier,
                    [0],
                    Options(Sampling(1.0), 4, seed=0),
                )
            )


Models = tuple[Model, Model]


@pytest.fixture(scope="module")
def models() -> Models:
    """A target and a draft model, on the fastest path."""
    path = NativeModel if library.available() else TransformersModel
    return path(tiny_llama(0, layers=4)), path(tiny_llama(1, layers=1))


DRAFTERS: list[tuple[str, Callable[[Model, Model], Iterator[tuple[Drafter, Verifier]]]]] = [
    *((p.id, lambda t, d, p=p: iter([(DraftModel(d, p.values[0]), p.values[1])])) for p in PAIRS),
    *(
        (f"self-{p.id}", lambda t, d, p=p: iter([(DraftModel(t, p.values[0]), p.values[1])]))
        for p in PAIRS
    ),
    *(
        (
            f"skip-{p.id}",
            lambda t, d, p=p: iter([(LayerSkip(frozenset({1}), p.values[0]), p.values[1])]),
        )
        for p in PAIRS
    ),
    ("lookup", lambda t, d: iter([(PromptLookup(3, 8, b), Match()) for b in (1, 3)])),
    (
        "recycling",
        lambda t, d: iter([(TokenRecycling(), Match()), (TokenRecycling(keep=True), Match())]),
    ),
    (
        "combined",
        lambda t, d: iter([(MultiSource(), Match()), (MultiSource(budget=WIDE), Match())]),
    ),
    ("suffix", lambda t, d: iter([(SuffixDecoding(budget=WIDE), Match())])),
    (
        "stand",
        lambda t, d: iter(
            [(Stand(), verifier) for verifier in (Match(), Rejection(), Traversal())]
        ),
    ),
    ("aded", lambda t, d: iter([(Aded(), Match())])),
    (
        "pruned",
        lambda t, d: iter(
            [
                (Pruned(TokenRecycling(), 2, least=0.05), Match()),
                (Pruned(MultiSource(budget=WIDE), 1, budget=WIDE), Match()),
            ]
        ),
    ),
    ("composed", lambda t, d: iter(composed(d))),
    (
        "guided",
        lambda t, d: iter([(kind(), Match()) for kind in (Jacobi, Lookahead, InputGuided)]),
    ),
]


MADE = thinned([pytest.param(make, id=name) for name, make in DRAFTERS], 5)


@lru_cache(maxsize=1)
def own_texts() -> list[tuple[list[int], list[int]]]:
    """Prompts, and what Transformers writes to each with the target; without it the target."""
    model, found = tiny_llama(0, layers=4), []
    for prompt in ([1, 5, 7, 3, 5, 7], [9, 9, 2], list(range(40))):
        if torch is None:
            plain = generate(
                NativeModel(model), Nothing(), Match(), prompt, Options(max_new_tokens=40)
            )
            found.append((prompt, [token for step in plain for token in step.tokens]))
            continue
        ids = torch.tensor([prompt])
        own = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
        )
        found.append((prompt, own[0, len(prompt) :].tolist()))
    return found


@pytest.mark.parametrize("make", MADE)
def test_greedy_text_is_the_models_own(make, models: Models) -> None:
    target, draft = models
    for drafter, verifier in make(target, draft):
        for prompt, own in own_texts():
            steps = list(generate(target, drafter, verifier, prompt, Options(max_new_tokens=40)))
            assert [t for step in steps for t in step.tokens] == own
            assert Stats.of(steps).tokens == 40
            if drafter.name == "draft-model" and drafter.model is target:
                # a perfect drafter that gains nothing is broken
                assert Stats.of(steps).block_efficiency > 1.5


def drawn_text(target: Model, drafter: Drafter, verifier: Verifier, seed: int) -> list[int]:
    options = Options(Sampling(0.8), 40, seed=seed)
    return [
        t
        for step in generate(target, drafter, verifier, [1, 5, 7, 3, 5, 7], options)
        for t in step.tokens
    ]


@pytest.fixture(scope="module")
def plain_texts(models: Models) -> list[list[int]]:
    """By seed."""
    return [drawn_text(models[0], Nothing(), Match(), seed) for seed in range(4)]


@pytest.mark.parametrize("make", MADE)
def test_by_matching_a_seed_gives_the_text_of_plain_decoding(
    make, models: Models, plain_texts: list[list[int]]
) -> None:
    target, draft = models
    for drafter, verifier in make(target, draft):
        if isinstance(verifier, Match):
            for seed, plain in enumerate(plain_texts):
                assert drawn_text(target, drafter, verifier, seed) == plain


def test_by_rejection_a_seed_gives_a_text_of_its_own(
    models: Models, plain_texts: list[list[int]]
) -> None:
    target, draft = models
    drafter = DraftModel(draft, Widths((2, 1)))
    assert any(
        drawn_text(target, drafter, Rejection(), seed) != plain
        for seed, plain in enumerate(plain_texts)
    )


@dataclass(frozen=True)
class Deaf:
    """Exact for guesses made by any rule, but not for those that fit the noise with which it goes
    on to draw.
    """

    name = "deaf"
    exact_for = frozenset({"chosen", "coupled"})

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        node, p = 0, target_probs[0].copy()
        for child in tree.children[0]:
            if rng.accept(float(p[tree.token_list[child]] / p.sum())):
                node, p = child, target_probs[child]
                break
            p[tree.token_list[child]] = 0.0
        return Verdict(tree.path_to(node), rng.draw(p))


@pytest.mark.usefixtures("unchecked")
def test_noise_in_view_must_not_be_used_for_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    target, _ = tables()
    drafter = MultiSource((NGrams(order=1),), replace(WIDE, max_draft_tokens=1))

    def by_noise_alone(mixed: dict[int, float], noise: Noise, sharpness: float) -> dict[int, float]:
        return dict(zip(mixed, [1.0 / (1.0 + time) for time in noise(list(mixed))], strict=True))

    monkeypatch.setattr("draftwood.drafters.multi_source.Merger", PythonMerger)
    monkeypatch.setattr("reference.estimates.coupled", by_noise_alone)
    assert p_value(drafter, Match(), target) > LEVEL
    assert p_value(drafter, Deaf(), target) < LEVEL
    monkeypatch.setattr("reference.estimates.coupled", lambda mixed, *_: mixed)
    assert p_value(drafter, Deaf(), target) > LEVEL


@pytest.mark.usefixtures("unchecked")
def test_guesses_that_know_the_noise_are_accepted_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, _ = tables()
    model, drafter = TableModel(target), MultiSource((NGrams(order=1),), WIDE)

    def share() -> float:
        runs = [
            generate(model, drafter, Match(), [0], Options(Sampling(1.0), 200, seed=seed))
            for seed in range(5)
        ]
        stats = Stats.of(step for run in runs for step in run)
        return stats.accepted / stats.drafted

    knowing = share()
    monkeypatch.setattr("draftwood.drafters.multi_source.Merger", PythonMerger)
    assert share() == knowing
    monkeypatch.setattr("reference.estimates.coupled", lambda mixed, *_: mixed)
    assert knowing > 1.1 * share()
