"""Blocks of GGUF files are laid out once; later loads read that, and have the same bits."""

import os
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from filelock import FileLock
from test_gguf_files import own_home  # noqa: F401  (a fixture)

from draftwood.loading import kept_matrices
from draftwood.loading.gguf_blocks import blocks_folder
from draftwood.loading.kept_matrices import MATRICES, KeptBlocks, packed_from
from draftwood.loading.models import load_model
from draftwood.native.matrix import Blocks, Matrix
from draftwood.storage import atomic
from draftwood.storage.home import home
from loading.test_gguf_blocks import native_logits, written
from native.test_block_formats import random_blocks


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep small models too; lists how many matrices were laid out, load by load."""
    counts, fill = list[int](), kept_matrices.fill

    def counted(
        matrices: Sequence[tuple[Matrix, Blocks]], meanwhile: Callable[[], object] | None = None
    ) -> None:
        counts.append(len(matrices))
        fill(matrices, meanwhile)

    monkeypatch.setattr(kept_matrices, "LEAST_BYTES", 0)
    monkeypatch.setattr(kept_matrices, "fill", counted)
    monkeypatch.delenv("DRAFTWOOD_PACKED_GB", raising=False)
    return counts


def kept() -> list[Path]:
    return sorted(path for path in (home() / "packed").glob("[!.]*") if path.is_dir())


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen3", "gpt_oss"])
def test_later_loads_read_the_bits_that_the_first_laid_out(
    tmp_path: Path, family: str, dtype: str | None, laid_out: list[int]
) -> None:
    path = written(tmp_path / "m.gguf", family, "Q4_K")
    first = native_logits(path, dtype)
    assert len(laid_out) == len(kept()) == 1
    assert laid_out[0] > 7
    assert torch.equal(native_logits(path, dtype), first)
    assert len(laid_out) == 1
    assert load_model(str(path), dtype, "cpu").tokenizer.get_vocab()  # read meanwhile


def test_what_is_read_is_what_was_kept(tmp_path: Path, laid_out: list[int]) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q8_0")
    first = native_logits(path, None)
    content = bytearray((kept()[0] / MATRICES).read_bytes())
    content[len(content) // 2 :: 97] = bytes(len(content[len(content) // 2 :: 97]))
    (kept()[0] / MATRICES).write_bytes(content)
    assert not torch.equal(native_logits(path, None), first)
    assert len(laid_out) == 1


@pytest.mark.parametrize("fault", ["short", "gone", "no description"])
def test_a_broken_copy_is_made_again(tmp_path: Path, fault: str, laid_out: list[int]) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_K")
    first = native_logits(path, None)
    matrices = kept()[0] / MATRICES
    if fault == "short":
        os.truncate(matrices, matrices.stat().st_size - 1)
    else:
        (matrices if fault == "gone" else kept()[0] / kept_matrices.PLACES).unlink()
    for laid in (2, 2):
        assert torch.equal(native_logits(path, None), first)
        assert len(laid_out) == laid


def test_matrices_stay_where_tokens_are_read_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_K")
    first = native_logits(path, None)
    described = (blocks_folder(path) / "config.json").stat().st_ino
    monkeypatch.setattr("draftwood.loading.gguf_files.TOKENS", -1)
    assert torch.equal(native_logits(path, None), first)
    assert (blocks_folder(path) / "config.json").stat().st_ino != described
    assert len(laid_out) == len(kept()) == 1


def test_a_disk_that_does_not_read_costs_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_K")
    first = native_logits(path, None)

    def refused(*given: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "preadv", refused)
    assert torch.equal(native_logits(path, None), first)
    assert len(laid_out) == 2


@pytest.mark.parametrize("reason", ["limit", "room", "rights"])
def test_where_there_is_no_room_nothing_is_kept(
    tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    if reason == "limit":
        monkeypatch.setenv("DRAFTWOOD_PACKED_GB", "0")
    elif reason == "room":
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    else:
        blocks_folder(written(tmp_path / "m.gguf", "llama", "Q4_K"))
        (home() / "packed").write_text("no folder")
    path = written(tmp_path / "m.gguf", "llama", "Q4_K")
    assert torch.equal(native_logits(path, None), native_logits(path, None))
    assert len(laid_out) == 2
    assert not kept()


def test_other_files_and_other_products_are_kept_apart(tmp_path: Path, laid_out: list[int]) -> None:
    paths = [
        written(tmp_path / name, "llama", kind) for name, kind in (("a", "Q4_K"), ("b", "Q8_0"))
    ]
    first = [native_logits(path, dtype) for path in paths for dtype in (None, "float32")]
    assert len(kept()) == 4
    again = [native_logits(path, dtype) for path in paths for dtype in (None, "float32")]
    assert all(map(torch.equal, first, again))
    assert len(laid_out) == 4
    folder = blocks_folder(paths[0])
    assert len(packed_from([folder])) == 2
    assert set(packed_from([folder])) < set(kept())


def test_another_way_to_the_same_file_finds_what_is_kept(
    tmp_path: Path, laid_out: list[int]
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "real")
    folder = blocks_folder(written(tmp_path / "real" / "m.gguf", "llama", "Q4_K"))
    matrices = [
        KeptBlocks(folder, [place / "m.gguf"], "int8", lambda: None)
        for place in (tmp_path / "real", tmp_path / "way")
    ]
    assert matrices[0].states == matrices[1].states


def changed(path: Path, other: Path) -> Path:
    """A copy of a file with other numbers in a matrix and a norm, of the same size and time."""
    content = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name in ("blk.1.ffn_up.weight", "blk.2.ffn_norm.weight"):
            begin, half = tensor.data_offset, tensor.n_bytes // 2
            end = begin + 2 * half
            content[begin:end] = content[end - half : end] + content[begin : begin + half]
    other.write_bytes(content)
    at = path.stat().st_mtime_ns
    os.utime(other, ns=(at, at))
    return other


def test_another_file_of_the_same_size_and_time_is_another(
    tmp_path: Path, laid_out: list[int]
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q8_0")
    other = changed(path, tmp_path / "other.gguf")
    first, wanted = native_logits(path, None), native_logits(other, None)
    assert not torch.equal(first, wanted)
    assert len(laid_out) == 2
    shutil.copy2(other, path)
    assert path.stat().st_mtime_ns == other.stat().st_mtime_ns
    for _ in range(2):
        assert torch.equal(native_logits(path, None), wanted)
        assert len(laid_out) == 3
    assert len(kept()) == 2  # of the file that was there nothing stays


def test_a_file_that_is_overwritten_meanwhile_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q8_0")
    other = changed(path, tmp_path / "other.gguf")
    counted = kept_matrices.fill

    def overwritten(*given: Any) -> None:
        counted(*given)
        shutil.copy2(other, path)

    with monkeypatch.context() as patch:
        patch.setattr(kept_matrices, "fill", overwritten)
        with pytest.raises(ValueError, match=r"m\.gguf was changed since it was first read"):
            native_logits(path, None)
    assert not kept()
    assert torch.equal(native_logits(path, None), native_logits(other, None))
    assert len(kept()) == 2


def test_a_copy_that_another_process_makes_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    path = written(tmp_path / "m.gguf", "llama", "Q4_K")
    first = native_logits(path, None)
    (there,) = kept()
    shutil.rmtree(there)
    monkeypatch.setattr(atomic, "progress", lambda told: pytest.fail(told))
    with FileLock(there.with_name(f".{there.name}.lock")):
        assert torch.equal(native_logits(path, None), first)
        assert not kept()
    assert torch.equal(native_logits(path, None), first)
    assert kept() == [there]
    assert len(laid_out) == 3


def test_of_a_file_that_changed_no_copy_stays(tmp_path: Path, laid_out: list[int]) -> None:
    path, other = (written(tmp_path / name, "llama", "Q4_K") for name in ("a.gguf", "b.gguf"))
    for each in (path, other):
        native_logits(each, None)
    before = kept()
    path.touch()
    native_logits(path, None)
    assert len(laid_out) == 3
    assert len(kept()) == 2
    assert len({*kept()} & {*before}) == 1


def test_the_limit_holds_for_loads_that_keep_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    path, other = (written(tmp_path / name, "llama", "Q4_K") for name in ("a.gguf", "b.gguf"))
    first = native_logits(path, None)
    (there,) = kept()
    native_logits(other, None)
    size = sum(file.stat().st_size for file in there.iterdir())
    for gigabytes, stay in ((2.1 * size / 1e9, 2), (1.5 * size / 1e9, 1), (0, 0)):
        monkeypatch.setenv("DRAFTWOOD_PACKED_GB", str(gigabytes))
        assert torch.equal(native_logits(path, None), first)
        assert len(kept()) == stay
        assert kept() == [there] or stay != 1
    assert len(laid_out) == 2  # all of these were read
    assert torch.equal(native_logits(path, None), first)
    assert (len(laid_out), kept()) == (3, [])


def test_small_models_are_laid_out_each_time(tmp_path: Path) -> None:
    native_logits(written(tmp_path / "m.gguf", "llama", "Q4_K"), None)
    assert not kept()


def test_a_system_without_reads_into_many_parts_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laid_out: list[int]
) -> None:
    monkeypatch.delattr(os, "preadv")
    path = written(tmp_path / "m.gguf", "llama", "Q4_K")
    assert torch.equal(native_logits(path, None), native_logits(path, None))
    assert len(laid_out) == 2
    assert not kept()


def test_blocks_of_a_file_are_told_apart() -> None:
    whole = random_blocks("Q4_K", 64, 256, seed=1)
    order = np.arange(64)
    marks = [
        each.mark
        for each in (whole, whole[:32], whole[32:], whole[order], whole[order[::-1]], whole[order])
    ]
    assert marks[3] == marks[5]
    assert len(set(marks)) == 5


def test_runs_of_a_read_hold_all_bytes_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_matrices, "MOST_BYTES", 50)
    monkeypatch.setattr(kept_matrices, "MOST_PARTS", 3)
    bytes_of_file = np.arange(256, dtype=np.uint8)
    ends = [0, 10, 12, 13, 14, 15, 130, 180, 256]
    parts = [bytes_of_file[a:b] for a, b in pairwise(ends)]
    runs = kept_matrices._runs([part.data for part in parts], 2)
    at = 0
    for begin, size, some in runs:
        assert begin == at
        assert size == sum(part.nbytes for part in some) <= 50
        assert len(some) <= 3
        assert (
            np.concatenate([*map(np.asarray, some)]).tolist()
            == bytes_of_file[begin : begin + size].tolist()
        )
        at += size
    assert at == 256
