"""Matrices of a GGUF file are used as they lie there: same numbers, no copy, whatever its name."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from test_gguf_files import build, in_cache, logits, own_home  # noqa: F401  (a fixture)
from transformers import AutoTokenizer

from draftwood.loading import gguf_blocks, gguf_files, gguf_reader, models
from draftwood.loading.gguf_blocks import blocks_folder, files_of, is_blocks_folder, open_blocks
from draftwood.loading.hub import blocks_of, load_pretrained
from draftwood.loading.models import load_model
from draftwood.loading.origin import quantisation, weights_digest
from draftwood.models.native import NativeModel
from draftwood.native.matrix import Matrix, block_formats, formats
from draftwood.storage import memory
from draftwood.storage.atomic import sha256
from draftwood.tokenizer import open_tokenizer
from gguf_writing import TOKENS, converted, write_gguf
from native.test_block_formats import random_blocks

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}


def written(path: Path, family: str, format: str) -> Path:
    """A file whose matrices hold random blocks of this format, as large as usual weights."""
    kind, more = FAMILIES[family] if family in FAMILIES else (family, MIXTURES[family])
    model = build(kind, **WIDE, **more)
    architecture = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}.get(
        kind, kind
    )
    settings = {"expert_count": 4, "expert_used_count": 2} if family in MIXTURES else {}
    if family == "gpt_oss":
        settings["attention.sliding_window"] = 8

    def encode(values: np.ndarray) -> np.ndarray:
        shape = (values.size // values.shape[-1], values.shape[-1])
        usual = random_blocks(format, *shape, seed=values.size)
        spread = 0.01 * 0.06 / float(usual.floats().std())
        stored = random_blocks(format, *shape, seed=values.size, spread=spread).stored
        return stored.reshape(*values.shape[:-1], -1)

    form = gguf.GGMLQuantizationType[format]
    write_gguf(path, model, architecture, settings, kind=form, encode=encode)
    return path


def native_logits(path: Path, dtype: str | None) -> torch.Tensor:
    model = load_model(str(path), dtype, "cpu").model
    assert isinstance(model, NativeModel)
    tokens = torch.randint(3, len(TOKENS), (1, 64), generator=torch.Generator().manual_seed(5))
    return model.start().extend(tokens[0].tolist()).logits


@pytest.mark.parametrize("format", block_formats())
@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_the_one_of_the_files_own_numbers(
    tmp_path: Path, family: str, format: str
) -> None:
    path = written(tmp_path / "m.gguf", family, format)
    said = logits(load_pretrained(str(path), dtype="float32", device="cpu").model)[0]
    found = native_logits(path, "float32")
    size = said.abs().max()
    assert (found - said).abs().max() < 1e-4 * max(1.0, float(size))
    if family != "llama":
        return
    rounded = native_logits(path, None)
    assert (rounded - said).abs().max() < 0.2 * size
    assert (rounded - said).abs().max() > 1e-4 * size  # rows were rounded, and only there


@pytest.mark.parametrize("format", ["Q4_K", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_are_those_of_the_files_own_numbers(
    tmp_path: Path, family: str, format: str
) -> None:
    path = written(tmp_path / "m.gguf", family, format)
    folder = blocks_folder(path)
    kept = sum(file.stat().st_size for file in folder.iterdir())
    assert kept - (folder / "tokenizer.json").stat().st_size < 0.1 * path.stat().st_size
    said = logits(load_pretrained(str(path), dtype="float32", device="cpu").model)[0]
    model = load_model(str(path), "float32", "cpu").model
    assert isinstance(model, NativeModel)
    layers: Any = model.structure.layers
    of_experts = [layers[0].experts.networks[i].up for i in range(4)]
    names = list(formats())
    assert {names[each.format] for each in of_experts} == {format}
    size = said.abs().max()
    assert (native_logits(path, "float32") - said).abs().max() < 1e-4 * max(1.0, float(size))
    off = (native_logits(path, None) - said).norm(dim=1) / said.norm(dim=1)
    assert 1e-4 < off.median() < 0.2  # rows between two experts may go to another one


def test_of_experts_too_every_tensor_must_fit(tmp_path: Path) -> None:
    model, path = build("gpt_oss", **WIDE, **MIXTURES["gpt_oss"]), tmp_path / "m.gguf"
    settings = {"expert_count": 4, "expert_used_count": 2, "attention.sliding_window": 8}
    own = converted(model, "gpt-oss")
    for name, shape, by_configuration in (
        ("blk.1.ffn_up_exps.weight", (3, 512, 256), "4 x 512 x 256"),
        ("blk.2.ffn_down_exps.weight", (4, 256, 480), "4 x 256 x 512"),
        ("blk.2.ffn_down_exps.bias", (4, 128), "4 x 256"),
        ("blk.0.attn_sinks.weight", (3,), "4"),
    ):
        assert own[name].shape != shape
        wrong = {name: np.ones(shape, np.float32)}
        kind = gguf.GGMLQuantizationType.Q8_0
        write_gguf(path, model, "gpt-oss", settings, tensors=wrong, kind=kind)
        stored = " x ".join(map(str, shape))
        with pytest.raises(ValueError, match=rf"{name} is {stored}, and {by_configuration} by"):
            blocks_folder(path)


def test_nothing_is_copied_and_the_name_says_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "a-model-in-Q8_0.gguf", "llama", "Q4_K")
    folder = blocks_folder(path)
    assert is_blocks_folder(folder)
    assert quantisation(folder) == "Q4_K"
    assert weights_digest(folder) == sha256(path)
    kept = sum(file.stat().st_size for file in folder.iterdir())
    matrices = sum(each.rows * each.row_bytes for each in gguf_blocks._read_places(folder)[1])
    assert kept - (folder / "tokenizer.json").stat().st_size < 0.2 * matrices
    model = load_model(str(path), None, "cpu").model
    assert isinstance(model, NativeModel)
    assert model.weight_bytes <= 1.1 * matrices


def test_a_second_load_reads_the_description_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    first = native_logits(path, None)
    monkeypatch.setattr(gguf_reader, "QuickReader", None)
    assert torch.equal(native_logits(path, None), first)
    monkeypatch.undo()
    renamed = path.rename(tmp_path / "other.gguf")
    assert torch.equal(native_logits(renamed, None), first)  # described again, and the same


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "stablelm"])
def test_the_tokenizer_is_the_one_that_its_class_builds(tmp_path: Path, architecture: str) -> None:
    path, model = tmp_path / "m.gguf", build(architecture, **WIDE, vocab_size=len(TOKENS) + 1)
    write_gguf(path, model, architecture, merges=["l l"], pre="qwen2")
    folder = blocks_folder(path)
    ours, usual = open_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = " a tall\n\n  tt</s> 12345 l ö"
    assert ours(text).input_ids == usual(text).input_ids
    assert ours.decode(ours(text).input_ids) == usual.decode(usual(text).input_ids)
    # the class of Qwen2 adds a token for padding, which the file does not have
    assert ours.special_tokens_map.items() <= usual.special_tokens_map.items()
    chat = [{"role": "user", "content": text}]
    assert ours.apply_chat_template(chat) == usual.apply_chat_template(chat)


@pytest.mark.parametrize("dtype", [None, "int4", "bfloat16"])
def test_a_split_that_is_not_known_is_told_at_every_load(tmp_path: Path, dtype: str | None) -> None:
    path = tmp_path / "m.gguf"
    for pre in ("of-tomorrow", None):
        write_gguf(path, build("llama", **WIDE), pre=pre)
        for _ in range(3):
            with pytest.warns(UserWarning, match="way to split text.* may read other tokens"):
                load_model(str(path), dtype, "cpu")
    write_gguf(path, build("llama", **WIDE), pre="qwen2")
    load_model(str(path), dtype, "cpu")  # control: without a warning


def test_a_file_may_lie_in_parts(tmp_path: Path) -> None:
    model = build("llama", **WIDE)
    whole, parts = tmp_path / "whole.gguf", tmp_path / "split.gguf"
    write_gguf(whole, model, kind=gguf.GGMLQuantizationType.Q8_0)
    first = write_gguf(parts, model, kind=gguf.GGMLQuantizationType.Q8_0, split=7)[0]
    assert torch.equal(native_logits(first, None), native_logits(whole, None))


def test_parts_of_hugging_faces_cache_are_found_by_their_links(tmp_path: Path) -> None:
    model = build("llama", **WIDE)
    kind = gguf.GGMLQuantizationType.Q8_0
    parts = write_gguf(tmp_path / "split.gguf", model, kind=kind, split=7)
    wanted = native_logits(parts[0], None)
    links = in_cache(parts, tmp_path / "snapshot")
    for link in links:
        assert torch.equal(native_logits(link, None), wanted)
    folder = blocks_folder(links[0])
    assert files_of(folder) == [link.resolve() for link in links]
    os.utime(links[1], ns=(1, 1))
    assert blocks_folder(links[0]) != folder


def test_mixed_types_stand_side_by_side(tmp_path: Path) -> None:
    """As in files called Q4_K_M, where matrices of one layer have several types."""
    model, path = build("llama", **WIDE), tmp_path / "m.gguf"
    kinds = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q8_0", "Q5_1", "F16", "F32")]
    count = iter(range(1000))
    write_gguf(path, model, kind=lambda name: kinds[next(count) % len(kinds)])
    said = logits(load_pretrained(str(path), dtype="float32", device="cpu").model)[0]
    assert (native_logits(path, "float32") - said).abs().max() < 1e-4 * said.abs().max()
    assert (native_logits(path, None) - said).norm() < 0.1 * said.norm()
    model = load_model(str(path), None, "cpu").model
    assert isinstance(model, NativeModel)
    formats = {each.format for each in model.weights.memory if isinstance(each, Matrix)}
    assert {"Q4_0", "Q8_0", "Q5_1"} <= formats


@pytest.mark.parametrize("family", [*FAMILIES, "mixtral"])
@pytest.mark.parametrize("format", ["BF16", "F16", "F32"])
def test_floats_of_any_type_are_multiplied_in_float32(
    tmp_path: Path, family: str, format: str
) -> None:
    kind, more = FAMILIES[family] if family in FAMILIES else (family, MIXTURES[family])
    settings = {"expert_count": 4, "expert_used_count": 2} if family in MIXTURES else {}
    architecture = "llama" if family == "mixtral" else kind
    model, path = build(kind, **WIDE, **more), tmp_path / "m.gguf"
    write_gguf(path, model, architecture, settings, kind=gguf.GGMLQuantizationType[format])
    said = logits(load_pretrained(str(path), dtype="float32", device="cpu").model)[0]
    found = native_logits(path, "float32")
    assert (found - said).abs().max() < 5e-4 * said.std()
    if (family, format) == ("llama", "BF16"):  # negative control: rows in bfloat16 are far off
        rounded = native_logits(path, None)
        assert (rounded - said).abs().max() > 5e-3 * said.std()


def test_memory_is_asked_for_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, build("llama", **WIDE), kind=gguf.GGMLQuantizationType.BF16)
    matrices = gguf_blocks._read_places(blocks_folder(path))[1]
    stored = sum(each.rows * each.row_bytes for each in matrices)
    monkeypatch.setattr(memory, "available_memory", lambda: int(1.5 * stored))
    load_model(str(path), None, "cpu")
    with pytest.raises(MemoryError, match=r"m\.gguf needs"):
        load_model(str(path), "float32", "cpu")


def test_types_of_blocks_that_the_library_lacks_are_converted_as_ever(tmp_path: Path) -> None:
    strange = tmp_path / "n.gguf"
    write_gguf(strange, build("llama", **WIDE), kind=gguf.GGMLQuantizationType.TQ2_0)
    with pytest.raises(
        gguf_files.NotInBlocksError, match=r"stored as TQ2_0; used as they are BF16"
    ):
        blocks_folder(strange)
    with pytest.warns(UserWarning, match=r"takes long .* stored as TQ2_0; used as they are BF16"):
        assert blocks_of(str(strange)) is None
    with pytest.warns(UserWarning, match=r"n\.gguf is converted to floats first"):
        loaded = load_model(str(strange), None, "cpu")
    assert loaded.dtype == "int8"
    assert load_model(str(strange), None, "cpu").folder == loaded.folder  # nothing is said again
    assert load_model(str(strange), "bfloat16", "cpu").dtype == "bfloat16"


def test_a_file_that_is_gone_or_cut_short_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    folder = blocks_folder(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"m\.gguf was cut short since .*; fetch it again"):
        open_blocks(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.gguf is gone.*put it back"):
        open_blocks(folder)


def test_a_cut_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(ValueError, match=r"m\.gguf cannot be read as a GGUF model"):
        blocks_folder(path)
    made = [each.name for each in (tmp_path / "home" / "models").glob("*") if each.is_dir()]
    assert not made


@pytest.mark.parametrize(
    ("tensor", "rows", "inputs"),
    [
        ("blk.1.ffn_down.weight", -32, 0),
        ("blk.1.ffn_down.weight", 0, -32),
        ("blk.0.attn_q.weight", 32, 0),
        ("blk.2.attn_norm.weight", -8, None),
        ("blk.0.attn_k.bias", 8, None),
        ("output_norm.weight", 1, None),
    ],
)
def test_tensors_of_other_shapes_are_refused_by_name_and_both_shapes(
    tmp_path: Path, tensor: str, rows: int, inputs: int | None
) -> None:
    path, model = tmp_path / "m.gguf", build("qwen2", **WIDE)
    right = converted(model, "qwen2")[tensor].shape
    wrong = (right[0] + rows,) if inputs is None else (right[0] + rows, right[1] + inputs)
    kind = gguf.GGMLQuantizationType.Q8_0
    write_gguf(path, model, "qwen2", tensors={tensor: np.ones(wrong, np.float32)}, kind=kind)
    sizes = [r" x ".join(map(str, shape)) for shape in (wrong, right)]
    with pytest.raises(ValueError, match=rf"{tensor} is {sizes[0]}, and {sizes[1]} by"):
        load_model(str(path), None, "cpu")
    assert not [each for each in (tmp_path / "home" / "models").glob("*") if each.is_dir()]


def test_a_damaged_description_is_refused_before_anything_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = blocks_folder(written(tmp_path / "m.gguf", "llama", "Q4_0"))
    places = json.loads((folder / "blocks.json").read_text())
    down = next(each for each in places["matrices"] if each["module"].endswith("down_proj"))
    down["rows"] -= 16
    (folder / "blocks.json").write_text(json.dumps(places))
    with pytest.raises(ValueError, match="it was changed"):
        open_blocks(folder)
    monkeypatch.setattr(gguf_blocks, "is_intact", lambda folder, name: True)  # changed with it
    with pytest.raises(ValueError, match=r"down_proj\.weight is 240 x 512, and 256 x 512 by"):
        open_blocks(folder)


def test_a_file_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    folder = blocks_folder(path)
    open_blocks(folder)
    path.touch()
    with pytest.raises(ValueError, match=r"m\.gguf was changed since .*; load it again"):
        open_blocks(folder)


def halved(path: Path) -> bytes:
    """The bytes of a file with half the first numbers of a norm."""
    content = bytearray(path.read_bytes())
    norm = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.2.ffn_norm.weight")
    begin, end = norm.data_offset, norm.data_offset + norm.n_bytes
    content[begin:end] = (np.frombuffer(content[begin:end], np.float32) / 2).tobytes()
    return bytes(content)


def put_in_place(path: Path, content: bytes) -> None:
    """Write over a file, which keeps its size and time of change."""
    at = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(at, at))


def test_another_file_in_its_place_of_the_same_size_and_time_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    folder, content = blocks_folder(path), path.read_bytes()
    put_in_place(path, halved(path))
    with pytest.raises(ValueError, match=r"m\.gguf was changed since .*; load it again"):
        open_blocks(folder)
    put_in_place(path, content)  # as a file that was moved with its folder
    open_blocks(folder)
    native_logits(path, None)
    open_blocks(folder)


def test_where_nothing_can_be_written_the_folder_of_another_file_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    folder = blocks_folder(path)

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "access", lambda place, mode: mode != os.W_OK)
    monkeypatch.setattr(gguf_blocks, "write_description", refuse)
    path.chmod(0o600)
    assert blocks_folder(path) == folder
    put_in_place(path, halved(path))
    with pytest.raises(OSError, match=r"permission denied; .* set DRAFTWOOD_HOME to another"):
        blocks_folder(path)


def test_a_change_while_it_is_read_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    blocks_folder(path)

    class Touching(NativeModel):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            path.touch()

    monkeypatch.setattr(models, "NativeModel", Touching)
    with pytest.raises(ValueError, match=r"m\.gguf was changed since"):
        load_model(str(path), None, "cpu")


def test_a_type_that_nobody_knows_is_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    content, name = path.read_bytes(), b"blk.0.ffn_down.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    path.write_bytes(content[:at] + (999).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ValueError, match=r"m\.gguf .* is of type 999, .*; upgrade"):
        load_model(str(path), None, "cpu")
    assert not [each for each in (tmp_path / "home" / "models").glob("*") if each.is_dir()]


def test_a_file_system_that_maps_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    folder = blocks_folder(path)

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(OSError, match=r"m\.gguf cannot be mapped .*No such device.*local disk"):
        open_blocks(folder)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_0")
    monkeypatch.setattr(memory, "available_memory", lambda: 100_000)
    with pytest.raises(MemoryError, match=r"m\.gguf needs 0\.\d\d GB .* 0\.00 GB are available"):
        load_model(str(path), None, "cpu")
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    load_model(str(path), None, "cpu")
