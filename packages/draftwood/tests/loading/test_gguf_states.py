"""GGUF files of models with running states, whose heads of values lie in the file's own order."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from test_gguf_files import ARCHITECTURES, build
from test_gguf_general import encoder
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from adapters import save_adapter
from draftwood import methods
from draftwood.engine import Options, generate
from draftwood.loading import adapters, gguf_floats
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import load_model
from draftwood.models.decoder import RunningState
from draftwood.models.native import NativeModel
from draftwood.models.requirements import require_mtp_head
from draftwood.native.library import available
from gguf_writing import write_gguf
from mtp_folders import in_file, layer_of

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
WIDE = {
    **{"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "initializer_range": 0.05},
    "linear_value_head_dim": 128,
}
SMALL = ("conv1d.weight", "alpha.weight", "beta.weight", "shortconv.conv.weight")
NEVER_IN_BLOCKS = (*SMALL, "ssm_a", "ssm_d", "ssm_norm.weight")
"""Tensors that no program that quantises files changes."""
TEXT = list(range(3, 43))


def state_file(
    path: Path, format: str | None = None, tied: bool = False, kind: str = "qwen35"
) -> Path:
    """A file whose matrices are stored so; None for float32."""
    model_type, more, settings = ARCHITECTURES[kind]
    form = None if format is None else gguf.GGMLQuantizationType[format]
    wide = WIDE if kind == "qwen35" else {**WIDE, "num_attention_heads": 4}
    model = build(model_type, **{**more, **wide}, tie_word_embeddings=tied)

    def stored(name: str) -> Any:
        return None if name.endswith(SMALL) else form

    if kind == "qwen35":
        settings = settings | {"ssm.inner_size": 768, "rope.dimension_sections": [3, 3, 2, 0]}
    (found,) = write_gguf(
        *(path, model, kind, settings),
        kind=stored if form else None,
        encode=encoder(format),
    )
    return found


def said(path: Path, dtype: str | None = "float32", **more: Any) -> torch.Tensor:
    model = load_model(str(path), dtype, "cpu", **more).model
    assert isinstance(model, NativeModel)
    return torch.from_numpy(np.asarray(model.start().extend(TEXT).logits))


@torch.no_grad()
def wanted(path: Path) -> torch.Tensor:
    """By Transformers, of the folder that is made of the file as floats."""
    model: Any = load_pretrained(str(path), dtype="float32", device="cpu").model
    return model(torch.tensor([TEXT])).logits[0]


def tiny_file(
    path: Path,
    kind: str,
    changes: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    form: str | None = None,
) -> Path:
    """A file with other settings and more tensors, its matrices stored in a format.

    Args:
        kind: one of ``ARCHITECTURES``.
    """
    model_type, more, settings = ARCHITECTURES[kind]

    def stored(name: str) -> Any:
        is_kept = form is None or name.endswith(NEVER_IN_BLOCKS)
        return None if is_kept else gguf.GGMLQuantizationType[form]

    model, told = build(model_type, **more), settings | (changes or {})
    (found,) = write_gguf(path, model, kind.split(",")[0], told, tensors or {}, kind=stored)
    return found


def assert_has_the_files_numbers(path: Path) -> None:
    exact = wanted(path)
    assert (said(path) - exact).abs().max() < 1e-4 * max(1.0, float(exact.abs().max()))


def assert_rows_are_near(path: Path, dtype: str) -> None:
    """Half of the rows at least: one may go to another expert, where two are nearly as good."""
    exact = wanted(path)
    off = (said(path, dtype) - exact).norm(dim=1) / exact.norm(dim=1)
    assert 1e-4 < off.median() < 0.2


def assert_is_refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_pretrained(str(path), device="cpu")


@pytest.mark.parametrize("format", [None, "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize(("kind", "tied"), [("qwen35", False), ("qwen35", True), ("lfm2", True)])
def test_numbers_in_float32_are_the_files_own(
    tmp_path: Path, format: str | None, kind: str, tied: bool
) -> None:
    path = state_file(tmp_path / "m.gguf", format, tied, kind)
    assert_has_the_files_numbers(path)


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_rounded_rows_come_near_and_are_packed_once(tmp_path: Path, dtype: str) -> None:
    path = state_file(tmp_path / "m.gguf", "BF16" if dtype != "int8" else "Q4_K")
    exact, first = wanted(path), said(path, dtype)
    assert 1e-4 < (first - exact).norm() / exact.norm() < (0.9 if dtype == "int4" else 0.3)
    assert torch.equal(said(path, dtype), first)


FAULTS = {
    "rows as Transformers has them": (RunningState, "by_key_heads", None),
    "floats as the file has them": (gguf_floats, "orders", lambda module, config: (None, None)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_heads_in_another_order_would_be_noticed(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = state_file(tmp_path / "m.gguf", "Q8_0")
    kind, name, other = FAULTS[fault]
    if other is None:
        usual = RunningState.by_key_heads.fget

        def side_by_side(self: RunningState) -> np.ndarray:
            assert usual is not None
            vars(self)["is_tiled"], kept = False, self.is_tiled
            order = usual(self)
            vars(self)["is_tiled"] = kept
            return order

        monkeypatch.setattr(kind, name, property(side_by_side))
    else:
        monkeypatch.setattr(kind, name, other)
    ours = said(path)
    exact = wanted(path)
    assert (ours - exact).abs().max() > 0.01 * exact.abs().max()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("form", [None, "Q8_0"])
def test_an_adapter_changes_what_the_file_has_in_its_own_order(
    tmp_path: Path, dtype: str, form: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = state_file(tmp_path / "m.gguf", form)
    base: Any = load_pretrained(str(path), dtype="float32", device="cpu").model
    changed = ["q_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
    merged: Any = save_adapter(tmp_path / "a", base, changed, 0.3, r=4)
    with torch.no_grad():
        exact = merged(torch.tensor([TEXT])).logits[0]
    without = said(path, dtype)
    found = said(path, dtype, adapter=str(tmp_path / "a"))
    size = float(exact.norm())
    assert float((found - exact).norm()) < (1e-3 if dtype == "float32" else 0.45) * size
    assert float((without - exact).norm()) > 0.6 * size
    if dtype == "float32":  # the negative control
        monkeypatch.setattr(adapters, "orders", lambda module, config: (None, None))
        wrong = said(path, dtype, adapter=str(tmp_path / "a"))
        assert float((wrong - exact).norm()) > 0.05 * size


WITH_LAYER = {"block_count": 5, "nextn_predict_layers": 1}
WITH_LAYER["attention.recurrent_layers"] = [True, True, True, False, False]


def file_with_layer(path: Path, **changes: np.ndarray | None) -> tuple[MtpModel, PreTrainedModel]:
    """A file that comes with a layer for multi-token prediction; the layer and the model.

    Args:
        changes: of the layer's tensors; None leaves one out.
    """
    model_type, more, settings = ARCHITECTURES["qwen35"]
    model = build(model_type, **more)
    layer = layer_of(model)
    tensors: dict[str, Any] = in_file(model, layer, "qwen35")
    for name, values in changes.items():
        tensors[f"blk.4.{name}.weight"] = values
    further = {name: each for name, each in tensors.items() if each is not None}
    write_gguf(path, model, "qwen35", {**settings, **WITH_LAYER}, further)
    return layer, model


@torch.no_grad()
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_layer_for_multi_token_prediction_is_read_from_a_file(tmp_path: Path, dtype: str) -> None:
    """Its rows of queries lie as in the model's own layers, and norms in the file have 1 added."""
    path = tmp_path / "m.gguf"
    layer, written = file_with_layer(path)
    model = load_model(str(path), dtype, "cpu").model
    tokens = [5, 6, 7, 8, 9, 10, 11]
    states = written(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1]
    cache, places = MtpCache(config=layer.config), torch.arange(1, len(tokens))[None]
    given = {"input_ids": torch.tensor([tokens[1:]])}
    outputs = layer.forward_layer(0, states[:, :-1], places, cache, **given)
    wanted = layer._project_to_logits(outputs[:, -1:])[0, 0].numpy()

    native = require_mtp_head(model, "a test").native
    assert native is not None
    session = native.start()
    session.take([states[0, :-1].numpy()], tokens[1:])
    off = float(np.abs(session.logits()[0] - wanted).max() / np.abs(wanted).max())
    assert off < (1e-4 if dtype == "float32" else 0.1)

    texts = []
    for name in ("plain", "mtp", "auto"):
        more = {"mtp": model.mtp} if name == "auto" else {}
        method = methods.build(name, model, **more)
        steps = generate(model, method.drafter, method.verifier, tokens, Options(max_new_tokens=20))
        texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1] == texts[2]


def test_a_file_as_floats_keeps_the_layer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    file_with_layer(path)
    assert "mtp" in load_model(str(path), "bfloat16", "cpu").model.abilities


def test_a_layer_of_a_file_that_is_not_whole_is_refused_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.gguf"
    for changes in (
        {"attn_q": None},
        {"nextn.hnorm": None},
        {"attn_k": np.ones((3, 32), np.float32)},
    ):
        file_with_layer(path, **changes)
        model = load_model(str(path), "float32", "cpu").model
        methods.build("plain", model)
        with pytest.raises(ValueError, match=r"cannot be read .*choose another method"):
            methods.build("mtp", model)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"ssm.state_size": 12}, "have 12 and 16 dimensions"), ({"ssm.time_step_rank": 3}, "share")],
)
def test_heads_that_the_native_path_cannot_take_are_named(
    tmp_path: Path, settings: dict[str, int], why: str
) -> None:
    model_type, more, usual = ARCHITECTURES["qwen35"]
    write_gguf(tmp_path / "m.gguf", build(model_type, **more), "qwen35", {**usual, **settings})
    with pytest.raises(ValueError, match=f"read natively alone, and .*{why}"):
        load_model(str(tmp_path / "m.gguf"), None, "cpu")
