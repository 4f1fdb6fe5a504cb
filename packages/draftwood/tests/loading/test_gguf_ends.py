"""Tokens that end a text or a turn, which many files tell by names and chat template alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from test_gguf_files import build, own_home  # noqa: F401  (a fixture)

import draftwood
from draftwood.loading.gguf_reader import read_content
from gguf_writing import write_gguf

CONTROL, NORMAL, USER_DEFINED = 3, 1, 4
WORDS = ("<s>", "</s>", "<end_of_turn>", "<|end|>", "<|return|>", "a")
KINDS = (CONTROL, CONTROL, CONTROL, CONTROL, NORMAL, NORMAL)


def configured(
    path: Path,
    template: str | None,
    kinds: Sequence[int] = KINDS,
    words: Sequence[str] = WORDS,
    **ids: int,
) -> dict[str, Any]:
    """The configuration of a file of these words, whose texts end with the second one."""
    writer = gguf.GGUFWriter(path, "llama")
    shape = {"context_length": 8, "block_count": 1, "embedding_length": 8}
    shape |= {"feed_forward_length": 8, "attention.head_count": 2}
    for key, value in shape.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*words])
    writer.add_token_types([*kinds])
    writer.add_eos_token_id(1)
    for name, id in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", id)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", np.zeros((len(words), 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_content([path]).config


def ends_of(*given: Any, **ids: int) -> object:
    """The end tokens of such a file."""
    return configured(*given, **ids)["eos_token_id"]


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
    kinds = (CONTROL, CONTROL, NORMAL, CONTROL, NORMAL, NORMAL)
    assert ends_of(tmp_path / "m.gguf", "{{ messages }}<end_of_turn>", kinds) == 1


@pytest.mark.parametrize(
    ("words", "template", "wanted"),
    [
        (("<|endoftext|>", "<|im_end|>", "<|im_start|>"), "<|im_start|>x<|im_end|>", [1, 0]),
        (("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"), "x<|eot_id|>", [1, 2]),
        (
            ("<|endoftext|>", "<|return|>", "<|end|>", "<|call|>", "<|start|>"),
            "<|start|>x<|end|><|return|>",
            [1, 0, 3],
        ),
        (("<bos>", "<end_of_turn>", "<eos>"), None, [1, 2]),
    ],
)
def test_control_tokens_that_end_texts_are_known_by_name(
    words: tuple[str, ...], template: str | None, wanted: list[int], tmp_path: Path
) -> None:
    """Ends of llama.cpp in files like Qwen2.5's, Llama 3.1's, gpt-oss's and Gemma's."""
    path = tmp_path / "m.gguf"
    assert ends_of(path, template, [CONTROL] * len(words), words) == wanted
    assert ends_of(path, None, [NORMAL] * len(words), words) == 1


def test_ends_of_turns_may_be_tokens_of_the_user(tmp_path: Path) -> None:
    kinds = (CONTROL, CONTROL, USER_DEFINED, CONTROL, NORMAL, NORMAL)
    assert ends_of(tmp_path / "m.gguf", "{{ messages }}<end_of_turn>", kinds) == [1, 2]
    assert ends_of(tmp_path / "m.gguf", None, kinds) == 1
    words = ("<pad>", "<eos>", "<|tool_response>", "<turn|>")  # as in Gemma 4
    template = "{{ messages }}<turn|><|tool_response>"
    ends = ends_of(tmp_path / "m.gguf", template, (CONTROL, CONTROL, USER_DEFINED, CONTROL), words)
    assert ends == [1, 2, 3]
    words = ("<s>", "</s>", "<eos>")
    assert ends_of(tmp_path / "m.gguf", None, (CONTROL, CONTROL, USER_DEFINED), words) == 1


def test_ids_beyond_the_vocabulary_are_none(tmp_path: Path) -> None:
    """Files with no padding token tell the greatest number of 32 bits."""
    found = configured(tmp_path / "m.gguf", None, padding=(1 << 32) - 1, eot=len(WORDS), bos=0)
    assert found["pad_token_id"] is None
    assert (found["bos_token_id"], found["eos_token_id"]) == (0, 1)


def test_a_loaded_model_ends_with_both(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, build("llama"), tokenizer={"eot_token_id": 5})
    lm = draftwood.load(str(path), method="plain")
    assert lm.end_tokens == {1, 5}
