"""Names to weights: every way to name a model, and every way a file, a disk or a process can fail
on the way.
"""

import json
import os
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftwood.loading import hub, packages
from draftwood.loading.folders import verify
from draftwood.loading.hub import load_pretrained, resolve
from draftwood.loading.names import BUILTIN_NAMES
from draftwood.loading.packages import builtins
from draftwood.storage.atomic import MANIFEST
from draftwood.tokenizer import tokenizer_of_gguf
from gguf_writing import MERGES, TEMPLATE, TOKENS, write_gguf

SOURCE = str(Path(hub.__file__).parents[2])


pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def whole_folder(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    model.save_pretrained(folder)
    pairs = [tuple(merge.split()) for merge in MERGES]
    backend = Tokenizer(
        models.BPE({token: i for i, token in enumerate(TOKENS)}, pairs, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole_folder: Path, tmp_path: Path) -> Path:
    """A model folder that the test may damage."""
    copy = tmp_path / "tiny"
    copy.mkdir()
    for path in whole_folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.fixture(scope="module")
def whole_gguf(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, model)
    return path.read_bytes()


@pytest.fixture
def gguf_file(whole_gguf: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole_gguf)
    return path


# ---- names


def test_a_folder_loads_as_it_was_saved(folder: Path, model: LlamaForCausalLM) -> None:
    loaded = load_pretrained(str(folder), device="cpu")
    tokens = torch.arange(3, 13)[None]
    assert not loaded.model.training
    assert (loaded.name, loaded.path) == (str(folder), folder)
    torch.testing.assert_close(loaded.model(tokens).logits, model(tokens).logits)
    assert loaded.tokenizer.decode(loaded.tokenizer(" a tt").input_ids) == " a tt"


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_dtype_is_a_name_or_a_torch_dtype(folder: Path, dtype: str | torch.dtype) -> None:
    assert load_pretrained(str(folder), dtype=dtype, device="cpu").model.dtype is torch.bfloat16


def test_unknown_dtype_names_the_known_ones(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"int8, .*bfloat16, .* not 'int3'"):
        load_pretrained(str(folder), dtype="int3")


@pytest.mark.parametrize("device", ["toaster", "cuda:99", torch.device("cuda", 99)])
def test_a_device_that_is_not_there_is_named(folder: Path, device: str | torch.device) -> None:
    with pytest.raises(ValueError, match=rf"there is no device '{device}' .*leave device out"):
        load_pretrained(str(folder), device=device)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "without config.json"),
        ("*.safetensors", "has no weights"),
        ("tokenizer*", "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_file_names_it(folder: Path, missing: str, message: str) -> None:
    for path in folder.glob(missing):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=message):
        resolve(str(folder))


def test_a_folder_with_only_a_gguf_file_points_to_it(gguf_file: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"pass the file {gguf_file}"):
        resolve(str(gguf_file.parent))


@pytest.mark.parametrize(
    ("name", "near"), [("smollm2", "smollm2-135m"), ("TinyLlama", "tinyllama-1.1b")]
)
def test_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'; did you mean {near}.*Hugging Face id"):
        resolve(name)


@pytest.mark.parametrize("name", ["", "xyz", "two words"])
def test_unknown_name_says_what_is_accepted(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"no model is named '{name}'; accepted are a model folder.*smollm2-135m"
    ):
        resolve(name)


@pytest.mark.parametrize("name", ["a/b/c", "./nothing.gguf", "/nowhere/at/all", "no.gguf"])
def test_a_path_that_is_not_there(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no file {name}"):
        resolve(name)


@pytest.mark.parametrize("name", ["tinyllama-1.1b", "stories-15m"])
def test_models_that_are_not_fetched_by_themselves_name_the_command(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"fetch it with `draftwood fetch {name}`"):
        resolve(name)


def test_floats_are_made_of_a_file_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def fetched(name: str, dtype: str) -> Path:
        asked.append((name, dtype))
        return builtin.folder("float32")

    monkeypatch.setattr(packages, "fetch", fetched)
    monkeypatch.setattr(hub, "check_folder", lambda folder: None)
    builtin = builtins()["tinyllama-1.1b"]
    builtin.blocks.mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        resolve(builtin.name, "float32")
    (builtin.blocks / builtin.file).touch()
    assert resolve(builtin.name, "float32") == builtin.folder("float32")
    assert asked == [(builtin.name, "float32")]


def test_the_command_names_the_type_where_it_matters() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"fetch it with `draftwood fetch tinyllama-1\.1b --dtype float32`"
    ):
        resolve("tinyllama-1.1b", "float32")
    with pytest.raises(FileNotFoundError, match="fetch it with `draftwood fetch stories-15m`"):
        resolve("stories-15m", "float32")


def test_every_builtin_in_home_is_used_without_network(own_home: Path, folder: Path) -> None:
    (own_home / "models").mkdir(parents=True)
    for name in BUILTIN_NAMES:
        (own_home / "models" / name).symlink_to(folder)
        assert resolve(name) == own_home / "models" / name


# ---- damaged files


def test_truncated_weights_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(
        ValueError, match=f"{weights} is not a whole safetensors file .* fetch the file again"
    ):
        load_pretrained(str(folder))


@pytest.mark.parametrize("safe", [True, False])
def test_a_missing_shard_is_named(folder: Path, model: LlamaForCausalLM, safe: bool) -> None:
    (folder / "model.safetensors").unlink()
    if safe:
        model.save_pretrained(folder, max_shard_size="20KB")
    else:
        names = list(model.state_dict())
        shards = {
            name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin"
            for number, name in enumerate(names)
        }
        for shard in set(shards.values()):
            torch.save(
                {name: model.state_dict()[name] for name in names if shards[name] == shard},
                folder / shard,
            )
        (folder / "pytorch_model.bin.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": shards})
        )
    load_pretrained(str(folder), device="cpu")
    shard = sorted(folder.glob("*-00002-of-*"))[0]
    shard.unlink()
    message = (
        rf"{folder} lacks 1 of the \d files that .*index\.json names, the first is {shard.name};"
        r" fetch it again"
    )
    with pytest.raises(FileNotFoundError, match=message):
        load_pretrained(str(folder))
    for index in folder.glob("*.index.json"):
        index.write_text("{")
    with pytest.raises(
        ValueError, match=r"index\.json cannot be read as an index of weights; fetch"
    ):
        resolve(str(folder))


