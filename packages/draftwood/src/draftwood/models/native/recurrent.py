"""The structure of a layer's recurrence as the library reads it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from draftwood.arrays import as_array
from draftwood.models.decoder import RunningState, StateSpace
from draftwood.native import structures

Address = Callable[[Any], int | None]


def structure_of(
    recurrence: RunningState, state_at: int, row_at: int, address: Address
) -> structures.CRecurrence:
    """Lay a recurrence out by heads of keys.

    Args:
        state_at, row_at: where its numbers begin in those of all layers.
        address: of an array, which it keeps in memory.
    """
    order, heads = recurrence.shared_out, recurrence.key_heads * recurrence.copies
    taps = as_array(recurrence.taps)[order].reshape(heads, -1, recurrence.kernel)
    return structures.CRecurrence(
        **_fields(recurrence.space, order, address),
        copies=recurrence.copies,
        key_heads=heads,
        value_heads=recurrence.value_heads,
        key_dim=recurrence.key_dim,
        value_dim=recurrence.value_dim,
        kernel=recurrence.kernel,
        is_tiled=recurrence.is_tiled,
        taps=address(taps.swapaxes(1, 2)),
        decays=address(recurrence.decays),
        steps=address(recurrence.steps),
        norm=address(recurrence.norm),
        state_at=state_at,
        row_at=row_at,
    )


def _fields(space: StateSpace | None, order: np.ndarray, address: Address) -> dict[str, Any]:
    """Fields of a state space model; none of the delta rule."""
    if space is None:
        return {}
    biases = None if space.tap_biases is None else as_array(space.tap_biases)[order]
    return {
        "tap_biases": address(biases),
        "skips": address(space.skips),
        "norm_groups": space.norm_groups,
        "least_step": space.limits[0],
        "most_step": space.limits[1],
    }
