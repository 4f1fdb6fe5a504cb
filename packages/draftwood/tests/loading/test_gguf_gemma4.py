"""GGUF files of Gemma 4, whose layers differ, whose experts come two matrices in one tensor, and
which may hold keys that no layer reads.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from test_gguf_files import (
    ARCHITECTURES,
    assert_same_in_cpp,
    assert_same_model,
    build,
    own_home,  # noqa: F401  (a fixture)
)
from test_gguf_states import (
    assert_has_the_files_numbers,
    assert_is_refused,
    said,
    tiny_file,
    wanted,
)

from draftwood.loading import gguf_names
from draftwood.loading.gguf_blocks import blocks_folder, matrix_shapes
from draftwood.native.library import available
from gguf_writing import WHOLE, still_pairs, write_gguf

KINDS = ("gemma4", "gemma4, keys are values", "gemma4, experts")
PER_LAYER, _, EXPERTS = KINDS
is_compiled = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


@is_compiled
@pytest.mark.parametrize("form", [None, "F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_all_kinds_have_the_files_numbers(
    tmp_path: Path, kind: str, form: str | None
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    assert_has_the_files_numbers(path)


@is_compiled
@pytest.mark.parametrize(("dtype", "form"), [("int8", "Q8_0"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_all_kinds_are_near_where_rows_are_rounded(
    tmp_path: Path, kind: str, dtype: str, form: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    exact = wanted(path)
    assert 1e-4 < (said(path, dtype) - exact).norm() / exact.norm() < 0.3


@is_compiled
def test_gates_and_what_they_gate_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_file(tmp_path / "m.gguf", EXPERTS, form="Q8_0")
    exact, shapes = said(path), matrix_shapes(blocks_folder(path))
    assert shapes["model.layers.0.experts.gate"] == (4 * 32, 32)
    usual = gguf_names.separate
    monkeypatch.setattr(gguf_names, "separate", lambda name: usual(name)[::-1])
    other = tmp_path / "other.gguf"
    path.rename(other)
    assert (said(other) - exact).abs().max() > 0.01  # the negative control


def test_experts_may_come_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(WHOLE, "experts.gate_up_proj")
    model_type, more, settings = ARCHITECTURES[EXPERTS]
    model = build(model_type, **more)
    (path,) = write_gguf(tmp_path / "m.gguf", model, "gemma4", settings)
    assert "blk.0.ffn_gate_exps.weight" in {each.name for each in gguf.GGUFReader(path).tensors}
    assert_same_model(path, model)
    if available():
        assert_same_in_cpp(path, model)


def test_keys_that_no_layer_reads_are_left_out(tmp_path: Path) -> None:
    """Released files have them in layers that take those of others."""
    model_type, more, settings = ARCHITECTURES[PER_LAYER]
    model, ones = build(model_type, **more), np.ones((16, 32), np.float32)
    spare = {f"blk.{layer}.attn_{part}.weight": ones for layer in (4, 5) for part in "kv"}
    spare |= {f"blk.{layer}.attn_k_norm.weight": ones[0, :8] for layer in (4, 5)}
    (path,) = write_gguf(tmp_path / "m.gguf", model, "gemma4", settings, spare)
    assert_same_model(path, model)
    if available():
        assert_same_in_cpp(path, model)


PAIRS = 8  # of a head without a window
WINDOWS = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (PER_LAYER, {WINDOWS: [True] * 6}, "its last layer sees a window"),
        (PER_LAYER, {WINDOWS: [True, False]}, "does not tell of 6 layers"),
        (PER_LAYER, {"attention.value_length": 8}, "heads of 16 dimensions have values of 8"),
        (PER_LAYER, {"rope.dimension_count_swa": 4}, "heads of 8 dimensions .* turn 4"),
        (PER_LAYER, {"rope.scaling.factor": 8.0}, "it scales rotary positions"),
        (PER_LAYER, {"attention.shared_kv_layers": 6}, "6 of 6 layers share keys"),
        (PER_LAYER, {"attention.shared_kv_layers": 5}, "of a kind that no layer before them has"),
        (PER_LAYER, {"attention.head_count_kv": [2, 1] * 3}, "other heads of values"),
        (PER_LAYER, {"attention.head_count_kv": [2, 2, 1, 2, 2, 2]}, "does not fit its layers"),
        (PER_LAYER, {"attention.head_count_kv": [2, 2, 0]}, "does not fit its layers"),
        (PER_LAYER, {"feed_forward_length": [64] * 5 + [128]}, "differs between layers"),
        (PER_LAYER, {"feed_forward_length": [64]}, "does not tell of 6 layers"),
        (PER_LAYER, {"attention.causal": False}, r"gemma4\.attention\.causal = False"),
        (PER_LAYER, {"block_count": 1 << 30}, "its settings ask for"),
        (EXPERTS, {"expert_weights_scale": 2.5}, r"gemma4\.expert_weights_scale = 2\.5"),
        (EXPERTS, {"embedding_length_per_layer_input": 8}, "per_layer_token_embd.* is missing"),
        (EXPERTS, {"expert_used_count": 5}, "each token goes to 5 of 4 experts"),
    ],
)
def test_settings_that_gemma_4_lacks_are_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, changes)
    assert_is_refused(path, f"cannot be read as a GGUF model .*{message}")


@pytest.mark.parametrize(
    ("name", "factors", "message"),
    [
        ("rope_freqs.weight", [1.0] * 4, f"are not {PAIRS} in rope_freqs"),
        ("rope_freqs.weight", [2.0] * PAIRS, "are others than Gemma 4's"),
        ("rope_freqs.weight", [1.0, 1e30] * (PAIRS // 2), "are others than Gemma 4's"),
        ("rope_factors_long.weight", [1.0] * PAIRS, f"are not {PAIRS} in rope_freqs"),
        ("blk.0.ffn_gate_up_exps.weight", [[[1.0]]], "has no place in Gemma4"),
        ("blk.0.attn_v.scale", [1.0], "has no place in Gemma4"),
    ],
)
def test_tensors_that_gemma_4_lacks_are_refused_by_name(
    tmp_path: Path, name: str, factors: list[Any], message: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", PER_LAYER, tensors={name: np.array(factors)})
    assert_is_refused(path, message)


def test_the_part_of_a_head_that_turns_is_read_from_factors(tmp_path: Path) -> None:
    model_type, more, settings = ARCHITECTURES[PER_LAYER]
    rope = more["rope_parameters"]
    for part in (0.5, 1.0):
        whole = {**rope["full_attention"], "partial_rotary_factor": part}
        model = build(model_type, **{**more, "rope_parameters": {**rope, "full_attention": whole}})
        assert (still_pairs(model.config)["rope_freqs.weight"] == 1).sum() == PAIRS * part
        (path,) = write_gguf(tmp_path / f"{part}.gguf", model, "gemma4", settings)
        assert_same_model(path, model)
