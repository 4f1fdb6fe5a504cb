"""LoRA adapters change a model as PEFT's own merge does, on every road, and no other model."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from test_gguf_files import build
from test_packed import kept_in, own_home, saved  # noqa: F401  (a fixture)
from torch import Tensor

import draftwood
from adapters import logits_of, save_adapter
from command import refused, run
from draftwood.heads.trained import TargetFingerprint
from draftwood.loading import hub
from draftwood.loading.adapters import LoraAdapter
from draftwood.loading.models import load_model
from draftwood.models.fingerprint import Fingerprint
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.tokenizer import open_tokenizer
from draftwood_torch.loading.adapters import adapt
from families import hf_model, some_tokens
from gguf_writing import write_gguf

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGETS = {
    "llama": ALL,
    "qwen2": ALL,
    "gemma3": ALL,
    "cohere": ALL,
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "mixtral": ["q_proj", "v_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {"r": 4, "lora_alpha": 6},
    "rank-stabilised": {"r": 4, "lora_alpha": 6, "use_rslora": True},
    "patterns": {
        "r": 4,
        "lora_alpha": 6,
        "rank_pattern": {"k_proj": 2, r"layers\.1\..*_proj": 3},
        "alpha_pattern": {"self_attn.q_proj": 1, "layers.0.mlp.down_proj": 20},
    },
}
TOKENS = some_tokens(16, seed=3)
ADAPTER, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
needs_int8 = pytest.mark.skipif(not library.instructions(True), reason="no fast 8-bit products")


def model_and_adapter(
    folder: Path, family: str = "llama", settings: str = "usual", dtype: Any = torch.float32
) -> tuple[str, str, Tensor]:
    """Folders of a tiny model and its adapter, and the logits of the two merged by PEFT."""
    saved(folder / "model", family, dtype)
    base: Any = copy.deepcopy(hf_model(family)).to(dtype).float()
    merged = save_adapter(folder / "adapter", base, TARGETS[family], **SETTINGS[settings])
    return str(folder / "model"), str(folder / "adapter"), logits_of(merged, TOKENS)


def said(model: Model) -> Tensor:
    session = model.start()
    try:
        return session.extend(TOKENS).logits.float()
    finally:
        session.close()


@pytest.mark.parametrize("family", TARGETS)
def test_logits_are_those_of_the_model_that_peft_merges(family: str, tmp_path: Path) -> None:
    model, adapter, merged = model_and_adapter(tmp_path, family)
    loaded = load_model(model, device="cpu", adapter=adapter).model
    assert isinstance(loaded, NativeModel) == (family != "gpt2")
    assert (said(loaded) - merged).abs().max() < 1e-4
    assert (said(load_model(model).model) - merged).abs().max() > 0.1  # it does change something
    how = Path(model), None, torch.device("cpu")  # as it is read where PyTorch runs it
    read = hub.read_folder(model, *how, adapter=LoraAdapter.read(adapter)).model
    assert (logits_of(read, TOKENS) - merged).abs().max() < 1e-4


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_setting_of_scales_is_obeyed(settings: str, tmp_path: Path) -> None:
    model, adapter, merged = model_and_adapter(tmp_path, "llama", settings)
    assert (said(load_model(model, adapter=adapter).model) - merged).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["use_rslora", "rank_pattern", "alpha_pattern", "lora_alpha"])
def test_a_setting_that_is_left_out_would_be_noticed(name: str, tmp_path: Path) -> None:
    settings = "rank-stabilised" if name == "use_rslora" else "patterns"
    model, adapter, merged = model_and_adapter(tmp_path, "llama", settings)
    change_settings(Path(adapter), {name: 9 if name == "lora_alpha" else None})
    if name == "rank_pattern":
        with pytest.raises(ValueError, match="no two matrices of rank 4"):
            load_model(model, adapter=adapter)
        return
    assert (said(load_model(model, adapter=adapter).model) - merged).abs().max() > 1e-2


def test_names_of_an_older_class_of_the_same_model_are_understood(tmp_path: Path) -> None:
    model, adapter, merged = model_and_adapter(tmp_path)
    arrays = load_file(Path(adapter) / WEIGHTS)
    older = {
        name.replace(".model.layers.", ".language_model.model.layers."): arrays[name]
        for name in arrays
    }
    assert older.keys() != arrays.keys()
    save_file(older, Path(adapter) / WEIGHTS)
    assert (said(load_model(model, adapter=adapter).model) - merged).abs().max() < 1e-4


@needs_int8
def test_in_8_bits_base_and_adapted_model_are_packed_beside_each_other(
    tmp_path: Path,
    own_home: Path,  # noqa: F811
) -> None:
    model, adapter, merged = model_and_adapter(tmp_path, dtype=torch.bfloat16)
    base = said(load_model(model, "int8", "cpu").model)
    first = said(load_model(model, "int8", "cpu", adapter=adapter).model)
    assert len(kept_in(own_home)) == 2
    again = said(load_model(model, "int8", "cpu", adapter=adapter).model)
    assert torch.equal(first, again)
    assert (first - merged).norm() < 0.2 * merged.norm() < (base - merged).norm()
    assert torch.equal(said(load_model(model, "int8", "cpu").model), base)
    assert len(kept_in(own_home)) == 2


@needs_int8
def test_a_model_of_another_family_is_changed_before_it_is_packed(tmp_path: Path) -> None:
    model, adapter, merged = model_and_adapter(tmp_path, "gpt2")
    found, without = (
        said(load_model(model, "int8", "cpu", adapter=each).model) for each in (adapter, None)
    )
    assert (found - merged).norm() < 0.1 * merged.norm()
    assert (without - merged).norm() > 0.3 * merged.norm()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_gguf_file_is_changed_in_the_order_of_its_rows(
    family: str,
    tmp_path: Path,
    own_home: Path,  # noqa: F811
) -> None:
    import gguf

    base = build(family)
    form = gguf.GGMLQuantizationType.Q8_0
    write_gguf(tmp_path / "model.gguf", base, family, kind=form)
    path = str(tmp_path / "model.gguf")
    stored = hub.load_pretrained(path, dtype="float32").model  # with the file's own numbers
    merged = save_adapter(tmp_path / "adapter", stored, ["q_proj", "k_proj", "down_proj"], r=4)
    model = load_model(path, "float32", "cpu", adapter=str(tmp_path / "adapter")).model
    assert isinstance(model, NativeModel)
    assert (said(model) - logits_of(merged, TOKENS)).abs().max() < 1e-4
    assert (said(load_model(path, "float32").model) - logits_of(merged, TOKENS)).abs().max() > 0.1
    formats = {each.format for each in model.weights.memory if hasattr(each, "format")}
    assert formats == {"F32", "Q8_0"}  # what is not changed stays as it is


def test_what_was_measured_of_the_model_is_not_believed_of_the_adapted_one(tmp_path: Path) -> None:
    model, adapter, _ = model_and_adapter(tmp_path)
    base, other = draftwood.load(model), draftwood.load(model, adapter=adapter)
    assert base.calibration.key is not None
    assert other.calibration.key is not None
    assert base.calibration.key.path != other.calibration.key.path
    assert base.prior.path != other.prior.path
    assert Fingerprint.of(base.model) != Fingerprint.of(other.model)


def test_a_head_of_the_model_may_draft_for_it_with_an_adapter(tmp_path: Path) -> None:
    model, adapter, _ = model_and_adapter(tmp_path)
    own = TargetFingerprint.of(load_model(model).model, "it")
    adapted = load_model(model, adapter=adapter).model
    own.require_model(adapted)
    del vars(adapted)["adapter"]  # the same weights, from who knows where
    with pytest.raises(ValueError, match="other weights"):
        own.require_model(adapted)


def change_settings(folder: Path, settings: dict[str, Any]) -> None:
    told = json.loads((folder / ADAPTER).read_text())
    (folder / ADAPTER).write_text(json.dumps(told | settings))


def cut_short(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-8])


def without_one(folder: Path) -> None:
    arrays = load_file(folder / WEIGHTS)
    arrays.pop(sorted(arrays)[0])
    save_file(arrays, folder / WEIGHTS)


def with_nan(folder: Path) -> None:
    arrays = load_file(folder / WEIGHTS)
    arrays[sorted(arrays)[0]].flat[0] = float("nan")
    save_file(arrays, folder / WEIGHTS)


def with_another(folder: Path, name: str) -> None:
    arrays = load_file(folder / WEIGHTS)
    arrays[f"base_model.model.{name}"] = next(iter(arrays.values())).copy()
    save_file(arrays, folder / WEIGHTS)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "torn": (cut_short, "is not a whole safetensors file"),
    "no settings": (lambda folder: (folder / ADAPTER).unlink(), f"there is no {ADAPTER}"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"there is no {WEIGHTS}"),
    "no JSON": (lambda folder: (folder / ADAPTER).write_text("{"), "cannot be read"),
    "half a pair": (without_one, "no two matrices of rank 4"),
    "NaN": (with_nan, "NaN or infinity"),
    "other tensors": (
        lambda folder: with_another(folder, "model.embed_tokens.lora_embedding_A"),
        "lora_embedding_A",
    ),
    "no rank": (lambda folder: change_settings(folder, {"r": None}), "does not tell the rank"),
    "no scale": (
        lambda folder: change_settings(folder, {"lora_alpha": "much"}),
        "does not tell the rank",
    ),
    "a pattern": (
        lambda folder: change_settings(folder, {"rank_pattern": {"(": 3}}),
        "does not tell the rank",
    ),
    "another kind": (
        lambda folder: change_settings(folder, {"peft_type": "IA3"}),
        "is of the kind IA3",
    ),
    "DoRA": (lambda folder: change_settings(folder, {"use_dora": True}), "has use_dora"),
    "biases": (lambda folder: change_settings(folder, {"bias": "all"}), "has biases"),
    "whole modules": (
        lambda folder: change_settings(folder, {"modules_to_save": ["lm_head"]}),
        "has modules_to_save",
    ),
    "PiSSA": (
        lambda folder: change_settings(folder, {"init_lora_weights": "pissa"}),
        "the model's own weights too",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_added_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    model, adapter, _ = model_and_adapter(tmp_path)
    spoil, told = BROKEN[case]
    spoil(Path(adapter))
    line = refused("generate", "hi", "--model", model, "--adapter", adapter)
    assert told in line
    assert adapter in line


@pytest.mark.parametrize(
    ("sizes", "target_module", "told"),
    [
        ({"num_hidden_layers": 6}, "q_proj", "layers.4.self_attn.q_proj"),
        ({"hidden_size": 64}, "q_proj", "64"),
    ],
    ids=["deep", "wide"],
)
def test_an_adapter_of_another_model_is_refused_by_its_base(
    sizes: dict[str, Any], target_module: str, told: str, tmp_path: Path
) -> None:
    base = build("llama", **sizes)
    save_adapter(tmp_path / "a", base, [target_module], r=4)
    change_settings(tmp_path / "a", {"base_model_name_or_path": "somebody/base"})
    model = saved(tmp_path / "model")
    line = refused("generate", "hi", "--model", str(model), "--adapter", str(tmp_path / "a"))
    assert "is for another model" in line
    assert told in line
    assert "somebody/base" in line


def test_commands_and_parts_that_cannot_take_one_say_so(tmp_path: Path, target: str) -> None:
    assert "is no LoRA adapter" in refused("chat", "--adapter", str(tmp_path))
    assert "adapter" in refused("check", "--model", target, "--adapter", "no-such-folder")
    line = refused("generate", "hi", "--model", target, "--adapter", target, "--tp", "2")
    assert "leave out --tp" in line
    _, adapter, _ = model_and_adapter(tmp_path)
    with pytest.raises(ValueError, match="name the model"):
        draftwood.load(hf_model("llama"), open_tokenizer(Path(target)), adapter=adapter)


def test_commands_write_with_it(tmp_path: Path, target: str) -> None:
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(target)
    save_adapter(tmp_path / "a", base, ["q_proj", "down_proj"], 1.0, r=4)
    named = ("--model", target, "--adapter", str(tmp_path / "a"))
    usual = ("--max-new-tokens", "24", "--json")
    plain = json.loads(run("generate", "ab", "--method", "plain", *usual, *named).stdout)
    drafted = json.loads(run("generate", "ab", "--method", "suffix", *usual, *named).stdout)
    without = json.loads(run("generate", "ab", "--model", target, *usual).stdout)
    assert plain["text"] == drafted["text"] != without["text"]
    assert run("compare", "ab", "--methods", "suffix", *named).exit_code == 0


def test_an_adapter_is_not_added_to_floats_that_scales_belong_to(tmp_path: Path) -> None:
    _, adapter, _ = model_and_adapter(tmp_path)
    model: Any = copy.deepcopy(hf_model("llama"))
    module = model.model.layers[0].self_attn.q_proj
    module.weight = torch.nn.Parameter(module.weight.to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(ValueError, match="are quantised"):
        adapt(model, LoraAdapter.read(adapter).placed)
