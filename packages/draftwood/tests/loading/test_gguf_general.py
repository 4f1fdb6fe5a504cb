"""GGUF files of models that Transformers' own code runs are multiplied as they lie there: the same
numbers, and nothing of them on the disk.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from test_gguf_files import ARCHITECTURES, build, logits, own_home  # noqa: F401  (a fixture)
from torch import nn
from transformers.pytorch_utils import Conv1D

from adapters import save_adapter
from draftwood.loading import hub
from draftwood.loading.gguf_blocks import blocks_folder, own_products
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import LoadedModel, load_model, load_tokenizer
from draftwood.loading.weights import decoder_of
from draftwood.models.families import FAMILIES
from draftwood.native.library import available
from draftwood_torch.models.packed_linear import PackedEmbedding, PackedLinear
from draftwood_torch.models.transformers import TransformersModel
from gguf_writing import TOKENS, write_gguf
from native.test_block_formats import random_blocks

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
WIDE: dict[str, dict[str, Any]] = {
    "starcoder2": {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64},
    "nemotron": {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64},
    "gpt2": {"hidden_size": 256, "n_embd": 256},
}
TIED = ("gpt2",)


@pytest.fixture(autouse=True)
def unknown_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes that run natively stand for those that do not."""
    for name in ("Starcoder2ForCausalLM", "NemotronForCausalLM"):
        other = replace(FAMILIES[name], why_not=lambda config: "it stands for another model")
        monkeypatch.setitem(FAMILIES, name, other)


