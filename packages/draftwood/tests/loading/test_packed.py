"""Weights are packed once; later loads give the same bits and never read the original."""

import copy
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import draftwood
from draftwood.loading import folders, hub, kept_matrices, packed
from draftwood.loading.models import LoadedModel, load_model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.formats import INTEGERS, Products
from draftwood.native.matrix import ALIGNMENT
from draftwood.storage import atomic, memory
from draftwood.storage.home import home
from families import VOCAB, hf_model, some_tokens


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library.library()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "kernels").symlink_to(home() / "kernels")  # nothing is compiled again
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DRAFTWOOD_PACKED_GB", raising=False)
    return tmp_path / "home"


def saved(folder: Path, family: str = "llama", dtype: torch.dtype = torch.bfloat16) -> Path:
    model: Any = copy.deepcopy(hf_model(family))
    model.to(dtype).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(VOCAB)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str | None) -> LoadedModel:
    loaded = load_model(str(folder), dtype, "cpu")
    assert isinstance(loaded.model, NativeModel)
    return loaded


def logits(model: object) -> torch.Tensor:
    assert isinstance(model, NativeModel)
    return model.start().extend(some_tokens(20, seed=3)).logits


def kept_in(home: Path) -> list[Path]:
    return sorted(path for path in (home / "packed").glob("[!.]*") if path.is_dir())


# tied, with biases, with fused layers, with reordered outputs, with several tables of frequencies,
# with experts, in two layouts
FAMILIES = ["llama-scaled", "llama-biased", "phi3", "cohere2", "gemma3", "qwen3-experts", "gpt-oss"]


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_matrices_give_the_bits_of_those_packed_now(
    tmp_path: Path, own_home: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m", family)
    for products in INTEGERS:
        now = NativeModel(hub.load_pretrained(str(folder), device="cpu").model, products)
        first = load(folder, products)
        assert (first.dtype, first.folder) == (products, folder)
        assert torch.equal(logits(first.model), logits(now))
        with monkeypatch.context() as patch:
            patch.setattr(hub, "read_folder", None)
            again = load(folder, products)
        assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()
        assert torch.equal(logits(again.model), logits(now))
        for ours, theirs in zip(_ends(again.model), _ends(now), strict=True):
            assert np.array_equal(ours, theirs)
    assert len(kept_in(own_home)) == 2


def _ends(model: object) -> list[np.ndarray]:
    assert isinstance(model, NativeModel)
    weights = model.embeddings_and_head.weights()
    assert weights.norm is not None
    return [weights.embedding, weights.norm]


def test_of_experts_nothing_is_kept_twice(tmp_path: Path, own_home: Path) -> None:
    load(saved(tmp_path / "m", "gpt-oss"), "int8")
    small = safetensors.torch.load_file(kept_in(own_home)[0] / "small.safetensors")
    of_experts = {name.split("experts.")[-1] for name in small if ".experts." in name}
    assert of_experts == {"gate.bias", "up.bias", "down.bias"}


def test_four_bits_are_half_of_eight_and_another_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    eight, four = load(folder, "int8").model, load(folder, "int4").model
    assert isinstance(eight, NativeModel)
    assert isinstance(four, NativeModel)
    assert four.weight_bytes < 0.65 * eight.weight_bytes
    exact = logits(NativeModel(hf_model("llama"), "float32"))
    far = [float((logits(model) - exact).norm() / exact.norm()) for model in (eight, four)]
    assert 0 < far[0] < far[1] < 0.6
    assert four.dtype == eight.dtype == "bfloat16"


def test_texts_with_drafts_are_those_without(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    texts = [
        draftwood.load(str(folder), method=method, dtype="int4", device="cpu")
        .generate([3, 1, 4, 1, 5], max_new_tokens=24, ignore_eos=True, temperature=0.7, seed=5)
        .token_ids
        for method in ("plain", "lookup")
    ]
    assert texts[0] == texts[1]


def test_what_is_kept_is_whole_and_mapped_from_whole_lines(tmp_path: Path, own_home: Path) -> None:
    folder = saved(tmp_path / "m")
    model = load(folder, "int8").model
    assert isinstance(model, NativeModel)
    (kept,) = kept_in(own_home)
    folders.verify(kept)
    places = json.loads((kept / packed.PLACES).read_text())
    assert places["made_from"]["folder"] == str(folder)
    assert "model.safetensors" in places["made_from"]["files"]
    matrices = places["matrices"].values()
    assert len(matrices) == 7 * 4 + 1
    assert not [each for each in matrices if each["weights"] % ALIGNMENT or each["scales"] % 64]
    small = safetensors.torch.load_file(kept / "small.safetensors")
    assert small["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert not [name for name in small if "proj" in name or "lm_head" in name]
    down = model.structure.layers[0].down
    mapped = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if kept.name in line
    ]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in mapped]
    assert any(begin <= down.weights < end for begin, end in ranges)
    assert all(line.split()[1].startswith("r--") for line in mapped if packed.MATRICES in line)


@pytest.mark.parametrize("change", ["weights", "settings", "layout"])
def test_whatever_changed_is_packed_again(
    tmp_path: Path, own_home: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m")
    for products in INTEGERS:
        load(folder, products)
    before = kept_in(own_home)
    if change == "weights":
        (folder / "model.safetensors").touch()
    elif change == "settings":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.01}))
    else:
        monkeypatch.setattr(packed, "LAYOUT", packed.LAYOUT + 1)
    load(folder, "int8")
    after = kept_in(own_home)
    assert len(after) == 2  # what was packed of the old one is gone, the other type is not
    assert len({*before} & {*after}) == 1


