"""Rows of a pass with positions and a mask of their own: what is asked, as passes read it."""

from collections.abc import Sequence

import numpy as np

from draftwood.arrays import Bool, Int, as_array
from draftwood.models.cache.places import CacheSlice
from draftwood.models.model import RowsInput
from draftwood.models.parts import PackedInput
from draftwood.models.requirements import require_ability, require_rows


def packed_rows(given: RowsInput, slot: int, length: int) -> PackedInput:
    """Describe rows behind the first ``length`` tokens of a slot.

    Committed tokens at positions of the rows or behind them, and those that some row does not see,
    are told row by row.

    Raises:
        ValueError: for numbers that do not fit together, and models that cannot run rows.
        TypeError: for a mask of numbers.
    """
    require_rows(given.session.model)
    _require_adapted(given)
    positions, sees = _checked(given, length)
    past, own = sees[:, : sees.shape[1] - given.rows], sees[:, sees.shape[1] - given.rows :]
    before = min(length, int(positions.min()))
    if past.shape[1]:
        before = min(before, _first(np.logical_not(past.all(axis=0))))
        own = sees[:, before:]
    elif before < length:
        own = np.pad(own, ((0, 0), (length - before, 0)), constant_values=True)
    return PackedInput(
        tokens=np.array(given.tokens, np.int64),
        positions=positions,
        place=CacheSlice(slot, length, given.rows),
        before=before,
        sees=own,
        tree_positions=np.concatenate([np.arange(before, length), positions]),
        keep=given.keep,
        hidden=given.hidden,
        has_own_mask=True,
        adapter=given.adapter,
        adapted=tuple(given.adapted),
    )


def _require_adapted(given: RowsInput) -> None:
    """Raise ValueError unless an adapter can act on the rows that are to be adapted."""
    if given.adapter is None:
        if len(given.adapted):
            raise ValueError("rows are adapted by an adapter; give one, or leave adapted out")
        return
    require_ability(given.session.model, "adapted_rows", "a pass with an adapter for some rows")
    given.adapter.require(given.session.model, given.adapted)
    if len(given.adapted) > given.rows:
        raise ValueError(
            f"{len(given.adapted)} of {given.rows} rows cannot be adapted; give a token, which"
            " means nothing, for each of them"
        )


def require_in_order(positions: Int[np.ndarray, " rows"], kept: Sequence[int], length: int) -> None:
    """Raise ValueError unless the rows to keep have the positions that follow ``length`` tokens."""
    found = positions[list(kept)].tolist()
    wanted = list(range(length, length + len(kept)))
    if found != wanted:
        place = next(
            i for i, pair in enumerate(zip(found, wanted, strict=True)) if len({*pair}) > 1
        )
        raise ValueError(
            f"row {kept[place]} has position {found[place]} and would be kept at {wanted[place]};"
            f" commit rows in the order of their positions, from {length} on, without gaps"
        )


def _checked(
    given: RowsInput, length: int
) -> tuple[Int[np.ndarray, " rows"], Bool[np.ndarray, "rows seen"]]:
    """Positions and mask as arrays that fit the rows."""
    rows, limit = given.rows, given.session.model.context_length
    positions, sees = np.asarray(as_array(given.positions)), np.asarray(as_array(given.sees))
    if rows == 0:
        raise ValueError("a pass over rows needs at least one; give it a token")
    shapes = ((rows, rows), (rows, length + rows))
    if positions.shape != (rows,) or sees.shape not in shapes:
        raise ValueError(
            f"{rows} rows behind {length} tokens take positions [{rows}] and sees [{rows} {rows}],"
            f" or [{rows} {length + rows}] with the tokens, got {_named(positions)} and"
            f" {_named(sees)}"
        )
    if sees.dtype != np.bool_:
        raise TypeError(f"sees must be of type bool, True where a row sees, got {sees.dtype}")
    blind = np.flatnonzero(~np.diagonal(sees, sees.shape[1] - rows))
    if len(blind):
        raise ValueError(f"row {blind[0]} does not see itself; set its place in sees to True")
    if positions.min() < 0:
        raise ValueError(f"positions count from 0, got {positions.min()}")
    if limit is not None and positions.max() >= limit:
        raise ValueError(
            f"the model has {limit} positions, and a row asks for position {positions.max()};"
            " shorten the text or the block"
        )
    return positions.astype(np.int64), sees


def _first(flags: Bool[np.ndarray, " flags"]) -> int:
    """The place of the first flag that is set, or behind all."""
    return int(np.argmax(flags)) if flags.any() else len(flags)


def _named(array: np.ndarray) -> str:
    """The shape, as in ``[2 7]``."""
    return f"[{' '.join(map(str, array.shape))}]"
