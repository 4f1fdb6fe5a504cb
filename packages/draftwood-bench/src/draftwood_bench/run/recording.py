"""From an answer to its record."""

from collections.abc import Sequence
from dataclasses import asdict

from draftwood.models.model import Model
from draftwood_bench.plan.configurations import Configuration
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.units import Unit
from draftwood_bench.records.files import Record
from draftwood_bench.run.identity import divergence
from draftwood_bench.run.workbench import Workbench


def record(
    bench: Workbench,
    cell: Configuration,
    unit: Unit,
    number: int,
    prompt: Prompt,
    turn: int,
    tokens: Sequence[int],
    **more,
) -> Record:
    """A record with everything that the configuration and the unit say."""
    fields: dict = {
        "stats": {},
        "seconds_end_to_end": None,
        "token_ids": None,
        "text": None,
        "shape": None if cell.tree is None else repr(cell.tree),
        "nodes": None if cell.tree is None else cell.tree.nodes,
        "draft_steps": cell.draft_steps,
        "verifier": cell.rule.name,
        "drafter": cell.drafts_with.name,
    }
    return Record(
        cell=cell.key,
        method=cell.method,
        at=cell.at,
        lossless=cell.lossless,
        category=prompt.category,
        prompt=prompt.id,
        turn=turn,
        round=unit.round,
        seed=unit.seed(bench.settings.seed, number, turn),
        temperature=unit.temperature,
        prompt_tokens=len(tokens),
        **{**fields, **more},
    )


def identity(
    bench: Workbench,
    model: Model,
    tokens: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
) -> dict:
    """Compare a greedy text with plain decoding's, as fields of a record."""
    found = divergence(model, tokens, plain, other, bench.dtype)
    return {
        "identical_to_plain": found is None,
        "divergence": None if found is None else asdict(found),
    }
