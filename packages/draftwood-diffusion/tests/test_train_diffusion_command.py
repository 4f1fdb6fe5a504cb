"""`draftwood train diffusion` from its options to a folder, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from conversions import write_model
from draftwood_diffusion.settings import settings_of
from draftwood_diffusion.training.command import diffusion
from draftwood_diffusion.training.decoder import DecoderSizes, StreamDecoder
from draftwood_diffusion.training.folder import read_weights
from draftwood_diffusion.training.loop import ConversionSettings, held_out_losses
from draftwood_diffusion.training.rows import TextRows
from draftwood_diffusion.training.stage import HELD_OUT

SHORT = ("--tokens", "2k", "--places", "16", "--steps", "2", "--rows", "2", "--threads", "1")


def run(*options: object) -> str:
    result = CliRunner().invoke(diffusion, [str(each) for each in options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_a_model_is_converted_and_told(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    options = (*SHORT, "--blocks", "2,8", "--unshifted", "--whole-vocabulary")
    told = json.loads(run(tmp_path / "model", tmp_path / "out", *options, "--json"))
    assert told["folder"] == str(tmp_path / "out")
    assert {"next", "block 2", "block 8", "step"} <= told["held_out"].keys()
    found = settings_of(tmp_path / "out")
    assert found is not None
    assert (found.mask_token, found.block_length, found.shifted) == (12, 8, False)


def test_losses_are_those_of_the_weights_that_are_written(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    fast = ("--blocks", "2,8", "--learning-rate", "0.1", "--other-rate", "0.1")
    options = (tmp_path / "model", tmp_path / "out", *SHORT, *fast)
    trained = json.loads(run(*options, "--json"))["held_out"]
    begun = tmp_path / "out.training" / "begun"
    told = json.loads((begun / "config.json").read_text())
    decoder = StreamDecoder(DecoderSizes.of(told))
    decoder.take({name: torch.from_numpy(each) for name, each in read_weights(begun).items()})
    texts = sorted((tmp_path / "out.training" / "texts").glob("*.npz"))
    settings = ConversionSettings(told["vocab_size"] - 1, rows=2, blocks=(2, 8))
    held_out = TextRows.of(texts, 16, HELD_OUT).held_out[: settings.judged_rows]
    before = held_out_losses(decoder, held_out, settings)
    kept = json.loads(run(*options, "--blend", "0", "--resume", "--json"))["held_out"]
    for name, loss in before.items():
        assert kept[name] == pytest.approx(loss, rel=1e-5)
        assert abs(trained[name] - loss) > 1e-3  # negative control: what training made is another


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    model, out = tmp_path / "model", tmp_path / "out"
    assert "lengths of blocks look like 4,8,16, not '4,x'" in run(model, out, "--blocks", "4,x")
    with pytest.raises(ValueError, match="a block of 16 needs rows of 32 tokens, the rows have 16"):
        run(model, out, *SHORT)
    with pytest.raises(ValueError, match="here and there: leave --in-order out"):
        run(model, out, *SHORT, "--blocks", "2,4", "--certainty", "--in-order", "0.5")
    with pytest.raises((ValueError, FileNotFoundError), match="nowhere"):
        run(tmp_path / "nowhere", out, *SHORT)
    told = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**told, "model_type": "gpt2"}))
    with pytest.raises(ValueError, match="llama, qwen2 or qwen3, not gpt2; convert one of these"):
        run(model, tmp_path / "other", *SHORT)
    assert not (tmp_path / "other.training").exists()  # another model may take the folder
