"""Texts under a constraint: their law through the whole engine, to 1e-5, and seed by seed.

The reference masks with the constraint's table itself and knows nothing of the engine's masks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float

from draftwood import engine
from draftwood.drafters import (
    Drafter,
    DraftModel,
    Eagle,
    JacobiSampled,
    Lm,
    Medusa,
    MultiSource,
    Nothing,
    PromptLookup,
    SuffixDecoding,
)
from draftwood.drafters.ctc_drafter import CtcDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.engine import Method, Options, generate, run_all
from draftwood.engine.constraints import Branches, Constrained
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.sampling import Context, Sampler, Sampling
from draftwood.shapes import BestFirst, Shape, Widths
from draftwood.testing import Automaton, TableModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Block, KSeq, Match, Rejection, Traversal, Verifier
from law_cases import DISTANCE, PROMPT, SMALL, contextual, exact_pairs, options, text_distance
from roads import (
    Aded,
    LayerSkip,
    LeanModel,
    Stand,
    TokenRecycling,
    TransformersModel,
    numbers,
    tiny_llama,
)
from thinning import thinned
from tiny_heads import tiny_ctc, tiny_eagle, tiny_lm, tiny_medusa

TOLERANCE, VOCAB = 1e-5, 3
PAIRS = [pytest.param(shape, rule, id=f"{shape}-{rule.name}") for shape, rule in exact_pairs(SMALL)]
pytestmark = pytest.mark.usefixtures("unchecked")

CHOICES = Automaton(
    # what may follow depends on more than the last token, and on the way one token is forced
    {
        "start": {0: "first", 1: "first"},
        "first": {0: "second", 1: "third", 2: "second"},
        "second": {0: "first", 2: "third"},
        "third": {1: "second"},
    }
)
ENDING = Automaton(  # token 2 ends the text
    {
        "start": {0: "open", 1: "open"},
        "open": {0: "full", 1: "again"},
        "again": {0: "full", 1: "open"},
        "full": {},
    },
    accepting=frozenset({"again", "full"}),
    end_tokens=frozenset({2}),
)
CONSTRAINTS = {"choices": CHOICES, "ending": ENDING}


@dataclass(frozen=True)
class Reference:
    """A sampler that follows the table from the beginning of the answer, for each row again."""

    inner: Sampling
    automaton: Automaton
    reads_context = True
    greedy = False

    def for_drafting(self) -> Sampler:
        raise NotImplementedError

    def probs(
        self, logits: Float[np.ndarray, "rows vocab"], contexts: Sequence[Context] = ()
    ) -> Float[np.ndarray, "rows vocab"]:
        rows = logits.copy()
        for row, context in zip(rows, contexts, strict=True):
            for token in range(rows.shape[-1]):
                if token not in self._allowed(context.tokens[context.prompt :]):
                    row[token] = -np.inf
        return self.inner.probs(rows, contexts)

    def _allowed(self, answer: list[int]) -> set[int]:
        table, ends, name = self.automaton.moves, self.automaton.end_tokens, "start"
        for token in answer:
            if token in ends:
                return set(ends)
            if token not in table[name]:
                return set(range(VOCAB))  # no text gets here
            name = table[name][token]
        return {*table[name], *(ends if name in self.automaton.accepting else ())}


Distance = Callable[..., float]


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Distance:
    """Measure the distance between a method's text under a constraint and the model's own."""

    def measured(
        model: Model,
        drafter: Drafter,
        rule: Verifier,
        sampling: Sampling,
        constraint: Automaton = CHOICES,
        steps: int = 1,
    ) -> float:
        return text_distance(
            monkeypatch,
            Method(drafter, rule),
            model,
            Options(sampling, 12, constraint=constraint),
            Reference(sampling, constraint),
            steps,
        )

    return measured


def tables() -> tuple[TableModel, TableModel]:
    """Target and draft; what follows the prompt is certain."""
    target, draft = contextual(VOCAB, seed=8)
    target.logits[tuple(PROMPT[-3:])] = numbers([0.0] + [-1e4] * (VOCAB - 1))
    return target, draft


OPTIONS = options(top_k=2, top_p=0.9)
MOST = {
    name: OPTIONS[name] for name in ("temperature alone", "top-p, top-k + min-p, penalties + bias")
}


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
@pytest.mark.parametrize(("shape", "rule"), thinned(PAIRS, 5))
def test_law_of_every_pair_of_shape_and_rule(
    shape: Shape, rule: Verifier, constraint: Automaton, off: Distance
) -> None:
    target, draft = tables()
    for name, sampling in MOST.items():
        found = off(target, DraftModel(draft, shape), rule, sampling, constraint)
        assert found < TOLERANCE, name


@pytest.mark.parametrize("name", thinned(OPTIONS, 3))
def test_law_under_every_subset_of_options(name: str, off: Distance) -> None:
    target, draft = tables()
    drafter = DraftModel(draft, Widths((2, 1)))
    assert off(target, drafter, Rejection(), OPTIONS[name]) < TOLERANCE


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
@pytest.mark.parametrize("rule", [Rejection(), Traversal(), Block()], ids=lambda rule: rule.name)
def test_law_of_two_steps(rule: Verifier, constraint: Automaton, off: Distance) -> None:
    target, draft = tables()
    drafter = DraftModel(draft, Widths((1, 1)))
    assert off(target, drafter, rule, Sampling(0.9), constraint, steps=2) < TOLERANCE


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_law_of_tables_of_successors(rule: Verifier, constraint: Automaton, off: Distance) -> None:
    target, _ = tables()
    for name, sampling in MOST.items():
        assert off(target, Stand(3, order=2, width=2), rule, sampling, constraint) < TOLERANCE, name
    drafter = Stand(2, order=2, width=1)
    assert off(target, drafter, rule, Sampling(0.9), constraint, steps=2) < TOLERANCE


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_law_of_tokens_drawn_from_the_last_pass(constraint: Automaton, off: Distance) -> None:
    target, _ = tables()
    for steps in (1, 2):
        drafter = JacobiSampled(2)
        assert off(target, drafter, Rejection(), Sampling(0.9), constraint, steps) < TOLERANCE


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_law_of_drafters_that_read_the_target(constraint: Automaton, off: Distance) -> None:
    model = LeanModel(tiny_llama(3, layers=1, vocab=VOCAB))
    native = NativeModel(tiny_llama(3, layers=1, vocab=VOCAB))
    whole = TransformersModel(tiny_llama(3, layers=4, vocab=VOCAB))
    part, sampling, chain = [0, 2], Sampling(0.9), Widths((1, 1))
    pairs: list[tuple[Model, Drafter]] = [
        (whole, LayerSkip(frozenset({1, 2}), chain)),
        (model, Eagle(tiny_eagle(model, [0, 1, 2]), model, chain)),
        (model, Eagle(tiny_eagle(model, part), model, Widths((2,)))),
        (model, Medusa(tiny_medusa(model, part), model, chain)),
        (model, Lm(tiny_lm(model, part), model, Widths((2, 1)))),
        (model, CtcDrafter(tiny_ctc(model, part), model, chain)),
        (native, Medusa(tiny_medusa(native, part), native, chain)),
        (native, CtcDrafter(tiny_ctc(native, part), native, chain)),
    ]
    for target, drafter in pairs:
        found = off(target, drafter, Rejection(), sampling, constraint)
        assert found < TOLERANCE, drafter.name
    likeliest = Eagle(tiny_eagle(model, part), model, BestFirst(2, 2, 3))
    assert off(model, likeliest, Match(), sampling, constraint) < TOLERANCE


# What must be caught


def after_drafting(
    draft: DraftModel, change: Callable[[DraftTree, Branches, Context], DraftTree]
) -> Drafter:
    """A drafter that knows nothing of the constraint and changes its trees once they are drawn."""

    class Changing(DraftModel):
        def start(self, request: DraftRequest) -> DraftSession:
            sampler = request.sampler
            assert isinstance(sampler, Constrained)
            session = super().start(replace(request, sampler=sampler.unmasked))
            propose = session.propose

            def changed(root: int, context: Context) -> DraftTree:
                return change(propose(root, context), sampler.branches, context)

            session.propose = changed  # type: ignore[method-assign]
            return session

    return Changing(draft.model, draft.shape)


def masked_rows(tree: DraftTree, branches: Branches, context: Context) -> DraftTree:
    """States masked rows in the place of those that were drawn from."""
    assert tree.probs is not None
    rows = tree.probs.copy()
    for node in range(len(rows)):
        path = [tree.token_list[each] for each in [0, *tree.path_to(node)]]
        mask = branches.mask(context.extended(path))
        if mask is not None:
            rows[node] = rows[node] * mask
            rows[node] /= rows[node].sum()
    return replace(tree, probs=rows)


def pruned(tree: DraftTree, branches: Branches, context: Context) -> DraftTree:
    """Takes forbidden nodes out of a drawn tree."""
    kept = [0]
    for node in range(1, len(tree)):
        path = [tree.token_list[each] for each in [0, *tree.path_to(node)]]
        if tree.parent_list[node] in kept and branches.mask(context.extended(path)) is not None:
            kept.append(node)
    return tree.keep(kept)


def test_rows_without_the_mask_are_exact_as_long_as_they_are_what_was_drawn_from(
    off: Distance,
) -> None:
    target, draft = tables()
    drafter = after_drafting(
        DraftModel(draft, Widths((2, 1))), lambda tree, branches, context: tree
    )
    assert off(target, drafter, Rejection(), Sampling(0.9)) < TOLERANCE


INDEPENDENT = Widths((2, 1), "independent")


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_rows_that_are_masked_after_drawing_are_caught(
    constraint: Automaton, off: Distance
) -> None:
    """A rule that weighs how often a token was drawn sees it; to others, tokens that were drawn
    and have no probability in the row count as fillers.
    """
    target, draft = tables()
    for change, caught in ((masked_rows, True), (lambda tree, *_: tree, False)):
        drafter = after_drafting(DraftModel(draft, INDEPENDENT), change)
        found = off(target, drafter, KSeq(), Sampling(0.9), constraint)
        assert (found > DISTANCE) if caught else (found < TOLERANCE)


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_drawn_trees_that_lose_forbidden_nodes_are_caught(rule: Verifier, off: Distance) -> None:
    target, draft = tables()
    drafter = after_drafting(DraftModel(draft, Widths((2, 1))), pruned)
    assert off(target, drafter, rule, Sampling(0.9), ENDING) > DISTANCE


def test_a_mask_of_the_parent_is_caught(off: Distance, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = tables()
    whole = Branches.mask

    def above(branches: Branches, context: Context) -> Any:
        tokens = context.tokens
        late = len(tokens) > branches._length
        return whole(branches, replace(context, tokens=tokens[:-1] if late else tokens))

    monkeypatch.setattr(Branches, "mask", above)
    # the engine itself refuses a text that holds forbidden tokens
    monkeypatch.setattr(Branches, "keep", lambda branches, tokens: None)
    drafter = DraftModel(draft, Widths((1, 1)))
    assert off(target, drafter, Rejection(), Sampling(0.9)) > DISTANCE


# Methods that verify by match: each text is the plain one


def text_of(
    model: Model, drafter: Drafter, constraint: Automaton, sampling: Sampling, seed: int
) -> list[int]:
    request = Options(sampling, 24, seed=seed, constraint=constraint)
    return [t for step in generate(model, drafter, Match(), PROMPT, request) for t in step.tokens]


MATCHED = [
    *(MultiSource(), SuffixDecoding(), PromptLookup(), TokenRecycling(), Aded()),
    *(Stand(), Nothing()),
]


@pytest.mark.parametrize("drafter", thinned(MATCHED, 3), ids=lambda drafter: drafter.name)
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_every_text_is_the_plain_one(drafter: Drafter, constraint: Automaton) -> None:
    target, _ = contextual(VOCAB, seed=8)
    for seed in range(25):
        for sampling in (Sampling(), *MOST.values()):
            wanted = plain(target, constraint, sampling, seed)
            assert text_of(target, drafter, constraint, sampling, seed) == wanted


def plain(target: Model, constraint: Automaton, sampling: Sampling, seed: int) -> list[int]:
    """Decoding token by token, without forced tokens."""
    sequence = engine.Sequence(
        *(target, Nothing(), Match(), PROMPT),
        Options(sampling, 24, seed=seed, constraint=constraint),
    )
    assert sequence.branches is not None
    sequence.branches.fit = lambda tree, max_draft_len: tree  # type: ignore[method-assign]
    steps = [step for _, step in run_all([sequence])]
    assert all(len(step.tokens) == 1 for step in steps)
    return [step.tokens[0] for step in steps]
