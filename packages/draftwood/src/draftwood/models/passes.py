"""Forward passes over several sequences that live in one pool."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftwood.models.model import (
    ForwardInput,
    Layers,
    ModelInput,
    PromptInput,
    RowsInput,
    StepInput,
)
from draftwood.models.parts import Packed
from draftwood.models.session import PooledModel, PooledSession


def forward(model: PooledModel, inputs: Sequence[ModelInput]) -> list[Any]:
    """A forward pass over several sequences, all of which must live in the model's pool.

    Where some nodes of a tree have stopped before a layer, the others are run as far first.
    """
    sessions = _sessions_of(inputs, model.pool)
    late, going_on = _late(sessions, inputs), list(inputs)
    if late:
        some = [each for each, count in late.values() if count < len(each.tree)]
        if some:
            _run(model, _sessions_of(some, model.pool), some)
        for number, (each, _) in late.items():
            own = inputs[number]
            assert isinstance(own, ForwardInput)
            going_on[number] = replace(own, layers=Layers(start=each.layers.stop or 0))
    return _run(model, sessions, going_on)


def _late(
    sessions: Sequence[PooledSession], inputs: Sequence[ModelInput]
) -> dict[int, tuple[ForwardInput, int]]:
    """By place: of trees whose first nodes stopped the part that has yet to come as far, and how
    many stopped.
    """
    late = {}
    for number, (session, each) in enumerate(zip(sessions, inputs, strict=True)):
        found = session.exit_of(each) if isinstance(each, ForwardInput) else None
        if found is not None:
            assert isinstance(each, ForwardInput)
            stop, count = found
            rest = ForwardInput(session, each.tree, count, layers=Layers(stop=stop), keep="none")
            late[number] = rest, count
    return late


def _run(
    model: PooledModel, sessions: Sequence[PooledSession], inputs: Sequence[ModelInput]
) -> list[Any]:
    parts = [_part_of(each) for each in inputs]
    try:
        outputs = model.run(parts)
    except (ValueError, MemoryError):  # raised before anything is written
        raise
    except BaseException:
        for session in sessions:
            session.spoil()
        raise
    for session, part, output in zip(sessions, parts, outputs, strict=True):
        session.take(part, output)
    return outputs


def _sessions_of(inputs: Sequence[ModelInput], pool: object) -> list[PooledSession]:
    sessions = []
    for each in inputs:
        if not isinstance(each.session, PooledSession) or each.session.model.pool is not pool:
            raise ValueError("all sessions of a run must belong to the model that runs them")
        sessions.append(each.session)
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("a session takes part in a pass once; join its trees to one")
    return sessions


def _part_of(each: ModelInput) -> Packed:
    session = each.session
    assert isinstance(session, PooledSession)
    if isinstance(each, StepInput):
        return session.step(each)
    if isinstance(each, PromptInput):
        return session.chunk(each.tokens, each.keep, each.hidden, each.embeddings)
    if isinstance(each, RowsInput):
        return session.masked(each)
    assert isinstance(each, ForwardInput)
    return session.part(each.tree, each.first, each.layers, each.keep, each.hidden)
