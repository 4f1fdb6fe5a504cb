"""Servers and proposers in other engines, as far as clean commits measured them."""

import json
from typing import Any

from benchmarks.common.json_lines import RESULTS, read, read_clean
from benchmarks.pages.runs import MISSING
from benchmarks.serving import neighbours
from benchmarks.serving.show import by_streams, sentences, shown
from draftwood_bench.records.files import is_clean
from draftwood_bench.report.table import Table

PROPOSERS = {
    "proposer": "arm",
    "tokens per pass": "tokens_per_pass",
    "seconds": "seconds",
}


def records() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read the records of streams and of further figures."""
    folder = RESULTS / "serving"
    run, further = (read_clean(folder / name) for name in ("run.jsonl", "further.jsonl"))
    return run, further


def beside_other_servers() -> str:
    run, _ = records()
    if not run:
        return MISSING
    return shown(by_streams(run, "tokens_per_second", "Tokens per second, all streams together", 0))


def under_load() -> str:
    """`auto` and plain decoding by the number of texts that share passes, greedily."""
    greedy = next(iter(neighbours.tables(read(neighbours.RECORDS))), None)
    return MISSING if greedy is None else shown(greedy)


def told() -> list[str]:
    return sentences(*records())


def said() -> str:
    """The same as a list."""
    return "\n".join(f"- {each}" for each in told()) or MISSING


def proposers() -> str:
    """draftwood's proposers in vLLM beside vLLM's own."""
    found = json.loads((RESULTS / "vllm_proposer.json").read_text())
    if not is_clean(found["commit"]):
        return MISSING
    rows = [
        tuple(f"{each[key]:g}" if isinstance(each[key], float) else str(each[key]) for key in keys)
        for keys in [tuple(PROPOSERS.values())]
        for each in found["arms"]
    ]
    return Table("", tuple(PROPOSERS), tuple(rows)).markdown()
