"""GGUF files of plain floats run as a folder of the same weights in the same type does."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from test_gguf_blocks import WIDE
from test_gguf_files import build, own_home  # noqa: F401  (a fixture)
from transformers import PreTrainedModel

from draftwood.loading import kept_matrices
from draftwood.loading.gguf_blocks import blocks_folder
from draftwood.loading.hub import fetched, from_blocks
from draftwood.loading.models import LoadedModel, load_model
from draftwood.models.native import NativeModel
from draftwood.tokenizer import open_tokenizer
from families import some_tokens
from gguf_writing import TOKENS, write_gguf

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
OWN = {"F32": "float32", "F16": "float32", "BF16": "bfloat16"}
TEXT = [3 + token for token in some_tokens(40, seed=5)]


def of_type(kind: str, family: str = "llama", **more: Any) -> PreTrainedModel:
    """A model whose numbers are all of this type."""
    return build(family, **WIDE, **more).to(TYPES[kind])


def written(path: Path, model: PreTrainedModel, kind: str, family: str = "llama") -> Path:
    settings = {"attention.sliding_window": 8} if family == "gemma2" else {}
    return write_gguf(path, model, family, settings, kind=gguf.GGMLQuantizationType[kind])[0]


def both(tmp_path: Path, kind: str, family: str = "llama", **more: Any) -> tuple[str, str]:
    """A file and a folder of one model."""
    model, folder = of_type(kind, family, **more), tmp_path / "folder"
    file = written(tmp_path / "m.gguf", model, kind, family)
    model.save_pretrained(folder)
    open_tokenizer(blocks_folder(file)).save_pretrained(folder)
    return str(file), str(folder)


def loaded(name: str, dtype: str | None) -> tuple[LoadedModel, NativeModel]:
    found = load_model(name, dtype, "cpu")
    assert isinstance(found.model, NativeModel)
    return found, found.model


def logits(model: NativeModel) -> np.ndarray:
    return model.start().extend(TEXT).rows


def weights(model: NativeModel) -> int:
    return model.weights.multiply_adds


@pytest.mark.parametrize("dtype", [None, "auto", "float32"])
@pytest.mark.parametrize("kind", TYPES)
def test_without_a_type_it_is_the_folders_model(
    tmp_path: Path, kind: str, dtype: str | None
) -> None:
    file, folder = both(tmp_path, kind)
    (label, found), (_, wanted) = loaded(file, dtype), loaded(folder, dtype)
    own = dtype if dtype == "float32" else OWN[kind]
    assert (label.dtype, found.products) == (own, own)
    assert found.products == wanted.products
    assert logits(found).tobytes() == logits(wanted).tobytes()
    size = 4 if kind == "F32" or (kind, dtype) == ("BF16", "float32") else 2
    assert found.weight_bytes == pytest.approx(size * weights(found), rel=0.01)  # rows are padded


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("kind", TYPES)
def test_integers_pack_it_as_they_pack_the_folder(tmp_path: Path, kind: str, dtype: str) -> None:
    file, folder = both(tmp_path, kind)
    (label, found), (_, wanted) = loaded(file, dtype), loaded(folder, dtype)
    assert (label.dtype, found.products) == (dtype, dtype)
    assert label.folder == blocks_folder(Path(file))
    assert found.weight_bytes == wanted.weight_bytes
    assert found.weight_bytes < 1.2 * weights(found)
    assert logits(found).tobytes() == logits(wanted).tobytes()
    again = load_model(file, dtype, "cpu").model
    assert isinstance(again, NativeModel)
    assert logits(again).tobytes() == logits(wanted).tobytes()


@pytest.mark.parametrize("room", ["20", "0"])
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_tied_models_of_other_layouts_too(
    tmp_path: Path, family: str, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_PACKED_GB", room)
    more = {"sliding_window": 8} if family == "gemma2" else {}
    file = written(tmp_path / "m.gguf", of_type("F32", family, **more), "F32", family)
    exact, rounded = (logits(loaded(str(file), dtype)[1]) for dtype in (None, "int8"))
    off = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 1e-5 < off < 0.2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", TYPES)
def test_other_floats_are_those_of_the_folder(tmp_path: Path, kind: str, dtype: str) -> None:
    file, folder = both(tmp_path, kind)
    (label, found), (_, wanted) = loaded(file, dtype), loaded(folder, dtype)
    assert (label.dtype, found.products) == (dtype, wanted.products)
    assert logits(found).tobytes() == logits(wanted).tobytes()


def test_one_matrix_of_blocks_makes_a_file_a_quantised_one(tmp_path: Path) -> None:
    path, types = tmp_path / "m.gguf", gguf.GGMLQuantizationType
    write_gguf(
        path,
        of_type("F32"),
        kind=lambda name: types.Q8_0 if name == "blk.1.ffn_up.weight" else types.F16,
    )
    for dtype, products in ((None, "int8"), ("int8", "int8"), ("float32", "float32")):
        label, found = loaded(str(path), dtype)
        assert (label.dtype, found.products) == (products, products)
        assert found.weight_bytes > 1.8 * weights(found)  # floats stay floats
    for dtype in ("auto", "bfloat16", "int4"):
        assert from_blocks(str(path), dtype) is None


def test_the_type_of_most_numbers_counts(tmp_path: Path) -> None:
    types = gguf.GGMLQuantizationType
    few = ("output.weight", "token_embd.weight")
    for most, other, products in (("BF16", "F32", "bfloat16"), ("F16", "BF16", "float32")):
        path = tmp_path / f"{most}.gguf"
        chosen = {True: types[other], False: types[most]}
        write_gguf(path, of_type("F32"), kind=lambda name, of=chosen: of[name in few])
        assert loaded(str(path), None)[0].dtype == products


def test_what_is_fetched_is_what_is_loaded(tmp_path: Path, own_home: Path) -> None:  # noqa: F811
    file = str(written(tmp_path / "m.gguf", of_type("F16"), "F16"))
    for dtype in (None, "auto", "float32", "int8", "int4"):
        assert fetched(file, dtype) == loaded(file, dtype)[0].folder
    made = {path.name for path in own_home.glob("models/gguf-*")}
    assert made == {blocks_folder(Path(file)).name}  # nothing was converted


def test_another_file_is_packed_again(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    first = logits(loaded(str(written(path, of_type("F32"), "F32")), "int8")[1])
    (kept,) = kept_matrices._all_kept()
    told = kept_matrices._made_from(kept)["files"]
    model = of_type("F32")
    for weight in model.parameters():
        weight.data = weight.data.flip(0)
    second = logits(loaded(str(written(path, model, "F32")), "int8")[1])
    assert first.tobytes() != second.tobytes()
    (other,) = kept_matrices._all_kept()  # the first is dropped
    assert kept_matrices._made_from(other)["files"][str(path)] != told[str(path)]


def test_a_file_that_changes_while_it_is_packed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, found = written(tmp_path / "m.gguf", of_type("F32"), "F32"), open_tokenizer
    blocks_folder(path)

    def written_meanwhile(folder: Path) -> Any:
        path.touch()
        return found(folder)

    monkeypatch.setattr("draftwood.loading.models.open_tokenizer", written_meanwhile)
    with pytest.raises(ValueError, match="was changed while it was packed; load it again"):
        load_model(str(path), "int8", "cpu")


def test_logits_without_a_type_are_no_rounded_ones(tmp_path: Path) -> None:
    """Negative control: rows in 8 bits are far off."""
    assert len(TOKENS) > max(TEXT)
    file = str(written(tmp_path / "m.gguf", of_type("F32"), "F32"))
    exact, rounded = (logits(loaded(file, dtype)[1]) for dtype in (None, "int8"))
    assert abs(exact - rounded).max() > 5e-3 * exact.std()