def encoder(format: str | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """Store numbers in a format, or as many random ones where that is known to llama.cpp alone."""
    if format is None:
        return None

    def encode(values: np.ndarray) -> np.ndarray:
        if format in ("Q8_0", "Q4_0", "F16", "BF16"):
            return gguf.quantize(values, gguf.GGMLQuantizationType[format])
        shape = (values.size // values.shape[-1], values.shape[-1])
        usual = random_blocks(format, *shape, seed=values.size)
        spread = 0.01 * 0.05 / float(usual.floats().std())
        return random_blocks(format, *shape, seed=values.size, spread=spread).stored

    return encode


def general_file(path: Path, kind: str, format: str | None = None) -> Path:
    """A file whose matrices are stored so; None for float32."""
    model_type, more, settings = ARCHITECTURES[kind]
    form = None if format is None else gguf.GGMLQuantizationType[format]
    more = {**more, **WIDE[kind], "initializer_range": 0.05}
    model = build(model_type, **more, tie_word_embeddings=kind in TIED)

    def stored(name: str) -> Any:
        is_small = name.endswith(("conv.weight", "conv1d.weight", "position_embd.weight"))
        return None if is_small else form

    (found,) = write_gguf(
        path, model, kind, settings, kind=stored if form else None, encode=encoder(format)
    )
    return found


def loaded(path: Path, dtype: str | None = "float32", **more: Any) -> LoadedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is converted
        found = load_model(str(path), dtype, "cpu", **more)
    assert isinstance(found.model, TransformersModel)
    return found


def hf_model_of(found: LoadedModel) -> Any:
    return found.model.hf_model  # type: ignore[attr-defined]


@pytest.mark.parametrize("format", [None, "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("kind", WIDE)
def test_in_float32_it_is_the_model_of_the_files_own_numbers(
    tmp_path: Path, kind: str, format: str | None
) -> None:
    path = general_file(tmp_path / "m.gguf", kind, format)
    model = hf_model_of(loaded(path))
    left = [each for each in model.modules() if type(each) in (nn.Linear, Conv1D)]
    assert not left
    assert isinstance(model.get_input_embeddings(), PackedEmbedding)
    whole: Any = load_pretrained(str(path), dtype="float32", device="cpu").model
    exact = logits(whole, 40)
    size = max(1.0, float(exact.abs().max()))
    assert (logits(model, 40) - exact).abs().max() < 1e-4 * size
    buffers, made = dict(whole.named_buffers()), dict(model.named_buffers())
    assert buffers.keys() == made.keys()
    assert all(torch.equal(made[name], each) for name, each in buffers.items())


@pytest.mark.parametrize("kind", WIDE)
def test_by_default_rows_are_rounded_and_weights_stay(tmp_path: Path, kind: str) -> None:
    path = general_file(tmp_path / "m.gguf", kind, "Q4_K")
    found = loaded(path, None)
    assert found.dtype == "int8"
    exact = logits(load_pretrained(str(path), dtype="float32", device="cpu").model, 40)
    off = float((logits(hf_model_of(found), 40) - exact).norm() / exact.norm())
    assert 1e-4 < off < 0.3
    pairs = zip(
        packed_matrices(hf_model_of(found)), packed_matrices(hf_model_of(loaded(path))), strict=True
    )
    for mine, other in pairs:
        assert np.array_equal(mine.floats(), other.floats())


def packed_matrices(model: nn.Module) -> list[Any]:
    return [each.matrix for each in model.modules() if isinstance(each, PackedLinear)]


def test_nothing_of_the_weights_is_written(tmp_path: Path, own_home: Path) -> None:  # noqa: F811
    path = general_file(tmp_path / "m.gguf", "nemotron", "Q4_K")
    found, state = loaded(path, None), path.stat()
    files = [each for each in own_home.rglob("*") if each.is_file() and "kernels" not in each.parts]
    assert sum(each.stat().st_size for each in files) < 0.2 * state.st_size
    assert found.folder == blocks_folder(path)
    assert len(list(own_home.glob("models/gguf-*"))) == 1
    assert load_tokenizer(str(path))("ab").input_ids == found.tokenizer("ab").input_ids
    made = (found.folder / "config.json").stat()
    assert torch.equal(logits(hf_model_of(loaded(path, None))), logits(hf_model_of(found)))
    assert (found.folder / "config.json").stat().st_mtime_ns == made.st_mtime_ns  # made once
    assert found.model.end_tokens == {1}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["starcoder2"])
def test_an_adapter_is_added_before_matrices_are_packed(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    path = general_file(tmp_path / "m.gguf", kind, "Q8_0")
    base = load_pretrained(str(path), dtype="float32", device="cpu").model
    changed = ["q_proj", "o_proj"]
    merged = save_adapter(tmp_path / "a", base, changed, 1.0, r=4)
    exact, without = logits(merged, 40), logits(hf_model_of(loaded(path, dtype)), 40)
    found = logits(hf_model_of(loaded(path, dtype, adapter=str(tmp_path / "a"))), 40)
    size = float(exact.norm())
    assert float((found - exact).norm()) < (1e-4 if dtype == "float32" else 0.25) * size
    assert float((without - exact).norm()) > 0.5 * size


def test_floats_beside_blocks_stay_what_they_are(tmp_path: Path) -> None:
    model_type, more, settings = ARCHITECTURES["nemotron"]
    model, form = build(model_type, **more), gguf.GGMLQuantizationType.Q8_0
    (path,) = write_gguf(
        tmp_path / "m.gguf",
        model,
        "nemotron",
        settings,
        kind=lambda name: form if ".ffn_" in name else None,  # type: ignore[arg-type]
    )
    assert own_products(blocks_folder(path)) == "int8"
    formats = {each.format for each in packed_matrices(hf_model_of(loaded(path, None)))}
    assert formats == {"Q8_0", "F32"}


def test_files_of_floats_are_packed_where_few_bits_are_asked_for(tmp_path: Path) -> None:
    path = general_file(tmp_path / "m.gguf", "nemotron", "BF16")
    assert loaded(path, None).dtype == "bfloat16"
    exact = logits(load_pretrained(str(path), dtype="float32", device="cpu").model, 40)
    for dtype, most in (("int8", 0.1), ("int4", 0.8)):
        found = loaded(path, dtype)
        assert found.dtype == dtype
        off = float((logits(hf_model_of(found), 40) - exact).norm() / exact.norm())
        assert 1e-4 < off < most


def test_in_bfloat16_and_elsewhere_it_is_converted(tmp_path: Path) -> None:
    path = general_file(tmp_path / "m.gguf", "gpt2", "Q8_0")
    found = load_model(str(path), "bfloat16", "cpu")
    assert found.dtype == "bfloat16"
    assert not packed_matrices(hf_model_of(found))


def test_a_file_that_changes_or_lacks_tensors_is_refused(tmp_path: Path) -> None:
    path = general_file(tmp_path / "m.gguf", "starcoder2", "Q8_0")
    folder = loaded(path).folder
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match="was changed since it was first read"):
        load_model(str(folder), None, "cpu")
    model_type, more, _ = ARCHITECTURES["starcoder2"]
    extra = {"blk.0.attn_q_norm.weight": np.ones(8)}
    (other,) = write_gguf(
        tmp_path / "n.gguf", build(model_type, **more), "starcoder2", tensors=extra
    )
    with pytest.raises(ValueError, match=r"attn_q_norm\.weight has no place in Starcoder2"):
        load_model(str(other), None, "cpu")
    model = build(model_type, **{**more, "num_hidden_layers": 2})
    (short,) = write_gguf(tmp_path / "o.gguf", model, "starcoder2", {"block_count": 3})
    with pytest.raises(ValueError, match=r"tensors are missing, the first is model\.layers\.2"):
        load_model(str(short), None, "cpu")


def test_what_asks_for_layers_of_the_native_path_says_why_not(tmp_path: Path) -> None:
    path = general_file(tmp_path / "m.gguf", "gpt2", "Q8_0")
    with pytest.raises(ValueError, match=r"^no heads .*m\.gguf: GPT2LMHeadModel is"):
        decoder_of(str(path), "no heads for")
    with pytest.raises(ValueError, match="a cache in int8 is for the native path"):
        load_model(str(path), None, "cpu", cache="int8")
    assert hub.described(str(path)) == blocks_folder(path)
    assert len(TOKENS) == loaded(path).model.vocab_size
