"""Drafts of rows that share a pass."""

from collections.abc import Sequence
from dataclasses import replace

from draftwood import engine
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.task import StepBudget
from draftwood.models.model import ForwardInput
from draftwood.stats import Step


def draft_together(
    rows: Sequence[engine.Sequence], newest: Sequence[Step], budget: StepBudget
) -> list[tuple[ForwardInput, dict[str, float]]]:
    """Draft the next tree of each row, whose drafter knows what the others load the pass with.

    Args:
        rows: that go on.
        newest: step of each, whose tree says how many nodes it runs.
        budget: of the call, with the load of other tasks.

    Returns:
        The input of each row, and its seconds by phase.
    """
    nodes = [1 if each.tree is None else len(each.tree) for each in newest]
    tokens = [each.status.expected_tokens for each in rows]
    return [
        InTurn(row).draft(replace(budget, shared=beside))
        for row, beside in zip(rows, budget.shared.among(nodes, tokens), strict=True)
    ]
