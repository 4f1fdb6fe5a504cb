"""Draft models that lack tokens of the target, or have more of them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import methods
from draftwood.arrays import as_array
from draftwood.drafters import DraftModel, DraftRequest, Nothing, VerifiedTree
from draftwood.drafters.draft_model import DraftDistributions
from draftwood.engine import Options, generate
from draftwood.methods import Method
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Independent, Shape, StochasticBeam, Widths
from draftwood.stats import Stats
from draftwood.testing import TableModel, promises, tiny_llama
from draftwood.testing.promises import SIGNIFICANCE, law_p_value
from draftwood.tree import DraftTree
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal, Verifier
from draftwood_torch.models.transformers import TransformersModel
from thinning import thinned

VOCAB, FEWER, MORE = 64, 58, 70
PROMPT = [63, 5, 60, 6, 58]  # a draft model of the smaller vocabulary knows two of these
WAYS = ["transformers", *(["native"] if library.available() else [])]

PAIRS: list[tuple[Shape, Verifier]] = [
    (Widths((1, 1, 1)), Rejection()),
    (Widths((1, 1, 1)), Block()),
    (Widths((3, 2)), Traversal()),
    (Widths((2, 2), "greedy-plus-one"), GreedyPlusOne()),
    (Independent(3, 2), KSeq()),
    (StochasticBeam(3, 3), Rejection()),
    (BestFirst(3, 2, 6), Match()),
]


def model_of(way: str, seed: int, layers: int, vocab: int) -> Model:
    made = tiny_llama(seed, layers=layers, vocab=vocab)
    return NativeModel(made) if way == "native" else TransformersModel(made)


def text_of(
    target: Model, drafter, verifier: Verifier, sampling: Sampling
) -> tuple[list[int], Stats]:
    steps = list(generate(target, drafter, verifier, PROMPT, Options(sampling, 60, seed=2)))
    return [token for step in steps for token in step.tokens], Stats.of(steps)


@pytest.mark.parametrize("draft_vocab", [FEWER, MORE])
@pytest.mark.parametrize("way", thinned(WAYS, 2))
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(0.0, repetition_penalty=1.3, frequency_penalty=0.3, logit_bias={61: 2.0, 3: 1.0}),
        Sampling(1.0, top_k=2),  # wide trees are filled up with tokens that have no probability
    ],
    ids=["greedy", "penalties and bias", "top-k"],
)
def test_prompt_and_text_hold_tokens_that_the_draft_model_lacks(
    way: str, draft_vocab: int, sampling: Sampling
) -> None:
    target, draft = model_of(way, 0, 2, VOCAB), model_of(way, 1, 1, draft_vocab)
    plain, _ = text_of(target, Nothing(), Match(), sampling)
    assert sum(token >= FEWER for token in plain) >= 2
    for shape, verifier in PAIRS:
        text, stats = text_of(target, DraftModel(draft, shape), verifier, sampling)
        assert stats.drafted > 0
        if sampling.greedy:
            assert text == plain


@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_guessing_behind_a_token_that_it_lacks(way: str) -> None:
    model = tiny_llama(0, layers=2, vocab=VOCAB)
    smaller = tiny_llama(0, layers=2, vocab=VOCAB)
    smaller.resize_token_embeddings(FEWER)
    target, draft = (
        (NativeModel if way == "native" else TransformersModel)(each) for each in (model, smaller)
    )
    assert draft.vocab_size == FEWER
    _, stats = text_of(target, DraftModel(draft, Widths((1, 1))), Match(), Sampling())
    assert stats.accepted > 5


def table(seed: int, rows: int) -> TableModel:
    return TableModel(torch.randn(rows, rows, generator=torch.Generator().manual_seed(seed)) * 1.2)


@pytest.fixture
def fewer_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many as ``draftwood check`` writes; what is wrong is still caught."""
    monkeypatch.setattr(promises, "TEXTS", promises.TEXTS // 2)


@pytest.mark.usefixtures("fewer_texts", "unchecked")
@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize(("shape", "verifier"), thinned(PAIRS, 4), ids=lambda part: part.name)
def test_output_law(shape: Shape, verifier: Verifier, size: int) -> None:
    method = Method(DraftModel(table(4, size), shape), verifier, "other vocabulary")
    assert law_p_value(method, table(3, 4)) > SIGNIFICANCE


@pytest.mark.usefixtures("fewer_texts", "unchecked")
def test_rows_that_are_cut_and_not_renormalised_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: DraftDistributions, logits: Tensor, *given: object) -> np.ndarray:
        return self.sampler.probs(as_array(logits))[:, : self.vocab]

    monkeypatch.setattr(DraftDistributions, "rows_after", cut)
    method = Method(DraftModel(table(4, 6), Widths((1, 1, 1))), Rejection(), "cut")
    assert law_p_value(method, table(3, 4)) < SIGNIFICANCE


@pytest.mark.parametrize("size", [10, 14])
@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.7, top_k=4, repetition_penalty=1.5)]
)
def test_rows_are_the_draft_models_own_law_over_the_tokens_that_both_have(
    size: int, sampling: Sampling
) -> None:
    draft, context = table(0, size), Context([11, 1], 1)
    session = DraftModel(draft, Widths((2, 2))).start(
        DraftRequest(sampling, Rng(0), table(1, 12).start())
    )
    session.update(VerifiedTree(DraftTree.chain([11, 1]), range(2)))
    tree = session.propose(2, context)
    assert tree.probs is not None
    shared = min(size, 12)
    for node in range(3):
        whole = np.full((1, 12), -np.inf, np.float32)
        whole[0, :shared] = draft.logits[tree.token_list[node]][:shared]
        before = context.extended([2, *(tree.token_list[n] for n in tree.path_to(node))])
        assert np.allclose(tree.probs[node], sampling.probs(whole, [before])[0])
        assert tree.probs[node, shared:].sum() == 0.0


def test_methods_refuse_a_draft_model_of_another_size() -> None:
    with pytest.raises(ValueError, match="knows 50 tokens and the target 64"):
        methods.build(
            "rsd-s", model_of("transformers", 0, 1, VOCAB), model_of("transformers", 0, 1, 50)
        )
