"""Cut a vocabulary down to the tokens in use, and add the mask token."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from tokenizers import pre_tokenizers

TOKENIZER = "tokenizer.json"
MASK = "<mask>"


@dataclass(frozen=True)
class CutVocabulary:
    """Tokens that are kept, and the tokenizer that knows them alone.

    Attributes:
        kept: their numbers before, ascending; their place is their number now. The mask token
            comes behind them.
        tokenizer: content of tokenizer.json.
    """

    kept: tuple[int, ...]
    tokenizer: Mapping[str, Any]

    @property
    def mask_token(self) -> int:
        return len(self.kept)

    @property
    def size(self) -> int:
        """Number of tokens, with the mask."""
        return len(self.kept) + 1

    def rows(self, table: np.ndarray) -> np.ndarray:
        """Rows of an embedding or an output head for the tokens now; the mask's is the mean."""
        own = table[list(self.kept)]
        return np.concatenate([own, own.mean(0, keepdims=True, dtype=np.float64)]).astype(
            table.dtype
        )


def whole_vocabulary(told: Mapping[str, Any], size: int) -> CutVocabulary:
    """All tokens of a vocabulary of byte pairs, and the mask."""
    return _cut(told, range(size))


def cut_vocabulary(told: Mapping[str, Any], used: Iterable[int], size: int) -> CutVocabulary:
    """Keep the tokens in use, those that spell anything, and all that byte pairs merge on the way.

    A text of tokens in use is split into the same tokens as before: the merges that make them are
    all kept, and of those that are left, none comes first that did not before.

    Args:
        told: content of tokenizer.json, of byte pairs.
        used: numbers of tokens.
        size: of the model's vocabulary; the tokenizer may know more tokens.

    Raises:
        ValueError: for another kind of tokenizer.
    """
    model = told["model"]
    if model["type"] != "BPE":
        raise ValueError(
            f"a vocabulary is cut where the tokenizer merges byte pairs (BPE), not {model['type']};"
            " keep all tokens with --whole-vocabulary"
        )
    vocab: dict[str, int] = model["vocab"]
    pieces = {number: piece for piece, number in vocab.items()}
    special = {each["id"] for each in told.get("added_tokens") or ()}
    letters = set(pre_tokenizers.ByteLevel.alphabet()) if _is_of_bytes(told) else set[str]()
    spelling = {n for piece, n in vocab.items() if piece in letters or _spells(piece)}
    ranks = {pair: rank for rank, pair in enumerate(map(_pair, model["merges"]))}
    kept = special | spelling
    for number in set(used) - special:
        kept.update(vocab[part] for part in _made_on_the_way(pieces[number], ranks, vocab))
        kept.add(number)
    return _cut(told, sorted(number for number in kept if number < size))


def _cut(told: Mapping[str, Any], kept: Sequence[int]) -> CutVocabulary:
    model, now = told["model"], {before: number for number, before in enumerate(kept)}
    vocab = {piece: now[number] for piece, number in model["vocab"].items() if number in now}
    merges = [
        pair
        for pair in model["merges"]
        if all(part in vocab for part in (*_pair(pair), "".join(_pair(pair))))
    ]
    added = [
        {**each, "id": now[each["id"]]}
        for each in told.get("added_tokens") or ()
        if each["id"] in now
    ]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added.append({"id": len(kept), "content": MASK, **flags, "special": True})
    content = {**told, "added_tokens": added, "model": {**model, "vocab": vocab, "merges": merges}}
    return CutVocabulary(tuple(kept), _renumbered(content, now))


def _renumbered(told: dict[str, Any], now: Mapping[int, int]) -> dict[str, Any]:
    """Give the special tokens of templates their numbers."""
    after = told.get("post_processor")
    return {**told, "post_processor": _processor(after, now)} if after else told


def _processor(told: Mapping[str, Any], now: Mapping[int, int]) -> dict[str, Any]:
    found = dict(told)
    if told.get("processors"):
        found["processors"] = [_processor(each, now) for each in told["processors"]]
    if told.get("special_tokens"):
        found["special_tokens"] = {
            name: {**each, "ids": [now[number] for number in each["ids"]]}
            for name, each in told["special_tokens"].items()
        }
    return found


def _is_of_bytes(told: Mapping[str, Any]) -> bool:
    """True if each byte of a text has a letter in the vocabulary."""
    parts = [told.get("pre_tokenizer"), told.get("decoder")]
    while parts:
        part = parts.pop() or {}
        if part.get("type") == "ByteLevel":
            return True
        parts += [*part.get("pretokenizers", ()), *part.get("decoders", ())]
    return False


def _spells(piece: str) -> bool:
    """True if a piece is one character of ASCII, a space's stand-in, or a byte."""
    is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
    return is_byte or piece in ("\u2581", "\u0120") or (len(piece) == 1 and piece.isascii())


def _pair(merge: Any) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _made_on_the_way(
    piece: str, ranks: Mapping[tuple[str, str], int], vocab: Mapping[str, int]
) -> set[str]:
    """Pieces that byte pairs merge until they have made this one, with its characters."""
    parts = [each for each in piece if each in vocab]
    if len(parts) != len(piece):
        return set()  # a byte or a special token, which no merge makes
    seen = set(parts)
    while len(parts) > 1:
        pairs = [(ranks.get(pair, len(ranks)), place) for place, pair in enumerate(_pairs(parts))]
        rank, place = min(pairs)
        if rank == len(ranks):
            break
        parts[place : place + 2] = ["".join(parts[place : place + 2])]
        seen.add(parts[place])
    return seen


def _pairs(parts: Sequence[str]) -> Iterable[tuple[str, str]]:
    return pairwise(parts)


def numbers_between(
    theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> Int[np.ndarray, " vocab"]:
    """Numbers of their tokens in our vocabulary, by what they spell; -1 for those that it lacks."""
    first, second = (_numbers_of(each) for each in (theirs, ours))
    found = np.full(max(first.values()) + 1, -1, np.int64)
    for piece, number in first.items():
        found[number] = second.get(piece, -1)
    return found


def _numbers_of(told: Mapping[str, Any]) -> dict[str, int]:
    added = {each["content"]: each["id"] for each in told.get("added_tokens") or ()}
    return {**told["model"]["vocab"], **added}


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Read tokenizer.json of a folder.

    Raises:
        FileNotFoundError: where there is none.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}; a model is converted with a tokenizer.json beside its weights"
        )
    return json.loads(path.read_text(encoding="utf-8"))
