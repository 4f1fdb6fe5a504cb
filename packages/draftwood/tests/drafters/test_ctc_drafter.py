"""Frames draft trees of a known law, so verifiers that are exact for the draw change no text."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import methods
from draftwood.drafters.ctc_drafter import CtcDrafter, GrownPrefixes
from draftwood.drafters.draft_vocabulary import DraftVocabulary
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.heads.lattice import Chain, Frames, Lattice, Pairs, Prefix, Unmerged
from draftwood.heads.prefix_search import (
    collapsed_alignments,
    likeliest_prefixes,
    released_paths,
)
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Shape, StochasticBeam, Widths
from draftwood.testing import (
    Walk,
    check_drafter,
    chi_square,
    distance,
    emitted_law,
    law_of,
    outcomes,
    target_law,
    tiny_llama,
)
from draftwood.testing.laws import at_nodes
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Traversal, Verifier
from draftwood_torch.heads.layers import HeadCache
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.tensors import as_tensor
from law_cases import DISTANCE, LEVEL, SMALL, exact_pairs
from tiny_heads import tiny_ctc

PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 60]
TOKENS, DRAFTED = 4, [0, 1, 3]
EVEN = list(range(0, 64, 2))
TOLERANCE = 1e-6  # rows have 32 bits


@pytest.fixture(scope="module")
def vocabulary() -> DraftVocabulary:
    target = TransformersModel(tiny_llama(0, vocab=TOKENS))
    return DraftVocabulary(np.array(DRAFTED), target.vocab_size)


def table() -> np.ndarray:
    rng = torch.Generator().manual_seed(3)
    scores = torch.randn(TOKENS, TOKENS, generator=rng, dtype=torch.float64) * 1.3
    return scores.softmax(-1).numpy()


def frames(count: int = 3, seed: int = 4) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(count, len(DRAFTED) + 1, generator=rng, dtype=torch.float64)).softmax(-1)


READS: dict[str, Callable[[], Frames]] = {
    "lattice": lambda: Lattice(frames()),
    "raw": lambda: Unmerged(frames(), has_blank=True),
    "without a blank": lambda: Unmerged(frames()[:, :-1].softmax(-1), has_blank=False),
    "chain": lambda: Chain(frames()[:, :-1].log(), pairwise(len(DRAFTED)), candidates=3),
    "chain of two": lambda: Chain(frames()[:, :-1].log(), pairwise(len(DRAFTED)), candidates=2),
}


def pairwise(vocab: int) -> Pairs:
    torch.manual_seed(5)
    return Pairs(torch.randn(vocab, 2).numpy(), torch.randn(vocab, 2).numpy() * 4.0)


def growing(
    vocabulary: DraftVocabulary,
    shape: Shape,
    reads: Frames,
    kind: type[GrownPrefixes] = GrownPrefixes,
    sampling: Sampling | None = None,
) -> Callable[[Rng], DraftTree]:
    """Function that grows a session's tree with given frames."""

    def grow(rng: Rng) -> DraftTree:
        grown = kind(reads, vocabulary, rng)
        tree = vocabulary.grow(
            shape, 0, grown.logits, sampling or Sampling(1.0), Context([1], 1), rng
        )
        return grown.without_ended(tree)

    return grow


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("shape", "reads"),
    [(shape, "lattice") for shape in SMALL]
    + [(shape, reads) for shape in SMALL[1:2] for reads in list(READS)[1:]],
    ids=str,
)
def test_every_outcome_together_is_the_law_of_the_target(
    vocabulary: DraftVocabulary, shape: Shape, reads: str
) -> None:
    """Under every verifier that is exact for the shape's draws."""
    length, target = min(shape.depth, 2) + 1, table()
    ways = [Sampling(1.0), Sampling(0.7, top_k=2), Sampling(1.0, presence_penalty=0.5)]
    many = reads == "lattice" and shape.draw == "distinct"
    for sampling in ways if many else ways[:1]:
        trees = outcomes(growing(vocabulary, shape, READS[reads](), sampling=sampling))
        for _, rule in exact_pairs([shape]):
            found = [
                Walk(drafted * decided, tree, verdict)
                for drafted, tree in trees
                for decided, verdict in outcomes(partial(rule, tree, at_nodes(target, tree)))
            ]
            off = distance(law_of(found, target, length), target_law(target, length))
            assert off < TOLERANCE, (sampling, rule)