@pytest.mark.proof
def test_the_first_load_of_two_processes_packs_and_the_other_waits(
    tmp_path: Path, own_home: Path
) -> None:
    folder = saved(tmp_path / "m")
    code = """
import sys, torch
from draftwood.loading import models, packed
write = packed.write_packed
packed.write_packed = lambda *args: (print("packed"), write(*args))
model = models.load_model(sys.argv[1], "int8", "cpu").model
print(model.start().extend([1, 2, 3]).logits.sum().item())
"""
    command = [sys.executable, "-c", code, str(folder)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate()[0].split() for process in running]
    assert sorted(map(len, told)) == [1, 2]
    assert told[0][-1] == told[1][-1]
    assert len(kept_in(own_home)) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_nothing_half_written_is_kept(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A full disk keeps nobody from running a model; one that may not be written is told."""
    folder = saved(tmp_path / "m")

    def fail(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(packed, "_append", fail)
        if number == errno.ENOSPC:
            first = load(folder, "int8")
            assert first.tokenizer.get_vocab()
        else:
            with pytest.raises(OSError, match=r"cannot write .*packed.*read-only"):
                load(folder, "int8")
    assert not [path for path in (own_home / "packed").iterdir() if path.is_dir()]
    again = load(folder, "int8")
    assert len(kept_in(own_home)) == 1
    if number == errno.ENOSPC:
        assert torch.equal(logits(first.model), logits(again.model))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_disk_without_room_is_not_written(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    folder, written = saved(tmp_path / "m"), list[object]()
    usual, write = load(folder, dtype), packed.write_packed
    shutil.rmtree(own_home / "packed")
    monkeypatch.setattr(packed, "write_packed", lambda *given: written.append(write(*given)))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
        found = load(folder, dtype)
    assert not written
    assert not kept_in(own_home)
    assert (found.dtype, found.folder) == (usual.dtype, usual.folder)
    assert torch.equal(logits(found.model), logits(usual.model))
    load(folder, dtype)  # control
    assert written


def test_a_damaged_folder_is_named(tmp_path: Path, own_home: Path) -> None:
    folder = saved(tmp_path / "m")
    load(folder, "int8")
    (kept,) = kept_in(own_home)
    with (kept / packed.MATRICES).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match=rf"{kept.name} is damaged: .*; delete that folder"):
        load(folder, "int8")


@pytest.mark.parametrize("gone", ["draftwood.json", "matrices.bin", "config.json"])
def test_what_an_interrupted_removal_left_is_packed_again(
    tmp_path: Path, own_home: Path, gone: str
) -> None:
    folder = saved(tmp_path / "m")
    first = logits(load(folder, "int8").model)
    (kept,) = kept_in(own_home)
    (kept / gone).unlink()
    assert torch.equal(logits(load(folder, "int8").model), first)
    assert kept_in(own_home) == [kept]
    folders.verify(kept)


def test_a_removal_that_ends_early_leaves_no_folder_of_that_name(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m")
    load(folder, "int8")
    monkeypatch.setenv("DRAFTWOOD_PACKED_GB", "0")

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            assert (path / "config.json").is_file()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            load(folder, "int8")
    assert not kept_in(own_home)
    assert [path.suffix for path in (own_home / "packed").glob(".m-*") if path.is_dir()]
    monkeypatch.delenv("DRAFTWOOD_PACKED_GB")
    load(folder, "int8")
    assert not [path for path in (own_home / "packed").glob(".m-*") if path.is_dir()]


def test_a_folder_that_another_process_drops_is_packed_again(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened, tried = saved(tmp_path / "m"), packed.open_packed, list[Path]()

    def dropped(kept: Path, cache: None = None) -> NativeModel:
        tried.append(kept)
        if len(tried) == 1:
            atomic.remove_folder(kept)
        return opened(kept, cache)

    monkeypatch.setattr(packed, "open_packed", dropped)
    found = load(folder, "int8")
    assert len(tried) == 2
    assert kept_in(own_home) == [tried[0]]
    assert torch.equal(logits(found.model), logits(load(folder, "int8").model))


def test_a_folder_that_is_written_to_meanwhile_is_not_kept(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, write = saved(tmp_path / "m"), packed.write_packed

    def overwritten(*given: Any) -> None:
        write(*given)
        weights = folder / "model.safetensors"
        shutil.copy2(weights, tmp_path / "copy")
        shutil.copy2(tmp_path / "copy", weights)  # of the same size and time

    with monkeypatch.context() as patch:
        patch.setattr(packed, "write_packed", overwritten)
        with pytest.raises(ValueError, match=r"/m was changed while it was packed; load it again"):
            load(folder, "int8")
    assert not kept_in(own_home)
    load(folder, "int8")
    assert len(kept_in(own_home)) == 1


def test_other_weights_of_the_same_size_and_time_are_packed_again(
    tmp_path: Path, own_home: Path
) -> None:
    folder = saved(tmp_path / "m")
    first = logits(load(folder, "int8").model)
    weights = folder / "model.safetensors"
    content, at = bytearray(weights.read_bytes()), weights.stat().st_mtime_ns
    content[-64:] = content[-128:-64]
    weights.write_bytes(content)
    os.utime(weights, ns=(at, at))
    assert not torch.equal(logits(load(folder, "int8").model), first)
    assert len(kept_in(own_home)) == 1


def test_a_home_of_another_user_is_read(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m")
    first, asked = logits(load(folder, "int8").model), list[Path]()

    def refused(path: Path, *given: object, **more: object) -> None:
        asked.append(path)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kept_matrices.os, "utime", refused)
    assert torch.equal(logits(load(folder, "int8").model), first)
    assert asked == kept_in(own_home)


def test_further_chat_templates_are_those_of_now(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    named = folder / "additional_chat_templates" / "tool_use.jinja"
    named.parent.mkdir()
    for text in ("one", "another"):
        named.write_text(text)
        assert load(folder, "int8").tokenizer.chat_template == {"tool_use": text}


def test_those_not_used_for_longest_are_dropped(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [saved(tmp_path / name) for name in ("one", "two", "three")]
    for number, folder in enumerate(folders[:2]):
        load(folder, "int8")
        (kept,) = (path for path in kept_in(own_home) if path.name.startswith(folder.name))
        os.utime(kept, (1000 - number, 1000 - number))
    size = sum(file.stat().st_size for kept in kept_in(own_home) for file in kept.iterdir())
    monkeypatch.setenv("DRAFTWOOD_PACKED_GB", str(size * 1.1 / 1e9))
    load(folders[2], "int8")
    assert [path.name.split("-")[0] for path in kept_in(own_home)] == ["one", "three"]
    load(folders[1], "int8")
    assert [path.name.split("-")[0] for path in kept_in(own_home)] == ["three", "two"]


@pytest.mark.parametrize("told", ["much", "-1", "nan"])
def test_a_size_that_is_none_is_refused(
    tmp_path: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_PACKED_GB", told)
    with pytest.raises(ValueError, match=r"DRAFTWOOD_PACKED_GB is a number .* not"):
        load(saved(tmp_path / "m"), "int8")


def test_without_room_nothing_is_kept(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m")
    kept = logits(load(folder, "int8").model)
    assert len(kept_in(own_home)) == 1
    monkeypatch.setenv("DRAFTWOOD_PACKED_GB", "0")
    assert torch.equal(logits(load(folder, "int8").model), kept)
    assert not kept_in(own_home)
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "other"))
    assert torch.equal(logits(load(folder, "int8").model), kept)
    assert not kept_in(tmp_path / "other")


@pytest.mark.parametrize("products", INTEGERS)
def test_linear_layers_of_other_models_are_packed_by_each_load(
    tmp_path: Path, own_home: Path, products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m", "gpt2")
    exact, found = (load_model(str(folder), dtype, "cpu") for dtype in ("float32", products))
    assert found.dtype == products
    tokens = some_tokens(20, seed=3)
    logits = [each.model.start().extend(tokens).logits for each in (exact, found)]
    off = float((logits[1] - logits[0]).norm() / logits[0].norm())
    assert 1e-3 < off < {"int8": 0.1, "int4": 0.8}[products]
    assert not kept_in(own_home)
    monkeypatch.setattr(hub, "read_folder", None)
    with pytest.raises(ValueError, match=rf"^{products} runs on CPUs only, not on meta"):
        load_model(str(folder), products, "meta")
    with pytest.raises(ValueError, match=r"^a cache in int8 is for the native path, and GPT2"):
        load_model(str(folder), products, "cpu", "int8")


def test_what_is_not_packed_has_to_fit_into_memory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m", "deepseek-v3")  # experts are not packed
    require = memory.require_memory

    def full(size: int, what: str) -> None:
        if "not packed" in what:
            monkeypatch.setattr(memory, "available_memory", lambda: size)
        require(size, what)

    monkeypatch.setattr("draftwood_torch.loading.packed_models.require_memory", full)
    with pytest.raises(MemoryError, match=r"what is not packed of the model needs 0\.00 GB"):
        load_model(str(folder), "int8", "cpu")


def test_what_does_not_fit_into_memory_is_refused(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m")
    monkeypatch.setattr(memory, "available_memory", lambda: 9_000)
    for dtype in ("bfloat16", "int8"):
        with pytest.raises(MemoryError, match=r"/m needs 0\.00 GB .* 0\.00 GB are available"):
            load(folder, dtype)
    assert not kept_in(own_home)
    monkeypatch.undo()
    monkeypatch.setenv("DRAFTWOOD_HOME", str(own_home))
    load(folder, "int8")
    monkeypatch.setattr(memory, "available_memory", lambda: 9_000)
    with pytest.raises(MemoryError, match=r"m-int8-\w+ needs"):
        load(folder, "int8")


def test_a_file_system_that_maps_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "m")

    def refuse(*args: object, **more: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(OSError, match=r"cannot be mapped .*No such device.*DRAFTWOOD_HOME"):
        load(folder, "int8")


def test_weights_of_other_shapes_are_refused(tmp_path: Path, own_home: Path) -> None:
    folder = saved(tmp_path / "m")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name][:-16].clone()
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"/m.*{name} is 16 x 48, and 32 x 48 by its"):
        load(folder, "int8")
    assert not kept_in(own_home)
