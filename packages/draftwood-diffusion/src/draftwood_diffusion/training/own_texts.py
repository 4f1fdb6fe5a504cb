"""Texts that a model writes itself, in shards that the same seed writes again."""

import json
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt

from draftwood.storage.atomic import write_file
from draftwood.storage.weights import settings_or_none
from draftwood.text.prompts import encode_text
from draftwood_train.data.write import BatchWriter, Request, Written

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

TOLD = "texts.json"
SHARD_TEXTS = 512
Shard = tuple[UInt[np.ndarray, " tokens"], UInt[np.ndarray, " texts"]]
"""Tokens of texts one behind the other, and the length of each."""


@dataclass(frozen=True)
class OwnTexts:
    """Folder of texts that a model wrote at temperature 1, each behind what begins texts.

    Attributes:
        folder: holds the shards.
        model: its name, as it was loaded.
        longest: most tokens of a text, with the token that begins it.
        seed: text number n is drawn with seed + n.
        weights: that tell the model from others of its name; None where nobody says.
    """

    folder: Path
    model: str
    longest: int
    seed: int = 0
    weights: str | None = None

    @property
    def held(self) -> list[Path]:
        """Shards that are whole, up to the first one that is missing."""
        return list(takewhile(Path.is_file, map(self._path, count())))

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.npz"

    @property
    def tokens(self) -> int:
        """Tokens of the shards held."""
        return sum(len(read_shard(path)[0]) for path in self.held)

    def require(self) -> None:
        """Note who wrote the folder, or refuse one that another model or seed wrote.

        Raises:
            ValueError: naming what differs.
        """
        own = {name: each for name, each in asdict(self).items() if name != "folder"}
        told = {name: each for name, each in own.items() if each is not None}
        require_same(self.folder / TOLD, told)

    def write(self, lm: "LanguageModel", tokens: int, at_once: int = 64) -> Iterator[int]:
        """Write shards until there are so many tokens; yields how many there are.

        A run that was killed goes on at the first shard that is missing.

        Raises:
            ValueError: as ``beginning`` and ``require``.
        """
        begin = beginning(lm)
        self.require()
        total = self.tokens
        while total < tokens:
            self._write_shard(lm, begin, len(self.held), at_once)
            total = self.tokens
            yield total

    def _write_shard(
        self, lm: "LanguageModel", begin: tuple[int, ...], number: int, at_once: int
    ) -> None:
        def text(seed: int) -> Generator[Request, Written, tuple[int, ...]]:
            room = self.longest - len(begin)
            made = yield Request(begin, room, lm.end_tokens, seed, keeps_states=False)
            return made.tokens

        first = number * SHARD_TEXTS
        seeds = range(self.seed + first, self.seed + first + SHARD_TEXTS)
        writer = BatchWriter(lm.model, at_once, self.longest + 1, None)
        with closing(writer.run((each, text(each)) for each in seeds)) as running:
            found = dict(running)
        texts = [found[each] for each in seeds]
        kind = np.uint16 if lm.model.vocab_size <= 1 << 16 else np.uint32
        tokens = np.array([token for each in texts for token in each], kind)
        lengths = np.array([len(each) for each in texts], np.uint32)

        def fill(partial: Path) -> None:
            with partial.open("wb") as file:
                np.savez_compressed(file, tokens=tokens, lengths=lengths)

        write_file(self._path(number), fill)


def beginning(lm: "LanguageModel") -> tuple[int, ...]:
    """Tokens that begin a text of a model: those of the empty prompt, else its begin token, else
    its end token, which separates documents where there is no other.

    Raises:
        ValueError: for a model that has neither.
    """
    if begin := encode_text(lm.tokenizer, ""):
        return tuple(begin)
    folder = lm.calibration.folder
    told = {} if folder is None else settings_or_none(Path(folder) / "config.json") or {}
    bos, eos = (getattr(lm.tokenizer, f"{name}_token_id", None) for name in ("bos", "eos"))
    for token in (bos, told.get("bos_token_id"), eos, *sorted(lm.end_tokens)):
        if token is not None:
            return (token,)
    raise ValueError(
        f"{lm.name} has no token that begins or ends a text; name its bos_token or eos_token in"
        " tokenizer_config.json"
    )


def note(path: Path, told: Mapping[str, Any]) -> None:
    """Write in a file what its folder is made with."""
    write_file(path, json.dumps(told, indent=1) + "\n")


def require_same(path: Path, told: Mapping[str, Any]) -> None:
    """Note in a file what its folder was made with, or refuse another; what an older file does not
    tell may differ.

    Raises:
        ValueError: naming what differs.
    """
    if not path.is_file():
        note(path, told)
        return
    held = json.loads(path.read_text(encoding="utf-8"))
    for name, each in told.items():
        if held.get(name, each) != each:
            raise ValueError(
                f"{path.parent} was begun with {name} {held[name]}, not {each}; give the same,"
                " or another folder"
            )


def read_shard(path: Path) -> Shard:
    """Read the texts of a shard.

    Raises:
        ValueError: for a file that is damaged.
    """
    try:
        with path.open("rb") as file, np.load(file) as held:
            return held["tokens"], held["lengths"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}); delete it and give the same command:"
            " it writes the file again"
        ) from None
