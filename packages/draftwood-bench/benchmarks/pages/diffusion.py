"""Table of what rules of unmasking give for nothing on the model that comes with the package."""

from pathlib import Path

from benchmarks.common import json_lines
from benchmarks.diffusion.tables import ONE_BY_ONE, families, of_one_draw
from benchmarks.pages.runs import MISSING
from draftwood_bench.report.table import Table

MODEL, TEXTS = "stories-diffusion", 200


def of_rules(longest: str, results: Path = json_lines.RESULTS) -> str:
    """Each rule's most tokens a pass at no price, on stories of at most so many tokens."""
    records = json_lines.read_clean(results / "stories-diffusion.jsonl")
    own = [
        each
        for each in of_one_draw(records)
        if (each["model"], each["texts"], str(each["longest"])) == (MODEL, TEXTS, longest)
    ]
    base = next((each for each in own if each["way"] == ONE_BY_ONE), None)
    if base is None:
        return MISSING
    found = families([each for each in own if each is not base], base)
    free = [each for each in found if each["nats more"]]
    rows = [
        (f"`{each['rule']}`", each["for nothing"], each["nats more"], each["area"]) for each in free
    ]
    table = Table("", ("rule", "tokens a pass for nothing", "nats more", "area"), tuple(rows))
    paid = ", ".join(f"`{each['rule']}`" for each in found if each not in free)
    return f"{table.markdown()}\n\nNot free at any knob tried: {paid}."
