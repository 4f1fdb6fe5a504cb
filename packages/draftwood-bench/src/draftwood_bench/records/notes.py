"""Notes that belong beside the tables of a run."""

from collections.abc import Iterator, Sequence

from draftwood_bench.plan.measurements import MEASUREMENTS
from draftwood_bench.records.extent import unfinished
from draftwood_bench.records.files import TRIES, Record, RunInfo
from draftwood_bench.records.significance import SIGNIFICANCE
from draftwood_bench.records.statistics import FEWEST_PASSES, Summary, summaries


def notes(records: Sequence[Record], run: RunInfo) -> list[str]:
    """Notes that belong beside the tables of a run.

    Prompts, texts and distributions that differ; peers that failed or are absent.
    """
    if run.protocol in MEASUREMENTS:
        return list(_of_measurement(records, run))
    own = summaries([record for record in records if not record.is_peer], run)
    return [
        *_of_the_run(records, run),
        *_of_files(run),
        *_of_versions(run),
        *_of_shapes(records),
        *(note for each in own for note in _of_texts(each, run)),
        *_of_few_passes(records, own, run),
        *_of_peers(records, run),
    ]


FLOATS = ("float32", "float16", "bfloat16")
"""Types of weights in which peers run a folder."""
HIDDEN = "-"
"""Stands in the place of a figure that would come from too few passes."""


def _of_few_passes(
    records: Sequence[Record], own: Sequence[Summary], run: RunInfo
) -> Iterator[str]:
    passes: dict[tuple[str, float, str], int] = {}
    for record in records:
        if runs := record.stats.get("target_runs"):
            # these two have no tables by category
            category = "" if run.protocol in ("rsd", "load") else record.category
            key = (record.cell, record.temperature, category)
            passes[key] = passes.get(key, 0) + runs
    cures = []
    if any(count < FEWEST_PASSES for count in passes.values()):
        cures.append("more prompts or tokens fill it")
    if any(each.bounded_passes < FEWEST_PASSES for each in own if each.bound is not None):
        cures.append("larger --bound-prompts and --bound-tokens fill accepted and alpha*")
    if cures:
        yield (
            f"{HIDDEN} stands where fewer than {FEWEST_PASSES} forward passes of the target would"
            f" tell a share or a mean; {'; '.join(cures)}"
        )


def _of_the_run(records: Sequence[Record], run: RunInfo) -> Iterator[str]:
    count, source = run.prompts["count"], run.prompts["source"]
    yield (
        f"{count} prompts, {source}: {run.prompts['note'] or 'from a file'}; {run.prompts['rule']}"
    )
    if turns := run.prompts.get("turns_left_out"):
        yield f"left out by this rule: {', '.join(turns)}"
    if left := unfinished(records, run):
        yield left


def _of_measurement(records: Sequence[Record], run: RunInfo) -> Iterator[str]:
    if run.prompts:
        yield f"{run.prompts['count']} {run.prompts['rule']}, of {run.prompts['source']}"
    if left := unfinished(records, run):
        yield left
    yield from _of_files(run)
    yield from _of_versions(run)


def _of_files(run: RunInfo) -> Iterator[str]:
    if run.dirty:
        files = ", ".join(run.dirty)
        yield f"{files}: files differed from this commit, so it does not hold what was measured"


def _of_versions(run: RunInfo) -> Iterator[str]:
    before = run.versions
    for start in run.resumed:
        now = start.get("versions", before)  # earlier versions did not tell
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                change = f"{before.get(name, 'none told')}, then {now.get(name, 'none told')}"
                since = f"since the start of {start.get('started', 'a later day')}"
                yield f"{name}: {change} {since}, so the records mix both"
        before = now


def _of_shapes(records: Sequence[Record]) -> Iterator[str]:
    shapes: dict[str, dict[str | None, str]] = {}
    for record in records:
        shapes.setdefault(record.cell, {})[record.shape] = f"{record.method}, {record.at}"
    for found in shapes.values():
        if len(found) > 1:
            name = next(iter(found.values()))
            yield f"{name}: its tree changed between starts: {', then '.join(map(str, found))}"


def _of_texts(each: Summary, run: RunInfo) -> Iterator[str]:
    place = f"{each.method}, {each.at}, T = {each.temperature:g}"
    if each.divergence is not None and each.failures:
        told_of = told(each.divergence)
        yield f"{place}: {each.failures} texts differ, no speed-up is told; {told_of}"
    elif each.divergence is not None:
        ties = f"{each.ties} texts part at a tie within rounding"
        told_of = told(each.divergence)
        yield f"{place}: {ties}, these prompts take no part in its speed-up; {told_of}"
    short = each.same is not None and each.same < each.compared
    if each.temperature and short and not each.failures:
        count = f"{each.compared - (each.same or 0)} of {each.compared}"
        rounding = f"rounding in {run.dtype} may do that, in float32 it would be a fault"
        yield f"{place}: {count} texts are not plain decoding's for their seeds; {rounding}"
    if each.law is not None and each.law < SIGNIFICANCE:
        yield (
            f"{place}: the next token does not follow the model's distribution (p = {each.law:.2g})"
        )


def _of_peers(records: Sequence[Record], run: RunInfo) -> Iterator[str]:
    for name in run.peers:
        own = [record for record in records if record.method == f"peer:{name}"]
        if late := sum(record.beside is not None for record in own):
            beside = "beside plain decoding measured once more"
            yield f"{name}: {late} answers are of a later start, {beside}"
    dtype = run.dtype.partition("+")[0]
    for name, known in run.peers.items():
        other = known.get("weights", "").partition(",")[0]
        if other in FLOATS and other != dtype:
            yield f"{name} ran in {other}, the run in {run.dtype}"
    for name, known in run.peers.items():
        if left := [each for each in known.get("failed", []) if tuple(each["key"]) in run.given_up]:
            places = ", ".join(dict.fromkeys(each["key"][2] for each in left))
            again = f"failed {TRIES} times and is not asked again at prompt {places}"
            yield f"{name} {again}: {left[-1]['reason']}"
    for name, known in run.peers.items():
        if "absent" in known:
            yield f"{name} is absent: {known['absent']}"


def failures(records: Sequence[Record], run: RunInfo) -> list[Summary]:
    """Configurations that claim to be lossless and are not; none of a measurement without texts."""
    if run.protocol in MEASUREMENTS:
        return []
    mine = [record for record in records if not record.is_peer and record.lossless]
    found = summaries(mine, run)
    return [
        each
        for each in found
        if each.failures or (each.law is not None and each.law < SIGNIFICANCE)
    ]


def told(place: dict) -> str:
    """Describe where a text leaves plain decoding's, and by how little."""
    if "position" not in place:
        return f"the first on prompt {place['prompt']}"
    return (
        f"the first on prompt {place['prompt']}, turn {place['turn'] + 1}, at token"
        f" {place['position']}: {place['plain_token']} in plain decoding, {place['other_token']}"
        f" here, the two top logits {place['margin']:.3g} apart"
    )
