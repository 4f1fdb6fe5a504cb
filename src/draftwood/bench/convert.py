"""Measurements of the old benchmark of Recursive Speculative Decoding as records of today.

One line was one configuration with ``per_prompt``: for every prompt the tokens emitted after the first and the target's
runs. Texts and times were not kept. ``accepted_by_depth`` of these files is wrong (sums of equally deep texts doubled
one of them), so it is left behind.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwood.bench.cells import RSD_METHODS, Cell
from draftwood.bench.describe import digest, size_ratio
from draftwood.bench.prompts import STORY_TOKENS, load_prompts
from draftwood.bench.protocols import Rsd, Settings, as_json
from draftwood.bench.records import Record, RunInfo, read_run, write_run, writing

NOTE = "the first 14 tokens of 40 stories of tinystories_sample, continued without a chat template"


def convert_rsd(old: Sequence[dict[str, Any]], folder: Path) -> int:
    """Add old records to a folder, which becomes a run that ``draftwood bench rsd --thrifty`` can go on with.

    Args:
        old: objects of the old file, all of one model and one draft model.
        folder: what it holds already is kept; configurations that are there are passed over.

    Returns:
        How many records were added.

    Raises:
        ValueError: for a configuration that the protocol does not know, and for settings that differ.
    """
    cells = {cell.key: cell for cell in Rsd(methods=tuple(RSD_METHODS), thrifty=True).cells()}
    for name in ("model", "draft_model", "prompts", "tokens"):
        if len({line[name] for line in old}) != 1:
            raise ValueError(f"old records of one run have one {name}, these have several or none")
    with writing(folder) as writer:
        before = len(writer.done)
        for line in old:
            if line["key"] not in cells:
                raise ValueError(f"the protocol rsd has no configuration {line['key']!r}")
            records = _records(line, cells[line["key"]])
            writer.append([record for record in records if record.key not in writer.done])
        write_run(folder, _run(old, writer.records, folder))
        return len(writer.done) - before


def _records(line: dict[str, Any], cell: Cell) -> list[Record]:
    return [
        Record(
            cell=cell.key,
            method=cell.method,
            at=cell.at,
            shape=repr(cell.tree),
            verifier=cell.rule.name,
            drafter=cell.drafts_with,
            lossless=cell.lossless,
            category="story",
            prompt=f"story-{number}",
            turn=0,
            round=0,
            seed=number,
            temperature=line["temperature"],
            prompt_tokens=STORY_TOKENS,
            token_ids=None,
            text=None,
            stats={"tokens": tokens + 1, "target_runs": runs, "block_efficiency": round(tokens / runs, 4)},
            seconds_end_to_end=None,
            nodes=line["nodes"],
            draft_steps=cell.draft_steps,
        )
        for number, (tokens, runs) in enumerate(line["per_prompt"])
    ]


def _run(old: Sequence[dict[str, Any]], records: Sequence[Record], folder: Path) -> RunInfo:
    """The common part of all records there are now."""
    first = old[0]
    settings = Settings(
        temperatures=tuple(dict.fromkeys(record.temperature for record in records)),
        max_new_tokens=first["tokens"],
        ignore_eos=True,
        prompts="stories",
        limit=first["prompts"],
    )
    methods = tuple(name for name in RSD_METHODS if any(record.method == name for record in records))
    commits = list(dict.fromkeys([*_commits(folder), *(line["commit"] for line in old)]))
    return RunInfo(
        protocol="rsd",
        options=as_json(Rsd(methods=methods, thrifty=True, settings=settings)),
        command="make bench-rsd",
        commit=commits[0],
        versions={"draftwood": first["draftwood"], "torch": first["torch"]},
        hardware={"processor": first["processor"], "cores": None, "device": first["processor"]},
        threads=first["threads"],
        model=first["model"],
        draft_model=first["draft_model"],
        dtype="bfloat16",
        curve=None,
        bandwidth=None,
        weight_bytes=None,
        prompts={
            **{"source": "stories", "note": NOTE, "count": first["prompts"], "rule": "none is left out"},
            "digest": _digest(first["prompts"]),
        },
        started="unknown",
        draft_ratio=size_ratio(first["draft_model"], first["model"]),
        resumed=[{"commit": commit} for commit in commits[1:]],
    )


def _commits(folder: Path) -> list[str]:
    """Those that made what the folder held before."""
    try:
        before = read_run(folder)
    except FileNotFoundError:
        return []
    return [commit for commit in (before.commit, *(each["commit"] for each in before.resumed)) if commit]


def _digest(count: int) -> str | None:
    """Of the prompts, with which a run can go on; None where the data set is not there."""
    try:
        return digest(load_prompts("stories", limit=count))
    except OSError:
        return None