def test_missing_weights_are_an_error_and_not_random_numbers(folder: Path) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=f"{folder} lacks 1 weights, the first is model.norm.weight"
    ):
        load_pretrained(str(folder))


def test_a_made_folder_is_checked_against_its_manifest(gguf_file: Path) -> None:
    made = load_pretrained(str(gguf_file), device="cpu").path
    verify(made)
    weights = made / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    # sizes agree, and a load reads no more than sizes
    load_pretrained(str(gguf_file), device="cpu")
    with pytest.raises(
        ValueError,
        match=f"folder {made} is damaged: model.safetensors has SHA-256.*delete that folder",
    ):
        verify(made)
    weights.write_bytes(whole[:-1])
    with pytest.raises(
        ValueError,
        match=f"folder {made} is damaged: model.safetensors has .* bytes.*delete that folder",
    ):
        load_pretrained(str(gguf_file))
    weights.unlink()
    with pytest.raises(ValueError, match=r"model.safetensors is missing"):
        load_pretrained(str(gguf_file))
    (made / MANIFEST).write_text("{")
    with pytest.raises(ValueError, match=f"{made} is damaged: {MANIFEST} cannot be read"):
        load_pretrained(str(gguf_file))


@pytest.mark.parametrize("size", [0, 6, 30, 3000, -100])
def test_a_truncated_gguf_file_is_one_sentence(gguf_file: Path, own_home: Path, size: int) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes()[:size])
    with pytest.raises(ValueError, match=f"{gguf_file} .* fetch the file again") as caught:
        load_pretrained(str(gguf_file))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert not list(own_home.glob("models/gguf-*"))


# ---- GGUF files


def test_a_gguf_file_loads_with_tokenizer_and_template(
    gguf_file: Path, model: LlamaForCausalLM, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = load_pretrained(str(gguf_file), device="cpu")
    assert resolve(str(gguf_file)) == gguf_file
    assert capfd.readouterr() == ("", "")  # no bars and no warnings where stderr is not a terminal
    assert loaded.model.dtype is torch.bfloat16
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].bfloat16()), name
    assert loaded.tokenizer.chat_template == TEMPLATE
    # the file has its template too where a tokenizer without one lies beside it
    plain = copy(loaded.tokenizer)
    plain.chat_template = None
    plain.save_pretrained(gguf_file.parent)
    assert tokenizer_of_gguf(gguf_file, "llama").chat_template == TEMPLATE
    assert loaded.tokenizer.decode(loaded.tokenizer(" a tt é").input_ids) == " a tt é"
    assert json.loads((loaded.path / MANIFEST).read_text())["source"] == str(gguf_file)


def test_a_gguf_file_is_converted_once_until_it_changes(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_pretrained(str(gguf_file), device="cpu").path
    with monkeypatch.context() as patch:
        patch.setattr(
            "draftwood.loading.gguf_files.convert_gguf",
            lambda path, folder: pytest.fail("converted twice"),
        )
        assert load_pretrained(str(gguf_file), device="cpu").path == first
    os.utime(gguf_file, ns=(1, 1))
    assert load_pretrained(str(gguf_file), device="cpu").path != first


# ---- disks and processes


def test_a_home_that_cannot_be_written_is_named(gguf_file: Path, own_home: Path) -> None:
    own_home.write_text("a file in the way")
    with pytest.raises(
        OSError, match=f"cannot write {own_home}/models/gguf-tiny-.*set DRAFTWOOD_HOME"
    ):
        load_pretrained(str(gguf_file))


def test_a_killed_conversion_leaves_nothing_that_is_trusted(
    gguf_file: Path, own_home: Path
) -> None:
    code = """if True:
        import sys, time
        from draftwood.loading import hub
        from draftwood.storage import atomic
        def half_way(folder, source, facts):
            print("half-way", flush=True)
            time.sleep(60)
        atomic.write_manifest = half_way
        hub.load_pretrained(sys.argv[1])
    """
    settings = {**os.environ, "PYTHONPATH": SOURCE, "DRAFTWOOD_HOME": str(own_home)}
    command = [sys.executable, "-c", code, str(gguf_file)]
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "half-way\n"
        (partial,) = own_home.glob("models/.*.partial")
        assert (partial / "model.safetensors").is_file()
        assert not list(own_home.glob("models/gguf-*"))
        process.kill()
    assert partial.is_dir()
    verify(load_pretrained(str(gguf_file), device="cpu").path)
    assert not partial.exists()
