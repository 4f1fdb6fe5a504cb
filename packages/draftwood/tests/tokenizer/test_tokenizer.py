"""Tokenizers of folders, beside those that Transformers reads from the same files."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from small_tokenizers import KINDS, SPECIAL, byte_level, hard_texts, pieces
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TokenizersBackend

from draftwood.sources.stored_prior import usual_tokens
from draftwood.text.prompts import encode_text, token_ids
from draftwood.tokenizer import AnyTokenizer, Tokenizer, open_tokenizer

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
END = {"content": "<|end|>", "lstrip": False, "rstrip": False, "normalized": False}


def write(folder: Path, whole: str, **files: Any) -> Path:
    """A folder of these files: JSON, or a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(whole)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def opened(folder: Path) -> Tokenizer:
    found = open_tokenizer(folder)
    assert isinstance(found, Tokenizer)
    return found


def differences(ours: Tokenizer, usual: PreTrainedTokenizerBase, texts: Iterable[str]) -> list[str]:
    """Everything in which a tokenizer differs from the one of Transformers."""
    found = []
    for text in texts:
        for special in (True, False):
            tokens = ours(text, add_special_tokens=special)
            wanted: Any = usual(text, add_special_tokens=special)
            if (
                tokens.input_ids != wanted.input_ids
                or tokens.attention_mask != wanted.attention_mask
            ):
                found.append(f"tokens of {text!r}")
            for skip in (True, False):
                if ours.decode(tokens.input_ids, skip) != usual.decode(wanted.input_ids, skip):
                    found.append(f"text of {text!r}")
    for name in ("bos", "eos", "pad", "unk"):
        for key in (f"{name}_token", f"{name}_token_id"):
            if getattr(ours, key) != getattr(usual, key):
                found.append(key)
    facts = ("all_special_ids", "special_tokens_map", "chat_template")
    found += [name for name in facts if getattr(ours, name) != getattr(usual, name)]
    found += ["length"] if len(ours) != len(usual) else []
    found += ["vocabulary"] if ours.get_vocab() != usual.get_vocab() else []
    here, there = ours.added_tokens_decoder, usual.added_tokens_decoder
    if {n: repr(each) for n, each in here.items()} != {n: repr(each) for n, each in there.items()}:
        found.append("added tokens")
    every = range(len(ours))
    if ours.convert_ids_to_tokens(every) != usual.convert_ids_to_tokens(list(every)):
        found.append("names of tokens")
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "named": {"tokenizer_config": NAMED},
    "adding": {"tokenizer_config": {**NAMED, "add_bos_token": False, "add_eos_token": True}},
    "of version 4": {
        "tokenizer_config": {
            **NAMED,
            "pad_token": {"__type": "AddedToken", **END},
            "additional_special_tokens": ["<|end|>", "<|new|>"],
            "clean_up_tokenization_spaces": False,
            "added_tokens_decoder": {
                "3": {**END, "lstrip": True, "single_word": False, "special": True},
                "900": {**END, "content": "<think>", "single_word": False, "special": False},
            },
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
    },
    "of version 3": {
        "tokenizer_config": {"model_max_length": 512},
        "special_tokens_map": {**NAMED, "eos_token": {**END, "single_word": False}},
        "added_tokens": {"<think>": 1000, "<s>": 1, "</think>": 1001},
    },
    "extra by name": {
        "tokenizer_config": {**NAMED, "extra_special_tokens": {"image_token": "<tool>"}}
    },
    "joined": {"tokenizer_config": {**NAMED, "clean_up_tokenization_spaces": True}},
    "split": {"tokenizer_config": {**NAMED, "split_special_tokens": True}},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_read_as_transformers_reads_them(
    tmp_path: Path, kind: str, settings: str
) -> None:
    folder = write(tmp_path, KINDS[kind](), **SETTINGS[settings])
    usual = TokenizersBackend.from_pretrained(folder)
    assert differences(opened(folder), usual, hard_texts()) == []


@pytest.mark.parametrize(
    "settings", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}]
)
@pytest.mark.parametrize("kind", ["pieces", "byte-level"])
def test_llamas_folders_are_read_as_their_class_reads_them(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    """It puts no blank behind special tokens, where the tokenizer.json has one."""
    settings = {**NAMED, **settings, "tokenizer_class": "LlamaTokenizerFast"}
    folder = write(tmp_path, KINDS[kind](), tokenizer_config=settings)
    as_it_is = opened(folder)
    write(folder, KINDS[kind](), config={"model_type": "llama"})
    ours, usual = opened(folder), AutoTokenizer.from_pretrained(folder)
    assert differences(ours, usual, hard_texts()) == []
    assert bool(differences(as_it_is, usual, hard_texts())) == (kind == "pieces")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_the_same_for_both(tmp_path: Path, kind: str) -> None:
    settings = SETTINGS["of version 4"]["tokenizer_config"] | {"chat_template": "{{ messages }}\n"}
    ours = opened(write(tmp_path / "old", KINDS[kind](), tokenizer_config=settings))
    ours.save(tmp_path / "new")
    again, usual = opened(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
    assert differences(ours, usual, hard_texts(9)) == []
    assert differences(again, usual, hard_texts(9)) == []
    assert again.chat_template == "{{ messages }}\n"


@pytest.mark.parametrize(
    ("left", "is_string"), [("a", True), (" ", False), ("#version", False)], ids=str
)
def test_merges_are_saved_as_strings_where_these_are_read_as_the_same_pairs(
    tmp_path: Path, left: str, is_string: bool
) -> None:
    tokens = dict.fromkeys(["a", "b", "ab", left, left + "b"])
    pairs = list(dict.fromkeys([(left, "b"), ("a", "b")]))
    numbers = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(tokenizers.Tokenizer(BPE(numbers, pairs)), {}, (), None)
    made.save(tmp_path)
    (kept, *_) = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]
    assert kept == (f"{left} b" if is_string else [left, "b"])
    assert json.loads(opened(tmp_path).backend_tokenizer.to_str())["model"]["merges"] == [
        list(pair) for pair in pairs
    ]


def test_several_templates_are_kept_by_name(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    ours = opened(write(tmp_path / "old", byte_level(), tokenizer_config={"chat_template": named}))
    assert ours.chat_template == {"default": "a", "tool_use": "b"}
    ours.save_pretrained(tmp_path / "new")
    usual = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert opened(tmp_path / "new").chat_template == usual.chat_template == ours.chat_template
    ours.chat_template = {"../outside": "c"}
    with pytest.raises(ValueError, match="no name of a file"):
        ours.save(tmp_path / "bad")


def test_a_file_of_a_template_stands_before_the_settings(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), tokenizer_config={"chat_template": "old"})
    assert opened(folder).chat_template == "old"
    (folder / "chat_template.jinja").write_text("new")
    assert opened(folder).chat_template == "new"
    usual = TokenizersBackend.from_pretrained(folder)
    assert differences(opened(folder), usual, ["a"]) == []


def test_planted_faults_are_found(tmp_path: Path) -> None:
    """Negative control: a tokenizer that differs a little is told apart."""
    usual = TokenizersBackend.from_pretrained(write(tmp_path, byte_level(), tokenizer_config=NAMED))
    whole = json.loads(byte_level())

    def found(change: Mapping[str, Any], **settings: Any) -> list[str]:
        other = write(tmp_path / "other", json.dumps(whole | change), tokenizer_config=settings)
        return differences(opened(other), usual, hard_texts())

    model = whole["model"]
    assert found({}, **NAMED) == []
    assert found({"post_processor": None}, **NAMED)
    assert found({"model": model | {"merges": model["merges"][::-1]}}, **NAMED)
    assert found({"added_tokens": whole["added_tokens"][:-1]}, **NAMED)
    assert {"eos_token", "eos_token_id"} <= {*found({}, **NAMED | {"eos_token": "<|end|>"})}


def test_several_texts_and_arrays(tmp_path: Path) -> None:
    ours = opened(write(tmp_path, byte_level(), tokenizer_config=NAMED))
    usual = TokenizersBackend.from_pretrained(tmp_path)
    texts = ["the dog", "a tree"]
    assert ours(texts, verbose=False) == dict(usual(texts))
    tokens = ours.encode("the dog")
    for given in (np.array(tokens), torch.tensor(tokens), tuple(tokens)):
        assert ours.decode(given) == usual.decode(tokens)
    assert ours.decode(tokens[1]) == usual.decode(tokens[1])
    assert ours.convert_tokens_to_ids("<s>") == 1
    assert ours.convert_tokens_to_ids("no token") == usual.convert_tokens_to_ids("no token") == 0


def test_padding_and_truncation_of_files_are_left_out(tmp_path: Path) -> None:
    whole = json.loads(byte_level())
    whole["truncation"] = {
        **{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    }
    ours = opened(write(tmp_path, json.dumps(whole)))
    assert len(ours("the quick brown fox").input_ids) > 3


def test_copies_and_pickles(tmp_path: Path) -> None:
    ours = opened(write(tmp_path, pieces(), tokenizer_config=NAMED))
    usual = TokenizersBackend.from_pretrained(tmp_path)
    assert differences(pickle.loads(pickle.dumps(ours)), usual, hard_texts(3)) == []
    other = copy(ours)
    other.chat_template = "new"
    assert ours.chat_template is None
    other.eos_token, other.pad_token = None, "<|end|>"
    assert other.eos_token_id is None
    assert other.pad_token_id == SPECIAL.index("<|end|>")


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": "{"},
        {"tokenizer.json": "{}"},
        {"tokenizer.json": json.dumps({"model": {"type": "None"}})},
        {"tokenizer_config.json": "["},
        {"tokenizer_config.json": "[]"},
        {"tokenizer_config.json": json.dumps({"added_tokens_decoder": {"a": 3}})},
        {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default"}]})},
        {"tokenizer_config.json": json.dumps({"bos_token": {"letters": 3}})},
        {"special_tokens_map.json": "\ufffd"},
        {"added_tokens.json": json.dumps({"a": [1], "b": 2})},
    ],
)
def test_bad_files_are_one_line_that_names_the_folder(
    tmp_path: Path, files: dict[str, str]
) -> None:
    write(tmp_path, byte_level())
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"^the tokenizer in {tmp_path} cannot be read") as error:
        open_tokenizer(tmp_path)
    assert str(error.value).count("\n") == 0
    assert str(error.value).endswith("; fetch it again")


def write_parts(folder: Path) -> None:
    """Write a vocabulary and its merges, as folders without a tokenizer.json have them."""
    whole = json.loads(byte_level())["model"]
    (folder / "vocab.json").write_text(json.dumps(whole["vocab"]))
    merges = "".join(f"{' '.join(merge)}\n" for merge in whole["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges)


def test_a_class_of_a_folder_is_read_as_the_one_that_it_copies_or_refused(tmp_path: Path) -> None:
    write_parts(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "Dream"}))
    settings = {"auto_map": {"AutoTokenizer": ["own.DreamTokenizer", None]}}
    told = tmp_path / "tokenizer_config.json"
    told.write_text(json.dumps({**settings, "tokenizer_class": "DreamTokenizer"}))
    found = open_tokenizer(tmp_path)
    assert found.decode(encode_text(found, "the dog")) == "the dog"
    told.write_text(json.dumps({**settings, "tokenizer_class": "OtherTokenizer"}))
    with pytest.raises(ValueError, match=r"OtherTokenizer\), which is not run; put a tokenizer"):
        open_tokenizer(tmp_path)


def test_a_folder_without_a_whole_tokenizer_is_read_by_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    found: AnyTokenizer = open_tokenizer(tmp_path)
    assert isinstance(found, PreTrainedTokenizerBase)
    assert encode_text(found, "the dog") == token_ids(found("the dog"))

    def refuse(what: str) -> None:
        raise ModuleNotFoundError(f"{what} needs PyTorch")

    monkeypatch.setattr("draftwood.optional.torch_needed", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"without tokenizer\.json"):
        open_tokenizer(tmp_path)
    monkeypatch.undo()
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(ValueError, match="Transformers cannot load"):
        open_tokenizer(tmp_path)


def test_nothing_imports_pytorch_or_transformers(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    write(tmp_path, byte_level(), tokenizer_config=NAMED | {"chat_template": template})
    code = f"""
import sys
from draftwood.tokenizer import open_tokenizer
found = open_tokenizer({str(tmp_path)!r})
assert "jinja2" not in sys.modules
tokens = found("the dog").input_ids
assert found.decode(tokens, skip_special_tokens=True) == "the dog"
chat = [{{"role": "user", "content": "the dog"}}]
assert found.apply_chat_template(chat, return_dict=False) == tokens[1:]
from draftwood.grammar import compiler, tools
from draftwood.loading import vocabulary
from draftwood.text import builder, prompts
assert prompts.encode_chat(found, chat) == tokens[1:]
assert prompts.token_ids(found("the dog")) == tokens
import draftwood.tokenizer.gguf
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_may_have_a_name_that_the_locale_cannot_write(tmp_path: Path) -> None:
    write(tmp_path / "modèle 字", byte_level())
    code = """
from pathlib import Path
from draftwood.tokenizer import open_tokenizer
(folder,) = Path.cwd().iterdir()
print(open_tokenizer(folder).encode("the dog", False))
"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    told = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=tmp_path, env=os.environ | plain
    )
    assert json.loads(told.stdout) == opened(tmp_path / "modèle 字").encode("the dog", False)


@pytest.mark.model
def test_the_built_in_tokenizer_is_the_same_as_in_transformers() -> None:
    from draftwood.loading import hub

    folder = hub.resolve("smollm2-135m")
    ours, usual = opened(folder), AutoTokenizer.from_pretrained(folder)
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    assert differences(ours, usual, [*hard_texts(), *texts]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_usual_tokens_begin_with_characters_and_end_with_parts_of_them(kind: str) -> None:
    ours = Tokenizer(tokenizers.Tokenizer.from_str(KINDS[kind]()), NAMED, (), None)
    order = list(dict.fromkeys(usual_tokens(ours)))
    assert sorted(order) == list(range(len(ours)))
    character, parts = (ours.encode(text, False) for text in ("a", "\u8000"))
    assert order.index(character[-1]) < 200
    rare = parts[-1] if kind == "pieces" else ours.all_special_ids[0]
    assert order.index(rare) > len(ours) - 300
