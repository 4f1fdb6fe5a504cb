"""A drafter's folder gives back what it was given, and refuses what is not whole."""

import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.arrays import rounded
from draftwood.heads.ctc import CtcConfig
from draftwood.heads.eagle import EagleConfig
from draftwood.heads.folder import (
    CARD,
    CONFIG,
    WEIGHTS,
    folder_of,
    load,
    open_folder,
    require_place,
    save,
    shipped,
)
from draftwood.heads.places import shipped_folders
from draftwood.heads.shapes import encoded
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.models.native import NativeModel
from draftwood.native.formats import HeadSizes
from draftwood.storage.safetensors import read_header
from draftwood.testing import tiny_llama
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel

SIZES = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=8)
FINGERPRINT = TargetFingerprint("tiny", vocab_size=64, hidden_size=32, layers=4, probe=(0.5, 0.25))


def trained() -> TrainedHead:
    torch.manual_seed(0)
    head = EagleHead(EagleConfig(SIZES, reads=(1, 2, 4), window=16))
    return TrainedHead.with_fingerprint(head, np.arange(0, 64, 2), FINGERPRINT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "drafter", trained(), "# A drafter")


def test_a_drafter_comes_back(folder: Path) -> None:
    wanted, found = trained(), load(folder)
    assert found.target == wanted.target
    assert found.config == wanted.config
    assert found.draft_tokens.tolist() == wanted.draft_tokens.tolist()
    for name, weight in wanted.network.state_dict().items():
        assert torch.equal(found.network.state_dict()[name], weight.bfloat16().float()), name
    assert (folder / CARD).read_text() == "# A drafter\n"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["drafter"]


def in_whole_blocks() -> TrainedHead:
    torch.manual_seed(0)
    head = EagleHead(EagleConfig(replace(SIZES, intermediate_size=64), reads=(1, 2, 4)))
    return TrainedHead.with_fingerprint(head, np.arange(0, 64, 2), FINGERPRINT)


@pytest.mark.parametrize(("blocks", "bits", "error"), [("Q8_0", 8.5, 0.006), ("Q4_1", 5, 0.08)])
def test_a_drafter_in_blocks_comes_back_rounded(tmp_path, blocks, bits, error) -> None:
    wanted = in_whole_blocks()
    folder = save(tmp_path / "drafter", wanted, "", dtype=blocks)
    found = load(folder)
    for name, weight in wanted.weights.items():
        is_matrix = weight.ndim == 2
        held = weight if is_matrix else rounded(weight, "bfloat16")
        off = np.abs(found.weights[name] - held).max()
        assert off <= (error * np.abs(weight).max() if is_matrix else 0), name
        assert off > 0 or not is_matrix, name
    matrices = [each for each in wanted.weights.values() if each.ndim == 2]
    header = read_header(folder / WEIGHTS)
    stored = [math.prod(each["shape"]) for each in header.values() if each["dtype"] == "U8"]
    assert 8 * sum(stored) == bits * sum(each.size for each in matrices)
    again = load(save(tmp_path / "again", found, "", dtype=blocks))
    for name, weight in found.weights.items():
        assert np.allclose(again.weights[name], weight, rtol=2e-3, atol=2e-4), name


@pytest.mark.parametrize("blocks", ["Q8_0", "Q4_1"])
def test_matrices_of_one_name_are_blocks_and_vectors_are_not(tmp_path, blocks) -> None:
    torch.manual_seed(0)
    sizes = HeadSizes(hidden=32, intermediate_size=48, heads=2, num_kv_heads=2, head_dim=16)
    head = CtcHead(CtcConfig(sizes, frames=3, reads=(4,)))
    wanted = TrainedHead.with_fingerprint(head, np.arange(0, 64, 2), FINGERPRINT)
    folder = save(tmp_path / "drafter", wanted, "", dtype=blocks)
    found, header = load(folder), read_header(folder / WEIGHTS)
    assert found.config == wanted.config
    for name in ("frame_weight", "mlp.gate_proj.weight"):
        assert header[name]["dtype"] == "U8"
        assert found.weights[name].shape == wanted.weights[name].shape
        assert 0 < np.abs(found.weights[name] - wanted.weights[name]).max() < 0.05
    for name in ("frame_bias", "norm.weight", "mlp.down_proj.weight"):  # rows of 48 weights
        assert header[name]["dtype"] == "BF16"
        assert np.array_equal(found.weights[name], rounded(wanted.weights[name], "bfloat16"))


