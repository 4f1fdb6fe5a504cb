"""Drafts of mask rows: exact, those of a model whose weights are changed for them, and refused by
name where they do not fit.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import methods
from draftwood.cli import options
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.engine import Method, Options, Sequence, generate, generate_batch
from draftwood.heads import packed
from draftwood.methods.drafts import Drafts
from draftwood.models.model import Model
from draftwood.models.native import NativeModel, has_int8
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Traversal, Verifier
from draftwood_methods.drafters import MaskedBlock, MaskedInPass
from draftwood_torch.lean.model import LeanModel
from law_cases import text_distance
from tiny_heads import TINY, tiny_dflash, tiny_masked

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
VOCAB, TOLERANCE, CAUGHT = 3, 1e-5, 1e-3
PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 61]
FORMATS: dict[str, dict[str, Any]] = {"float32": {}, "int8": {"products": "int8"}}
PENALTIES = Sampling(0.9, repetition_penalty=1.3, logit_bias={0: 0.6, 1: -0.4})


def tiny(vocab: int = 64, **settings: Any) -> NativeModel:
    if settings and not has_int8(torch.device("cpu")):
        pytest.skip("this CPU has no fast 8-bit products")
    return NativeModel(tiny_llama(3 if vocab == VOCAB else 0, layers=2, vocab=vocab), **settings)


def block(
    model: Model,
    shape: Any,
    tokens: tuple[int, ...] = (),
    kind: type[MaskedBlock] = MaskedBlock,
    **settings: Any,
) -> MaskedBlock:
    return kind(tiny_masked(model, tokens, **settings), model, shape)


def off(
    patch: pytest.MonkeyPatch,
    drafter: MaskedBlock,
    rule: Verifier,
    steps: int = 1,
    sampling: Sampling | None = None,
) -> float:
    """Distance of the text's law from the target's own."""
    sampling = sampling or Sampling(0.9)
    method = Method(drafter, rule)
    return text_distance(patch, method, drafter.target, Options(sampling, 12), sampling, steps)


in_pass = partial(block, kind=MaskedInPass)


@pytest.mark.usefixtures("unchecked")
def test_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(VOCAB)
    for drafter, rule, steps, sampling in (
        (block(model, Widths((1, 1, 1)), (0, 1, 2)), Rejection(), 1, None),
        (block(model, Widths((2, 1)), (0, 2)), Rejection(), 1, None),
        (block(model, Widths((2, 1)), (0, 1, 2)), Traversal(), 1, None),
        (block(model, Widths((1, 1)), (0, 1, 2)), Rejection(), 1, PENALTIES),
        (block(model, Widths((1,)), (0, 1, 2)), Rejection(), 2, None),
        (block(model, Widths((1, 1)), (0, 2), masks=1), Rejection(), 2, None),
        (block(model, BestFirst(2, 2, 3), (0, 1, 2)), Match(), 1, None),
        # the first step of the other form only attaches its rows
        (in_pass(model, Widths((1,)), (0, 1, 2)), Rejection(), 2, None),
        (in_pass(model, Widths((1, 1)), (0, 1, 2)), Rejection(), 2, PENALTIES),
        (in_pass(model, Widths((2,)), (0, 2)), Traversal(), 2, None),
        (in_pass(model, Widths((1,)), (0, 1, 2)), Rejection(), 3, None),
    ):
        assert off(monkeypatch, drafter, rule, steps, sampling) < TOLERANCE, drafter


@pytest.mark.usefixtures("unchecked")
def test_a_block_that_states_the_rows_of_another_adapter_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Control: it draws from its rows, and says that it drew from others."""
    model = tiny(VOCAB)
    drafter, other = (block(model, Widths((1, 1)), (0, 1, 2), seed=seed) for seed in (0, 1))
    start = MaskedBlock.start

    def lying(own: MaskedBlock, request: DraftRequest) -> DraftSession:
        session, stranger = start(own, request), start(other, request)
        propose = session.propose

        def lie(root: int, context: Context) -> DraftTree:
            tree = propose(root, context)
            if len(tree) < 3:
                return tree
            rows: Any = stranger
            probs = Sampling(0.9).probs(rows.rows_behind(root, 1))
            return replace(tree, probs=probs, rows=None)

        session.propose = lie  # type: ignore[method-assign]
        return session

    monkeypatch.setattr(MaskedBlock, "start", lying)
    assert off(monkeypatch, drafter, Rejection()) > CAUGHT


