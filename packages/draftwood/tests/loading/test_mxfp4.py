"""Experts that a folder stores in MXFP4 stay in it, with the numbers that Transformers reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_packed import kept_in, load, logits, own_home, saved  # noqa: F401  (a fixture)

from draftwood.loading import packed
from draftwood.loading.hub import load_pretrained
from draftwood.loading.native_folders import read_folder
from draftwood.models.native import NativeModel
from draftwood.native.matrix import formats
from draftwood.tokenizer import open_tokenizer
from families import plainly, some_tokens

PARTS = ("gate_up_proj", "down_proj")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the published ones are: experts in codes and scales, all else in bfloat16."""
    path = saved(tmp_path / "m", "gpt-oss")
    tensors = load_file(path / "model.safetensors")
    draw = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(PARTS)]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(256, (*shape, 16), generator=draw).byte()
        tensors[f"{name}_scales"] = torch.randint(122, 126, shape, generator=draw).byte()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_the_model_is_that_of_transformers(folder: Path) -> None:
    usual = load_pretrained(str(folder), device="cpu").model.float()
    said = plainly(usual, text := some_tokens(20, seed=3))
    model = NativeModel(read_folder(folder).model, "float32", "float32")
    found = model.start().extend(text).logits
    assert (found - said).abs().max() < 1e-4 * max(1.0, float(said.abs().max()))


def test_it_is_the_type_of_choice_and_kept_packed(folder: Path, own_home: Path) -> None:  # noqa: F811
    loaded = load(folder, None)
    assert loaded.dtype == "int8"
    layers: Any = loaded.model.structure.layers
    names = list(formats())
    expert = layers[1].experts.networks[3]
    assert {names[each.format] for each in (expert.gate, expert.up, expert.down)} == {"MXFP4"}
    assert names[layers[1].query.format] == "Q8_0"
    (kept,) = kept_in(own_home)
    assert (kept / packed.MATRICES).stat().st_size <= packed.packing(folder).size("int8") + 64 * 99
    assert torch.equal(logits(load(folder, "int8").model), logits(loaded.model))
    now = NativeModel(read_folder(folder).model, "int8")
    assert torch.equal(logits(now), logits(loaded.model))
    exact = logits(NativeModel(read_folder(folder).model, "bfloat16"))
    assert (logits(now) - exact).norm(dim=1).median() < 0.2 * exact.norm(dim=1).median()
    assert open_tokenizer(kept).get_vocab() == loaded.tokenizer.get_vocab()


def test_in_floats_transformers_makes_them(folder: Path) -> None:
    model = load(folder, "bfloat16").model
    names = list(formats())
    layers: Any = model.structure.layers  # type: ignore[attr-defined]
    assert names[layers[1].experts.networks[3].gate.format] == "BF16"


@pytest.mark.parametrize("part", PARTS)
def test_what_is_missing_or_does_not_fit_is_named(folder: Path, part: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.2.mlp.experts.{part}"
    scales = tensors.pop(f"{name}_scales")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"{name}_blocks and {name}_scales are missing"):
        load(folder, None)
    tensors[f"{name}_scales"] = scales[:, :-2].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"{name}_blocks and .* do not fit together"):
        load(folder, None)
    tensors[f"{name}_scales"] = scales[:, :-2].contiguous()
    tensors[f"{name}_blocks"] = tensors[f"{name}_blocks"][:, :-2].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"its tensor .* by its configuration"):
        load(folder, None)
