"""Prompts: draftwood's own, data sets where present, and any JSONL file."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from draftwood.storage.data_sets import DataFile
from draftwood_bench.plan.data_sets import DATA_SETS
from draftwood_bench.plan.prompt import Prompt, number_of

BUILT_IN = "built-in"
WIKITEXT = "wikitext2"


@dataclass(frozen=True)
class PromptSet:
    """Prompts and where they come from.

    Attributes:
        source: as given to ``--prompts``.
        prompts: at least one.
        note: note to print beside every figure.
    """

    source: str
    prompts: tuple[Prompt, ...]
    note: str = ""


def load_prompts(
    source: str,
    per_category: int | None = None,
    categories: Sequence[str] = (),
    limit: int | None = None,
    leave_out: Collection[str] = (),
) -> PromptSet:
    """A set by name, or the prompts of a JSONL file; several with commas between.

    Args:
        source: ``built-in``, names of ``DATA_SETS``, paths. A line without an id has its number, of
            several sets behind its path.
        per_category: most prompts of each category, the first of the file.
        categories: only these.
        limit: most prompts in all.
        leave_out: ids of prompts that do not count.

    Raises:
        OSError: for a file or data folder that is not there.
        ValueError: for an unknown name, a broken line, or a category without prompts.
    """
    parts = [part.strip() for part in source.split(",")]
    names = [source] if Path(source).is_file() else list(filter(None, parts))
    if not names:
        raise ValueError(f"--prompts {source!r} names none; give {BUILT_IN} or a JSONL file")
    sets = [_one_set(each, len(names) > 1) for each in names]
    notes = dict.fromkeys(each.note for each in sets if each.note)
    every = tuple(prompt for each in sets for prompt in each.prompts)
    found = PromptSet(source, every, "; ".join(notes))
    return _chosen(found, per_category, categories, limit, leave_out)


def _one_set(source: str, is_one_of_several: bool) -> PromptSet:
    if source == BUILT_IN:
        text = (
            resources.files("draftwood_bench.plan")
            .joinpath("prompts.jsonl")
            .read_text(encoding="utf-8")
        )
        return PromptSet(
            source, tuple(_from_lines(text.splitlines(), "prompts.jsonl")), "written for draftwood"
        )
    if source in DATA_SETS:
        known = DATA_SETS[source]
        return PromptSet(source, tuple(known.prompts()), known.note)
    prefix = f"{source}:" if is_one_of_several else ""
    return PromptSet(source, tuple(_from_file(Path(source), prefix)))


def load_text(source: str) -> str:
    """A running text: ``wikitext2``, the test part of WikiText-2, or a file in UTF-8.

    Raises:
        OSError: for a file or data folder that is not there.
        ValueError: for a file that is no text.
    """
    if source == WIKITEXT:
        return DataFile.named(
            "wikitext2_raw/wiki.test.raw.gz", "or name a file of text with --text"
        ).text()
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; --text takes a file or {WIKITEXT}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; give a plain text") from None


def _chosen(
    found: PromptSet,
    per_category: int | None,
    categories: Sequence[str],
    limit: int | None,
    leave_out: Collection[str],
) -> PromptSet:
    there = list(dict.fromkeys(prompt.category for prompt in found.prompts))
    for category in categories:
        if category not in there:
            raise ValueError(
                f"{found.source} has no prompts of category {category!r}; it has {', '.join(there)}"
            )
    taken: Counter[str] = Counter()
    chosen: list[Prompt] = []
    for prompt in found.prompts:
        if prompt.id in leave_out:
            continue
        room = per_category is None or taken[prompt.category] < per_category
        if room and (not categories or prompt.category in categories):
            taken[prompt.category] += 1
            chosen.append(prompt)
    prompts = tuple(chosen[:limit])
    if not prompts and leave_out and found.prompts:
        raise ValueError(
            f"all of these prompts of {found.source} were asked before; name others with --prompts"
        )
    if not prompts:
        raise ValueError(f"{found.source} holds no prompts; give at least one")
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise ValueError(f"{found.source} has two prompts with the id {twice!r}; ids must differ")
    return replace(found, prompts=prompts)


def _from_file(path: Path, prefix: str) -> Iterator[Prompt]:
    if not path.is_file():
        known = ", ".join((BUILT_IN, *DATA_SETS))
        raise FileNotFoundError(
            f"there is no file {path}; --prompts takes a JSONL file or one of {known}"
        )
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8 text; give JSON Lines, one prompt per line"
        ) from None
    return _from_lines(lines, str(path), prefix)


def _from_lines(lines: Sequence[str], name: str, prefix: str = "") -> Iterator[Prompt]:
    """Prompts of lines; one without an id has its number, behind the prefix."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _from_json(line, f"{name}:{number}", f"{prefix}{number}")


def _from_json(line: str, place: str, usual_id: str) -> Prompt:
    """One prompt from an object with ``prompt``, ``messages`` or ``turns``."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
        told = {name: value for name, value in fields.items() if value is not None}
        before, turns = _conversation(told)
        reference, answer, word = (_text(told, n) for n in ("reference", "answer", "next_word"))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"{place}: no prompt ({reason}); a line is an object with prompt, messages or turns"
        ) from None
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError(
            f"{place}: a turn is empty or no text; every prompt needs at least one turn of text"
        )
    id = told.get("id", told.get("question_id", usual_id))
    category = told.get("category", "all")
    try:
        number_of("0" if answer is None else answer)
    except ValueError:
        raise ValueError(
            f"{place}: its answer {answer!r:.40} is no number; give a text to compare with as"
            " reference"
        ) from None
    found = Prompt(str(id), str(category), tuple(turns), before, reference, answer)
    return replace(found, next_word=word)


def _text(fields: dict[str, Any], name: str) -> str | None:
    """A field that holds a text or a number; None where it is not there."""
    found = fields.get(name)
    if isinstance(found, list | dict):
        raise ValueError(f"its {name} must be one text")
    return None if found is None else str(found)


def _conversation(fields: dict[str, Any]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    if len(given := [name for name in ("prompt", "messages", "turns") if name in fields]) > 1:
        raise ValueError(f"it has {' and '.join(given)}; give one of them")
    if "turns" in fields:
        if not isinstance(fields["turns"], list):
            raise ValueError("turns is no list")
        return (), fields["turns"]
    if "messages" in fields:
        said = [(message["role"], message["content"]) for message in fields["messages"]]
        if not all(isinstance(part, str) for message in said for part in message):
            raise ValueError("role or content of a message is no text")
        *before, last = said
        if last[0] != "user":
            raise ValueError("the last message is not the user's")
        return tuple(before), [last[1]]
    if "prompt" in fields:
        return (), [fields["prompt"]]
    raise ValueError(f"it has the fields {', '.join(fields) or 'none'}")
