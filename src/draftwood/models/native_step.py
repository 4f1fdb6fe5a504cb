"""Steps of one text on a ``NativeModel``, each in one call of the library."""

from typing import TYPE_CHECKING

import torch

from draftwood.models.ends import beyond
from draftwood.models.session import PooledSession
from draftwood.native import library, structures
from draftwood.native.step import NativeDraft, NativeStep, StepCaller

if TYPE_CHECKING:
    from draftwood.models.native import NativeModel


class NativeStepper:
    """Implements ``interfaces.step.Stepper`` for a session of a ``NativeModel``.

    Args:
        key: of the request's noise.
        temperature: 0 takes the likeliest tokens.
    """

    def __init__(
        self, model: "NativeModel", session: PooledSession, key: int, temperature: float
    ) -> None:
        self.model, self.session = model, session
        every = bytes([1]) * model.depth
        hidden = library.integers([0] * (model.depth + 1))
        self._run = structures.CForwardInput(
            attention=every, mlp=every, hidden=hidden, layers=model.depth
        )
        self._call = StepCaller(key, temperature)

    def __call__(self, draft: NativeDraft, root: int, place: int, room: int) -> NativeStep:
        model = self.model
        with model.pool.lock:
            nodes = self.session.place_nodes(1 + draft.most)
            model.pool.cover([nodes])
            at_once = model.prepare(self._run)
            sequence = (nodes.slot, nodes.start)
            try:
                return self._call(
                    (model.structure, self._run), sequence, draft, root, place, room, at_once
                )
            except IndexError as error:
                raise ValueError(beyond(torch.tensor(error.args[0]), model.vocab_size)) from None
