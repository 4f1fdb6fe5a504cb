"""Tokens that end a turn, which many files tell by their chat template alone."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from test_gguf_files import build, own_home  # noqa: F401  (a fixture)

import draftwood
from draftwood.loading.gguf_reader import read_content
from gguf_writing import write_gguf

CONTROL, NORMAL = 3, 1
WORDS = ("<s>", "</s>", "<end_of_turn>", "<|end|>", "<|return|>", "a")
KINDS = (CONTROL, CONTROL, CONTROL, CONTROL, CONTROL, NORMAL)


def ends_of(path: Path, template: str | None, kinds: Any = KINDS, **ids: int) -> object:
    """The end tokens of a file of these words, whose texts end with the second one."""
    writer = gguf.GGUFWriter(path, "llama")
    shape = {"context_length": 8, "block_count": 1, "embedding_length": 8}
    shape |= {"feed_forward_length": 8, "attention.head_count": 2}
    for key, value in shape.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types(kinds)
    writer.add_eos_token_id(1)
    for name, id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", id)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", np.zeros((len(WORDS), 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_content([path]).config["eos_token_id"]


@pytest.mark.parametrize(
    ("template", "ids", "wanted"),
    [
        (None, {}, 1),
        ("{{ messages }}", {}, 1),
        ("{{ messages }}</s>", {}, 1),
        ("{{ messages }}<end_of_turn>", {}, [1, 2]),
        ("{{ messages }}<|end|>", {}, [1, 3]),
        ("<|end|>{{ messages }}<|return|>", {}, 1),  # an end of a message in gpt-oss
        (None, {"eot": 2}, [1, 2]),
        ("{{ messages }}<end_of_turn>", {"eot": 2, "eom": 3}, [1, 2, 3]),
        (None, {"eot": 1}, 1),
    ],
)
def test_ends_are_those_of_texts_and_turns(
    template: str | None, ids: dict[str, int], wanted: object, tmp_path: Path
) -> None:
    assert ends_of(tmp_path / "m.gguf", template, **ids) == wanted


def test_a_usual_token_ends_no_turn(tmp_path: Path) -> None:
    kinds = (CONTROL, CONTROL, NORMAL, CONTROL, CONTROL, NORMAL)
    assert ends_of(tmp_path / "m.gguf", "{{ messages }}<end_of_turn>", kinds) == 1


def test_a_loaded_model_ends_with_both(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, build("llama"), tokenizer={"eot_token_id": 5})
    lm = draftwood.load(str(path), method="plain")
    assert lm.end_tokens == {1, 5}
