"""Steps of texts on a ``NativeModel``, all of a forward pass in one call of the library."""

from collections.abc import Sequence
from ctypes import c_int64
from itertools import accumulate, pairwise, starmap

import torch
from torch import Tensor

from draftwood.models.cache.blocks import BlockPool
from draftwood.models.embeddings_and_head import beyond
from draftwood.models.model import ModelOutput, StepInput
from draftwood.models.native.places import beginnings
from draftwood.models.parts import PackedStep
from draftwood.models.session import PooledSession
from draftwood.native import structures
from draftwood.native.library import library
from draftwood.native.step import NativeDraft, StepCaller

NO_LOGITS = torch.empty(0, 0)
"""A step draws by itself."""


class NativeStepper:
    """Implements ``models.step.Stepper`` for a session of a ``NativeModel``.

    Args:
        key: of the request's noise.
        temperature: 0 takes the likeliest tokens.
    """

    def __init__(self, session: PooledSession, key: int, temperature: float) -> None:
        self.session, self.caller = session, StepCaller(key, temperature)

    def step(
        self, draft: NativeDraft, root: int, place: int, max_draft_len: int, rows: int
    ) -> StepInput:
        self.caller.prepare(draft, root, place, max_draft_len)
        return StepInput(self.session, self.caller, draft.most, draft.hidden, rows)


def run_steps(
    decoder: structures.CDecoder,
    pool: BlockPool,
    beside: structures.CForwardInput,
    steps: Sequence[PackedStep],
    rows: int,
    states: dict[int, Tensor],
    threads: int,
) -> list[ModelOutput]:
    """A forward pass over steps, and over what is run beside them.

    Args:
        decoder: that runs.
        pool: its cache.
        rows: of these others.
        states: of all rows, by layer, the others' first.

    Raises:
        ValueError: for a token beyond the vocabulary.
    """
    count = len(steps)
    callers = [part.step.caller for part in steps]
    odd = library().draftwood_steps(
        decoder,
        beside,
        (c_int64 * count)(*(caller.address for caller in callers)),
        beginnings(pool, steps),
        count,
        threads,
    )
    if odd >= 0:
        raise ValueError(beyond(_all_tokens(beside, rows, callers), decoder.vocabulary))
    made: list[ModelOutput] = []
    ends = accumulate((caller.structure.nodes for caller in callers), initial=rows)
    for part, caller, own in zip(steps, callers, starmap(slice, pairwise(ends)), strict=True):
        hidden = {layer: states[layer][own] for layer in part.hidden}
        made.append(ModelOutput(NO_LOGITS, hidden, caller.result(decoder.vocabulary)))
    return made


def _all_tokens(
    beside: structures.CForwardInput, rows: int, callers: Sequence[StepCaller]
) -> Tensor:
    before = (c_int64 * rows).from_address(beside.tokens) if rows else ()
    return torch.tensor([*before, *(token for caller in callers for token in caller.tokens)])
