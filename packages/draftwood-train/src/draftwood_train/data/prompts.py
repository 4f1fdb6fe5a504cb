"""Prompts that were collected: from public data sets, and from files of the user's own."""

import hashlib
import json
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwood.storage.data_sets import DataFile
from draftwood_train.data.barred import Bars, is_held_out
from draftwood_train.data.composed import composed
from draftwood_train.data.sources import SOURCES, PromptSource, require_allowed
from draftwood_train.data.templates import about_passage, after_question

OTHERWISE = "or give prompts of your own with --prompts FILE"
MEASURED = Path("spec_bench/question.jsonl")
ASK_FOR_NUMBERS = ("gsm8k", "svamp")


@dataclass(frozen=True)
class CollectedPrompt:
    """One prompt of a user, and the set it comes from.

    Attributes:
        kind: of the task; "" where none is known.
        follow_ups: what the user asks next about each answer.
        held_out: the split; None leaves it to the hash of the text.
    """

    text: str
    source: str
    kind: str = ""
    follow_ups: tuple[str, ...] = ()
    held_out: bool | None = None

    @property
    def is_held_out(self) -> bool:
        return is_held_out(self.text) if self.held_out is None else self.held_out


def number_of(*parts: object) -> int:
    """A number of 63 bits that belongs to these parts, the same on every machine."""
    packed = json.dumps([str(part) for part in parts]).encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


def measured_prompts() -> list[str]:
    """Prompts of the measurements; a warning and none where their file is not there."""
    try:
        rows = list(DataFile.named(MEASURED, OTHERWISE).rows())
    except FileNotFoundError:
        warnings.warn(
            f"there is no {MEASURED} in $DRAFTWOOD_DATA, so prompts are not compared with those"
            " that drafters are measured on",
            stacklevel=2,
        )
        return []
    return [turn for row in rows for turn in row["turns"]]


def digest_of(measured: Sequence[str]) -> str:
    """SHA-256 of measured prompts, in hex; "none" where there are none."""
    packed = json.dumps(list(measured)).encode()
    return hashlib.sha256(packed).hexdigest() if measured else "none"


def collect(
    sets: Sequence[str], files: Sequence[Path], seed: int, bars: Bars
) -> list[CollectedPrompt]:
    """All prompts of these sets and files in a mixed order; held-out ones bar others first.

    Raises:
        OSError: where a set or file is not there.
        ValueError: for a set that may not be used, and a broken file.
    """
    require_allowed(tuple(sets))
    kinds: dict[str, tuple[float, list[str]]] = {}
    for name in sets:
        source = SOURCES[name]
        kinds[name] = (source.weight, _asked(name, source, seed))
    for path in files:
        kinds[str(path)] = (2.0, list(_own(path)))

    mixed = _mixed(kinds, seed)
    admitted: dict[int, bool] = {}
    for wants_held_out in (True, False):  # else a training prompt could drive a held-out one away
        for place, prompt in enumerate(mixed):
            if is_held_out(prompt.text) == wants_held_out:
                admitted[place] = bars.admits(prompt.text)
    if mixed and not any(admitted.values()):
        raise ValueError(
            f"all {len(mixed)} prompts are among those that drafters are measured on; give other"
            " prompts"
        )
    return [prompt for place, prompt in enumerate(mixed) if admitted[place]]


def licences(sets: Sequence[str], files: Sequence[Path], of_files: str) -> dict[str, dict]:
    """Licence and origin of each source, as recorded in the manifest."""
    known = {
        name: {"licence": SOURCES[name].licence, "origin": SOURCES[name].origin} for name in sets
    }
    own = {str(path): {"licence": of_files, "origin": "a file of the user's own"} for path in files}
    return known | own


def files_of(name: str) -> list[Path]:
    """Files of a set; raises FileNotFoundError where one is not in ``$DRAFTWOOD_DATA``."""
    otherwise = f"leave {name} out with --sets, {OTHERWISE}"
    return [DataFile.named(file, otherwise).path for file in SOURCES[name].files]


def _asked(name: str, source: PromptSource, seed: int) -> list[str]:
    if source.read is None:
        return list(composed(seed))
    found = []
    for file, path in zip(source.files, files_of(name), strict=True):
        for number, text in enumerate(source.read(path)):
            rng = random.Random(number_of(seed, "wording", name, file, number))
            if source.is_passages:
                text = about_passage(text, rng)
            elif name in ASK_FOR_NUMBERS:
                text = after_question(text, rng)
            found.append(text)
    return found


def _mixed(kinds: Mapping[str, tuple[float, list[str]]], seed: int) -> list[CollectedPrompt]:
    """Each set shuffled, and all sets merged by their weights as long as they last."""
    keyed: list[tuple[float, str, str]] = []
    for name, (weight, texts) in kinds.items():
        rng = random.Random(number_of(seed, "order", Path(name).name))  # wherever a file lies
        rng.shuffle(texts)
        keyed += [((place + rng.random()) / weight, name, text) for place, text in enumerate(texts)]
    return [CollectedPrompt(text, name) for _, name, text in sorted(keyed)]


def _own(path: Path) -> Iterator[str]:
    """The first turns of a file of JSON Lines with ``prompt``, ``messages`` or ``turns``."""
    if not path.is_file():
        what = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        raise FileNotFoundError(f"{what}; --prompts takes a file of JSON Lines")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save it as UTF-8") from None
    found = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if "turns" in row:
                text = row["turns"][0]
            elif "messages" in row:
                text = next(m["content"] for m in row["messages"] if m["role"] == "user")
            else:
                text = row["prompt"]
            if not isinstance(text, str) or not text.strip():
                raise ValueError("it is empty or no text")
            if re.search("[\ud800-\udfff]", text):
                raise ValueError("it holds half of a surrogate pair")
        except (ValueError, LookupError, TypeError, StopIteration, RecursionError) as error:
            raise ValueError(
                f"{path}:{number}: no prompt ({' '.join(str(error).split())[:80]}); a line is an"
                " object with prompt, messages or turns"
            ) from None
        found = True
        yield text
    if not found:
        raise ValueError(
            f"{path} holds no prompts; a line is an object with prompt, messages or turns"
        )