SEARCHES: dict[str, Callable[[torch.Tensor], DraftTree]] = {
    "prefix": lambda probs: likeliest_prefixes(Lattice(probs), 6),
    "raw": lambda probs: likeliest_prefixes(Unmerged(probs, has_blank=True), 6),
    "paper": lambda probs: collapsed_alignments(probs, 6, 4, 99),
    "released": lambda probs: released_paths(probs, 6),
    "chain": lambda probs: likeliest_prefixes(READS["chain"](), 6),
}


def searched(search: str) -> DraftTree:
    """Tree of a search in the target's tokens."""
    tree = SEARCHES[search](frames())
    return DraftTree.of([0, *(DRAFTED[place] for place in tree.token_list[1:])], tree.parent_list)


@pytest.mark.parametrize("search", SEARCHES)
def test_trees_of_every_search_keep_the_law(search: str) -> None:
    """Under the paper's verification.

    Where a node has the row of another, as a raw path has before it is collapsed, the law is
    another.
    """
    tree, target, offs = searched(search), table(), list[float]()
    assert tree.depth > 1
    assert max(map(len, tree.children)) > 1
    for rows in (at_nodes(target, tree), np.roll(at_nodes(target, tree), 1, 0)):
        verdicts = outcomes(partial(Match(), tree, rows))
        found = [Walk(chance, tree, verdict) for chance, verdict in verdicts]
        offs.append(distance(law_of(found, target, 3), target_law(target, 3)))
    assert offs[0] < TOLERANCE
    assert offs[1] > DISTANCE


class Late(GrownPrefixes):
    """A wrong rule: whether frames end is tossed after the children, in favour of one."""

    def without_ended(self, tree: DraftTree) -> DraftTree:
        self._ended = [
            any(tree.token_list[child] == 1 for child in children) for children in tree.children
        ]
        return super().without_ended(tree)


class Lying(GrownPrefixes):
    """A wrong rule: children are drawn from other rows than the tree states."""

    def without_ended(self, tree: DraftTree) -> DraftTree:
        tree = super().without_ended(tree)
        assert tree.probs is not None
        return DraftTree(tree.tokens, tree.parents, np.roll(tree.probs, 1, -1), tree.draw)


class Confused(GrownPrefixes):
    """A wrong rule: drawn after one token, told as if drawn after its sibling."""

    def without_ended(self, tree: DraftTree) -> DraftTree:
        tree = super().without_ended(tree)
        assert tree.probs is not None
        return replace(tree, probs=np.concatenate([tree.probs[:1], tree.probs[:0:-1]]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "reads"), [(Late, "lattice"), (Lying, "lattice"), (Confused, "chain")]
)
def test_a_wrong_rule_is_found(
    vocabulary: DraftVocabulary, wrong: type[GrownPrefixes], reads: str
) -> None:
    grow = growing(vocabulary, Widths((2, 1)), READS[reads](), wrong)
    off = distance(emitted_law(Rejection(), grow, table(), 3), target_law(table(), 3))
    assert off > DISTANCE


@pytest.mark.usefixtures("unchecked")
def test_trees_end_as_often_as_the_frames_say(vocabulary: DraftVocabulary) -> None:
    """A chain without verdicts is a text of the frames: its law is theirs, ends included."""
    reads = Lattice(frames())
    law: dict[tuple[int, ...], float] = {}
    for chance, tree in outcomes(growing(vocabulary, Widths((1, 1, 1, 1)), reads)):
        text = tuple(tree.token_list[1:])
        law[text] = law.get(text, 0.0) + chance
    wanted: dict[tuple[int, ...], float] = {}
    waiting: list[tuple[tuple[int, ...], Prefix]] = [((), reads.start())]
    while waiting:
        text, prefix = waiting.pop()
        wanted[tuple(DRAFTED[token] for token in text)] = prefix.ends
        for token in range(len(DRAFTED)):
            longer = reads.extended(prefix, token)
            if longer.chance > 0.0:
                waiting.append(((*text, token), longer))
    assert sum(wanted.values()) == pytest.approx(1.0)
    assert distance(law, wanted) < TOLERANCE
    assert any(len(text) == 3 for text in law)


@pytest.mark.usefixtures("unchecked")
def test_beams_keep_the_law_by_chi_square(vocabulary: DraftVocabulary) -> None:
    """The same trees for each rule; with rows that lie, the same number tells."""
    grow = growing(vocabulary, StochasticBeam(3, 2, budget=5), READS["lattice"]())
    rng, target = Rng(5), table()
    counts: dict[str, Counter[tuple[int, ...]]] = {
        name: Counter() for name in ("rejection", "traversal", "lying")
    }
    for _ in range(800):
        tree = grow(rng)
        rows = at_nodes(target, tree)
        assert tree.probs is not None
        lying = replace(tree, probs=np.roll(tree.probs, 1, -1))
        for name, rule, each in (
            ("rejection", Rejection(), tree),
            ("traversal", Traversal(), tree),
            ("lying", Rejection(), lying),
        ):
            verdict = rule(each, rows, rng)
            tokens = [*(tree.token_list[node] for node in verdict.path), verdict.next_token]
            while len(tokens) < 2:
                tokens.append(rng.draw(target[tokens[-1]]))
            counts[name][tokens[0], tokens[1]] += 1
    law = target_law(target, 2)
    assert chi_square(counts["rejection"], law) > LEVEL
    assert chi_square(counts["traversal"], law) > LEVEL
    assert chi_square(counts["lying"], law) < LEVEL