def test_a_drafter_in_blocks_is_refused_where_they_do_not_fit(tmp_path) -> None:
    folder = save(tmp_path / "drafter", in_whole_blocks(), "", dtype="Q4_1")
    change(folder, blocks="Q8_0")
    with pytest.raises(ValueError, match=r"fc.weight is 32x32, by the settings 32x96"):
        load(folder)
    change(folder, blocks="Q3")
    with pytest.raises(ValueError, match="blocks are Q8_0 or Q4_1, not 'Q3'"):
        load(folder)
    with pytest.raises(ValueError, match="has weights that float16 cannot hold; take float32"):
        encoded("fc.weight", np.full((2, 32), 1e6, np.float32), "float16")


def test_a_drafter_takes_the_place_of_another_but_of_nothing_else(folder: Path) -> None:
    other = replace(trained(), draft_tokens=np.array([5, 7]))
    save(folder, other, "# Another", dtype="float32")
    assert load(folder).draft_tokens.tolist() == [5, 7]
    weight = load(folder).network.state_dict()["fc.weight"]
    assert torch.equal(weight, other.network.state_dict()["fc.weight"])
    (folder / CONFIG).unlink()
    with pytest.raises(ValueError, match="holds something else than a drafter"):
        save(folder, other, "")
    with pytest.raises((OSError, ValueError), match="choose another folder"):
        require_place(Path("/"))


def test_a_write_that_fails_leaves_the_older_drafter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("draftwood.heads.folder.write_arrays", full)
    with pytest.raises(OSError, match="the disk is full; free some space, or write to another"):
        save(folder, replace(trained(), draft_tokens=np.array([5])), "")
    assert len(load(folder).draft_tokens) == 32
    assert sorted(path.name for path in folder.parent.iterdir()) == ["drafter"]


def change(folder: Path, **values: Any) -> None:
    says = json.loads((folder / CONFIG).read_text())
    for name, value in values.items():
        place = says["head"] if name in says["head"] or name.startswith("more") else says
        place[name] = value
    (folder / CONFIG).write_text(json.dumps(says))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"kind": "oracle"},
            "there is no drafter of the kind 'oracle', there are: ctc, dflash, eagle, lm, ",
        ),
        ({"version": 2}, "is of version 2, this draftwood reads 1"),
        ({"format": "else"}, "does not describe a drafter of draftwood"),
        ({"layers": 2}, "layernorm.weight is missing, by the settings 32"),
        ({"layers": 0}, "at least one layer"),
        ({"reads": [1, 2]}, "fc.weight is 32x96, by the settings 32x64"),
        ({"more": 1}, "EagleConfig has no more"),
        ({"sizes": 3}, "HeadSizes is made of named values, got 3"),
        ({"target": {}}, "does not say 'probe'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    folder: Path, values: dict[str, Any], reason: str
) -> None:
    change(folder, **values)
    with pytest.raises(ValueError, match=reason) as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)


def test_what_is_not_whole_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no drafter's folder"):
        load(tmp_path / "nowhere")
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load(folder)
    (folder / WEIGHTS).write_bytes(whole)
    (folder / CONFIG).write_text((folder / CONFIG).read_text()[:-20])
    with pytest.raises(ValueError, match="is not whole"):
        load(folder)


@pytest.mark.parametrize(
    "part",
    ["fc.weight", "fc_norm.2.weight", "deeper.0.mlp.up_proj.weight", "pairwise.after_proj.weight"],
)
def test_a_ctc_head_that_lost_a_part_is_refused_by_its_name(tmp_path: Path, part: str) -> None:
    head = CtcHead(CtcConfig(SIZES, layers=2, reads=(1, 2, 4), has_blank=False, pairwise=4))
    folder = save(
        tmp_path / "frames",
        TrainedHead.with_fingerprint(head, np.arange(8), FINGERPRINT),
        "# Frames",
    )
    assert load(folder).config == head.config
    weights = load_file(folder / WEIGHTS)
    save_file({name: each for name, each in weights.items() if name != part}, folder / WEIGHTS)
    with pytest.raises(ValueError, match=f"{part} is missing, .*; copy the whole folder again"):
        load(folder)


@pytest.mark.parametrize("tokens", [[], [3, 2], [3, 3], [-1, 4], [4, 64]])
def test_a_draft_vocabulary_that_is_none_is_refused(folder: Path, tokens: list[int]) -> None:
    ids = torch.tensor(tokens, dtype=torch.int32)
    with pytest.raises(ValueError, match="ascending ids below 64"):
        save(folder, replace(trained(), draft_tokens=ids.numpy()), "")
    weights = load_file(folder / WEIGHTS)
    save_file({**weights, "draft_tokens": ids}, folder / WEIGHTS)
    with pytest.raises(ValueError, match="ascending ids below 64"):
        load(folder)


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["norm.weight"][3] = torch.nan
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match=r"no numbers, in norm\.weight"):
        load(folder)
    broken = trained()
    torch.nn.init.constant_(broken.network.state_dict()["norm.weight"], torch.inf)
    with pytest.raises(ValueError, match="no numbers"):
        save(folder, broken, "")


