"""Folders of safetensors load without PyTorch and Transformers, with the bits that these give."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_packed import logits, own_home, saved  # noqa: F401  (a fixture)

from draftwood.arrays import as_floats
from draftwood.loading import hub, models, native_folders
from draftwood.loading.models import load_model
from draftwood.loading.native_folders import read_folder, why_not
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.native import NativeModel
from draftwood.storage import safetensors as storage
from families import NATIVE, hf_model, some_tokens

WEIGHTS = "model.safetensors"


def read(folder: Path, dtype: str | None = None) -> NativeModel:
    assert why_not(folder, dtype) is None
    return NativeModel(read_folder(folder, dtype).model)


def by_transformers(folder: Path, dtype: str | None = None) -> Any:
    return hub.load_pretrained(str(folder), dtype=dtype, device="cpu").model


def same(ours: NativeModel, theirs: NativeModel) -> bool:
    assert (ours.dtype, ours.products) == (theirs.dtype, theirs.products)
    assert (ours.end_tokens, ours.context_length) == (theirs.end_tokens, theirs.context_length)
    return torch.equal(logits(ours), logits(theirs))


@pytest.mark.parametrize("family", NATIVE)
def test_a_folder_of_each_family_gives_the_bits_of_transformers(
    tmp_path: Path, family: str
) -> None:
    folder = saved(tmp_path / "m", family)
    assert same(read(folder), NativeModel(by_transformers(folder)))


def weights_of(model: Any) -> list[np.ndarray]:
    decoder: Decoder = DescribedModel.of(model).decoder
    layer = decoder.layers[0]
    parts = (decoder.embedding, decoder.norm.weight, layer.query.weight, layer.output.weight)
    return [as_floats(each) for each in parts]


STORED = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("asked", ["bfloat16", "float16", "float32", torch.bfloat16, None])
def test_types_are_those_that_transformers_rounds_to(
    tmp_path: Path, stored: torch.dtype, asked: Any
) -> None:
    folder = saved(tmp_path / "m", "llama", stored)
    loaded, hf_model = load_model(str(folder), asked, "cpu"), by_transformers(folder, asked)
    assert isinstance(loaded.model, NativeModel)
    assert loaded.dtype == str(hf_model.dtype).removeprefix("torch.")
    assert same(loaded.model, NativeModel(hf_model))
    ours = read_folder(folder, hub.floats_of(asked)).model
    for one, other in zip(weights_of(ours), weights_of(hf_model), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["glm4-experts", "ernie-experts"])
def test_what_chooses_experts_is_never_rounded(tmp_path: Path, family: str, dtype: str) -> None:
    """Released folders in bfloat16 have it in float32."""
    folder, whole = saved(tmp_path / "m", family), saved(tmp_path / "w", family, torch.float32)
    parts = ("mlp.gate.", "correction_bias")
    chooses = {
        name: each
        for name, each in load_file(whole / WEIGHTS).items()
        if any(part in name for part in parts)
    }
    changed(folder, lambda tensors: tensors.update(chooses))
    assert same(read(folder, dtype), NativeModel(by_transformers(folder, dtype)))
    found, wanted = (
        DescribedModel.of(each).decoder.layers[-1].experts
        for each in (read_folder(folder, dtype).model, hf_model(family))
    )
    assert found is not None
    assert wanted is not None
    assert np.array_equal(as_floats(found.choice_bias), np.asarray(wanted.choice_bias))


def test_sharded_weights_are_read_by_their_index(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "gemma3")
    by_transformers(folder).save_pretrained(folder, max_shard_size="10KB")
    (folder / WEIGHTS).unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert same(read(folder), NativeModel(by_transformers(folder)))


def changed(folder: Path, change: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def test_joined_experts_and_names_without_a_prefix_are_found(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "mixtral")
    state = {**by_transformers(folder).state_dict()}
    save_file({k: v.contiguous() for k, v in state.items()}, folder / WEIGHTS, {"format": "pt"})
    assert same(read(folder), NativeModel(by_transformers(folder)))
    folder = saved(tmp_path / "bare", "llama-scaled")
    names = [*load_file(folder / WEIGHTS)]
    changed(folder, lambda all: [all.update({n.removeprefix("model."): all.pop(n)}) for n in names])
    assert same(read(folder), NativeModel(by_transformers(folder)))


@pytest.mark.parametrize("is_other", [False, True])
def test_an_output_head_that_is_not_the_embedding_is_believed(
    tmp_path: Path, is_other: bool
) -> None:
    folder = saved(tmp_path / "m", "llama-scaled")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        head = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = head * 2 if is_other else head.clone()

    changed(folder, add)
    ours = read(folder)
    assert ours.weights.is_tied == (not is_other)
    assert same(ours, NativeModel(by_transformers(folder)))


def test_an_embedding_that_is_called_a_head_is_found(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "llama-scaled")
    changed(folder, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    assert same(read(folder), NativeModel(by_transformers(folder)))


def test_the_head_and_the_embedding_are_handed_out(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "cohere2")
    hf_model = by_transformers(folder)
    ours, theirs = (
        NativeModel(each).embeddings_and_head.weights()
        for each in (read_folder(folder).model, hf_model)
    )
    for name in ("embedding", "norm", "bias", "head", "head_bias"):
        one, other = (getattr(each, name, None) for each in (ours, theirs))
        assert (one is None) == (other is None)
        assert one is None or one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"hidden_act": "relu"}, "its activation is relu"),
        ({"dtype": "float64"}, "its weights are float64"),
    ],
)
def test_what_is_not_known_goes_the_way_of_transformers(
    tmp_path: Path, settings: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m", "llama")
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config | settings))
    assert reason in (why_not(folder) or "")
    model = load_model(str(folder), None, "cpu").model
    text = some_tokens(20, seed=3)
    with torch.no_grad():
        wanted = by_transformers(folder)(torch.tensor([text])).logits[0].float()
    found = torch.as_tensor(model.start().extend(text).rows).float()
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
    monkeypatch.setattr("draftwood.optional.is_there", lambda package: False)
    with pytest.raises(ModuleNotFoundError, match=r"needs PyTorch: pip install") as error:
        load_model(str(folder), None, "cpu")
    assert reason in str(error.value)


def test_pickled_weights_are_left_to_pytorch_and_packed_of_them(
    tmp_path: Path,
    own_home: Path,  # noqa: F811
) -> None:
    folder = saved(tmp_path / "m", "llama")
    wanted = {
        dtype: logits(load_model(str(folder), dtype, "cpu").model) for dtype in (None, "int8")
    }
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    assert "model.safetensors" in (why_not(folder) or "")
    for dtype, found in wanted.items():
        for _ in range(2):
            assert torch.equal(logits(load_model(str(folder), dtype, "cpu").model), found)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_missing_weights_are_counted(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path / "m", "llama")
    changed(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"{folder} lacks 1 weights, the first is {name}"):
        load_model(str(folder), None, "cpu")


def test_a_file_system_that_maps_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m", "llama")
    wanted = logits(read(folder))

    def refuse(*args: object, **more: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(storage.np, "memmap", refuse)
    assert torch.equal(logits(read(folder)), wanted)


def test_pytorch_is_asked_for_a_device_where_there_may_be_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(hub, "OF_GPUS", ())
    assert not hub.may_have_gpu()
    monkeypatch.setattr(hub, "OF_GPUS", ("/dev/null",))
    assert hub.may_have_gpu() == (sys.platform == "linux")
    monkeypatch.setattr(hub, "is_there", lambda package: False)
    assert not hub.may_have_gpu()


def test_without_a_compiled_library_pytorch_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m", "llama")
    monkeypatch.setattr(models, "available", lambda: False)
    monkeypatch.setattr(native_folders, "read_folder", None)
    assert load_model(str(folder), None, "cpu").dtype == "bfloat16"


HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if sys.argv[2] == "hidden":
    sys.meta_path.insert(0, Hidden())
from draftwood.loading.models import load_model

for dtype in (None, "int8", "int8"):
    loaded = load_model(sys.argv[1], dtype)
    session, tokens = loaded.model.start(), loaded.tokenizer("w3 w1 w4")["input_ids"]
    for _ in range(20):
        tokens = [*tokens, int(session.extend(tokens[session.length:], "last").rows[-1].argmax())]
    print(loaded.dtype, loaded.tokenizer.decode(tokens))
print("torch" in sys.modules, "transformers" in sys.modules)
"""


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_texts_are_the_same_without_pytorch_and_transformers(
    tmp_path: Path,
    own_home: Path,  # noqa: F811
    family: str,
) -> None:
    folder = saved(tmp_path / "m", family)
    told = [
        subprocess.run(
            [sys.executable, "-c", HIDING, str(folder), way],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for way in ("there", "hidden")
    ]
    assert told[0][:3] == told[1][:3]
    assert [line.split()[0] for line in told[0][:3]] == ["bfloat16", "int8", "int8"]
    assert told[1][3] == "False False"