def text(target: Model, name: str, sampling: Sampling, **given: Any) -> tuple[list[int], int]:
    """Tokens of a text, and how many of them were drafted."""
    built = methods.build(name, target, **given)
    options = Options(sampling, 40, seed=3)
    steps = list(generate(target, built.drafter, built.verifier, PROMPT, options))
    return [token for step in steps for token in step.tokens], sum(step.accepted for step in steps)


@pytest.mark.parametrize("name", FORMATS)
def test_greedy_texts_are_the_models_own(name: str) -> None:
    target = tiny(**FORMATS[name])
    plain, _ = text(target, "plain", Sampling())
    head = tiny_masked(target, tuple(range(64)))
    for shape in (Widths((1, 1, 1)), Widths((1,)), Widths((3, 2, 1))):
        found, accepted = text(target, "masked-block", Sampling(), head=head, shape=shape)
        assert found == plain
        assert accepted >= len(plain) // 2 - 1  # the root's own row is always right
    for wide in (Widths((1, 1, 1)), Widths((16, 2))):
        found, accepted = text(target, "masked-in-pass", Sampling(), head=head, shape=wide)
        assert found == plain
        assert accepted > 0 or wide == Widths((1, 1, 1))  # of tokens drafted at random


@pytest.mark.parametrize("name", ["masked-block", "masked-in-pass"])
def test_texts_of_a_batch_are_those_written_alone(name: str) -> None:
    """Rows that hang below one text's nodes share passes with those of others, and with prompts."""
    target = tiny()
    built = methods.build(name, target, head=tiny_masked(target, tuple(range(64))))

    def sequences() -> list[Sequence]:
        return [
            Sequence(
                target,
                built.drafter,
                built.verifier,
                PROMPT[: 3 + 2 * number],
                Options(Sampling(0.0 if number == 1 else 0.8), 10 + 5 * number, seed=number),
            )
            for number in range(3)
        ]

    texts: list[list[int]] = [[], [], []]
    for number, step in generate_batch(sequences()):
        texts[number] += step.tokens
    alone = [
        [token for _, step in generate_batch([each]) for token in step.tokens]
        for each in sequences()
    ]
    assert texts == alone


def test_rows_are_those_of_a_model_whose_matrices_are_changed() -> None:
    """Mask row 1 behind a token is that of a model of base + up @ down that reads what it sees."""
    hf_model = tiny_llama(0)
    model = NativeModel(hf_model)
    drafter = block(model, Widths((1, 1, 1)), tuple(range(64)))
    session = model.start()
    session.extend(PROMPT, keep="none")
    found: Any = drafter.start(DraftRequest(Sampling(1.0), Rng(0), session))
    alone = model.start()
    plain = alone.extend([*PROMPT, 9], keep="last").rows
    for masks in (1, 3):
        rows = found.rows_behind(9, masks)
        assert rows.shape == (1 + masks, 64)
        assert np.array_equal(rows[:1], plain)
        # a longer block changes nothing of a shorter one
        assert np.array_equal(rows[:2], found.rows_behind(9, 1))
        # and nothing of it stays
        assert np.array_equal(session.extend([9], keep="last").rows, plain)
        session.rewind(1)


def test_the_block_ends_with_its_places_and_the_text() -> None:
    model = tiny()
    drafter = block(model, Widths((1,) * 6), masks=2)
    session = model.start()
    session.extend(PROMPT, keep="none")
    drafting = drafter.start(DraftRequest(Sampling(1.0), Rng(0), session))
    for most, nodes in ((6, 4), (2, 3), (1, 2), (0, 1)):
        assert len(drafting.propose(9, Context(PROMPT, len(PROMPT), most))) == nodes


