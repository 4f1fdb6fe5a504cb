"""A datastore's file: a sorted index and what it was made of, written whole or not at all."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from draftwood.sources.datastore import Datastore
from draftwood.sources.token_index import TokenIndex
from draftwood.storage.atomic import explain_write_errors, write_file
from draftwood.storage.private import private_copy
from draftwood.storage.safetensors import is_cut_short, map_arrays, read_header, write_arrays
from draftwood.validation import require_file, require_kind

FORMAT, VERSION = "draftwood-datastore", 1
AGAIN = "build it again with 'draftwood datastore build'"
SAYS, CHECKSUM = "says", "sha256"
ARRAYS = tuple(each.name for each in fields(TokenIndex))
TYPES = (np.int32, np.int32, np.int32, np.uint8)


@dataclass(frozen=True)
class StoreFacts:
    """Facts that a datastore states of itself.

    Attributes:
        model: by whose tokenizer its tokens were made, as it was named.
        vocabulary: digest of the tokenizer's vocabulary.
        texts: files that it holds.
        tokens: of them all.
        characters: likewise.
    """

    model: str
    vocabulary: str
    texts: int
    tokens: int
    characters: int


@dataclass(frozen=True, eq=False)
class StoredIndex:
    """A datastore's file that was opened.

    Attributes:
        facts: what it says of itself.
        index: the texts; its arrays are mapped, so that memory holds what is looked up.
    """

    facts: StoreFacts
    index: TokenIndex

    def source(self, vocabulary: str, vocab_size: int) -> Datastore:
        """The texts as a source of drafts.

        Args:
            vocabulary: digest of that of the model to draft for.
            vocab_size: of that model.

        Raises:
            ValueError: where these are tokens of another tokenizer.
        """
        if self.facts.vocabulary != vocabulary or self.index.largest >= vocab_size:
            raise ValueError(
                f"the datastore holds tokens of another tokenizer, that of {self.facts.model};"
                " build one with 'draftwood datastore build' and the --model that it is for"
            )
        return Datastore(self.index)


def require_place(path: Path) -> None:
    """Refuse to write a datastore where something else is, or no folder can be.

    Raises:
        OSError: where the disk refuses.
        ValueError: for what is there and is no datastore.
    """
    free = not path.exists() or (path.is_file() and not path.stat().st_size)
    if not free and not (path.is_file() and is_datastore(path)):
        raise ValueError(f"{path} holds something else than a datastore; choose another --output")
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_index(path: Path, stored: StoredIndex) -> None:
    """Write a datastore's file; it takes the place of one that is there.

    Raises:
        OSError: where the disk refuses.
        ValueError: for what is there and is no datastore.
    """
    require_place(path)
    arrays = dict(zip(ARRAYS, _arrays(stored.index), strict=True))
    says = {"format": FORMAT, "version": VERSION, **asdict(stored.facts)}
    told = json.dumps({**says, CHECKSUM: _checksum(says, arrays)})
    write_file(path, lambda partial: write_arrays(partial, arrays, {SAYS: told}), _explained)


def open_datastore(datastore: str | Path | StoredIndex | None) -> StoredIndex | None:
    """The datastore in a file; one that was opened stays as it is, and None is none.

    Raises:
        TypeError: for what names no file.
        FileNotFoundError, ValueError: as ``read_index``.
    """
    wanted = "a datastore's file, or what open_datastore gave"
    require_kind("datastore", datastore, (str, Path, StoredIndex), wanted)
    return read_index(Path(datastore)) if isinstance(datastore, (str, Path)) else datastore


def read_index(path: Path) -> StoredIndex:
    """Open a datastore's file and compare it with its checksum, a second per gigabyte.

    What is mapped is a copy, which the disk shares where it can: a file that is cut short while it
    is mapped ends the process.

    Raises:
        FileNotFoundError: where there is none.
        ValueError: for a file that is none, of another version, cut short or changed.
    """
    require_file(path, "datastore")
    try:
        with private_copy(path) as copy:
            read_header(copy)
            with safe_open(copy, "np") as file:
                metadata = file.metadata() or {}
            arrays = map_arrays(copy)
    except (SafetensorError, ValueError):
        if is_datastore(path):
            what = "cut short" if is_cut_short(path) else "changed since it was built"
            raise ValueError(f"the datastore {path} was {what}; {AGAIN}") from None
        raise ValueError(f"{path} is no datastore of draftwood; {AGAIN}") from None
    says = _said(path, metadata)
    if says.pop(CHECKSUM, None) != _checksum(says, arrays):
        raise ValueError(f"the datastore {path} was changed since it was built; {AGAIN}")
    facts = StoreFacts(**{each.name: says[each.name] for each in fields(StoreFacts)})
    return StoredIndex(facts, TokenIndex(*(arrays[name] for name in ARRAYS)))


def is_datastore(path: Path) -> bool:
    """True if a file begins as datastores do, whole or not."""
    with path.open("rb") as file:
        return FORMAT.encode() in file.read(4096)


def _said(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        says = json.loads(metadata[SAYS])
    except (KeyError, ValueError):
        raise ValueError(f"{path} is no datastore of draftwood; {AGAIN}") from None
    if says.get("format") != FORMAT:
        raise ValueError(f"{path} is no datastore of draftwood; {AGAIN}")
    if says.get("version") != VERSION:
        raise ValueError(
            f"the datastore {path} is of version {says.get('version')}, this draftwood reads"
            f" {VERSION}; {AGAIN}"
        )
    return says


def _checksum(says: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """The SHA-256 of all that a file holds."""
    digest = hashlib.sha256(json.dumps(says, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data.cast("B"))
    return digest.hexdigest()


def _arrays(index: TokenIndex) -> list[np.ndarray]:
    return [
        np.ascontiguousarray(getattr(index, name), dtype=kind)
        for name, kind in zip(ARRAYS, TYPES, strict=True)
    ]


def _explained(path: Path) -> AbstractContextManager[None]:
    return explain_write_errors(path, "name another --output")
