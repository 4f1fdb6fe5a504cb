"""Refusals of a stage of a conversion, before anything is written."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conversions import write_model
from draftwood_diffusion.parallel.run import Parallel
from draftwood_diffusion.settings import settings_of
from draftwood_diffusion.training.decoder import DecoderSizes
from draftwood_diffusion.training.loop import Conversion, ConversionSettings
from draftwood_diffusion.training.stage import Stage
from draftwood_train.places import alone_in
from test_own_texts import changed

LLAMA = {
    **{"model_type": "llama", "num_attention_heads": 2, "vocab_size": 8, "hidden_size": 8},
    **{"intermediate_size": 8, "num_hidden_layers": 1},
}


def silent(line: str) -> None:
    pass


def settings(mask: int, **more: Any) -> ConversionSettings:
    return ConversionSettings(mask, **{"steps": 2, "rows": 2, "blocks": (2, 4), **more})


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    write_model(tmp_path / "model")
    return Stage(str(tmp_path / "model"), tmp_path / "out", 3000, 16, whole=True)


def test_what_else_lies_in_the_output_folder_stays(stage: Stage, tmp_path: Path) -> None:
    before = sorted((tmp_path / "model").iterdir())
    with pytest.raises(ValueError, match="holds something else than a converted model; name"):
        replace(stage, output=tmp_path / "model").run(settings, silent)
    assert sorted((tmp_path / "model").iterdir()) == before
    stage.run(settings, silent)
    already = "there is a converted model in {}/out already; name a new folder"
    with pytest.raises(ValueError, match=already.format(tmp_path)):
        replace(stage, model=str(stage.output), resume=True).run(settings, silent)
    stage.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=already.format(tmp_path)):
        stage.run(settings, silent)
    assert settings_of(stage.output) is not None


def test_two_stages_do_not_fill_one_folder(stage: Stage) -> None:
    with alone_in(stage.folder), pytest.raises(OSError, match="another process trains in"):
        stage.run(settings, silent)
    assert not stage.output.exists()
    stage.run(settings, silent)
    assert stage.output.exists()


@pytest.mark.parametrize(
    ("places", "more", "told"),
    [
        (16, {"blocks": (2, 9)}, "a block of 9 needs rows of 18 tokens, the rows have 16"),
        (4096, {}, r"reads \d+ tokens, and rows have 4096; give --places \d+, or less"),
    ],
)
def test_settings_are_refused_before_texts_are_written(
    stage: Stage, places: int, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        replace(stage, places=places).run(lambda mask: settings(mask, **more), silent)
    assert not stage.folder.exists()


def test_a_second_stage_keeps_what_outputs_mean(stage: Stage, tmp_path: Path) -> None:
    assert stage.is_shifted
    stage.run(lambda mask: settings(mask, shifted=False), silent)
    second = replace(stage, model=str(stage.output), output=tmp_path / "second", writer=stage.model)
    assert not second.is_shifted
    with pytest.raises(ValueError, match="has unshifted outputs; leave out --shifted"):
        second.run(settings, silent)
    second.run(lambda mask: settings(mask, shifted=second.is_shifted), silent)
    found = settings_of(second.output)
    assert found is not None
    assert not found.shifted


def test_other_weights_of_the_models_name_are_refused(stage: Stage, tmp_path: Path) -> None:
    stage.run(settings, silent)
    (stage.folder / "checkpoint.pt").unlink()
    weights = tmp_path / "model" / "model.safetensors"
    save_file({name: 2 * each for name, each in load_file(weights).items()}, weights)
    with pytest.raises(ValueError, match="was begun with weights of digest"):
        replace(stage).run(settings, silent)
    (stage.folder / "stage.json").unlink()
    (stage.folder / "begun").rename(tmp_path / "before")
    stage.output.rename(tmp_path / "converted")
    with pytest.raises(ValueError, match="texts was begun with weights of digest"):
        replace(stage).run(settings, silent)


def test_a_stopped_stage_leaves_the_model_before_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run(settings, silent)
    before = (stage.output / "model.safetensors").read_bytes()
    (stage.folder / "checkpoint.pt").unlink()

    def stopping(step: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(self: Conversion, progress: float) -> Any:
            if self.state.step == 1:
                raise KeyboardInterrupt
            return step(self, progress)

        return stopped

    with monkeypatch.context() as patched:
        patched.setattr(Conversion, "_step", stopping(Conversion._step))
        with pytest.raises(KeyboardInterrupt):
            stage.run(lambda mask: settings(mask, seed=1), silent)
    assert (stage.output / "model.safetensors").read_bytes() == before
    ended = replace(stage, resume=True).run(lambda mask: settings(mask, seed=1), silent)
    assert ended.state.step == 2
    assert (stage.output / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize("whole", [True, False])
def test_numbers_of_no_token_are_left_out(stage: Stage, whole: bool) -> None:
    for name in ("config.json", "generation_config.json"):
        changed(Path(stage.model) / name, pad_token_id=-1, eos_token_id=[2, 999])
    replace(stage, whole=whole).run(settings, silent)
    assert settings_of(stage.output) is not None


def test_scaled_positions_are_refused_by_either_name() -> None:
    assert DecoderSizes.of(LLAMA).head_dim == 4
    for name in ("type", "rope_type"):
        with pytest.raises(ValueError, match="scaled rotary embeddings, which conversion does not"):
            DecoderSizes.of({**LLAMA, "rope_scaling": {name: "linear", "factor": 4.0}})


def test_keys_that_lists_have_not_have_no_price() -> None:
    with pytest.raises(ValueError, match="keeps keys, which lists have not; name a --model"):
        next(Parallel(["copy"], ["one-by-one+prefix-cache"], 3, 1, 3, 0).run())
