"""Folders of models that were damaged, or whose configuration is of another model: one line each,
and never another text.
"""

import json
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftwood.loading import gguf_blocks
from draftwood.loading.folders import weight_bytes
from draftwood.loading.gguf_blocks import PLACES, open_blocks
from draftwood.loading.models import load_model, load_tokenizer
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.storage.atomic import MANIFEST
from draftwood.storage.safetensors import read_header
from gguf_writing import TOKENS as NAMES
from gguf_writing import write_gguf

TOKENS = [1, 5, 7, 3]
LAYERS, WIDTH = 3, 128


@pytest.fixture(scope="module")
def network() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(NAMES),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def whole(network: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    network.save_pretrained(folder)
    words = {name: number for number, name in enumerate(NAMES)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


def configured(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def refused(folder: Path, *said: str, dtype: str | None = None) -> None:
    """It takes one line, which says so much."""
    with pytest.raises(ValueError, match=re.escape(str(folder))) as error:
        load_model(str(folder), dtype)
    assert "\n" not in str(error.value)
    for each in said:
        assert each in str(error.value)


@pytest.mark.parametrize("dtype", [None, "int8"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_hidden_layers": LAYERS - 1}, "asks for 2 layers"),
        ({"num_hidden_layers": 100_000}, "asks for 100000 layers, and the weights are"),
        ({"vocab_size": 10**9}, "vocab_size 1000000000, which is more than the weights hold"),
        ({"hidden_size": 10**6}, "is more than the weights hold"),
        ({"intermediate_size": 10**8}, "is more than the weights hold"),
        ({"num_hidden_layers": "3"}, "expected int"),
        ({"num_attention_heads": 0}, "cannot load"),
        ({"rms_norm_eps": None}, "cannot load"),
        ({"rope_scaling": "linear"}, "cannot load"),
        ({"quantization_config": {"quant_method": "zzz"}}, "quantised as 'zzz'"),
        ({"quantization_config": 5}, "quantised as 5"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_configuration_of_another_model_is_refused(
    folder: Path, settings: dict[str, Any], said: str, dtype: str | None
) -> None:
    if dtype == "int8" and not library.available():
        pytest.skip("there is no C++ compiler")
    configured(folder, **settings)
    since = time.perf_counter()
    refused(folder, said, dtype=dtype)
    assert time.perf_counter() - since < 20  # 100,000 layers take minutes


def in_fp8(folder: Path, network: LlamaForCausalLM) -> torch.Tensor:
    """Store the matrices in 8-bit floats with scales; the logits of the model that they make."""
    weights = load_file(folder / "model.safetensors")
    exact = LlamaForCausalLM(network.config).eval()
    exact.load_state_dict(network.state_dict())
    for name, weight in list(weights.items()):
        if "_proj.weight" in name:
            scale = weight.abs().amax().view(1, 1) / 448
            weights[name] = (weight / scale).to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scale
            module = exact.get_submodule(name.removesuffix(".weight"))
            module.weight = torch.nn.Parameter(weights[name].float() * scale)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        return exact(torch.tensor([TOKENS])).logits[0, -1]


@pytest.mark.parametrize("capability", [None, (9, 0)], ids=["no GPU", "a GPU"])
def test_weights_in_8_bit_floats_are_scaled_or_refused(
    folder: Path,
    network: LlamaForCausalLM,
    capability: "tuple[int, int] | None",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if capability is not None:  # where Transformers leaves them in 8 bits by itself
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: capability)
    wanted = in_fp8(folder, network)
    refused(folder, "weight_scale_inv", "put back the config.json")
    how = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    configured(folder, quantization_config=how)
    session = load_model(str(folder), "float32", "cpu").model.start()
    torch.testing.assert_close(
        session.extend(TOKENS, keep="last").logits[-1], wanted, rtol=1e-3, atol=1e-3
    )


def test_tensors_of_no_use_are_left_out(folder: Path, network: LlamaForCausalLM) -> None:
    """Files hold tables of rotary frequencies, and layers that other programs draft with."""
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    weights["mtp.layers.0.weight"] = torch.ones(2)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    session = load_model(str(folder), "float32").model.start()
    with torch.no_grad():
        wanted = network(torch.tensor([TOKENS])).logits[0, -1]
    torch.testing.assert_close(
        session.extend(TOKENS, keep="last").logits[-1], wanted, rtol=1e-3, atol=1e-3
    )


def test_a_bias_that_the_configuration_leaves_out_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.ones(WIDTH)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(folder, "q_proj.bias")


def test_a_shape_that_does_not_fit_its_bytes_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"]["shape"] = [WIDTH, 3]
    told = json.dumps(header).encode()
    path.write_bytes(len(told).to_bytes(8, "little") + told + content[8 + length :])
    refused(folder, "the shape of model.norm.weight does not fit its bytes")


def test_a_second_copy_of_the_weights_takes_no_memory(folder: Path) -> None:
    alone = weight_bytes(folder)
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    (folder / "pytorch_model.bin").write_bytes(bytes(1000))
    assert weight_bytes(folder) == alone
    (folder / "model.safetensors").unlink()
    assert weight_bytes(folder) == alone + 1000


def test_an_index_beside_whole_weights_is_passed_over(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    load_model(str(folder))
    shutil.move(folder / "model.safetensors", folder / "model-00001-of-00001.safetensors")
    index.write_text('{"weight_map": {"a": null}}')
    refused(folder, "cannot be read as an index of weights")


def test_adapters_say_how_to_merge_them(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    refused(folder, "which would be left out; move adapter_config.json", "merge_and_unload")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    refused(folder, "a PEFT adapter without a model", "--adapter")
    (folder / "config.json").unlink()
    refused(folder, "a PEFT adapter without a model", "--adapter")


def flipped(content: bytes, seed: int, end: int | None = None) -> bytes:
    """One to three bytes of the first so many become others."""
    chance = random.Random(seed)
    changed = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(end or len(content))] = chance.randrange(256)
    return bytes(changed)


def tell_in_one_line(act: Callable[[], Any]) -> Any:
    """Return the result; None if it raises an error of one line."""
    try:
        return act()
    except (ValueError, OSError) as error:
        lines = str(error).splitlines()
    assert len(lines) == 1
    return None


def test_a_damaged_tokenizer_is_one_line(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content, failed = path.read_bytes(), 0
    for seed in range(200):
        path.write_bytes(flipped(content, seed, end=1000))
        failed += tell_in_one_line(lambda: load_tokenizer(str(folder))) is None
    assert failed > 50


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
def test_a_damaged_list_of_blocks_is_one_line_or_the_same_model(
    network: LlamaForCausalLM, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, network)
    described = gguf_blocks.blocks_folder(file)
    path, failed = described / PLACES, 0
    content = path.read_bytes()
    wanted = said(described, str(file))
    for seed in range(200):
        path.write_bytes(flipped(content, seed))
        found = tell_in_one_line(lambda: said(described, str(file)))
        failed += found is None
        assert found is None or torch.equal(found, wanted)
    assert failed > 150
    (described / MANIFEST).unlink()
    for seed in range(20):  # nothing to compare it with
        path.write_bytes(b"{" + flipped(content, seed)[1 : len(content) // 2])
        assert tell_in_one_line(lambda: said(described)) is None


def said(described: Path, name: str | None = None) -> torch.Tensor:
    model = NativeModel(open_blocks(described)) if name is None else load_model(name).model
    return model.start().extend(TOKENS, keep="last").logits[-1]


def test_a_damaged_header_of_weights_is_one_line(folder: Path, network: LlamaForCausalLM) -> None:
    path, failed = folder / "model.safetensors", 0
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    for seed in range(200):
        path.write_bytes(flipped(content, seed, end))
        failed += tell_in_one_line(lambda: read_header(path)) is None
    assert failed > 50
