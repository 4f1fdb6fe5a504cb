"""What must be said beside the tables of a run."""

from collections.abc import Sequence

from draftwood.bench.records.files import TRIES, Record, RunInfo
from draftwood.bench.records.significance import SIGNIFICANCE
from draftwood.bench.records.statistics import Summary, summaries


def remarks(records: Sequence[Record], run: RunInfo) -> list[str]:
    """What must be said beside the tables: prompts, texts and laws that differ, peers that failed
    or are absent.
    """
    found = [
        f"{run.prompts['count']} prompts, {run.prompts['source']}:"
        f" {run.prompts['note'] or 'from a file'}"
    ]
    found[0] += f"; {run.prompts['rule']}"
    answered = len({record.prompt for record in records})
    if answered < run.prompts["count"]:
        found.append(
            f"the run is not finished: it has come to {answered} of {run.prompts['count']} prompts"
        )
    if run.dirty:
        found.append(
            f"{', '.join(run.dirty)}: files differed from this commit, so it does not hold what was"
            " measured"
        )
    for each in summaries([record for record in records if not record.is_peer], run):
        place = f"{each.method}, {each.at}, T = {each.temperature:g}"
        if each.divergence is not None:
            kind = (
                "no speed-up is told"
                if each.failures
                else "these prompts take no part in its speed-up"
            )
            verb = "differ" if each.failures else "part at a tie within rounding"
            found.append(
                f"{place}: {each.failures or each.ties} texts {verb}, {kind};"
                f" {told(each.divergence)}"
            )
        if (
            each.temperature
            and each.same is not None
            and each.same < each.compared
            and not each.failures
        ):
            count = f"{each.compared - each.same} of {each.compared}"
            rounding = f"rounding in {run.dtype} may do that, in float32 it would be a fault"
            found.append(
                f"{place}: {count} texts are not plain decoding's for their seeds; {rounding}"
            )
        if each.law is not None and each.law < SIGNIFICANCE:
            found.append(
                f"{place}: the next token does not follow the model's law (p = {each.law:.2g})"
            )
    for name in run.peers:
        if late := sum(
            record.beside is not None for record in records if record.method == f"peer:{name}"
        ):
            found.append(
                f"{name}: {late} answers are of a later start, beside plain decoding measured once"
                " more"
            )
    for name, known in run.peers.items():
        if left := [each for each in known.get("failed", []) if tuple(each["key"]) in run.given_up]:
            places = ", ".join(dict.fromkeys(each["key"][2] for each in left))
            found.append(
                f"{name} failed {TRIES} times and is not asked again at prompt {places}:"
                f" {left[-1]['reason']}"
            )
    found += [
        f"{name} is absent: {known['absent']}"
        for name, known in run.peers.items()
        if "absent" in known
    ]
    return found


def failures(records: Sequence[Record], run: RunInfo) -> list[Summary]:
    """Cells that claim to be lossless and are not."""
    mine = [record for record in records if not record.is_peer and record.lossless]
    found = summaries(mine, run)
    return [
        each
        for each in found
        if each.failures or (each.law is not None and each.law < SIGNIFICANCE)
    ]


def told(place: dict) -> str:
    """Where a text leaves plain decoding's, and by how little."""
    if "position" not in place:
        return f"the first on prompt {place['prompt']}"
    return (
        f"the first on prompt {place['prompt']}, turn {place['turn'] + 1}, at token"
        f" {place['position']}: {place['plain_token']} in plain decoding, {place['other_token']}"
        f" here, the two top logits {place['margin']:.3g} apart"
    )
