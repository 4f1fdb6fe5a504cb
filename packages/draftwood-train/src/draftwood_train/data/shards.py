"""Shards: files of some hundred texts each, written whole or not at all, read piece by piece."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwood.storage.atomic import explain_write_errors, write_file
from draftwood.storage.data_sets import DataFile
from draftwood.storage.safetensors import read_header
from draftwood_train.data.jobs import MadeText
from draftwood_train.data.states import PlaceStates
from draftwood_train.data.texts import TopTokens
from draftwood_train.data.tops import TopForm

AGAIN = "give the command that made the data again; it makes this file anew"
CURE = f"delete it and {AGAIN}"
LOCK = ".lock"
"""File that one process at a time holds: who makes data, or trains."""
STATES, SPREAD = ("codes", "scales", "log_normalizer"), "spread"
_DTYPES = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "F32": np.float32}


@dataclass(frozen=True)
class ShardFacts:
    """Name, size and counts of one shard; there is no file where no prompt gave a text.

    Attributes:
        sha256: of its content, in hex; "" in data of before it was told.
    """

    file: str
    bytes: int
    prompts: int
    texts: int
    held_out_texts: int
    tokens: int
    answer_tokens: int
    sha256: str = ""

    def told(self) -> dict[str, Any]:
        """Facts that are known, by name."""
        return {name: each for name, each in asdict(self).items() if each != ""}


def shard_name(number: int) -> str:
    return f"shard-{number:05d}.safetensors"


def explain_errors(path: Path) -> AbstractContextManager[None]:
    """Turn errors of writing a file into one OSError that says how to continue."""
    again = "name another folder; the same command goes on after the files that are whole"
    return explain_write_errors(path, again)


def write_shard(path: Path, texts: Sequence[MadeText], vocab_size: int) -> None:
    """Store texts in a file.

    Args:
        vocab_size: of the target, which says how many bytes a token takes.

    Raises:
        OSError: where the disk refuses.
    """
    prompts = [text.prompt.encode() for text in texts]
    tensors = {
        "tokens": _int32([token for text in texts for token in text.tokens]),
        "lengths": _int32([len(text.tokens) for text in texts]),
        "answers": _int32([text.answer for text in texts]),
        "is_greedy": torch.tensor([text.is_greedy for text in texts], dtype=torch.uint8),
        "held_out": torch.tensor([text.held_out for text in texts], dtype=torch.uint8),
        "prompts": torch.frombuffer(bytearray(b"".join(prompts)), dtype=torch.uint8),
        "prompt_lengths": _int32([len(prompt) for prompt in prompts]),
    }
    states = [text.states for text in texts if text.states is not None]
    if states:
        tensors |= {name: torch.cat([getattr(each, name) for each in states]) for name in STATES}
        if states[0].spread is not None:
            tensors[SPREAD] = states[0].spread
    tensors |= _packed_tops(texts, vocab_size)
    # one entry alone, as several come in any order
    metadata = {"sources": json.dumps(_told(texts))}

    def fill(partial: Path) -> None:
        save_file(tensors, partial, metadata)
        partial.chmod(0o644)  # safetensors makes it unreadable for others

    write_file(path, fill, explain_errors)


def _packed_tops(texts: Sequence[MadeText], vocab_size: int) -> dict[str, Tensor]:
    """The target's likeliest tokens, each text packed on its own."""
    tops = [text.top for text in texts if text.top is not None]
    if not tops:
        return {}
    form = TopForm.of(tops[0].tokens.shape[1], vocab_size)
    packed = [form.packed(top) for top in tops]
    return {
        "top": torch.frombuffer(bytearray(b"".join(packed)), dtype=torch.uint8),
        "top_lengths": _int32([len(each) for each in packed]),
        "top_form": _int32([form.count, form.id_bytes]),
    }


def _told(texts: Sequence[MadeText]) -> list[str] | dict[str, list[str]]:
    """Source of each text, and beside it the kind where that says more."""
    sources, kinds = [text.source for text in texts], [text.kind for text in texts]
    return sources if kinds == sources else {"sources": sources, "kinds": kinds}


