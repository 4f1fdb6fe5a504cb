"""An EAGLE head drafts from the target's states, with what it keeps equal to what it would compute
anew, and cannot change a text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import methods
from draftwood.drafters import Eagle
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.engine import Options, Sequence, generate
from draftwood.engine.parallel_sampling import ParallelSampling
from draftwood.engine.scheduler import run_all
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, StochasticBeam, Widths
from draftwood.shapes.shape import Expand, Shape
from draftwood.testing import TableModel, check_drafter, tiny_llama
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Match, Rejection
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from tiny_heads import tiny_eagle, tiny_lm

MODELS: dict[str, Callable[[], Model]] = {
    "native": lambda: NativeModel(tiny_llama(0, layers=4)),
    "int8": lambda: NativeModel(tiny_llama(0, layers=4), "int8"),
    "lean": lambda: LeanModel(tiny_llama(0, layers=4)),
    "general": lambda: TransformersModel(tiny_llama(0, layers=4)),
}
PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 60]


@pytest.fixture(scope="module")
def target() -> Model:
    return MODELS["lean"]()


def text(target: Model, drafter: Eagle, temperature: float = 0.0, prompt: list[int] = PROMPT):
    options = Options(Sampling(temperature), 24, seed=3)
    rule = Match() if drafter.shape.draw == "chosen" else Rejection()
    steps = list(generate(target, drafter, rule, prompt, options))
    assert any(step.drafted for step in steps)
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("path", MODELS)
@pytest.mark.parametrize("shape", [BestFirst(3, 3, 4), Widths((2, 2, 1))], ids=str)
def test_greedy_texts_are_the_models_own_on_every_path(path: str, shape: Shape) -> None:
    target = MODELS[path]()
    plain = methods.build("plain", target)
    options = Options(Sampling(), 24)
    wanted = [
        token
        for step in generate(target, plain.drafter, plain.verifier, PROMPT, options)
        for token in step.tokens
    ]
    assert text(target, Eagle(tiny_eagle(target), target, shape)) == wanted


def test_a_head_that_knows_a_token_is_believed(target: Model) -> None:
    """Drafts do get accepted: with one token in the draft vocabulary, wherever it is next."""
    wanted = text(target, Eagle(tiny_eagle(target), target))
    common = max(set(wanted), key=wanted.count)
    drafter = Eagle(tiny_eagle(target, [common]), target, Widths((1,)))
    steps = list(generate(target, drafter, Rejection(), PROMPT, Options(Sampling(), 24)))
    drafted = [step for step in steps if step.drafted]
    said = [token for step in steps for token in step.tokens]
    assert said == wanted
    assert sum(step.accepted for step in drafted) >= 1


def test_requests_do_not_disturb_each_other(target: Model) -> None:
    check_drafter(Eagle(tiny_eagle(target), target), target)


@dataclass(frozen=True)
class Recorded:
    """A shape that notes the distribution after each node, by the tokens up to it."""

    inner: Shape
    seen: dict[tuple[int, ...], Tensor]

    name: ClassVar[str] = "recorded"

    @property
    def draw(self) -> Draw:
        return self.inner.draw

    @property
    def nodes(self) -> int:
        return self.inner.nodes

    @property
    def depth(self) -> int:
        return self.inner.depth

    @property
    def label(self) -> str:
        return self.inner.label

    def grow(self, root: int, expand: Expand, rng: Rng, max_draft_len: int = 9) -> DraftTree:
        def noted(tree: DraftTree, first: int) -> np.ndarray:
            rows = expand(tree, first)
            for node, row in enumerate(rows, first):
                path = [tree.token_list[each] for each in tree.path_to(node)]
                self.seen[tuple(path)] = row.copy()
            return rows

        return self.inner.grow(root, noted, rng, max_draft_len)


class Reference:
    """Distribution of a head after a text and drafted tokens, computed from scratch each time."""

    def __init__(self, drafter: Eagle) -> None:
        self.drafter = drafter
        self.head: EagleHead = drafter.placed.network

    def after(self, tokens: list[int], root: int, path: list[int]) -> Tensor:
        config, target = self.head.config, self.drafter.target
        session = target.start()
        hidden = session.extend(tokens, hidden=config.reads).hidden
        session.close()
        features = torch.stack([hidden[i].float() for i in config.reads], dim=-2)
        cache = HeadCache(config.layers, config.sizes, features)
        states, following = self.head.combine(features), [*tokens[1:], root]
        read = features
        for last in range(len(path) + 1):
            embedded = target.embeddings_and_head.embed(torch.tensor(following)).float()
            places = torch.arange(len(tokens) + last)[-len(following) :]
            seen = causal(len(following), len(places) and int(places[0]), config.window)
            fed, read = self.head(embedded, states, places, cache.attend(seen))
            states, following = fed[-1:], path[last : last + 1]
        return self.drafter.placed.logits(read[-1:]).softmax(-1)[0]


def begin(drafter: Eagle) -> tuple[DraftRequest, Any]:
    request = DraftRequest(Sampling(), Rng(0, noise=False), drafter.target.start())
    return request, drafter.start(request)


def say(draft, session, tokens: list[int], tree: DraftTree | None = None, path=()) -> None:
    """The target runs tokens, or a tree of which a path is kept, and the drafter learns it."""
    if tree is None:
        output = session.extend(tokens, hidden=draft.reads.hidden)
        tree, path = DraftTree.chain(tokens), range(len(tokens))
    else:
        output = session.forward(tree, hidden=draft.reads.hidden)
        session.commit(path)
    draft.update(VerifiedTree(tree, path, output))


def compare(drafter: Eagle, seen: dict[tuple[int, ...], Tensor], text: list[int], root: int) -> int:
    """Compare recorded distributions with those computed from scratch; return their number."""
    reference, tokens = Reference(drafter), drafter.vocabulary.tokens.tolist()
    for path, row in seen.items():
        found = [tokens[each] for each in path]
        wanted = reference.after(text, root, found)
        torch.testing.assert_close(torch.from_numpy(row), wanted, atol=1e-5, rtol=1e-4)
    return len(seen)


SETTINGS = [
    {},
    {"layers": 2, "window": 5},
    {"feeds_normed": False, "norms_features": False, "norm_before_residual": True},
    {"reads": (2,)},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("shape", [BestFirst(3, 3, 6), Widths((2, 2))], ids=str)
def test_steps_with_a_cache_equal_steps_from_scratch(
    target: Model, shape: Shape, settings: dict
) -> None:
    recorded = Recorded(shape, {})
    drafter = Eagle(tiny_eagle(target, **settings), target, recorded)
    request, draft = begin(drafter)
    written: list[int] = []
    for chunk in (PROMPT[:4], PROMPT[4:5], PROMPT[5:]):
        say(draft, request.target, chunk)
        written += chunk
    compared = 0
    for root, kept in ((9, 2), (33, 0), (4, 1), (61, 3)):
        recorded.seen.clear()
        tree = draft.propose(root, Context(list(written), len(PROMPT), max_draft_len=4))
        compared += compare(drafter, recorded.seen, written, root)
        deepest = max(range(len(tree)), key=lambda node: len(tree.path_to(node)))
        path = [0, *tree.path_to(deepest)[:kept]]
        say(draft, request.target, [], tree, path)
        written += [tree.token_list[node] for node in path]
    assert compared >= 8
    rows = draft.text.rows
    assert rows.cache.length == rows.text < len(written)


def test_states_that_are_not_the_targets_are_caught(
    target: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(Widths((1, 1)), {})
    drafter = Eagle(tiny_eagle(target), target, recorded)
    request, draft = begin(drafter)
    say(draft, request.target, PROMPT)
    tree = draft.propose(9, Context(PROMPT, 9))
    say(draft, request.target, [], tree, [0, 1])
    wrong = [torch.randn_like(each) for each in draft.text.states]
    monkeypatch.setattr(draft.text, "states", wrong)
    recorded.seen.clear()
    draft.propose(8, Context([*PROMPT, 9, tree.token_list[1]], 9))
    with pytest.raises(AssertionError, match="not close"):
        compare(drafter, recorded.seen, [*PROMPT, 9, tree.token_list[1]], 8)


def test_long_prompts_in_chunks(target: Model) -> None:
    """Rows are run as chunks come, in pieces; room for no draft leaves them for later."""
    recorded = Recorded(Widths((1,)), {})
    drafter = Eagle(tiny_eagle(target, window=20), target, recorded)
    request, draft = begin(drafter)
    tokens = [(7 * place) % 64 for place in range(500)]
    for first in range(0, 500, 300):
        say(draft, request.target, tokens[first : first + 300])
    assert len(draft.propose(5, Context(tokens, 500, max_draft_len=0))) == 1
    assert len(draft.propose(5, Context(tokens, 500, max_draft_len=1))) == 2
    assert compare(drafter, recorded.seen, tokens, 5) == 1


def test_answers_share_the_rows_of_their_prompt(target: Model) -> None:
    drafter = Eagle(tiny_eagle(target), target)

    def write(seeds: list[int]) -> list[list[int]]:
        options = [Options(Sampling(1.0), 12, seed=seed) for seed in seeds]
        sequences = [Sequence(target, drafter, Match(), PROMPT, each) for each in options]
        texts: list[list[int]] = [[] for _ in seeds]
        for _, told in run_all([ParallelSampling(sequences)]):
            for answer, step in told:
                texts[answer] += step.tokens
        return texts

    assert write([1, 2, 3]) == [write([seed])[0] for seed in (1, 2, 3)]


def test_a_fork_copies_rows(target: Model) -> None:
    recorded = Recorded(Widths((1, 1)), {})
    drafter = Eagle(tiny_eagle(target), target, recorded)
    (request, first), (other, second) = begin(drafter), begin(drafter)
    say(first, request.target, PROMPT)
    say(second, other.target, PROMPT)
    second.follow(first)
    first.propose(9, Context(PROMPT, 9))
    ran, text = [], second.text
    text._run = lambda tokens, *rest: (
        ran.append(len(tokens)) or type(text)._run(text, tokens, *rest)
    )
    recorded.seen.clear()
    second.propose(11, Context(PROMPT, 9))
    assert ran == [1, 1]
    assert compare(drafter, recorded.seen, PROMPT, 11) == 2


def test_samplers_that_know_tokens_reach_the_draft_vocabulary(target: Model) -> None:
    """Banned and penalised tokens are drafted as rarely as the sampler has it."""
    recorded = Recorded(Widths((3,)), {})
    drafter = Eagle(tiny_eagle(target), target, recorded)
    sampling = Sampling(1.0, logit_bias={4: -float("inf")}, presence_penalty=1.0)
    request = DraftRequest(sampling, Rng(0), target.start())
    draft = drafter.start(request)
    say(draft, request.target, PROMPT)
    tree = draft.propose(9, Context(PROMPT, 2))
    assert tree.probs is not None
    row = torch.from_numpy(tree.probs[0])
    logits = Reference(drafter).after(PROMPT, 9, []).log()
    wide = drafter.vocabulary.widened(logits[None].numpy())
    wanted = sampling.probs(wide, [Context([*PROMPT, 9], 2)])[0]
    assert np.allclose(row, wanted, atol=1e-5, rtol=1e-4)
    assert row[4] == 0.0
    assert row[torch.arange(1, 64, 2)].sum() == 0.0


def test_drawn_trees_carry_rows_over_the_whole_vocabulary(target: Model) -> None:
    drafter = Eagle(tiny_eagle(target), target, Widths((2, 1)))
    request = DraftRequest(Sampling(0.7, top_k=5), Rng(0), target.start())
    draft = drafter.start(request)
    say(draft, request.target, PROMPT)
    tree = draft.propose(9, Context(PROMPT, 9))
    assert tree.token_list[0] == 9
    assert tree.probs is not None
    assert tree.probs.shape == (3, 64)
    assert np.allclose(tree.probs.sum(-1), 1.0)
    assert (tree.probs > 0).sum(-1).tolist() == [5, 5, 5]
    assert all(token % 2 == 0 for token in tree.token_list[1:])


def test_what_does_not_fit_is_refused(target: Model) -> None:
    trained = tiny_eagle(target)
    other = LeanModel(tiny_llama(0, layers=2, dim=64))
    with pytest.raises(ValueError, match=r"of 32 entries at layers .*, the target has 64"):
        Eagle(trained, other)
    with pytest.raises(
        ValueError, match=r"at layers \[1, 2, 4\], the target has 32 at layers 0\.\.2"
    ):
        Eagle(trained, LeanModel(tiny_llama(0, layers=2)))
    with pytest.raises(ValueError, match="other weights"):
        methods.build("eagle", LeanModel(tiny_llama(1, layers=4)), head=trained)
    with pytest.raises(ValueError, match="needs a model that gives hidden states"):
        Eagle(trained, TableModel(torch.zeros(64, 64)))
    with pytest.raises(ValueError, match="does not draft with a drafter of the kind 'lm'"):
        Eagle(tiny_lm(target), target)


def test_methods_take_shapes(target: Model) -> None:
    trained = tiny_eagle(target)
    for name, shape in (("eagle", BestFirst(2, 2, 3)), ("eagle-rsd", StochasticBeam(2, 2))):
        built = methods.build(name, target, shape=shape, head=trained)
        assert isinstance(built.drafter, Eagle)
        assert built.drafter.shape == shape
        assert len(text(target, built.drafter, 1.0)) == 24
