"""Distributions that a conversion learns of the model that wrote the texts."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from conversions import tokenizer_told, write_model
from draftwood_diffusion.training.certainty import Certainty
from draftwood_diffusion.training.command import diffusion
from draftwood_diffusion.training.decoder import DecoderSizes, random_decoder
from draftwood_diffusion.training.folder import SourceModel, read_source
from draftwood_diffusion.training.lexical_units import LexicalUnits
from draftwood_diffusion.training.loop import TAUGHT, ConversionSettings
from draftwood_diffusion.training.losses import Predicted, denoising, stream_losses
from draftwood_diffusion.training.noise import Grid, Masked, masked
from draftwood_diffusion.training.stage import Stage
from draftwood_diffusion.training.teacher import Teacher
from draftwood_diffusion.training.vocabulary import cut_vocabulary, numbers_between

MASK, SIZES = 31, DecoderSizes(32, 32, 64, 2, 4, 2, 8, 1e-5, 1e4, True, True, True)


def teacher_of(seed: int = 5) -> Teacher:
    """A random teacher that lacks the mask alone."""
    decoder = random_decoder(SIZES, 0.3, seed)
    source = read_source_of(decoder.named())
    return Teacher(source, np.append(np.arange(MASK), -1), 32)


def read_source_of(weights: Mapping[str, Tensor]) -> SourceModel:
    told = {
        "model_type": "qwen3",
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "attention_bias": True,
    }
    return SourceModel(told, {}, {name: each.detach().numpy() for name, each in weights.items()})


def batch_of(texts: Tensor, grid: Grid, in_order: float, seed: int = 2) -> Masked:
    chance = torch.Generator().manual_seed(seed)
    return masked(texts, grid, MASK, 4.0, chance, in_order=in_order)


def asked_of(batch: Masked) -> Tensor:
    """The copy that predicts each place."""
    first, second = batch.is_masked.unbind(1)
    return 1 + (second & ~first).long()


def some_texts(rows: int = 4, places: int = 18) -> Tensor:
    chance = torch.Generator().manual_seed(1)
    texts = torch.randint(1, MASK, (rows, places), generator=chance)
    texts[:, 0] = 0  # what begins a text
    return texts


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("in_order", [0.0, 0.5, 1.0])
def test_places_led_see_all_before_them_and_nothing_behind(start: int, in_order: float) -> None:
    texts, grid = some_texts(40), Grid(18, start, 4)
    batch = batch_of(texts, grid, in_order)
    copies, blocks, found = asked_of(batch), grid.blocks(), 0
    for text in range(len(texts)):
        for place in grid.maskable().nonzero()[:, 0].tolist():
            shown = ~batch.is_masked[text, copies[text, place] - 1]
            own = (blocks == blocks[place]) & grid.maskable()
            order = torch.arange(18)
            exact = bool(shown[own & (order < place)].all())
            exact &= not bool(shown[own & (order >= place)].any())
            assert bool(batch.is_led[text, place]) == exact
            found += exact
    assert found > 40
    assert (found < int(grid.maskable().sum()) * 40) or in_order == 1


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("shifted", [True, False])
def test_predictions_at_places_led_depend_on_what_a_next_token_model_reads(
    is_causal: bool, shifted: bool
) -> None:
    decoder, texts, grid = random_decoder(SIZES, 0.3, 0), some_texts(2, 10), Grid(10, 0, 4)

    def predicted(texts: Tensor) -> tuple[Masked, Tensor]:
        batch = batch_of(texts, grid, 1.0)
        return batch, decoder(batch.tokens, grid.sight(is_causal))

    batch, before = predicted(texts)
    blocks, copies = grid.blocks(), asked_of(batch)
    for text, place in batch.is_led.nonzero().tolist():
        row, copy = place - int(shifted), int(copies[text, place])
        if blocks[row] != blocks[place]:
            continue  # left to the clean text
        later, earlier = texts.clone(), texts.clone()
        later[text, place:] = texts[text, place:] % (MASK - 1) + 1
        earlier[text, place - 1] = texts[text, place - 1] % (MASK - 1) + 1
        torch.testing.assert_close(predicted(later)[1][text, copy, row], before[text, copy, row])
        if place > 1:
            assert not torch.allclose(
                predicted(earlier)[1][text, copy, row], before[text, copy, row]
            )


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("shifted", [True, False])
def test_what_is_taught_is_the_teacher_behind_the_same_beginning(
    is_causal: bool, shifted: bool
) -> None:
    teacher, texts, grid = teacher_of(), some_texts(), Grid(18, 2, 4)
    texts[1, 9] = 0  # another text begins, which the teacher knows nothing of
    batch, seen = batch_of(texts, grid, 0.6), list[Predicted]()

    def objective(predicted: Predicted) -> Tensor:
        seen.append(predicted)
        return denoising(predicted)

    decoder = random_decoder(SIZES, 0.3, 0)
    losses = stream_losses(decoder, batch, grid, is_causal, shifted, objective, teacher)
    blocks = grid.blocks()
    is_first = torch.ones(18, dtype=torch.bool)
    is_first[1:] = blocks[1:] != blocks[:-1]
    places = (grid.maskable() & ~(is_first & shifted)).nonzero()[:, 0].tolist()
    cells = [(text, place) for text in range(4) for place in places]
    (predicted,) = seen
    wanted = [bool(batch.is_led[t, p]) and not (t == 1 and p >= 9) for t, p in cells]
    assert predicted.led.tolist() == wanted
    led = [cell for cell, is_led in zip(cells, wanted, strict=True) if is_led]
    assert led
    for (text, place), taught in zip(led, predicted.taught, strict=True):
        alone = teacher.shares(teacher.states(texts[text : text + 1, :place])[0, -1:])[0]
        torch.testing.assert_close(taught, alone, atol=1e-5, rtol=1e-4)
        assert taught[MASK] == 0
    untaught = stream_losses(decoder, batch, grid, is_causal, shifted)
    assert not torch.allclose(losses["next"], untaught["next"])
    again = stream_losses(decoder, batch, grid, is_causal, shifted, teacher=teacher_of(6))
    assert not torch.allclose(losses["masked"], again["masked"])  # a control: another teacher


def test_a_teacher_speaks_the_vocabulary_that_is_trained(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    cut = cut_vocabulary(tokenizer_told(), [11], 12)  # "ea" stays, at another number; "ab" goes
    numbers = numbers_between(tokenizer_told(), cut.tokenizer)
    assert numbers[11] not in (-1, 11)
    teacher = Teacher(read_source(tmp_path), numbers, cut.size)
    kept = np.array(cut.kept)
    theirs = torch.tensor([[1, 4, 11, 6, 7, 3]])
    ours = torch.from_numpy(numbers[theirs.numpy()])
    with torch.no_grad():
        logits = model(theirs).logits[0, :, kept]
    shares = teacher.shares(teacher.states(ours)[0])
    torch.testing.assert_close(shares[:, : len(kept)], logits.softmax(-1), atol=1e-5, rtol=1e-4)
    assert not bool(shares[:, cut.mask_token].any())


def test_the_loss_is_against_distributions_where_they_are_known() -> None:
    made = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True)
    led, taught = torch.tensor([False, True]), torch.tensor([[0.5, 0.25, 0.25]])
    predicted = Predicted(made, torch.tensor([1, 1]), torch.ones(2), led, taught)
    logs = made[0].log_softmax(0)
    wanted = torch.stack([-logs[1], -(taught[0] * logs).sum()])
    torch.testing.assert_close(predicted.losses(), wanted)
    reverse = Predicted(made, torch.tensor([1, 1]), torch.ones(2), led, taught, True).losses()
    torch.testing.assert_close(reverse[1], (logs.exp() * (logs - taught[0].log())).sum())
    torch.testing.assert_close(reverse[0], wanted[0])
    # certainty leaves alone what a teacher knows
    (gradient,) = torch.autograd.grad(Certainty()(predicted), made)
    (plain,) = torch.autograd.grad(denoising(predicted), made)
    torch.testing.assert_close(gradient[1], plain[1])
    assert not torch.allclose(gradient[0], plain[0])


def test_the_command_offers_the_divergences_that_there_are() -> None:

    (option,) = (each for each in diffusion.params if each.name == "taught")
    assert tuple(option.type.choices) == TAUGHT  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="'js' is no divergence; take one of kl, reverse-kl, none"):
        ConversionSettings(MASK, taught="js")


def test_masks_in_order_stay_so_in_long_texts() -> None:
    grid = Grid(8192, 3, 4)
    batch = batch_of(torch.ones(1, 8192, dtype=torch.long), grid, 1.0)
    first = batch.is_masked[0, 0]
    blocks = grid.blocks()
    same = blocks[1:] == blocks[:-1]
    assert not bool((first[:-1] & ~first[1:] & same).any())  # nothing is shown behind a mask
    assert bool(batch.is_masked[0, 1, 3:].all())


def test_units_begin_where_a_teacher_knows() -> None:
    texts, grid = some_texts(), Grid(18, 0, 6)
    likely = torch.full((4, 18), 0.5)
    batch = LexicalUnits(0.9, 3).masked(texts, likely, grid, MASK, torch.Generator().manual_seed(0))
    assert torch.equal(batch.is_led, batch.weights > 0)  # no unit is longer than its first token


def test_a_writer_that_cannot_teach_is_named_with_the_cure(tmp_path: Path) -> None:

    write_model(tmp_path / "model")
    write_model(tmp_path / "writer")
    told = json.loads((tmp_path / "writer" / "config.json").read_text())
    llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    llama3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    scaled = {**told, "rope_parameters": llama3}
    (tmp_path / "writer" / "config.json").write_text(json.dumps(scaled))
    stage = Stage(
        str(tmp_path / "model"), tmp_path / "out", 3000, 16, str(tmp_path / "writer"), whole=True
    )

    def settings(mask: int) -> ConversionSettings:
        return ConversionSettings(mask, steps=2, blocks=(2, 4), taught="kl")

    with pytest.raises(ValueError, match=r"scaled rotary embeddings.*with --taught none"):
        stage.run(settings, lambda line: None)
    assert not (tmp_path / "out.training" / "texts").exists()  # before any text is written


def test_a_stage_goes_on_with_what_it_began_with_alone(tmp_path: Path) -> None:

    write_model(tmp_path / "model")

    def settings(mask: int, taught: str = "kl") -> ConversionSettings:
        return ConversionSettings(
            mask, steps=2, rows=2, blocks=(2, 4), judged_rows=4, taught=taught
        )

    begun = Stage(str(tmp_path / "model"), tmp_path / "out", 3000, 16, whole=True)
    figures = begun.run(settings, lambda line: None).state.history[-1]
    assert {"next", "block 2", "block 4", "in order"} <= figures.keys()
    again = Stage(str(tmp_path / "model"), tmp_path / "out", 3000, 16, whole=True, resume=True)
    with pytest.raises(ValueError, match="had taught kl, not none"):
        again.run(lambda mask: settings(mask, "none"), lambda line: None)
    other = Stage(str(tmp_path / "model"), tmp_path / "out", 3000, 16, "other", True, resume=True)
    with pytest.raises((ValueError, FileNotFoundError), match="other"):
        other.run(settings, lambda line: None)
    cut = Stage(str(tmp_path / "model"), tmp_path / "out", 3000, 16, resume=True)
    with pytest.raises(ValueError, match="begun with tokens kept all, not those in use"):
        cut.run(settings, lambda line: None)
    again.run(settings, lambda line: None)
