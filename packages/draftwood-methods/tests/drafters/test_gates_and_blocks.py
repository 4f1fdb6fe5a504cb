"""SpecDec++, nested draft LMs and blocks: exact, equal to what they would compute anew, and ending
where they say.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import methods
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.engine import Method, Options, generate
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.testing import check_shape, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Verifier
from draftwood_methods.drafters import Dflash, S2d, SpecDecPlusPlus
from draftwood_methods.shapes import Gated
from draftwood_torch.lean.model import LeanModel
from law_cases import text_distance
from tiny_heads import tiny_dflash, tiny_eagle, tiny_lm, tiny_s2d

VOCAB, TOLERANCE, CAUGHT = 3, 1e-5, 1e-3
PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 61]
METHODS = ["specdec++", "s2d", "dflash", "dflash-rsd"]
ROADS = pytest.mark.parametrize("road", [LeanModel, NativeModel], ids=lambda road: road.__name__)


def sharp(trained: TrainedHead, times: float = 4.0) -> TrainedHead:
    """The head with rows far from even."""
    trained.network.norm.weight.mul_(times)
    return trained


def specdec(model: Model, tokens: list[int], length: int = 2, **more: Any) -> SpecDecPlusPlus:
    head = tiny_lm(model, tokens, acceptance=1)
    head.network.acceptance.out.weight.mul_(3.0)
    return SpecDecPlusPlus(head, model, shape=Gated(length), **more)


def s2d(model: Model, tokens: list[int], length: int = 2, **more: Any) -> S2d:
    return S2d(tiny_s2d(model, tokens), model, shape=Gated(length), **more)


def dflash(model: Model, tokens: list[int], shape: Any) -> Dflash:
    return Dflash(tiny_dflash(model, tokens, frames=2), model, shape)


def off(
    patch: pytest.MonkeyPatch,
    drafter: Drafter,
    rule: Verifier,
    steps: int = 1,
    sampling: Sampling | None = None,
) -> float:
    """Distance of the text's law from the target's own."""
    sampling = sampling or Sampling(0.9)
    method, model = Method(drafter, rule), drafter.target  # type: ignore[attr-defined]
    return text_distance(patch, method, model, Options(sampling, 12), sampling, steps)


PENALTIES = Sampling(0.9, repetition_penalty=1.3, logit_bias={0: 0.6, 1: -0.4})


@pytest.mark.usefixtures("unchecked")
@ROADS
def test_laws(road: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains that end by what was drafted, blocks that it corrects, and what a step leaves."""
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    for drafter, rule, steps, sampling in (
        (specdec(model, [0, 1, 2], threshold=0.5), Rejection(), 1, None),
        (specdec(model, [0, 2], 1), Rejection(), 2, None),
        (s2d(model, [0, 1, 2], sure=0.6, least=0.45), Rejection(), 1, None),
        (s2d(model, [0, 2], 1, sure=0.9, least=0.0), Rejection(), 2, PENALTIES),
        (dflash(model, [0, 2], Widths((2, 1))), Rejection(), 1, None),
        (dflash(model, [0, 1, 2], Widths((1, 1))), Rejection(), 1, PENALTIES),
        (dflash(model, [0, 1, 2], Widths((1,))), Rejection(), 2, None),
        (dflash(model, [0, 1, 2], BestFirst(2, 2, 3)), Match(), 1, None),
    ):
        assert off(monkeypatch, drafter, rule, steps, sampling) < TOLERANCE, drafter


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [specdec, s2d])
def test_a_gate_that_looks_at_the_drawn_token_is_caught(
    kind: Callable[..., Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: what was drawn is thrown away where it is unlikely."""
    model = LeanModel(tiny_llama(3, layers=1, vocab=VOCAB))
    drafter = kind(model, [0, 1, 2])
    grow = Gated.grow

    def thrown_away(shape: Gated, *given: Any) -> DraftTree:
        tree = grow(replace(shape, gate=lambda node: True), *given)
        assert tree.probs is not None
        unlikely = tree.probs[-1, tree.tokens[-1]] < tree.probs[-1].max()
        return tree.truncated(len(tree) - 2) if unlikely else tree

    monkeypatch.setattr(Gated, "grow", thrown_away)
    assert off(monkeypatch, drafter, Rejection()) > CAUGHT


@pytest.mark.usefixtures("unchecked")
def test_a_block_that_states_its_rows_without_the_correction_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: it draws from corrected slots, and says that they were not."""
    model = LeanModel(tiny_llama(3, layers=1, vocab=VOCAB))
    drafter = dflash(model, [0, 1, 2], Widths((1, 1)))
    drafter.placed.network.pairwise.after_proj.weight.mul_(30.0)
    start = Dflash.start

    def lying(own: Dflash, request: DraftRequest) -> DraftSession:
        session: Any = start(own, request)
        propose = session.propose

        def lie(root: int, context: Context) -> DraftTree:
            tree = propose(root, context)
            if len(tree) < 3 or tree.probs is None:
                return tree
            plain = drafter.placed.logits(session.slots[1:2])
            row = Sampling(0.9).probs(drafter.vocabulary.widened(np.asarray(plain)))
            return replace(tree, probs=np.concatenate([tree.probs[:1], row]), rows=None)

        session.propose = lie
        return session

    monkeypatch.setattr(Dflash, "start", lying)
    assert off(monkeypatch, drafter, Rejection()) > CAUGHT


HEADS: dict[str, Callable[[Model], TrainedHead]] = {
    "specdec++": lambda model: tiny_lm(model, acceptance=2),
    "s2d": tiny_s2d,
    **dict.fromkeys(("dflash", "dflash-rsd"), tiny_dflash),
}


@ROADS
@pytest.mark.parametrize("name", METHODS)
def test_greedy_texts_are_the_models_own(name: str, road: Callable[..., Model]) -> None:
    target = road(tiny_llama(0, layers=2))

    def text(name: str) -> list[int]:
        built = methods.build(name, target, head=HEADS[name](target) if name in HEADS else None)
        steps = list(
            generate(target, built.drafter, built.verifier, PROMPT, Options(Sampling(), 24))
        )
        return [token for step in steps for token in step.tokens]

    assert text(name) == text("plain")


def begin(drafter: Any) -> DraftSession:
    return drafter.start(DraftRequest(Sampling(1.0), Rng(0), drafter.target.start()))


def tell(drafter: Any, session: DraftSession, text: list[int], new: list[int]) -> None:
    """Let a session learn new tokens behind a text, as the target's pass gives them."""
    running, reads = drafter.target.start(), session.reads.hidden
    output = running.extend([*text, *new], keep="all", hidden=reads) if reads else None
    nodes = range(len(text), len(text) + len(new))
    tree = DraftTree.chain([*text, *new])
    session.update(VerifiedTree(tree, nodes, output))


@pytest.mark.parametrize(
    "make",
    [
        lambda model: S2d(tiny_s2d(model, window=6), model, shape=Gated(4), sure=0.18, least=0.0),
        lambda model: S2d(tiny_s2d(model), model, shape=Gated(4), sure=0.18, least=0.0),
        lambda model: SpecDecPlusPlus(
            tiny_lm(model, acceptance=1), model, shape=Gated(4), threshold=1.0
        ),
        lambda model: Dflash(tiny_dflash(model), model, Widths((2, 1, 1))),
        lambda model: Dflash(tiny_dflash(model, window=5), model, Widths((2, 2))),
    ],
)
def test_sessions_draft_what_new_ones_would(make: Callable[[Model], Any]) -> None:
    """After steps that kept all, nothing and some, rows are those of a session from scratch."""
    drafter = make(LeanModel(tiny_llama(0, layers=2)))
    session, written = begin(drafter), list[int]()
    for new in (PROMPT[:4], PROMPT[4:]):
        tell(drafter, session, written, new)
        written += new
    for root, kept in ((8, 9), (33, 0), (4, 1), (7, 0)):
        fresh = begin(drafter)
        tell(drafter, fresh, [], written)
        context = Context(written, len(PROMPT))
        found, wanted = (each.propose(root, context) for each in (session, fresh))
        assert len(found) > 2
        compare(found, wanted)
        path = [0, *found.path_to(len(found) - 1)[:kept]]
        tokens = [found.token_list[node] for node in path]
        tell(drafter, session, written, tokens)
        written += tokens


def test_a_session_of_another_text_is_told_from_it() -> None:
    """A control of the comparison."""
    model = LeanModel(tiny_llama(0, layers=2))
    drafter, trees = S2d(tiny_s2d(model), model, shape=Gated(4), least=0.0), list[DraftTree]()
    for text in (PROMPT, PROMPT[::-1]):
        session = begin(drafter)
        tell(drafter, session, [], text)
        trees.append(session.propose(8, Context(text, len(text))))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(trees[0], trees[1])


def compare(found: DraftTree, wanted: DraftTree) -> None:
    """The rows at all nodes whose paths both trees have agree."""
    assert found.probs is not None
    assert wanted.probs is not None
    np.testing.assert_allclose(found.probs[0], wanted.probs[0], atol=1e-5, rtol=1e-4)
    for node in range(1, min(len(found.probs), len(wanted.probs))):
        if found.token_list[: node + 1] != wanted.token_list[: node + 1]:
            break
        np.testing.assert_allclose(found.probs[node], wanted.probs[node], atol=1e-5, rtol=1e-4)


def test_a_chain_of_nested_lms_ends_and_deepens_where_it_says() -> None:
    model = LeanModel(tiny_llama(0, layers=2))
    head = sharp(tiny_s2d(model))
    used = list[int]()
    part = head.network.part

    def counted(number: int, rows: Any, *more: Any) -> Any:
        used.append(number)
        return part(number, rows, *more)

    head.network.part = counted

    def drafted(**settings: Any) -> int:
        used.clear()
        drafter = S2d(head, model, shape=Gated(4), **settings)
        session = begin(drafter)
        tell(drafter, session, [], PROMPT)
        return len(session.propose(9, Context(PROMPT, 9))) - 1

    assert drafted(sure=0.0) == 4
    assert used == [0] * 4  # the smallest is always sure
    assert drafted(sure=1.0, least=0.0) == 4
    assert used == [0, 1] * 4
    assert drafted(sure=1.0, least=1.0) == 0
    assert used == [0, 1]
    assert drafted(sizes=(1,), least=0.0) == 4
    assert used == [0] * 4


def test_a_row_that_stopped_early_is_taken_along() -> None:
    """A size says the same whatever exits rows before it took."""
    model = LeanModel(tiny_llama(0, layers=2))
    head = sharp(tiny_s2d(model))
    mixed, whole = (S2d(head, model, shape=Gated(6), sure=sure, least=0.0) for sure in (0.5, 1.0))
    sessions = [begin(each) for each in (mixed, whole)]
    for drafter, session in zip((mixed, whole), sessions, strict=True):
        tell(drafter, session, [], PROMPT)
    trees = [each.propose(9, Context(PROMPT, 9)) for each in sessions]
    states = []
    for session, tree in zip(sessions, trees, strict=True):
        text: Any = session.text  # type: ignore[attr-defined]
        text.rows.add(model.embeddings_and_head.embed(torch.tensor([5, 6])))
        states.append(text.rows.state(2))
        assert len(tree) == 7
    torch.testing.assert_close(*states, atol=1e-5, rtol=1e-4)


def test_specdec_stops_once_a_rejection_is_likely() -> None:
    model = LeanModel(tiny_llama(0, layers=2))
    head = tiny_lm(model, acceptance=1)
    acceptance: Any = head.network.acceptance
    acceptance.out.weight.zero_()

    def drafted(chance: float, threshold: float) -> int:
        acceptance.out.bias.fill_(float(torch.tensor(chance).logit()))
        drafter = SpecDecPlusPlus(head, model, shape=Gated(6), threshold=threshold)
        session = begin(drafter)
        tell(drafter, session, [], PROMPT)
        return len(session.propose(9, Context(PROMPT, 9))) - 1

    assert drafted(0.8, 0.5) == 4  # 1 - 0.8^3 is 0.488, 1 - 0.8^4 is 0.59
    assert drafted(0.8, 0.0) == 1
    assert drafted(0.8, 1.0) == 6
    assert drafted(0.5, 0.4) == 1


def test_the_shape_does_what_it_says() -> None:
    check_shape(Gated(3))
    with pytest.raises(ValueError, match="length"):
        Gated(0)


def test_what_does_not_fit_is_refused() -> None:
    model, wide = (LeanModel(tiny_llama(0, layers=2, dim=dim)) for dim in (32, 64))
    told, nested, block = tiny_lm(model, acceptance=1), tiny_s2d(model), tiny_dflash(model)
    for make, message in (
        (lambda: SpecDecPlusPlus(tiny_lm(model), model), "no acceptance head; train one with"),
        (lambda: SpecDecPlusPlus(told, model, threshold=1.5), "threshold must be a chance"),
        (lambda: SpecDecPlusPlus(told, model, shape=Widths((2,))), "a chain that it ends itself"),
        (lambda: SpecDecPlusPlus(told, wide), "of 32 entries, the target has 64"),
        (lambda: S2d(nested, model, sure=-0.1), "sure and least must be chances"),
        (lambda: S2d(nested, model, sizes=(1, 3)), "sizes must ascend among 1 to 2"),
        (lambda: S2d(tiny_eagle(model), model), "does not draft with a drafter of the kind"),
        (lambda: Dflash(block, wide), "of 32 entries at layers"),
        (lambda: Dflash(tiny_dflash(model, reads=(7,)), model), r"at layers \[7\]"),
        (lambda: Dflash(nested, model), "does not draft with a drafter of the kind"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
