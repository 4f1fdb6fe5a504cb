"""GGUF files of Granite's mixtures and of Granite 4 H, whose network beside the experts comes in
two tensors, and whose layers may have running states.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_gguf_files import (
    ARCHITECTURES,
    assert_same_in_cpp,
    assert_same_model,
    build,
    own_home,  # noqa: F401  (a fixture)
)
from test_gguf_states import (
    TEXT,
    assert_has_the_files_numbers,
    assert_is_refused,
    assert_rows_are_near,
    said,
    tiny_file,
)

from draftwood.loading import gguf_names
from draftwood.loading.gguf_blocks import blocks_folder, matrix_shapes
from draftwood.loading.gguf_files import gguf_folder
from draftwood.models.configuration import ModelConfiguration
from draftwood.native.library import available
from families import assert_close, plainly
from gguf_writing import write_gguf

KINDS = ("granitemoe", "granitemoe, shared", "granitehybrid", "granitehybrid, without experts")
PLAIN, BESIDE, HYBRID, ALONE = KINDS
is_compiled = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


@is_compiled
@pytest.mark.parametrize("form", [None, "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_granite_layers_have_the_files_numbers(tmp_path: Path, kind: str, form: str | None) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    assert_has_the_files_numbers(path)


@is_compiled
@pytest.mark.parametrize(("dtype", "form"), [("int8", "Q8_0"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("kind", KINDS)
def test_granite_layers_are_near_where_rows_are_rounded(
    tmp_path: Path, kind: str, dtype: str, form: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    assert_rows_are_near(path, dtype)


@is_compiled
@pytest.mark.parametrize("kind", [BESIDE, HYBRID, ALONE])
def test_the_network_beside_experts_stays_in_blocks(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form="Q8_0")
    exact, shapes = said(path), matrix_shapes(blocks_folder(path))
    assert "model.layers.0.shared_mlp.gate_proj" in shapes
    assert ("model.layers.0.mamba.in_proj" in shapes) == (kind != BESIDE)
    usual = gguf_names.names_of

    def swapped(config: ModelConfiguration) -> dict[str, str]:
        names = usual(config)
        gate, up = (f"shared_mlp.{part}_proj" for part in ("gate", "up"))
        others = {gate: up, up: gate}
        return {name: others.get(own, own) for name, own in names.items()}

    monkeypatch.setattr(gguf_names, "names_of", swapped)
    other = tmp_path / "other.gguf"
    path.rename(other)
    assert (said(other) - exact).abs().max() > 0.01  # the negative control


@is_compiled
def test_no_layer_need_have_attention(tmp_path: Path) -> None:
    model_type, more, settings = ARCHITECTURES[ALONE]
    model = build(model_type, **{**more, "layer_types": ["mamba"] * 4})
    told = settings | {"attention.head_count_kv": [0] * 4}
    (path,) = write_gguf(tmp_path / "m.gguf", model, "granitehybrid", told)
    assert_close(said(path), plainly(model, TEXT))


@pytest.mark.parametrize("kind", [HYBRID, ALONE])
def test_small_tensors_of_states_may_come_without_axes_of_one_entry(
    tmp_path: Path, kind: str
) -> None:
    """Programs that quantise files drop them."""
    model_type, more, settings = ARCHITECTURES[kind]
    model = build(model_type, **more)
    flat = {
        f"blk.{layer}.ssm_norm.weight": model.state_dict()[
            f"model.layers.{layer}.mamba.norm.weight"
        ].numpy()
        for layer in (0, 1, 3)
    }
    (path,) = write_gguf(tmp_path / "m.gguf", model, "granitehybrid", settings, flat)
    assert_same_model(path, model)
    if available():
        assert_same_in_cpp(path, model)


@pytest.mark.parametrize("kind", KINDS)
def test_folders_of_floats_are_named_as_transformers_saves_them(tmp_path: Path, kind: str) -> None:
    model_type, more, settings = ARCHITECTURES[kind]
    model = build(model_type, **more)
    (path,) = write_gguf(tmp_path / "m.gguf", model, kind.split(",")[0], settings)
    model.save_pretrained(tmp_path / "saved")
    folders = (gguf_folder(path, "float32"), tmp_path / "saved")
    found, saved = (load_file(folder / "model.safetensors") for folder in folders)
    torch.testing.assert_close(found, saved, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_turned", [True, False])
def test_positions_of_granite_4_are_told_by_a_flag(tmp_path: Path, is_turned: bool) -> None:
    model_type, more, settings = ARCHITECTURES[HYBRID]
    model = build(model_type, **more, position_embedding_type="rope" if is_turned else None)
    told = settings | {"rope.scaling.finetuned": is_turned}
    (path,) = write_gguf(tmp_path / "m.gguf", model, "granitehybrid", told)
    assert_same_model(path, model)
    if is_turned:  # as llama.cpp has it where nothing is said
        del told["rope.scaling.finetuned"]
        (path,) = write_gguf(tmp_path / "silent.gguf", model, "granitehybrid", told)
        assert_same_model(path, model)


HEADS = "attention.head_count_kv"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (PLAIN, {"rope.scaling.finetuned": False}, "its queries and keys have no positions"),
        (BESIDE, {"rope.scaling.finetuned": False}, "its queries and keys have no positions"),
        (PLAIN, {"expert_used_count": 5}, "each token goes to 5 of 4 experts"),
        (PLAIN, {"expert_weights_scale": 2.5}, r"granitemoe\.expert_weights_scale = 2\.5"),
        (PLAIN, {"expert_gating_func": 2}, r"granitemoe\.expert_gating_func = 2"),
        (PLAIN, {"expert_shared_feed_forward_length": 32}, "tensors are missing"),
        (BESIDE, {"expert_shared_feed_forward_length": 48}, "by its configuration"),
        (BESIDE, {"expert_shared_feed_forward_length": 0}, r"ffn_.*_shexp.* has no place in Gran"),
        (HYBRID, {HEADS: [0, 0, 2]}, "does not tell of 4 layers"),
        (HYBRID, {HEADS: [0, 2, 0, 0]}, r"blk\.1\.ssm_.* has no place in GraniteMoeHybrid"),
        (HYBRID, {HEADS: [0, 1, 2, 0]}, "head_count_kv differs between layers"),
        (HYBRID, {"block_count": 1 << 30}, "its settings ask for"),
        (HYBRID, {"ssm.inner_size": 65}, "its states have 65 entries, and its rows 32"),
        (HYBRID, {"ssm.inner_size": 128}, "by its configuration"),
        (HYBRID, {"ssm.time_step_rank": 3}, "its 3 heads of states do not have 64 entries"),
        (HYBRID, {"ssm.state_size": 0}, r"granitehybrid\.ssm\.state_size is 0"),
        (HYBRID, {"ssm.dt_b_c_rms": True}, r"granitehybrid\.ssm\.dt_b_c_rms = True"),
        (HYBRID, {"expert_shared_feed_forward_length": 0}, "its shared_intermediate_size is 0"),
        (HYBRID, {"rope.dimension_count": 4}, "it rotates 4 of 8 dimensions per head"),
        (ALONE, {"expert_count": 4, "expert_used_count": 2}, "has no place in GraniteMoeHybrid"),
        (ALONE, {"expert_used_count": 2}, r"granitehybrid\.expert_used_count = 2"),
    ],
)
def test_settings_that_granite_4_lacks_are_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, changes)
    assert_is_refused(path, f"cannot be read as a GGUF model .*{message}")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (HYBRID, "blk.0.ffn_gate.weight", "has no place in GraniteMoeHybrid"),
        (ALONE, "blk.0.ffn_gate_shexp.weight", "has no place in GraniteMoeHybrid"),
        (HYBRID, "blk.0.ssm_a", "its ssm_a holds a number that is no decay"),
        (PLAIN, "blk.0.ssm_in.weight", "has no place in GraniteMoeForCausalLM"),
    ],
)
def test_tensors_that_granite_4_lacks_are_refused_by_name(
    tmp_path: Path, kind: str, name: str, message: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, tensors={name: np.ones((4, 1))})
    assert_is_refused(path, message)