MODELS: dict[str, Callable[[], Model]] = {
    "native": lambda: NativeModel(tiny_llama(0, layers=4)),
    "int8": lambda: NativeModel(tiny_llama(0, layers=4), "int8"),
    "lean": lambda: LeanModel(tiny_llama(0, layers=4)),
    "general": lambda: TransformersModel(tiny_llama(0, layers=4)),
}
WAYS: list[dict[str, Any]] = [
    {},
    {"search": "paper"},
    {"search": "released"},
    {"search": "raw"},
    {"shape": Widths((2, 2, 1))},
    {"shape": BestFirst(3, 3, 6)},
]


@pytest.fixture(scope="module", params=["lean", "native"])
def target(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


def written(target: Model, drafter: Any, rule: Verifier, temperature: float = 0.0) -> Iterator[Any]:
    yield from generate(target, drafter, rule, PROMPT, Options(Sampling(temperature), 24, seed=3))


def said(steps: Any) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("path", MODELS)
def test_greedy_texts_are_the_models_own_on_every_path(path: str) -> None:
    target = MODELS[path]()
    plain = methods.build("plain", target)
    wanted = said(written(target, plain.drafter, plain.verifier))
    trained = tiny_ctc(target, EVEN)
    for way in WAYS:
        drafter = CtcDrafter(trained, target, **way)
        assert (drafter.native is not None) == isinstance(target, NativeModel)
        rule = Match() if drafter.draws == {"chosen"} else Rejection()
        steps = list(written(target, drafter, rule))
        assert said(steps) == wanted, way
        assert any(step.drafted for step in steps)


def test_a_head_without_a_blank_drafts_too(target: Model) -> None:
    trained = tiny_ctc(target, EVEN, has_blank=False, form="linear")
    steps = list(written(target, CtcDrafter(trained, target), Match()))
    assert any(step.drafted for step in steps)
    for search in ("paper", "released"):
        with pytest.raises(ValueError, match=f"'{search}'.*choose search 'prefix'"):
            CtcDrafter(trained, target, search=search)


def test_frames_that_know_their_neighbours_draft_too(target: Model) -> None:
    settings = {"has_blank": False, "pairwise": 4, "layers": 2}
    trained = tiny_ctc(target, EVEN, reads=(1, 1, target.layers), **settings)
    plain = methods.build("plain", target)
    wanted = said(written(target, plain.drafter, plain.verifier))
    for way in ({}, {"shape": Widths((2, 1))}):
        drafter = CtcDrafter(trained, target, **way)
        rule = Match() if drafter.draws == {"chosen"} else Rejection()
        steps = list(written(target, drafter, rule))
        assert said(steps) == wanted
        assert any(step.drafted for step in steps)


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"search": "paper", "alignments": 1},
        {"search": "raw"},
        {"shape": Widths((1, 1))},
    ],
    ids=str,
)
def test_a_blank_that_is_sure_drafts_nothing(target: Model, way: dict[str, Any]) -> None:
    """From head to tree the blank has one place; one that is impossible leaves the tokens alone."""
    trees = []
    for sign in (1.0, -1.0):
        trained = tiny_ctc(target, EVEN, form="linear")
        head: Any = trained.network
        with torch.no_grad():
            head.frame_bias.zero_()[:, 0] = 1e4  # frames are all along the first axis
            head.blank.zero_()[0] = sign * 1e3 * head.norm.weight[0].sign()
        draft = CtcDrafter(trained, target, **way).start(
            DraftRequest(Sampling(), Rng(0, noise=False), session := target.start())
        )
        output = session.extend(PROMPT, hidden=draft.reads.hidden)
        draft.update(VerifiedTree(DraftTree.chain(PROMPT), range(len(PROMPT)), output))
        trees.append(draft.propose(2, Context(PROMPT, len(PROMPT))))
    nothing, something = trees
    assert len(nothing) == 1
    axis = as_tensor(target.embeddings_and_head.weights().head)[EVEN][:, 0] * head.norm.weight[0]
    assert something.token_list[1] == EVEN[int(axis.argmax())]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_head_that_knows_a_token_is_believed(target: Model, way: dict[str, Any]) -> None:
    """With one token in the draft vocabulary, drafts are right wherever it is next."""
    plain = methods.build("plain", target)
    wanted = said(written(target, plain.drafter, plain.verifier))
    common = max(set(wanted), key=wanted.count)
    drafter = CtcDrafter(tiny_ctc(target, [common]), target, **way)
    rule = Match() if drafter.draws == {"chosen"} else Rejection()
    steps = list(written(target, drafter, rule))
    assert said(steps) == wanted
    assert sum(step.accepted for step in steps) >= 1