def test_what_does_not_fit_is_refused() -> None:
    model, other = tiny(), NativeModel(tiny_llama(0, layers=3))
    lean, own = LeanModel(tiny_llama(0)), tiny_masked(model)
    for target, head, message in (
        (lean, own, "adapted_rows"),
        (other, own, "the adapter is for 2 layers, the target has 3; take one"),
        (NativeModel(tiny_llama(0, dim=64)), own, "of 32 entries, the target has 64"),
        (model, tiny_dflash(model), "does not draft with a drafter of the kind"),
    ):
        with pytest.raises(ValueError, match=message):
            MaskedBlock(head, target, Widths((1, 1)))
    assert (Drafts(head=own).method, Drafts(head=own).levels) == ("masked-block", 3)
    with pytest.raises(ValueError, match="masks"):
        tiny_masked(model, masks=0)


def test_auto_takes_no_adapter_and_says_how_to_ask_for_it() -> None:
    own = Drafts(head=tiny_masked(tiny()))
    with pytest.raises(ValueError, match=r"; choose that method with --method masked-block, or"):
        own.require_for([methods.spec("auto")])
    own.require_for([methods.spec("masked-block")])
    aside = options.left_aside(methods.spec("auto"), own.given, own)
    assert aside == ["--draft-model (a head for --method masked-block)"]
    assert options.left_aside(methods.spec("masked-block"), own.given, own) == []


@pytest.mark.parametrize("name", TINY)
def test_the_library_says_of_every_head_whether_it_runs_it(name: str) -> None:
    model = tiny()
    head = TINY[name](model)
    assert packed.runs_for(model, head) == (head.config.kind in packed.KINDS)


def test_rows_below_the_accepted_node_draft_the_next_tree() -> None:
    """They are what a pass behind the accepted text would say of mask rows in its place."""
    model = tiny()
    drafter = in_pass(model, Widths((2, 1, 1)), tuple(range(64)))
    session = model.start()
    session.extend(PROMPT, keep="none")
    drafting: Any = drafter.start(DraftRequest(Sampling(1.0), Rng(0), session))
    tree = DraftTree.of([9, 8, 30, 4], [-1, 0, 0, 2])
    output = model.forward([drafting.attach(tree)])[0]
    alone = model.start()
    alone.extend(PROMPT, keep="none")
    assert np.array_equal(output.rows[: len(tree)], alone.forward(tree).rows)
    for path in ([0], [0, 1], [0, 2, 3]):
        drafting.update(VerifiedTree(tree, path, output))
        kept = [tree.token_list[node] for node in path]
        behind = model.start()
        behind.extend([*PROMPT, *kept[:-1]], keep="none")
        other: Any = block(model, Widths((1,)), tuple(range(64))).start(
            DraftRequest(Sampling(1.0), Rng(0), behind)
        )
        assert np.array_equal(drafting.levels, other.rows_behind(kept[-1], 3)[1:])
    session.commit([0, 2, 3])
    assert session.length == len(PROMPT) + 3


def test_no_rows_are_attached_beyond_the_context() -> None:
    model = NativeModel(tiny_llama(0, context=len(PROMPT) + 4))
    session = model.start()
    session.extend(PROMPT, keep="none")
    drafting = in_pass(model, Widths((1, 1, 1))).start(DraftRequest(Sampling(1.0), Rng(0), session))
    assert drafting.attach(DraftTree.of([9], [-1])) is not None  # masks at the last three places
    assert drafting.attach(DraftTree.chain([9, 8])) is None
    assert not drafting.reads
    # no more than the shape has levels
    other = in_pass(model, Widths((2,))).start(DraftRequest(Sampling(1.0), Rng(0), session))
    attached = other.attach(DraftTree.chain([9, 8]))
    assert attached is not None
    assert attached.rows == 4
    target = NativeModel(tiny_llama(0, context=len(PROMPT) + 12))
    texts = [
        text(target, name, Sampling(), **given)[0]
        for name, given in {
            "plain": {},
            "masked-block": {"head": tiny_masked(target)},
            "masked-in-pass": {"head": tiny_masked(target)},
        }.items()
    ]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 12 + 1
