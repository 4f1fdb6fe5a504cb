"""Every drafter: what it guesses, and that it cannot change a text."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from draftwood.costs.budget import Budget
from draftwood.drafters import (
    DraftModel,
    DraftRequest,
    MultiSource,
    Nothing,
    PromptLookup,
    SuffixDecoding,
    VerifiedTree,
)
from draftwood.drafters.draft_model import ProbsBuffer
from draftwood.drafters.drafter import Drafter, DraftSession
from draftwood.engine import Options, generate
from draftwood.engine.sequence import Sequence
from draftwood.models.model import ForwardInput, ModelOutput, PromptInput
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Paths, StochasticBeam, Widths
from draftwood.sources import BigramPrior, Datastore, EarlierTexts, NearestState, NGrams, Suffix
from draftwood.sources.token_index import TokenIndex
from draftwood.stats import Stats
from draftwood.testing import TableModel, check_drafter, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_methods.drafters.aded import Aded
from draftwood_methods.drafters.cascade import Cascade
from draftwood_methods.drafters.dynamic_exit import DynamicExit
from draftwood_methods.drafters.early_exit import EarlyExit
from draftwood_methods.drafters.input_guided import InputGuided
from draftwood_methods.drafters.jacobi import Jacobi
from draftwood_methods.drafters.layer_search import LayerSearch
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_methods.drafters.lookahead import Lookahead
from draftwood_methods.drafters.merged import MergedDrafters
from draftwood_methods.drafters.per_level import PerLevel
from draftwood_methods.drafters.stand import Stand
from draftwood_methods.drafters.token_recycling import TokenRecycling, published_tree
from draftwood_methods.drafters.windowed import Windowed
from draftwood_methods.exits import Exits
from draftwood_torch.models.transformers import TransformersModel
from reference.sessions import InPython

WIDE = Budget(
    lambda nodes: 1.0 + 0.002 * nodes, per_draft_token=0.0, max_draft_tokens=12
)  # nearly every guess pays


@pytest.fixture(scope="module")
def target() -> TransformersModel:
    return TransformersModel(tiny_llama(0, layers=4))


def request_for(model: TransformersModel | TableModel) -> DraftRequest:
    return DraftRequest(Sampling(1.0), Rng(0), model.start())


def chain_of(tokens: list[int]) -> VerifiedTree:
    return VerifiedTree(DraftTree.chain(tokens), range(len(tokens)))


TEXTS = [[(7 * first + 3 * place * place) % 64 for place in range(40)] for first in range(40)]


@pytest.mark.proof
@pytest.mark.parametrize(
    "make",
    [
        lambda target: Nothing(),
        lambda target: PromptLookup(),
        lambda target: PromptLookup(2, 5, 3),
        lambda target: TokenRecycling(),
        lambda target: MultiSource(),
        lambda target: MultiSource(
            (Suffix(), NGrams(keep=True), EarlierTexts(100), BigramPrior.of(target)), WIDE
        ),
        lambda target: MultiSource((Suffix(), InPython(NGrams(keep=True))), WIDE),
        lambda target: MultiSource(
            (
                Datastore(TokenIndex.of(TEXTS, 64), shortest=1),
                NearestState(2, target.hidden_size),
            ),
            WIDE,
        ),
        lambda target: SuffixDecoding(),
        lambda target: Stand(),
        lambda target: Aded(),
        lambda target: DraftModel(TransformersModel(tiny_llama(1, layers=1)), StochasticBeam(3, 3)),
        lambda target: LayerSkip(frozenset({1, 2}), Widths((2, 1))),
        lambda target: Cascade(TransformersModel(tiny_llama(1, layers=1)), width=2),
        lambda target: PerLevel(DraftModel(TransformersModel(tiny_llama(1, layers=1)))),
        lambda target: MergedDrafters(
            (LayerSkip(frozenset({1, 2}), Widths((2, 1))), MultiSource())
        ),
        lambda target: Jacobi(),
        lambda target: Lookahead(),
        lambda target: InputGuided(),
        lambda target: EarlyExit(2, Exits.of(target, most=256), Widths((2, 1))),
        lambda target: DynamicExit((1, 2, 3)),
        lambda target: Windowed(0, 16),
        lambda target: LayerSearch("swift", most=6.0),
    ],
)
def test_a_drafter_cannot_change_a_text(make, target: TransformersModel) -> None:
    check_drafter(make(target), target)


@dataclass(frozen=True)
class Shared(Drafter, DraftSession):
    """A drafter whose requests share one list: they disturb each other."""

    name: ClassVar[str] = "shared"
    seen: list[int]

    def start(self, request: DraftRequest) -> "Shared":
        return self

    def propose(self, root: int, context: Context) -> DraftTree:
        if len(self.seen) % 7 == 3:  # another request came in between
            return DraftTree.of([(root + 1) % 64], [-1])
        return DraftTree.of([root], [-1])

    def update(self, accepted: VerifiedTree) -> None:
        self.seen.extend(accepted.tokens)


def test_a_drafter_that_shares_state_is_caught(target: TransformersModel) -> None:
    with pytest.raises(AssertionError):
        check_drafter(Shared([]), target)


class Coupled(PromptLookup):
    """Trees that say they looked at the noise, of a drafter that does not say so."""

    name: ClassVar[str] = "coupled"

    def start(self, request: DraftRequest) -> DraftSession:
        inner = super().start(request)
        propose = inner.propose
        inner.propose = lambda root, context: replace(propose(root, context), draw="coupled")  # type: ignore[method-assign]
        return inner


def test_a_drafter_whose_trees_say_something_else_is_caught(target: TransformersModel) -> None:
    check_drafter(PromptLookup(), target)
    with pytest.raises(AssertionError, match="were coupled, but draws names chosen"):
        check_drafter(Coupled(), target)


def test_lookup_takes_the_longest_then_the_most_recent_match() -> None:
    session = PromptLookup(ngram=3, length=3).start(request_for(TableModel(torch.zeros(30, 30))))
    session.update(chain_of([1, 2, 3, 10, 11, 9, 2, 3, 20, 21, 8, 2]))
    # 8 2 3 never occurred, 2 3 last before 20
    assert session.propose(3, Context([], 0)).token_list == [3, 20, 21, 8]
    session.update(chain_of([3, 1, 2]))
    # 1 2 3 is longer than 2 3
    assert session.propose(3, Context([], 0)).token_list == [3, 10, 11, 9]
    assert session.propose(7, Context([], 0)).token_list == [7]


def test_lookup_merges_continuations_into_a_tree() -> None:
    session = PromptLookup(ngram=1, length=3, branches=3).start(
        request_for(TableModel(torch.zeros(30, 30)))
    )
    session.update(chain_of([5, 1, 2, 5, 1, 3, 5, 4]))
    tree = session.propose(5, Context([], 0))
    paths = {tuple(tree.token_list[n] for n in tree.path_to(node)) for node in range(1, len(tree))}
    assert paths == {(4,), (4, 5), (1,), (1, 3), (1, 3, 5), (1, 2), (1, 2, 5)}
    assert tree.children[0][0] == tree.token_list.index(4)


def test_the_published_recycling_tree() -> None:
    levels = published_tree().levels
    assert [len(level.ranks) for level in levels] == [8, 21, 25, 15, 8, 3]
    assert published_tree().nodes == 80


def test_recycling_learns_from_every_node_and_from_the_prompt() -> None:
    model = TableModel(torch.zeros(20, 20))
    session = TokenRecycling(Paths(((0,), (1,), (0, 0))), ranks=2).start(request_for(model))
    assert session.propose(4, Context([], 0)).token_list == [4]  # nothing seen yet: nothing guessed
    logits = torch.zeros(3, 20)
    logits[0, [7, 8]] = torch.tensor([2.0, 1.0])
    logits[1, [9, 6]] = torch.tensor([2.0, 1.0])
    logits[2, [3, 2]] = torch.tensor([2.0, 1.0])
    prompt = DraftTree.chain([4, 7, 1])
    session.update(VerifiedTree(prompt, range(3), ModelOutput(logits)))
    assert session.propose(4, Context([], 0)).token_list == [4, 7, 8, 9]
    # the same token twice: the accepted node's logits count
    rejected = DraftTree.of([1, 4, 4], [-1, 0, 0])
    logits = torch.zeros(3, 20)
    logits[1, [11, 12]] = torch.tensor([2.0, 1.0])
    logits[2, [13, 14]] = torch.tensor([2.0, 1.0])
    session.update(VerifiedTree(rejected, [0, 1], ModelOutput(logits)))
    assert session.propose(4, Context([], 0)).token_list == [4, 11, 12]


def test_recycling_carries_its_table_over_only_when_asked() -> None:
    model = TableModel(torch.randn(20, 20, generator=torch.Generator().manual_seed(0)) * 3)
    shape = Paths(((0,), (1,), (0, 0)))
    for keep, better in ((True, True), (False, False)):
        drafter = TokenRecycling(shape, ranks=4, keep=keep)
        runs = [
            Stats.of(generate(model, drafter, Match(), [1], Options(max_new_tokens=6))).drafted
            for _ in range(2)
        ]
        assert (runs[1] > runs[0]) == better


def test_recycling_refuses_a_tree_wider_than_its_table() -> None:
    with pytest.raises(ValueError, match="raise ranks"):
        TokenRecycling(ranks=4)


def tree_after_two_tokens(logits: torch.Tensor, sampling: Sampling) -> DraftTree:
    """A tree that a table of these logits drafts below token 5, after tokens 1 and 2."""
    session = DraftModel(TableModel(logits), Widths((2, 2))).start(
        DraftRequest(sampling, Rng(0), TableModel(torch.zeros(12, 12)).start())
    )
    session.update(chain_of([1, 2]))
    tree = session.propose(5, Context([1, 2], 2))
    assert tree.probs is not None
    return tree


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_combined_drafter_reads_logits_from_the_first_draft_on(
    target: TransformersModel, temperature: float
) -> None:
    prompt, options = list(range(3, 23)), Options(Sampling(temperature), 12, seed=0)
    sequence = Sequence(target, MultiSource(budget=WIDE), Match(), prompt, options)
    asked, tokens = [], []
    while sequence.finish_reason is None:
        (run,) = sequence.plan()
        if isinstance(run, PromptInput):
            asked.append((run.keep, sequence.draft.reads.logits))
            output = run.session.extend(run.tokens, keep=run.keep)
            assert len(output.logits) == 1
        else:
            assert isinstance(run, ForwardInput)
            asked.append(("tree", sequence.draft.reads.logits))
            (output,) = target.forward([run])
        (step,) = sequence.commit([output], 0.0)
        assert step is not None
        tokens += step.tokens
    sequence.close()
    assert asked[:2] == [("last", False), ("tree", True)]
    assert all(each == ("tree", True) for each in asked[1:])
    plain = [step.tokens for step in generate(target, Nothing(), Match(), prompt, options)]
    assert tokens == [token for some in plain for token in some]


def test_a_draft_models_tree_is_drawn_from_the_requests_own_sampling() -> None:
    logits = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(0.5, top_k=3)
    tree = tree_after_two_tokens(logits, sampling)
    for node in range(3):
        row = logits[tree.token_list[node]][None].numpy()
        assert np.allclose(tree.probs[node], sampling.probs(row)[0])


def test_penalties_reach_the_draft_with_each_nodes_own_context() -> None:
    logits = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(1.0, repetition_penalty=1.7)
    tree = tree_after_two_tokens(logits, sampling)
    for node in range(3):
        context = Context([1, 2, 5, *(tree.token_list[n] for n in tree.path_to(node))], 2)
        row = logits[tree.token_list[node]][None].numpy()
        assert np.allclose(tree.probs[node], sampling.probs(row, [context])[0])


def test_vocabularies_padded_to_different_sizes_fit_together() -> None:
    rng = torch.Generator().manual_seed(0)
    for draft_size in (10, 14):
        draft = TableModel(torch.randn(draft_size, draft_size, generator=rng))
        session = DraftModel(draft, Widths((2,))).start(
            DraftRequest(Sampling(1.0), Rng(0), TableModel(torch.zeros(12, 12)).start())
        )
        session.update(chain_of([1]))
        tree = session.propose(2, Context([1], 1))
        assert tree.probs is not None
        assert tree.probs.shape[-1] == 12
        assert tree.probs.sum().item() == pytest.approx(1.0)
        assert max(tree.token_list) < 12


def test_what_is_kept_of_a_tree_keeps_its_rows() -> None:
    draft = TableModel(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))
    session = DraftModel(draft, Widths((3, 2))).start(
        DraftRequest(Sampling(1.0), Rng(0), draft.start())
    )
    session.update(chain_of([1]))
    kept: list[np.ndarray] = []
    for root in range(12):
        tree = session.propose(root, Context([1], 1))
        assert tree.probs is not None
        kept += [tree.probs if root % 3 == 0 else tree.probs[0]] if root % 2 == 0 else []
    for root, rows in zip(range(0, 12, 2), kept, strict=True):
        assert np.allclose(rows.reshape(-1, 12)[0], draft.logits[root].softmax(-1), atol=1e-7)


def test_memory_is_given_out_again_once_nothing_refers_to_it() -> None:
    memory = ProbsBuffer(3, 5)
    first, second = memory.take(), memory.take()
    row, places = first[1], (first.ctypes.data, second.ctypes.data)
    del first, second
    third = memory.take()
    assert third.ctypes.data == places[1]  # of the first a row is in use
    del row
    assert memory.take().ctypes.data == places[0]


def test_a_draft_model_stops_at_its_own_context(target: TransformersModel) -> None:
    draft = TransformersModel(tiny_llama(0, layers=4, context=32))
    steps = list(
        generate(
            target,
            DraftModel(draft, Widths((1, 1))),
            Match(),
            [1, 2, 3],
            Options(max_new_tokens=60),
        )
    )
    assert Stats.of(steps).tokens == 60
    assert steps[1].drafted == 2
    assert steps[-1].drafted == 0


def test_news_without_logits_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="in reads"):
        _ = chain_of([1, 2]).logits


@pytest.mark.parametrize("layers", [frozenset(), frozenset({9}), frozenset({0, 1, 2, 3})])
def test_layers_that_cannot_be_skipped_are_refused(
    layers: frozenset[int], target: TransformersModel
) -> None:
    with pytest.raises(ValueError, match="layers to skip"):
        LayerSkip(layers).start(request_for(target))


def test_layer_skip_needs_layers() -> None:
    drafter: Drafter = LayerSkip(frozenset({1}))
    with pytest.raises(ValueError, match="layers"):
        drafter.start(request_for(TableModel(torch.zeros(4, 4))))


class Spending(PromptLookup):
    """Uses up numbers that the target's own draws need."""

    name: ClassVar[str] = "spending"

    def start(self, request: DraftRequest) -> DraftSession:
        inner = super().start(request)
        propose = inner.propose

        def spend(root: int, context: Context) -> DraftTree:
            request.rng.draw(np.ones(2, np.float32))
            return propose(root, context)

        inner.propose = spend  # type: ignore[method-assign]
        return inner


def test_a_drafter_that_uses_up_draws_is_caught(target: TransformersModel) -> None:
    with pytest.raises(AssertionError, match="the text of a seed is not the model's own"):
        check_drafter(Spending(), target)