def test_what_is_kept_equals_what_would_be_computed_anew(target: Model) -> None:
    """Steps of several tokens, rejected nodes and a prompt in pieces leave nothing wrong behind."""
    drafter = CtcDrafter(tiny_ctc(target, EVEN, window=6), target)
    head, layer = drafter.placed.network, target.layers
    text = [*PROMPT, 3, 9, 4, 4, 12, 50]
    session = target.start()
    draft = drafter.start(DraftRequest(Sampling(), Rng(0), session))
    states = target.start().extend(text, hidden=(layer,)).states(layer)

    def told(tokens: list[int], path: list[int] | None = None) -> None:
        tree = DraftTree.chain(tokens)
        output = session.forward(tree, hidden=draft.reads.hidden)
        kept = list(range(len(tokens))) if path is None else path
        session.commit(kept)
        draft.update(VerifiedTree(tree, kept, output))

    told(text[:4])
    told(text[4:9])
    for start, end in ((9, 10), (10, 13), (13, 14)):
        tree = draft.propose(text[start], Context(text[:start], 9))
        embedded = target.embeddings_and_head.embed(torch.tensor(text[1 : start + 1]))
        cache = HeadCache(1, head.config.sizes, head.frame_weight)
        fresh = head.draft(cache, head.rows(states[:start], embedded))
        rows = as_tensor(target.embeddings_and_head.weights().head)[EVEN]
        probs = head.log_probs(fresh, rows).exp()
        wanted = drafter.searched(probs, text[start], 99)
        assert (tree.token_list, tree.parent_list) == (wanted.token_list, wanted.parent_list)
        told([*text[start:end], 7, 8], list(range(end - start)))


@pytest.mark.parametrize("way", WAYS[:5], ids=str)
def test_no_tree_is_larger_or_deeper_than_asked(target: Model, way: dict[str, Any]) -> None:
    drafter = CtcDrafter(tiny_ctc(target, EVEN), target, nodes=5, **way)
    for max_draft_len in (0, 1, 2):
        session = target.start()
        draft = drafter.start(DraftRequest(Sampling(1.0), Rng(0), session))
        output = session.extend(PROMPT, hidden=draft.reads.hidden)
        draft.update(VerifiedTree(DraftTree.chain(PROMPT), range(len(PROMPT)), output))
        tree = draft.propose(2, Context(PROMPT, 9, max_draft_len))
        assert tree.depth <= max_draft_len
        assert tree.token_list[0] == 2
        assert tree.draw in drafter.draws or len(tree) == 1
        assert "shape" in way or len(tree) <= 6


def test_trees_are_those_of_pytorch_on_the_native_road() -> None:
    """For a text in steps, greedily and drawn with the same noise."""
    target = MODELS["native"]()
    for way in WAYS:
        trees = list[list[tuple[list[int], list[int]]]]()
        for runs_natively in (True, False):
            drafter = CtcDrafter(tiny_ctc(target, EVEN), target, **way)
            if not runs_natively:
                object.__setattr__(drafter, "native", None)
            rule = Match() if drafter.draws == {"chosen"} else Rejection()
            drafted = [step.tree for step in written(target, drafter, rule, temperature=0.8)]
            trees.append([(tree.token_list, tree.parent_list) for tree in drafted if tree])
        assert trees[0] == trees[1], way


def test_requests_do_not_disturb_each_other(target: Model) -> None:
    check_drafter(CtcDrafter(tiny_ctc(target, EVEN), target), target)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"search": "wide"}, "search"), ({"nodes": 0}, "nodes, ranks and alignments")],
)
def test_settings_that_cannot_be_are_refused(
    target: Model, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        CtcDrafter(tiny_ctc(target, [1, 2]), target, **wrong)


def test_heads_of_other_models_are_refused(target: Model) -> None:
    with pytest.raises(ValueError, match="take a drafter of this model"):
        CtcDrafter(tiny_ctc(target, [1, 2], reads=(9,)), target)
