"""Conversion of a next-token model: what it sees, learns and writes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import draftwood
from conversions import tokenizer_told, write_model
from draftwood.text.prompts import encode_text
from draftwood.tokenizer import open_tokenizer
from draftwood_diffusion.masked_model import DiffusionSettings
from draftwood_diffusion.settings import settings_of
from draftwood_diffusion.training.blocks import blocks_of_8_bits
from draftwood_diffusion.training.certainty import Certainty
from draftwood_diffusion.training.decoder import DecoderSizes, StreamDecoder, random_decoder
from draftwood_diffusion.training.folder import begin_folder, read_source, read_weights
from draftwood_diffusion.training.lexical_units import LexicalUnits, probabilities
from draftwood_diffusion.training.loop import Conversion, ConversionSettings
from draftwood_diffusion.training.losses import Predicted, denoising
from draftwood_diffusion.training.noise import Grid, masked
from draftwood_diffusion.training.own_texts import OwnTexts, read_shard
from draftwood_diffusion.training.rows import TextRows
from draftwood_diffusion.training.stage import Stage
from draftwood_diffusion.training.vocabulary import (
    cut_vocabulary,
    numbers_between,
    whole_vocabulary,
)
from draftwood_train.loop import BrokenLossError

MASK = 31


def decoder_of(seed: int = 0) -> StreamDecoder:
    sizes = DecoderSizes(32, 32, 64, 2, 4, 2, 8, 1e-5, 1e4, True, True, True)
    return random_decoder(sizes, 0.3, seed)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("in_order", [0.0, 0.5])
def test_no_row_sees_the_place_that_it_predicts(
    is_causal: bool, shifted: bool, in_order: float
) -> None:
    decoder, grid = decoder_of(), Grid(19, 2, 4)
    tokens = torch.randint(0, MASK, (3, 19), generator=torch.Generator().manual_seed(1))
    chance = torch.Generator().manual_seed(2)
    batch = masked(tokens, grid, MASK, 4.0, chance, in_order=in_order)
    before = decoder(batch.tokens, grid.sight(is_causal))
    blocks, copies = grid.blocks(), 2 - batch.is_masked[:, 0].long()
    for place in range(grid.start, grid.places):
        changed = batch.tokens.clone()  # in the clean text, and in the copy that shows the place
        for text in range(3):
            for stream in (0, 3 - int(copies[text, place])):
                changed[text, stream, place] = (changed[text, stream, place] + 1) % MASK
            changed[text, :, grid.blocks() > blocks[place]] = 0  # and all later blocks
        after = decoder(changed, grid.sight(is_causal))
        of_clean = shifted and bool(blocks[place] != blocks[place - 1])
        for text in range(3):
            row = (text, 0 if of_clean else int(copies[text, place]), place - int(shifted))
            assert torch.equal(before[row], after[row])
        shown = (0, 3 - int(copies[0, place]), place)
        assert not torch.equal(before[shown], after[shown])  # a row that does see it


def test_masks_are_complements_and_weigh_one_over_t() -> None:
    grid, tokens = Grid(26, 1, 8), torch.zeros(200, 26, dtype=torch.long)
    batch = masked(tokens, grid, MASK, 3.0, torch.Generator().manual_seed(0))
    first, second = batch.is_masked[:, 0], batch.is_masked[:, 1]
    assert not bool((first & second).any())
    assert bool((first | second)[:, 1:].all())
    assert not bool((first | second)[:, 0].any())
    counts = first[:, 1:9].sum(1)
    assert {*counts.tolist()} == {*range(9)}  # from none to all
    weights = (8 / torch.where(first[:, 1:9], counts[:, None], 8 - counts[:, None])).clamp(max=3)
    torch.testing.assert_close(batch.weights[:, 1:9], weights)
    halves = masked(tokens, grid, MASK, 3.0, torch.Generator().manual_seed(0), share=0.5)
    assert {*halves.is_masked[:, 0, 1:9].sum(1).tolist()} == {4}


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("in_order", [0.0, 1.0])
def test_every_block_has_any_number_of_masks_with_their_weights(
    start: int, in_order: float
) -> None:
    grid, tokens = Grid(14, start, 4), torch.zeros(4000, 14, dtype=torch.long)
    chance = torch.Generator().manual_seed(0)
    batch = masked(tokens, grid, MASK, 1e9, chance, in_order=in_order)
    assert float(batch.weights[:, ~grid.maskable()].sum()) == 0
    for block in range(int(grid.blocks().max()) + 1):
        (own,) = torch.where((grid.blocks() == block) & grid.maskable())
        first, second = (batch.is_masked[:, copy, own] for copy in (0, 1))
        counts, others = (each.sum(1, keepdim=True) for each in (first, second))
        shares = torch.bincount(counts[:, 0], minlength=len(own) + 1) / 4000
        assert len(shares) == len(own) + 1  # from none to all, each as often
        torch.testing.assert_close(
            shares, torch.full_like(shares, 1 / len(shares)), atol=0.03, rtol=0
        )
        weights = len(own) / torch.where(first, counts, others)
        torch.testing.assert_close(batch.weights[:, own], weights)


def test_one_stream_is_the_model_of_transformers(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    decoder = StreamDecoder(DecoderSizes.of(told))
    weights = read_source(tmp_path).weights
    decoder.take({name: torch.from_numpy(np.array(each)) for name, each in weights.items()})
    tokens = torch.tensor([[1, 4, 5, 6, 7, 3]])
    with torch.no_grad():
        found = decoder.logits(decoder(tokens[:, None], Grid(6, 0, 3).sight(True)))[0, 0]
        torch.testing.assert_close(found, model(tokens).logits[0], atol=1e-4, rtol=0)
        blocks = decoder.logits(decoder(tokens[:, None], Grid(6, 0, 3).sight(False)))[0, 0]
        seen = torch.full((6, 6), float("-inf")).masked_fill(Grid(6, 0, 3).sight(False).clean, 0)
        wanted = model(tokens, attention_mask=seen[None, None]).logits[0]
    torch.testing.assert_close(blocks, wanted, atol=1e-4, rtol=0)
    with pytest.raises(
        ValueError, match=r"need model\.norm\.weight of shape \(32,\), nothing came"
    ):
        decoder.take({n: torch.tensor(e) for n, e in weights.items() if n != "model.norm.weight"})
    with pytest.raises(ValueError, match="not gpt2; convert one of these"):
        DecoderSizes.of({"model_type": "gpt2"})


def test_certainty_is_asked_where_predictions_are_right() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    predicted = Predicted.of(logits, torch.tensor([0, 2]))
    loss = Certainty(weight=2.0, temperature=0.5)(predicted)
    share = torch.softmax(torch.tensor([4.0, 0.0, 0.0]), 0)
    wanted = denoising(predicted) + 2 * -(share * share.log()).sum()
    torch.testing.assert_close(loss, wanted)
    (gradient,) = torch.autograd.grad(loss, logits)
    (plain,) = torch.autograd.grad(denoising(predicted), logits)
    torch.testing.assert_close(gradient[1], plain[1])  # the wrong one is left as it is
    assert not torch.equal(gradient[0], plain[0])


def test_placeholders_count_as_far_as_a_unit_goes() -> None:
    likely = torch.tensor([[1.0, 0.1, 0.95, 0.5, 0.95, 0.2, 0.95, 0.95, 0.95, 0.95, 0.5, 0.95]])
    tokens, grid, found = torch.arange(12)[None], Grid(12, 0, 6), dict[int, list[float]]()
    for seed in range(40):
        batch = LexicalUnits(0.9, 3).masked(
            tokens, likely, grid, MASK, torch.Generator().manual_seed(seed)
        )
        shown = batch.tokens[0, 1]
        begin = int((shown[6:] == MASK).nonzero()[0, 0]) + 6
        assert (shown[6:begin] == tokens[0, 6:begin]).all()
        assert (shown[begin:] == MASK).all()
        found[begin] = batch.weights[0, 6:].tolist()
    assert found == {
        6: [1, 1, 1, 0, 0, 0],  # no longer than three
        7: [0, 1, 1, 1, 0, 0],
        8: [0, 0, 1, 1, 0, 0],  # up to what was unlikely
        9: [0, 0, 0, 1, 0, 0],
        10: [0, 0, 0, 0, 1, 1],  # the first one counts however unlikely it was
        11: [0, 0, 0, 0, 0, 1],
    }


def test_texts_are_as_likely_as_transformers_finds_them(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    decoder = StreamDecoder(DecoderSizes.of(json.loads((tmp_path / "config.json").read_text())))
    decoder.take({n: torch.tensor(each) for n, each in read_source(tmp_path).weights.items()})
    tokens = torch.tensor([[1, 4, 5, 6, 7, 3]])
    with torch.no_grad():
        shares = model(tokens).logits[0, :-1].softmax(-1)
    wanted = [1.0, *(float(shares[row, tokens[0, row + 1]]) for row in range(5))]
    torch.testing.assert_close(probabilities(decoder, tokens)[0], torch.tensor(wanted))


def test_texts_of_kept_tokens_are_split_as_before(tmp_path: Path) -> None:
    told = tokenizer_told()
    cut = cut_vocabulary(told, [1, 10], 12)  # <s> and abcd, which ab and cd make
    kept = [name for name, n in told["model"]["vocab"].items() if n in cut.kept]  # type: ignore[index]
    assert kept == ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "e", "ab", "cd", "abcd"]
    assert (cut.mask_token, cut.size) == (11, 12)
    for name, content in (("before", told), ("after", cut.tokenizer)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(json.dumps(content))
        (tmp_path / name / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    before, after = (open_tokenizer(tmp_path / name) for name in ("before", "after"))
    first, numbers = encode_text(before, "abcdabe"), numbers_between(told, cut.tokenizer)
    assert encode_text(after, "abcdabe") == numbers[first].tolist()
    assert encode_text(after, "ea") == [1, 7, 3] != encode_text(before, "ea")  # that token is gone
    assert whole_vocabulary(told, 12).size == 13
    assert numbers.tolist() == [*range(11), -1]
    with pytest.raises(ValueError, match=r"not Unigram; keep all tokens with --whole-vocabulary"):
        cut_vocabulary({**told, "model": {"type": "Unigram"}}, [], 12)


def test_blocks_of_8_bits_round_by_their_own_scale() -> None:
    weights = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    weights[2, :32] = 0
    packed = blocks_of_8_bits(weights).reshape(5, 2, 34)
    scales = packed[..., :2].copy().view(np.float16).astype(np.float32)
    back = (packed[..., 2:].copy().view(np.int8) * scales).reshape(5, 64)
    largest = np.abs(weights.reshape(5, 2, 32)).max(-1, keepdims=True)
    error = np.abs(back - weights).reshape(5, 2, 32)
    assert (error <= largest / 127 * 0.51 + 1e-7).all()
    assert (back[2, :32] == 0).all()
    with pytest.raises(ValueError, match="multiple of 32 weights, not 40"):
        blocks_of_8_bits(weights[:, :40])


def settings(mask: int, **more: object) -> ConversionSettings:
    return ConversionSettings(mask, steps=6, rows=2, blocks=(2, 4), judged_rows=4, **more)  # type: ignore[arg-type]


def rows_of(mask: int) -> TextRows:
    chance = torch.Generator().manual_seed(0)
    texts = torch.randint(0, mask, (20, 16), generator=chance)
    return TextRows(texts[4:], texts[:4])


def test_a_stage_that_was_killed_goes_on_as_if_it_was_not(tmp_path: Path) -> None:
    whole = Conversion(decoder_of(), rows_of(MASK), settings(MASK), tmp_path / "whole")
    whole.run()
    part = Conversion(decoder_of(), rows_of(MASK), settings(MASK), tmp_path / "part")
    for _ in range(3):
        part._step(part.progress)
    part.save()
    part._step(part.progress)  # lost, as it was killed before it was saved
    again = Conversion(decoder_of(1), rows_of(MASK), settings(MASK), tmp_path / "part", resume=True)
    assert again.state.step == 3
    again.run()
    for name, weight in whole.decoder.state_dict().items():
        assert torch.equal(weight, again.decoder.state_dict()[name])
    with pytest.raises(ValueError, match="had shifted True, not False"):
        Conversion(
            *(decoder_of(), rows_of(MASK), settings(MASK, shifted=False), tmp_path / "part", True)
        )
    units = Conversion(decoder_of(), rows_of(MASK), settings(MASK, units=0.5), tmp_path / "units")
    units.run()
    assert units.state.step == 6
    (tmp_path / "part" / "checkpoint.pt").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        Conversion(decoder_of(), rows_of(MASK), settings(MASK), tmp_path / "part", True)


def test_a_gradient_that_is_no_number_changes_no_weight(tmp_path: Path) -> None:
    drawn = torch.randint(0, MASK, (40, 24), generator=torch.Generator().manual_seed(0))
    settings = ConversionSettings(MASK, steps=3, rows=2, blocks=(4,))
    conversion = Conversion(decoder_of(), TextRows(drawn[:30], drawn[30:]), settings, tmp_path)
    steps = conversion.state
    first = next(conversion.decoder.parameters())
    first.register_hook(lambda gradient: gradient * (torch.inf if steps.step == 2 else 1))
    with pytest.raises(BrokenLossError) as caught:
        conversion.run()
    told = str(caught.value)
    assert "norm of the gradient is nan at step 3, so training ends" in told.replace("inf", "nan")
    assert "a lower --learning-rate: with --resume" in told
    assert "\n" not in told
    assert all(bool(each.isfinite().all()) for each in conversion.decoder.parameters())
    assert conversion.state.step == 2


def test_settings_and_rows_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs rows of 32 tokens, the rows have 16"):
        Conversion(decoder_of(), rows_of(MASK), ConversionSettings(MASK), tmp_path)
    with pytest.raises(ValueError, match="at least one token, got lengths"):
        ConversionSettings(MASK, blocks=(4, 0), shifted=False)
    with pytest.raises(ValueError, match="at least two tokens where outputs are shifted, got"):
        ConversionSettings(MASK, blocks=(4, 1))
    for wrong in ({"certainty": 2.0, "units": 0.9}, {"units": 0.9, "in_order": 0.5}):
        with pytest.raises(ValueError, match="leave --certainty and --in-order out"):
            ConversionSettings(MASK, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="here and there: leave --in-order out"):
        ConversionSettings(MASK, certainty=2.0, in_order=0.5)
    with pytest.raises(ValueError, match="minutes must be more than 0"):
        ConversionSettings(MASK, minutes=0)
    with pytest.raises(ValueError, match="more than 10 rows of 8 tokens"):
        TextRows.of([], 8, 9)


def test_a_stage_writes_a_model_that_loads_and_goes_on(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    model, said = tmp_path / "model", list[str]()
    stage = Stage(str(model), tmp_path / "out", 3000, 16, in_8_bits=True, block_length=4)
    stage.run(settings, said.append)
    assert any("6 steps" in line for line in said)
    found = settings_of(tmp_path / "out")
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found == DiffusionSettings(told["vocab_size"] - 1, 4, shifted=True)
    lm = draftwood.load(str(tmp_path / "out"), method="plain")
    assert lm.model.vocab_size == told["vocab_size"]
    assert len(lm.encode("abcd", True)) == 2
    with pytest.raises(ValueError, match="holds a training that was begun; go on with --resume"):
        stage.run(settings, said.append)
    again = Stage(str(model), tmp_path / "out", 3000, 16, block_length=4, blend=0, resume=True)
    again.run(settings, said.append)
    for name, each in read_weights(tmp_path / "out.training" / "begun").items():
        np.testing.assert_allclose(read_source(tmp_path / "out").weights[name], each, rtol=1e-2)
    stage = Stage(str(model), tmp_path / "out", 3000, 16, None, False, 4, True, resume=True)
    stage.run(settings, said.append)
    # the second stage begins with what the first one wrote, in 8 bits
    second = Stage(str(tmp_path / "out"), tmp_path / "sure", 3000, 16, str(model), block_length=4)
    second.run(lambda mask: settings(mask, certainty=2.0), said.append)
    assert settings_of(tmp_path / "sure") == found
    texts = read_shard(tmp_path / "sure.training" / "texts" / "shard-00000.npz")[0]
    assert texts.max() == 11  # by the writer's numbers
    begun = read_weights(tmp_path / "sure.training" / "begun")
    held = draftwood.load(str(tmp_path / "out"), dtype="float32", method="plain").model
    first = np.asarray(held.embeddings_and_head.embed([3]))[0]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(begun["model.embed_tokens.weight"][3], first)


def test_texts_are_the_same_from_the_same_seed(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    lm = draftwood.load(str(tmp_path / "model"), method="plain")
    texts = OwnTexts(tmp_path / "texts", "model", 12, 5)
    list(texts.write(lm, 100))
    before = read_shard(texts.held[0])
    texts.held[0].unlink()
    list(texts.write(lm, 100, at_once=7))
    after = read_shard(texts.held[0])
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    assert before[1].max() <= 12
    assert not np.array_equal(before[0][:12], before[0][12:24])
    with pytest.raises(ValueError, match="begun with seed 5, not 6"):
        list(OwnTexts(tmp_path / "texts", "model", 12, 6).write(lm, 100))
    texts.held[0].write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"shard-00000\.npz cannot be read"):
        read_shard(texts.held[0])


def test_a_vocabulary_is_begun_with_the_mean_for_the_mask(tmp_path: Path) -> None:
    model: LlamaForCausalLM = write_model(tmp_path / "model")
    begin_folder(tmp_path / "model", cut_vocabulary(tokenizer_told(), [10], 12), tmp_path / "begun")
    table = read_weights(tmp_path / "begun")["model.embed_tokens.weight"]
    own = model.model.embed_tokens.weight.detach().numpy()[[*range(11)]]
    np.testing.assert_array_equal(table[:-1], own)
    np.testing.assert_allclose(table[-1], own.mean(0), atol=1e-6)
