"""Mask adapters: training runs what drafting runs, learns it, and changes nothing else."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import RowsInput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.formats import HeadSizes
from draftwood.testing import tiny_llama
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.frozen_layers import has_beginning
from draftwood_train.judging import means
from draftwood_train.packing import RowPacking
from draftwood_train.recipe import PackedRows, TargetWeights
from draftwood_train.recipes.masked import MaskedRecipe, mask_states
from training_cases import learnt

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
LAYERS, VOCAB, DIM = 2, 64, 32
RECIPE = MaskedRecipe(masks=3, rank=4, anchors=6)


def hf_model() -> Any:
    return tiny_llama(0, layers=LAYERS)


def target(layers: int = LAYERS) -> TargetWeights:
    """Describe the tiny model; every second token is drafted."""
    model, config = hf_model(), hf_model().config
    sizes = HeadSizes(
        DIM, 2 * DIM, heads=4, num_kv_heads=2, head_dim=8, epsilon=config.rms_norm_eps
    )
    tokens, index = torch.arange(0, VOCAB, 2), torch.full((VOCAB,), -1)
    index[tokens] = torch.arange(len(tokens))
    return TargetWeights(
        LAYERS,
        sizes,
        model.model.embed_tokens.weight.detach(),
        model.lm_head.weight.detach()[tokens],
        tokens,
        index,
        [dict(each.state_dict()) for each in model.model.layers[:layers]],
        model.model.norm.weight.detach(),
    )


def some_rows(count: int = 8) -> PackedRows:
    """Texts that the tiny model continues, with its states."""
    model, found = NativeModel(hf_model()), TextsInMemory()
    for number in range(count):
        session = model.start()
        prompt = [number, 3 * number + 1, 5]
        tokens = [*prompt]
        for _ in range(12 + number):
            tokens.append(int(session.extend(tokens[session.length :], "last").rows[0].argmax()))
        session.rewind(session.length)
        output = session.extend(tokens, "all", (LAYERS,))
        final = torch.from_numpy(output.hidden[LAYERS])
        normalizer = torch.from_numpy(output.rows).logsumexp(-1)
        found.append(StoredText(torch.tensor(tokens), 3, True, "own", final[:, None], normalizer))
    return next(RowPacking(found, (), 0, 40, 4, 0).batches())  # type: ignore[arg-type]


def noisy() -> Any:
    """An adapter whose parts all matter."""
    torch.manual_seed(0)
    head: Any = RECIPE.build(target())
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
            weight.copy_(weight.bfloat16())  # as passes round them
    return head.eval()


def test_training_and_drafting_give_the_same_logits() -> None:
    head, rows, own, model = noisy(), some_rows(), target(), NativeModel(hf_model())
    weights = {name: each.numpy() for name, each in head.state_dict().items()}
    vectors = weights["mask_embedding"]
    adapter = model.row_adapter(vectors, head.config.factors(weights))
    for row, place in (rows.positions == 7).nonzero().tolist():
        if rows.segments[row, place] < 0:
            continue
        chosen = torch.zeros_like(rows.is_answer)
        chosen[row, place] = True
        with torch.no_grad():
            wanted = mask_states(head, rows, own, chosen)[0] @ own.head.T
        session = model.start()
        session.extend(rows.tokens[row, place - 7 : place + 1].tolist(), keep="none")
        given = RowsInput(session, [0] * 3, 8 + np.arange(3), np.tri(3, dtype=bool))
        found = model.forward([replace(given, adapter=adapter, adapted=range(3))])[0].rows
        torch.testing.assert_close(
            torch.from_numpy(found[:, ::2].copy()), wanted, atol=1e-4, rtol=1e-4
        )


def test_every_place_is_learnt_and_the_target_stays() -> None:
    rows, own = some_rows(), target()
    torch.manual_seed(0)
    head: Any = RECIPE.build(own)
    before = RECIPE.judge(head, rows, own)
    kept = [{name: each.clone() for name, each in layer.items()} for layer in own.last_layers]
    learnt(head, RECIPE, rows, 150, own)
    after = RECIPE.judge(head, rows, own)
    assert after.places == before.places > 5
    gains = {name: value - means(before)[name] for name, value in means(after).items()}
    for name in ("guess_1", "guess_2", "block_efficiency"):
        assert gains[name] > 0.2, name
    assert gains["overlap"] > 0.1
    for layer, old in zip(own.last_layers, kept, strict=True):
        assert all(torch.equal(layer[name], each) for name, each in old.items())


def test_rows_below_a_place_know_its_text_up_to_it_alone() -> None:
    head, rows, own = noisy(), some_rows(), target()
    every = rows.segments >= 0

    def states(given: PackedRows) -> torch.Tensor:
        found = torch.zeros(*given.tokens.shape, 3, DIM)
        with torch.no_grad():
            found[every] = mask_states(head, given, own, every)
        return found

    tokens = rows.tokens.clone()
    tokens[0, 10] = (tokens[0, 10] + 1) % VOCAB
    final = torch.full_like(rows.final, math.inf)  # so that nothing is compared with it
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("draftwood_train.frozen_layers._require_same", lambda *given: None)
        base, other = (
            states(replace(rows, tokens=each, final=final)) for each in (rows.tokens, tokens)
        )
    changed = (base - other).abs().amax((-1, -2)) > 1e-6
    own_text = rows.segments == rows.segments[0, 10]
    after = torch.arange(rows.tokens.shape[1]) >= 10
    assert torch.equal(changed, own_text & after & (torch.arange(len(rows.tokens))[:, None] == 0))


def test_only_answers_are_learnt() -> None:
    rows, head = some_rows(), noisy()
    none = replace(rows, is_answer=torch.zeros_like(rows.is_answer))
    loss, figures = RECIPE.loss(head, none, target(), 0.0)
    assert (loss.item(), figures) == (0.0, {})
    assert RECIPE.judge(head, none, target()).places == 0


def test_pieces_of_texts_without_their_beginning_are_left_out() -> None:
    rows = some_rows()
    whole = has_beginning(rows)
    assert torch.equal(whole, rows.segments >= 0)
    cut = PackedRows(**{name: each[:, 4:] for name, each in vars(rows).items()})
    first = (cut.segments == cut.segments[:, :1]) & (cut.positions > 3)
    assert bool(first.any())
    assert torch.equal(has_beginning(cut), (cut.segments >= 0) & ~first)
    loss, _ = RECIPE.loss(noisy(), cut, target(), 0.0)  # whose states are those of the data
    assert loss.item() > 0


def test_targets_and_settings_that_do_not_fit_are_refused() -> None:
    rows, own = some_rows(), target()
    strange = replace(own, last_layers=own.last_layers[::-1])
    with pytest.raises(ValueError, match="it has parts that Llama has not; train a drafter"):
        RECIPE.loss(noisy(), rows, strange, 0.0)
    with pytest.raises(ValueError, match="needs all layers of its target"):
        RECIPE.build(target(layers=1))
    for wrong, message in (({"rank": 0}, "masks, rank and anchors"), ({"fades": 0.0}, "fades")):
        with pytest.raises(ValueError, match=message):
            MaskedRecipe(**wrong)  # type: ignore[arg-type]