def _int32(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


class Shard:
    """File of texts, read lazily.

    Raises:
        ValueError: for a file that is torn, empty or no shard; the message names it and the cure.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"the shard {path} is not there; {AGAIN}")
        if not path.stat().st_size:
            raise ValueError(f"the shard {path} is empty; {CURE}")
        try:
            self._header = read_header(path)
        except ValueError:
            raise ValueError(f"the shard {path} is torn; {CURE}") from None
        if not {"tokens", "lengths", "answers", "prompts"} <= set(self._header):
            raise ValueError(f"{path} is not a shard of training data; {CURE}")
        self.path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            self._begin = 8 + length
            metadata = json.loads(file.read(length))["__metadata__"]
        told = json.loads(metadata["sources"])
        self.sources: list[str] = told if isinstance(told, list) else told["sources"]
        self.kinds: list[str] = told if isinstance(told, list) else told["kinds"]
        if not self.sources:
            raise ValueError(f"the shard {path} holds no texts; {CURE}")

    def __len__(self) -> int:
        return len(self.sources)

    def require(self, facts: ShardFacts, vocab_size: int) -> None:
        """Raise ValueError unless the file is the one that was written."""
        is_it = (len(self), self.path.stat().st_size) == (facts.texts, facts.bytes)
        if is_it and facts.sha256:
            is_it = DataFile(self.path).sha256 == facts.sha256
        elif is_it:
            tokens, lengths = self.array("tokens"), self.array("lengths")
            is_it = len(tokens) == lengths.sum() and 0 <= tokens.min() <= tokens.max() < vocab_size
        if not is_it:
            raise ValueError(f"the shard {self.path} is not what was written there; {CURE}")

    @cached_property
    def _bytes(self) -> np.ndarray:
        return np.memmap(self.path, mode="r")

    def array(self, name: str) -> np.ndarray:
        """One of the tensors, mapped into memory; it is read only."""
        entry = self._header[name]
        first, last = (self._begin + offset for offset in entry["data_offsets"])
        return self._bytes[first:last].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])

    @property
    def has_states(self) -> bool:
        return set(STATES) <= set(self._header)

    @property
    def has_tops(self) -> bool:
        return "top" in self._header

    @cached_property
    def _spread(self) -> Tensor | None:
        return torch.from_numpy(self.array(SPREAD).copy()) if SPREAD in self._header else None

    @cached_property
    def held_out(self) -> np.ndarray:
        return self.array("held_out").astype(bool)

    @cached_property
    def ends(self) -> np.ndarray:
        """Place after the last token of each text."""
        return np.cumsum(self.array("lengths"), dtype=np.int64)

    def places(self, text: int) -> slice:
        """Slice of the shard that holds the tokens of a text."""
        end = int(self.ends[text])
        return slice(end - int(self.array("lengths")[text]), end)

    def prompt_texts(self) -> list[str]:
        """Prompt of each text."""
        packed, found, start = self.array("prompts").tobytes(), [], 0
        for length in self.array("prompt_lengths").tolist():
            found.append(packed[start : start + length].decode())
            start += length
        return found

    @cached_property
    def _top_ends(self) -> np.ndarray:
        return np.cumsum(self.array("top_lengths"), dtype=np.int64)

    def top(self, text: int) -> TopTokens | None:
        """The target's likeliest tokens at a text's answer; None where they are not stored.

        Raises:
            ValueError: where they are damaged.
        """
        if not self.has_tops:
            return None
        end = int(self._top_ends[text])
        packed = self.array("top")[end - int(self.array("top_lengths")[text]) : end].tobytes()
        places = int(self.array("lengths")[text]) - int(self.array("answers")[text]) + 1
        try:
            return TopForm(*self.array("top_form").tolist()).unpacked(packed, places)
        except ValueError as error:
            raise ValueError(f"the shard {self.path} is torn: {error}; {CURE}") from None

    def states(self, text: int) -> PlaceStates:
        """The stored states of a text."""
        places = self.places(text)
        parts = (torch.from_numpy(self.array(name)[places].copy()) for name in STATES)
        return PlaceStates(*parts, spread=self._spread)
