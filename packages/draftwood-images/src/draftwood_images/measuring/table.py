"""A table of settings: tokens per pass and seconds beside plain drawing, with paired intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from draftwood import methods
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.report.table import Table
from draftwood_images.measuring.run import PLAIN, PictureRecord

COLUMNS = (
    *("point", "promise", "pictures", "tokens per pass [95 %]", "passes", "seconds"),
    *("times plain's speed [95 %]", "as drawn plainly"),
)


@dataclass(frozen=True)
class PointFigures:
    """Figures of a setting on the pictures that plain drawing has too; means over names.

    Attributes:
        promise: of its method.
        pictures: that were drawn.
        tokens_per_pass: of a picture.
        passes, seconds: of a picture.
        speed: seconds of plain drawing over its own, name by name.
        same: pictures that are plain drawing's of the same seed, code by code.
    """

    promise: str
    pictures: int
    tokens_per_pass: Estimate
    passes: float
    seconds: float
    speed: Estimate
    same: int


def compared(records: Sequence[PictureRecord]) -> dict[str, PointFigures]:
    """Figures of each setting, plain drawing's first of all.

    Raises:
        ValueError: where plain drawing has drawn nothing yet.
    """
    plain = {(each.name, each.seed): each for each in records if each.point == PLAIN}
    if not plain:
        raise ValueError("there is no picture of plain drawing yet; let the run go on")
    found = dict[str, PointFigures]()
    for point in dict.fromkeys([PLAIN, *(each.point for each in records)]):
        own = [x for x in records if x.point == point and (x.name, x.seed) in plain]
        if own:
            found[point] = _figures(own, [plain[each.name, each.seed] for each in own])
    return found


def _figures(own: Sequence[PictureRecord], beside: Sequence[PictureRecord]) -> PointFigures:
    seconds = by_name(own, lambda each: each.seconds)
    return PointFigures(
        methods.listing(own[0].method).promise,
        len(own),
        difference(by_name(own, lambda each: each.tokens_per_pass)),
        float(by_name(own, lambda each: each.passes).mean()),
        float(seconds.mean()),
        difference(by_name(beside, lambda each: each.seconds) / seconds),
        sum(list(a.codes) == list(b.codes) for a, b in zip(own, beside, strict=True)),
    )


def by_name(
    records: Sequence[PictureRecord], figure: Callable[[PictureRecord], float]
) -> Float[np.ndarray, " names"]:
    """Mean of a number over the pictures of each name."""
    found: dict[str, list[float]] = {}
    for each in records:
        found.setdefault(each.name, []).append(figure(each))
    return np.array([np.mean(values) for values in found.values()])


def table(records: Sequence[PictureRecord]) -> Table:
    """One row for each setting."""
    rows = [
        (
            *(point, each.promise, str(each.pictures), str(each.tokens_per_pass)),
            *(f"{each.passes:.1f}", f"{each.seconds:.3f}", str(each.speed)),
            f"{each.same} of {each.pictures}",
        )
        for point, each in compared(records).items()
    ]
    return Table("tokens per pass and seconds of each method", COLUMNS, tuple(rows))
