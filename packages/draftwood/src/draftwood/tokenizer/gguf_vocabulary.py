"""Read what a GGUF file says of its tokenizer."""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.tokenizer.chat_template import DEFAULT, TOOL_USE, every

PREFIX, TEMPLATE = "tokenizer.ggml.", "tokenizer.chat_template"
NAMED = re.compile(re.escape(TEMPLATE) + r"\.(\w+)", re.ASCII)
"""Keys of further templates, with their names as llama.cpp's converter writes them."""

NUMBERS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
"""NumPy's names of GGUF's types of numbers."""

TEXT, LIST = 8, 9
HEADER = 24
"""Bytes before the first key: the mark, the version, how many tensors and keys follow."""

MOST = 1 << 24
"""Entries of a list; no vocabulary has as many."""

LONGEST = 1 << 12
"""Bytes of a token: looking for the ways to make it takes the square of its length."""

UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Types of tokens: that of what has no other, those that are found in a text before it is split,
and those that no text has."""

LISTS = ("tokens", "token_type", "scores")
"""Lists in which a file tells of each token."""

SPECIAL = {
    **{"bos": ("bos",), "eos": ("eos",), "unk": ("unknown",), "pad": ("padding",)},
    "fim_prefix": ("fim_pre", "prefix"),
    "fim_suffix": ("fim_suf", "suffix"),
    "fim_middle": ("fim_mid", "middle"),
}
"""Names of special tokens, and llama.cpp's, the older ones last."""

ENDS_OF_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>", "<eos>")
"""Control tokens that end a text whatever the file says, as in llama.cpp."""

ENDS_OF_TURNS = (
    *("<end_of_turn>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<turn|>"),
    *("<end_of_utterance>", "<EOT>", "[EOT]", "<|tool_response>"),
)
"""Tokens that end a turn where the chat template writes them; many files do not name their own.
With the last one Gemma 4 asks for what its call of a tool gives."""


@dataclass(frozen=True)
class StoredVocabulary:
    """Facts that a file tells of its tokenizer.

    Attributes:
        told: metadata whose keys begin with ``tokenizer.ggml``, without that.
        chat_template: of the model, or several by name; None where it has none.
    """

    told: Mapping[str, Any]
    chat_template: str | Mapping[str, str] | None = None

    @property
    def kind(self) -> str:
        """llama.cpp's name of the way to split words."""
        return self.told.get("model", "")

    @property
    def tokens(self) -> list[str]:
        """All tokens in the order of their ids."""
        return self.told["tokens"]

    @property
    def size(self) -> int:
        """Count of all tokens; 0 for a file that has none."""
        return len(self.told.get("tokens", ()))

    def within(self, rows: int | None) -> "StoredVocabulary":
        """The same without tokens that have no row in the model's embedding.

        llama.cpp's converter, too, leaves these out where no text has them.

        Args:
            rows: None for as many as there are tokens.

        Raises:
            ValueError: for tokens of texts among them.
        """
        if rows is None or self.size <= rows:
            return self
        types = self.told.get("token_type", ())
        if not {*types[rows:]} <= {CONTROL, USER_DEFINED, UNUSED} or len(types) < self.size:
            raise ValueError(
                f"its tokenizer has {self.size} tokens and its embedding {rows} rows, of which"
                " texts need more"
            )
        lists = {key: self.told[key][:rows] for key in LISTS if key in self.told}
        return replace(self, told={**self.told, **lists})

    def of_type(self, wanted: int) -> list[str]:
        """Tokens of a type."""
        types = self.told.get("token_type", ())
        tokens = self.told.get("tokens", ())
        return [token for token, each in zip(tokens, types, strict=False) if each == wanted]

    def special(self) -> dict[str, str]:
        """Special tokens by their names; ids beyond the vocabulary mean that there is none."""
        found = {
            name: [
                id for key in keys if 0 <= (id := self.told.get(f"{key}_token_id", -1)) < self.size
            ]
            for name, keys in SPECIAL.items()
        }
        return {f"{name}_token": self.tokens[ids[0]] for name, ids in found.items() if ids}

    def ends(self) -> list[int]:
        """Ids of tokens that end a text, or a turn by the chat template."""
        ends = {*self.turn_ends(), *ENDS_OF_TEXTS}.intersection(self.of_type(CONTROL))
        ends |= self.turn_ends().intersection(self.of_type(USER_DEFINED))
        return [id for id, token in enumerate(self.tokens) if token in ends] if ends else []

    def turn_ends(self) -> set[str]:
        """Ends of turns that the chat template writes; they need not be tokens."""
        template = "\n".join(every(self.chat_template))
        found = {each for each in ENDS_OF_TURNS if each in template}
        if "<|return|>" in template:
            found.discard("<|end|>")  # in gpt-oss, which ends a message of several with it
        return found


def read_vocabulary(path: Path) -> StoredVocabulary:
    """Read the metadata of a file's tokenizer; what is damaged raises errors of many types."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        told = _KeyReader(content).read()
    ours = {key.removeprefix(PREFIX): each for key, each in told.items() if key.startswith(PREFIX)}
    return StoredVocabulary(ours, _templates(told))


def _templates(told: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Chat templates of a file; as in llama.cpp that for tools is the usual one too where there is
    no other.
    """
    found = {name[1]: each for key, each in told.items() if (name := NAMED.fullmatch(key))}
    usual = told.get(TEMPLATE, found.get(DEFAULT, found.get(TOOL_USE)))
    if usual is not None:
        found[DEFAULT] = usual
    return usual if {*found.values()} == {usual} else found or None


class _KeyReader:
    """Walks through the keys of a file."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at = content, HEADER

    def read(self) -> dict[str, Any]:
        """All keys that tell of the tokenizer."""
        (count,) = struct.unpack_from("<Q", self._content, 16)
        found = {}
        for _ in range(count):
            key, kind = self._text(), self._number("<I", 4)
            value = self._value(kind)
            if key.startswith((PREFIX, TEMPLATE)):
                found[key] = value
        return found

    def _number(self, form: str, size: int) -> int:
        (found,) = struct.unpack_from(form, self._content, self._at)
        self._at += size
        return found

    def _text(self, most: int | None = None) -> str:
        size = self._number("<Q", 8)
        if most is not None and size > most:
            raise ValueError(f"a token has {size} bytes")
        begin, self._at = self._at, self._at + size
        if self._at > len(self._content):
            raise ValueError("a text goes beyond the end")
        try:
            return self._content[begin : self._at].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"a text at byte {begin} is not UTF-8") from error

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind != LIST:
            return self._numbers(kind, 1)[0]
        of, count = self._number("<I", 4), self._number("<Q", 8)
        if count > MOST:
            raise ValueError(f"a list has {count} entries")
        if of == TEXT:
            return [self._text(LONGEST) for _ in range(count)]
        return self._numbers(of, count)

    def _numbers(self, kind: int, count: int) -> list[Any]:
        form = np.dtype(NUMBERS[kind])
        found = np.frombuffer(self._content, form, count, self._at).tolist()
        self._at += count * form.itemsize
        return found