def test_fingerprints_tell_models_apart_but_not_how_their_weights_are_stored() -> None:
    hf_model = tiny_llama(0, layers=4)
    fingerprint = TargetFingerprint.of(TransformersModel(hf_model), "tiny")
    assert fingerprint == TargetFingerprint("tiny", 64, 32, 4, fingerprint.probe)
    for same in (
        LeanModel(hf_model),
        NativeModel(hf_model),
        NativeModel(hf_model, "int8"),
        TransformersModel(tiny_llama(0, layers=4).bfloat16()),
    ):
        fingerprint.require(TargetFingerprint.of(same, "the same"))
    with pytest.raises(ValueError, match="trained for tiny, and other has other weights"):
        fingerprint.require(
            TargetFingerprint.of(TransformersModel(tiny_llama(1, layers=4)), "other")
        )
    tuned = tiny_llama(0, layers=4)
    with torch.no_grad():
        for weight in tuned.parameters():
            weight += 0.3 * weight.std() * torch.randn_like(weight) if weight.ndim == 2 else 0.0
    with pytest.raises(ValueError, match="other weights"):
        fingerprint.require(TargetFingerprint.of(TransformersModel(tuned), "tuned"))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (TargetFingerprint("other", 65, 32, 4), "other has vocabulary 65, not 64"),
        (TargetFingerprint("other", 64, 48, 4), "other has hidden size 48, not 32"),
        (TargetFingerprint("other", 64, 32, 3), "other has decoder layers 3, not 4"),
        (TargetFingerprint("other", 64, 32, 4), "other has length of a probe 0, not 2"),
        (TargetFingerprint("other", 64, 32, 4, (0.5, 0.5)), r"its states differ by 0\.18"),
        (TargetFingerprint("other", 64, 32, 4, (0.5, float("nan"))), "its states differ by nan"),
    ],
)
def test_a_fingerprint_says_what_differs(other: TargetFingerprint, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FINGERPRINT.require(other)
    FINGERPRINT.require(TargetFingerprint("renamed", 64, 32, 4, (0.53, 0.22)))


def test_drafters_that_come_with_draftwood_are_had_by_name() -> None:
    assert shipped()
    for name in shipped():
        stored = open_folder(name)
        assert stored.folder == folder_of(name) == shipped_folders()[name]
        most = 26e6 if name.startswith("qwen2.5-coder-1.5b") else 15e6
        assert sum(path.stat().st_size for path in stored.folder.iterdir()) <= most
        assert (stored.folder / "card.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("head", "layers", 100_000),
        ("head", "reads", list(range(100_000))),
        ("sizes", "hidden", 10**9),
        ("sizes", "num_kv_heads", 0),
        ("sizes", "rope_theta", "far"),
        ("sizes", "epsilon", float("inf")),
        ("head", "layers", True),
        ("head", "window", 1.5),
        ("head", "norms_features", "yes"),
        ("head", "reads", ["1", "2", "4"]),
    ],
)
def test_settings_that_no_head_has_are_refused_at_once(
    folder: Path, part: str, name: str, value: Any
) -> None:
    says = json.loads((folder / CONFIG).read_text())
    (says["head"]["sizes"] if part == "sizes" else says["head"])[name] = value
    (folder / CONFIG).write_text(json.dumps(says))
    since = time.perf_counter()
    with pytest.raises(ValueError, match="drafter"):
        load(folder)
    assert time.perf_counter() - since < 5  # 100,000 layers take minutes


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_flipped_bytes_are_told_in_one_line_or_change_no_weight(folder: Path, file: str) -> None:
    path, lines = folder / file, list[list[str]]()
    content, wanted = path.read_bytes(), load(folder).network.state_dict()
    end = len(content) if file == CONFIG else 8 + int.from_bytes(content[:8], "little")
    for seed in range(200):
        chance, changed = random.Random(seed), bytearray(content)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(end)] = chance.choice([chance.randrange(256), *b'0179"[]{},'])
        path.write_bytes(changed)
        try:
            found = load(folder).network.state_dict()
        except ValueError as error:
            lines.append(str(error).splitlines())
        else:
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name], weight) for name, weight in wanted.items())
    assert len(lines) > 100
    assert all(len(each) == 1 for each in lines)


def test_weights_of_another_type_are_refused(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    for name in ("fc.weight", "draft_tokens"):
        kind = torch.int16 if name == "fc.weight" else torch.float32
        save_file({**weights, name: weights[name].to(kind)}, folder / WEIGHTS)
        with pytest.raises(ValueError, match=f"is not whole .{name} is [FI]"):
            load(folder)
