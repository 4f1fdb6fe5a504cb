"""GGUF files of models whose rows go to experts by sigmoids, by a bias, or past shared ones; and of
OLMo 3 and Qwen3-Next, which files tell in the terms of other models.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
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
from transformers.cache_utils import MtpCache

import gguf_writing
from adapters import save_adapter
from draftwood.loading.gguf_blocks import blocks_folder, matrix_shapes
from draftwood.loading.gguf_names import Layout
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import load_model
from draftwood.models.requirements import require_mtp_head
from draftwood.native.library import available
from families import assert_close, plainly
from gguf_writing import write_gguf
from mtp_folders import in_file, layer_of

KINDS = ("lfm2moe", "qwen3next", "ernie4_5-moe", "glm4moe", "minimax-m2")
LFM2, NEXT, ERNIE, GLM, MINIMAX = KINDS
is_compiled = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


@is_compiled
@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kind", [*KINDS, "olmo2, windows"])
def test_mixtures_have_the_files_numbers(tmp_path: Path, kind: str, form: str) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    assert_has_the_files_numbers(path)


@is_compiled
@pytest.mark.parametrize(("dtype", "form"), [("int8", "Q8_0"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_are_near_where_rows_are_rounded(
    tmp_path: Path, kind: str, dtype: str, form: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    assert_rows_are_near(path, dtype)


@is_compiled
def test_rates_and_steps_of_a_head_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_file(tmp_path / "m.gguf", NEXT, form="Q8_0")
    exact, usual = said(path), Layout.half
    assert "model.layers.0.linear_attn.in_proj_z" in matrix_shapes(blocks_folder(path))
    monkeypatch.setattr(Layout, "half", lambda self, values, which: usual(self, values, 1 - which))
    other = tmp_path / "other.gguf"
    path.rename(other)
    assert (said(other) - exact).abs().max() > 0.01  # the negative control


@is_compiled
@pytest.mark.parametrize("form", [None, "Q8_0"])
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (NEXT, ["in_proj_qkvz", "in_proj_ba", "out_proj"]),
        ("granitemoe, shared", ["input_linear", "output_linear"]),
    ],
)
def test_an_adapter_changes_what_files_have_apart(
    tmp_path: Path, kind: str, changed: list[str], form: str | None
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, form=form)
    base: Any = load_pretrained(str(path), dtype="float32", device="cpu").model
    merged = save_adapter(tmp_path / "a", base, changed, 0.1, r=4)
    assert_close(said(path, adapter=str(tmp_path / "a")), plainly(merged, TEXT))
    assert (said(path) - plainly(merged, TEXT)).abs().max() > 0.1  # the negative control


def test_early_files_of_qwen3_next_have_all_that_a_head_reads_in_one_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def together(before: str, values: np.ndarray, config: object) -> dict[str, np.ndarray]:
        return {f"{before}ssm_in.weight": values}

    monkeypatch.setattr(gguf_writing, "_states_apart", together)
    model_type, more, settings = ARCHITECTURES[NEXT]
    model = build(model_type, **more)
    (path,) = write_gguf(tmp_path / "m.gguf", model, NEXT, settings)
    assert "blk.0.ssm_in.weight" in {each.name for each in gguf.GGUFReader(path).tensors}
    assert_same_model(path, model)
    if available():
        assert_same_in_cpp(path, model)


def test_a_bias_by_which_experts_are_chosen_may_be_a_row(tmp_path: Path) -> None:
    """Programs that quantise files drop axes of one entry."""
    model_type, more, settings = ARCHITECTURES[ERNIE]
    model = build(model_type, **more)
    flat = {
        f"blk.{layer}.exp_probs_b.bias": model.state_dict()[
            f"model.layers.{layer}.mlp.gate.moe_statics.e_score_correction_bias"
        ][0].numpy()
        for layer in (1, 2)
    }
    (path,) = write_gguf(tmp_path / "m.gguf", model, ERNIE, settings, flat)
    assert_same_model(path, model)
    if available():
        assert_same_in_cpp(path, model)


@torch.no_grad()
@pytest.mark.parametrize("kind", [ERNIE, GLM])
def test_what_chooses_experts_is_never_rounded(tmp_path: Path, kind: str) -> None:
    model_type, more, settings = ARCHITECTURES[kind]
    model = build(model_type, **more)
    biases = [each for name, each in model.state_dict().items() if "correction" in name]
    for each in biases:
        each += torch.rand(each.shape)
    (path,) = write_gguf(tmp_path / "m.gguf", model, kind, settings)
    loaded: Any = load_pretrained(str(path), dtype="bfloat16", device="cpu").model
    found = [each for name, each in loaded.state_dict().items() if "correction" in name]
    assert all(map(torch.equal, found, biases))


def test_some_layers_of_ernie_may_have_no_experts(tmp_path: Path) -> None:
    model_type, more, settings = ARCHITECTURES[ERNIE]
    model = build(model_type, **more, num_hidden_layers=4, moe_layer_interval=2)
    settings = {**settings, "interleave_moe_layer_step": 2}
    (path,) = write_gguf(tmp_path / "m.gguf", model, ERNIE, settings)
    names = {each.name for each in gguf.GGUFReader(path).tensors}
    assert {f"blk.{layer}.ffn_gate.weight" for layer in (0, 2)} < names
    assert_same_model(path, model)
    if available():
        assert_same_in_cpp(path, model)


@pytest.mark.parametrize("far", [100.0, 10000.0])
def test_layers_of_olmo_3_with_a_window_have_a_base_of_their_own(
    tmp_path: Path, far: float
) -> None:
    model_type, more, settings = ARCHITECTURES["olmo2, windows"]
    kinds = ["full_attention", "sliding_attention"] * 2
    rope = dict(more["rope_parameters"], sliding_attention={"rope_theta": far})
    rope["sliding_attention"]["rope_type"] = "default"
    more = {**more, "num_hidden_layers": 4, "layer_types": kinds, "rope_parameters": rope}
    model = build(model_type, **more)
    told = {"rope.freq_base_swa": far, "attention.sliding_window_pattern": [False, True] * 2}
    (path,) = write_gguf(tmp_path / "m.gguf", model, "olmo2", settings | told)
    assert_same_model(path, model)


@is_compiled
@torch.no_grad()
@pytest.mark.parametrize("kind", [NEXT, GLM])
def test_a_layer_with_experts_for_multi_token_prediction_is_read_from_a_file(
    tmp_path: Path, kind: str
) -> None:
    model_type, more, settings = ARCHITECTURES[kind]
    model = build(model_type, **more)
    layer, count = layer_of(model), model.config.num_hidden_layers
    tensors = in_file(model, layer, kind)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        tensors[f"blk.{count}.nextn.{norm}.weight"] -= kind == GLM  # files of Qwen have 1 more
    tensors[f"blk.{count}.nextn.embed_tokens.weight"] = np.ones((len(gguf_writing.TOKENS), 32))
    settings = {**settings, "block_count": count + 1, "nextn_predict_layers": 1}
    (path,) = write_gguf(tmp_path / "m.gguf", model, kind, settings, tensors)
    assert_same_model(path, model)
    assert_same_in_cpp(path, model)
    for dtype in ("float32", "bfloat16"):  # as blocks, and as a folder of floats
        assert "mtp" in load_model(str(path), dtype, "cpu").model.abilities
    tokens = [5, 6, 7, 8, 9, 10, 11]
    states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1]
    cache, places = MtpCache(config=layer.config), torch.arange(1, len(tokens))[None]
    outputs = layer.forward_layer(
        *(0, states[:, :-1], places, cache), input_ids=torch.tensor([tokens[1:]])
    )
    exact = layer._project_to_logits(outputs[:, -1:])[0, 0].numpy()
    native = require_mtp_head(load_model(str(path), "float32", "cpu").model, "a test").native
    assert native is not None
    session = native.start()
    session.take([states[0, :-1].numpy()], tokens[1:])
    assert np.abs(session.logits()[0] - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (LFM2, {"expert_gating_func": 1}, "weighed otherwise than each by its sigmoid"),
        (LFM2, {"expert_weights_scale": 2.5}, r"lfm2moe\.expert_weights_scale = 2\.5"),
        (LFM2, {"leading_dense_block_count": 1.5}, r"leading_dense_block_count is 1\.5"),
        (LFM2, {"leading_dense_block_count": 2}, r"blk\.1\..* has no place in Lfm2Moe"),
        (LFM2, {"expert_used_count": 5}, "each token goes to 5 of 4 experts"),
        (NEXT, {"ssm.time_step_rank": 5}, "do not share the states evenly"),
        (NEXT, {"expert_weights_scale": 2.5}, r"qwen3next\.expert_weights_scale = 2\.5"),
        (NEXT, {"expert_group_count": 2}, r"qwen3next\.expert_group_count = 2"),
        (ERNIE, {"expert_gating_func": 2}, r"ernie4_5-moe\.expert_gating_func = 2"),
        (ERNIE, {"expert_shared_feed_forward_length": 48}, "its shared experts are 48 wide"),
        (ERNIE, {"expert_shared_count": 0}, "its shared experts are 32 wide, and 0 experts of 32"),
        (ERNIE, {"interleave_moe_layer_step": 2}, r"blk\.2\.ffn_.* has no place in Ernie4_5"),
        (GLM, {"expert_gating_func": 1}, "weighed otherwise than each by its sigmoid"),
        (GLM, {"expert_group_count": 2}, "its experts are chosen by groups of them"),
        (GLM, {"nextn_predict_layers": 3}, "3 of its 3 layers foretell tokens"),
        (GLM, {"rope.dimension_sections": [2, 2, 0, 0]}, r"glm4moe\.rope\.dimension_sections"),
        (MINIMAX, {"expert_gating_func": 4}, "weighed otherwise than each by its sigmoid"),
        (MINIMAX, {"expert_shared_count": 1}, r"minimax-m2\.expert_shared_count = 1"),
        (MINIMAX, {"expert_feed_forward_length": 32}, "by its configuration"),
        ("olmo2", {"rope.freq_base_swa": 100.0}, r"olmo2\.rope\.freq_base_swa = 100\.0"),
        ("olmo2, windows", {"attention.scale": 0.5}, r"olmo2\.attention\.scale = 0\.5"),
    ],
)
def test_settings_that_mixtures_lack_are_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, changes)
    assert_is_refused(path, f"cannot be read as a GGUF model .*{message}")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (LFM2, "blk.0.exp_probs_b.bias", "has no place in Lfm2Moe"),
        (NEXT, "blk.1.ssm_in.weight", "has no place in Qwen3Next"),
        (GLM, "blk.0.ffn_gate_up_exps.weight", "has no place in Glm4Moe"),
        (MINIMAX, "blk.1.ffn_gate_shexp.weight", "has no place in MiniMaxM2"),
        (ERNIE, "blk.0.attn_q.bias", "are read natively alone, and its experts have biases"),
    ],
)
def test_tensors_that_mixtures_lack_are_refused_by_name(
    tmp_path: Path, kind: str, name: str, message: str
) -> None:
    path = tiny_file(tmp_path / "m.gguf", kind, tensors={name: np.ones((4, 4))})
    assert_is_refused(path, message)
