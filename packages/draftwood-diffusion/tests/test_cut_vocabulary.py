"""A vocabulary that is cut down still spells every text."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from conversions import tokenizer_told
from draftwood.text.prompts import encode_text
from draftwood.tokenizer import open_tokenizer
from draftwood_diffusion.training.vocabulary import cut_vocabulary

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def byte_level(**more: Any) -> dict[str, Any]:
    """Content of a tokenizer.json whose vocabulary holds a letter for each byte."""
    told: dict[str, Any] = tokenizer_told()
    letters = [each for each in sorted(pre_tokenizers.ByteLevel.alphabet()) if each not in "abcde"]
    vocab = told["model"]["vocab"]
    vocab |= {letter: len(vocab) + number for number, letter in enumerate(letters)}
    return {**told, **more}


@pytest.mark.parametrize(
    "more",
    [
        {"pre_tokenizer": BYTES, "decoder": BYTES},
        {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]},
            "decoder": {"type": "Sequence", "decoders": [BYTES]},
        },
    ],
)
def test_a_cut_vocabulary_of_bytes_spells_what_its_texts_did_not_hold(
    more: dict[str, Any], tmp_path: Path
) -> None:
    cut = cut_vocabulary(byte_level(**more), [10], 1000)
    assert cut.size == 3 + 256 + 3 + 1  # special tokens, letters, ab, cd and abcd, the mask
    (tmp_path / "tokenizer.json").write_text(json.dumps(cut.tokenizer))
    text = "abcd naïve 今 😀 \x7f"
    kept = open_tokenizer(tmp_path)
    found = encode_text(kept, text, add_special_tokens=False)
    assert kept.decode(found) == text


def test_letters_of_bytes_are_none_where_a_tokenizer_reads_characters() -> None:
    assert cut_vocabulary(byte_level(), [10], 1000).size < 3 + 256


def test_a_template_among_other_processors_has_the_numbers_now(tmp_path: Path) -> None:
    told: dict[str, Any] = tokenizer_told()
    words = told["model"]["vocab"]
    words["<s>"], words["ea"] = words["ea"], 1  # the begin token is the last one
    told["added_tokens"][1]["id"] = told["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 11
    told["post_processor"] = {"type": "Sequence", "processors": [BYTES, told["post_processor"]]}
    cut = cut_vocabulary(told, [], 1000)
    (tmp_path / "tokenizer.json").write_text(json.dumps(cut.tokenizer))
    assert encode_text(open_tokenizer(tmp_path), "") == [cut.kept.index(11)]
