"""Draft models over a draft vocabulary, with rounded weights: the target's law stays what it is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.drafters import Drafter, DraftModel, DraftRequest, Nothing, VerifiedTree
from draftwood.drafters.draft_model import DraftDistributions, over_vocabulary
from draftwood.engine import Options, generate
from draftwood.methods import Method
from draftwood.models.drafting import LEAST_BITS, DraftingModel, DraftTokens
from draftwood.models.native import NativeModel
from draftwood.models.native.int4 import layer_bits
from draftwood.models.shared import SharedPasses, shared_passes
from draftwood.native import library
from draftwood.native.logit_rows import Support
from draftwood.native.rows import softmax
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Independent, Shape, StochasticBeam, Widths
from draftwood.testing import TableModel, promises, tiny_llama
from draftwood.testing.promises import SIGNIFICANCE, law_p_value
from draftwood.tree import DraftTree
from draftwood.verifiers import KSeq, Match, Rejection, Traversal, Verifier

VOCAB, LIKELIEST = 64, 24
PROMPT = [5, 60, 6, 58]
ROUNDING = 0.1
"""Share of rows that 8 bits may change in a model with states of 32 numbers."""
DRAWN: list[tuple[Shape, Verifier]] = [
    (StochasticBeam(3, 3), Rejection()),
    (Widths((2, 2)), Rejection()),
    (Widths((1, 1, 1)), Rejection()),
    (Widths((2, 1)), Traversal()),
    (Independent(2, 2), KSeq()),
]
native = pytest.mark.skipif(not library.available(), reason="needs the library")


def native_model(seed: int = 0, layers: int = 2) -> NativeModel:
    return NativeModel(tiny_llama(seed, layers=layers, vocab=VOCAB))


def request_for(target: NativeModel, sampling: Sampling) -> DraftRequest:
    return DraftRequest(sampling, Rng(0), target.start())


def distance(rows: Any, others: Any) -> float:
    """Length of what two matrices differ by, over the length of the second."""
    return float(np.linalg.norm(rows - others) / np.linalg.norm(others))


@native
def test_rows_of_a_draft_vocabulary_are_the_whole_rows_entries() -> None:
    model, tokens = native_model(), np.array([40, 3, 7, 63, 8])
    part = model.drafting(tokens, None, "float32")
    assert part is model.drafting(tokens, None, "float32")
    assert part is not model.drafting(tokens, None, "int8")
    whole, own = model.start().extend(PROMPT).logits, part.start().extend(PROMPT).logits
    assert own.is_contiguous()
    torch.testing.assert_close(own, whole[:, tokens], rtol=0, atol=1e-5)


@native
def test_rounded_weights_give_nearly_the_same_rows() -> None:
    model = native_model()
    whole = model.start().extend(PROMPT).logits
    rounded = model.drafting(None, "int8", "int8").start().extend(PROMPT).logits
    assert 0.0 < distance(rounded, whole) < ROUNDING
    assert distance(rounded.roll(1, -1), whole) > 10 * ROUNDING
    assert model.start().extend(PROMPT).logits.equal(whole)


@native
def test_tokens_of_the_text_join_the_draft_vocabulary_in_its_order() -> None:
    model = native_model()
    drafting = DraftingModel(model, LIKELIEST)
    assert drafting.support is not None
    assert drafting.support.tokens[:LIKELIEST].tolist() == list(range(LIKELIEST))
    tokens = DraftTokens(drafting)
    assert (tokens.hidden, tokens.support) == ((), drafting.support)
    tokens.follow(PROMPT)
    branch = tokens.copied()
    branch.follow([50])
    assert tokens.further == [60, 58]
    assert branch.further == [60, 58, 50]
    assert tokens.support is not None
    output = drafting.model.start().extend(PROMPT, "all", tokens.hidden)
    rows, whole = tokens.logits(output), model.start().extend(PROMPT).rows
    assert rows.shape == (len(PROMPT), len(tokens.support.tokens))
    assert distance(rows, whole[:, tokens.support.tokens]) < ROUNDING


@native
def test_small_vocabularies_stay_whole() -> None:
    assert DraftingModel(native_model()).support is None
    assert DraftingModel(native_model(), 0).support is None
    assert DraftingModel(native_model(), VOCAB - 4).support is None


@native
def test_integers_draft_in_4_bits_where_these_are_fewer() -> None:
    in_8_bits = NativeModel(tiny_llama(vocab=VOCAB), "int8")
    in_4_bits = NativeModel(tiny_llama(vocab=VOCAB), "int4")
    assert layer_bits(in_8_bits.weights) > LEAST_BITS >= layer_bits(in_4_bits.weights) > 4
    drafting = DraftingModel(in_8_bits).model
    assert isinstance(drafting, NativeModel)
    assert drafting.rounded is not None
    first = drafting.structure.layers[0].query.format
    assert first == in_4_bits.structure.layers[0].query.format
    assert DraftingModel(in_4_bits).model is in_4_bits


@native
def test_methods_share_the_passes_of_one_model() -> None:
    model = shared_passes(native_model())
    made = [DraftingModel(model, LIKELIEST).model for _ in range(2)]
    assert all(isinstance(each, SharedPasses) for each in made)
    inner = [each.inner for each in made if isinstance(each, SharedPasses)]
    assert inner[0] is inner[1]


@native
def test_beams_of_a_level_have_the_rows_of_their_own_passes() -> None:
    draft, sampling = native_model(1), Sampling(1.0)
    session = DraftModel(draft, StochasticBeam(3, 3), LIKELIEST).start(
        request_for(native_model(), sampling)
    )
    session.update(VerifiedTree(DraftTree.chain(PROMPT), range(len(PROMPT))))
    tree = session.propose(7, Context(list(PROMPT), len(PROMPT)))
    drafting = DraftingModel(draft, LIKELIEST)
    tokens = DraftTokens(drafting)
    tokens.follow([*PROMPT, 7])
    assert tree.probs is not None
    assert tokens.support is not None
    for node, row in enumerate(tree.probs):
        path = [tree.token_list[each] for each in tree.path_to(node)]
        output = drafting.model.start().extend([*PROMPT, 7, *path], "last", tokens.hidden)
        own = softmax(over_vocabulary(tokens.logits(output), VOCAB, tokens.support.tokens), 1.0)[0]
        assert np.allclose(row, own, rtol=0, atol=1e-3)
    left_out = np.setdiff1d(range(VOCAB), tokens.support.tokens)
    assert not tree.probs[:, left_out].any()


@native
@pytest.mark.parametrize(("shape", "verifier"), DRAWN, ids=lambda part: part.name)
def test_greedy_texts_are_the_targets_own(shape: Shape, verifier: Verifier) -> None:
    target, draft = native_model(), native_model(0, layers=1)

    def text(drafter: Drafter, judge: Verifier) -> list[int]:
        steps = generate(target, drafter, judge, PROMPT, Options(Sampling(), 60, seed=2))
        return [token for step in steps for token in step.tokens]

    plain = text(Nothing(), Match())
    assert sum(token >= LIKELIEST for token in plain) > 2
    assert text(DraftModel(draft, shape, LIKELIEST), verifier) == plain


class CutTable(TableModel):
    """A table whose rows have some tokens alone."""

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[0]


def table(seed: int, vocab: int = 4) -> TableModel:
    return TableModel(torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed)))


def cut_drafter(shape: Shape, tokens: list[int]) -> DraftModel:
    """A draft model over these tokens in this order."""
    entries = np.array(tokens)
    drafter = DraftModel(CutTable(table(4).logits[:, entries]), shape)
    every = frozenset(range(4))
    drafter.__dict__["drafting"] = SimpleNamespace(
        model=drafter.model, support=Support(entries), known=every
    )
    return drafter


@pytest.fixture
def fewer_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "TEXTS", promises.TEXTS // 2)


@pytest.mark.usefixtures("fewer_texts", "unchecked")
@pytest.mark.parametrize(("shape", "verifier"), DRAWN, ids=lambda part: part.name)
def test_the_law_of_the_text_is_the_targets(shape: Shape, verifier: Verifier) -> None:
    method = Method(cut_drafter(shape, [3, 0, 1]), verifier, "draft vocabulary")
    assert law_p_value(method, table(3)) > SIGNIFICANCE


@pytest.mark.usefixtures("fewer_texts", "unchecked")
def test_rows_that_claim_the_tokens_left_out_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def claimed(
        self: DraftDistributions, logits: np.ndarray, tree: DraftTree, first: int, shape: Shape
    ) -> np.ndarray:
        assert self.support is not None
        probs = softmax(over_vocabulary(logits, self.vocab, self.support.tokens), 1.0)
        return 0.6 * probs  # as if the others had a share that is never drawn

    monkeypatch.setattr(DraftDistributions, "rows_after", claimed)
    method = Method(cut_drafter(Widths((1, 1, 1)), [3, 0, 1]), Rejection(), "claimed")
    assert law_p_value(method, table(3)) < SIGNIFICANCE
