"""Steps of one text on a ``NativeModel``, each in one call of the library."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
        self._run = structures.CForwardInput(attention=every, mlp=every, layers=model.depth)
        self._hidden: dict[int, Tensor] = {}
        self._hand_out((), 0)
        self._call = StepCaller(key, temperature)

    def __call__(self, draft: NativeDraft, root: int, place: int, room: int) -> NativeStep:
        model = self.model
        with model.pool.lock:
            nodes = self.session.place_nodes(1 + draft.most)
            model.pool.cover([nodes])
            self._hand_out(draft.hidden, 1 + draft.most)
            at_once = model.prepare(self._run)
            sequence = (model.pool.address_of(nodes.slot), nodes.start)
            try:
                made = self._call(
                    (model.structure, self._run), sequence, draft, root, place, room, at_once
                )
            except IndexError as error:
                raise ValueError(beyond(torch.tensor(error.args[0]), model.vocab_size)) from None
        return made._replace(hidden=self._hidden) if self._hidden else made

    def _hand_out(self, layers: tuple[int, ...], rows: int) -> None:
        """Room for the hidden states of these layers, told to the library."""
        depth, held = self.model.depth, self._hidden
        is_told = bool(self._run.hidden) and held.keys() == set(layers)
        if is_told and all(len(states) >= rows for states in held.values()):
            return
        if not all(0 <= layer <= depth for layer in layers):
            raise ValueError(f"the model has hidden states 0 to {depth}, not {layers}")
        width = self.model.sizes.hidden
        self._hidden = {layer: torch.empty(rows, width, dtype=torch.float32) for layer in layers}
        addresses = [
            self._hidden[layer].data_ptr() if layer in layers else 0 for layer in range(depth + 1)
        ]
        self._run.hidden = library.integers(addresses)
