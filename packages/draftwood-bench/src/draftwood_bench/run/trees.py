"""Chosen steps of every method, for drawings that can be browsed; ``tree.json``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftwood.stats import Step
from draftwood.tree import DraftTree
from draftwood_bench.plan.configurations import PLAIN, Configuration
from draftwood_bench.records.files import TREE, write_whole
from draftwood_bench.run.workbench import Workbench

TOKENS, TAIL, STEPS = 48, 16, 8


def write_trees(
    bench: Workbench,
    cells: Sequence[Configuration],
    tokens: Sequence[int],
    temperature: float,
    at: Path,
) -> None:
    """Decode a prompt by every method and keep the steps that accepted most.

    Raises:
        OSError: where the disk refuses.
    """
    first = {cell.method: cell for cell in reversed(cells) if cell.method != PLAIN}
    found = {}
    for name in dict.fromkeys(cell.method for cell in cells if cell.method in first):
        stream = bench.using(first[name]).stream(
            tokens,
            max_new_tokens=TOKENS,
            temperature=temperature,
            seed=0,
            exact=bench.settings.exact,
        )
        for _ in stream:
            pass
        if described := best(stream.steps, bench):
            found[name] = described
    write_whole(at / TREE, json.dumps(found) + "\n")


def best(steps: Sequence[Step], bench: Workbench) -> list[dict[str, Any]]:
    """The steps that accepted most, of equals the first, in plain types.

    None where nothing was drafted.
    """
    drafted = [
        number for number, step in enumerate(steps) if step.tree is not None and step.drafted
    ]
    drafted.sort(key=lambda number: -steps[number].accepted)
    return [_described(steps, number, bench) for number in drafted[:STEPS]]


def _described(steps: Sequence[Step], number: int, bench: Workbench) -> dict[str, Any]:
    step, tree = steps[number], steps[number].tree
    assert tree is not None  # it drafted
    said = [token for earlier in steps[:number] for token in earlier.tokens]
    return {
        "step": number,
        "context_tail": bench.text(said[:-1][-TAIL:]),  # the newest token is the root
        "tokens": [bench.text([token]) for token in tree.token_list],
        "parents": tree.parents.tolist(),
        "probabilities": _probabilities(tree),
        "sources": [] if tree.sources is None else [list(names) for names in tree.sources],
        "path": list(step.path),
        "emitted": bench.text(step.tokens),
    }


def _probabilities(tree: DraftTree) -> list[float | None] | None:
    """Probability of each node given its parent under the drafter; None where nothing was drawn."""
    if tree.chances is None:
        return None
    return [None, *(round(chance, 6) for chance in tree.chances[1:].tolist())]
