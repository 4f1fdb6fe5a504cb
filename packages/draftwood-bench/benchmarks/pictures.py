"""Pictures: tokens per pass by method and knobs, and whether features stay plain drawing's.

    .venv/bin/python -m benchmarks.pictures FOLDER [--classifier FILE] [--json] [--seconds]

Draws 40 names by 4 seeds in each setting, every window whole, so that counts depend on no clock.
Writes a line of JSON per picture and goes on where it was stopped. ``--classifier`` takes what
``draftwood train images FONT emoji --classifier-only`` wrote, and tells how many pictures it
recognises; ``results/pictures.json`` holds what ``--json`` printed. ``--seconds`` times methods
with windows as large as pay beside plain drawing instead, as ``draftwood bench pictures`` does, in
a folder for each guidance.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8

from benchmarks.common.scripts import print_table
from benchmarks.common.two_samples import p_value
from draftwood.cli.terminal import progress
from draftwood.native.threads import threads
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.run.describe import commit
from draftwood_images.drawing import DrawingRule, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model
from draftwood_images.measuring.names import names_for
from draftwood_images.measuring.run import DrawnPoint, PictureRecord, PictureRun
from draftwood_images.measuring.table import by_name
from draftwood_images.measuring.table import table as speeds
from draftwood_images.methods import MachineCosts, WindowKnobs
from draftwood_images.starts import STARTS

if TYPE_CHECKING:
    from draftwood_images.training.classifier import Classifier

SETTINGS = "settings"
"""Names the file of the records of all settings."""
OTHER_SEEDS = 1000
"""Added to the seeds of the plain pictures that all others are compared with."""
DRIFTS = 0.8, 0.5
"""Temperatures of the drifts that are planted."""
TOGETHER = 8
PLAIN = "methods", "plain"
"""Table and method of the pictures whose recognition all others are compared with."""
BLOCKS = 3
"""Blocks of a picture's rows, and of its columns, whose codes features are means of."""


@dataclass(frozen=True)
class Cell:
    """A setting.

    Attributes:
        table: that it belongs to.
        method: its name.
        rule: by which codes are drawn.
        knobs: of windows.
        seeds: added to each picture's.
    """

    table: str
    method: str
    rule: DrawingRule
    knobs: WindowKnobs = WindowKnobs(whole=True)  # noqa: RUF009  frozen
    seeds: int = 0

    @property
    def key(self) -> str:
        """All that pictures depend on, as records have it."""
        rule, knobs = self.rule, self.knobs
        told = f"{self.method}, T = {rule.temperature:g}, top-k {rule.top_k}"
        told += f", guidance {rule.guidance:g}"
        if self.method != "plain":
            told += f", W = {knobs.window}, {knobs.start}"
        if self.method == "gsd":
            told += f", G = {knobs.group}, d = {knobs.distance}"
        return f"{told}, seeds from {self.seeds}"

    @property
    def point(self) -> DrawnPoint:
        """The setting as a run draws it."""
        return DrawnPoint(self.method, self.rule, self.knobs, self.seeds)


def cells(guidance: float, apart: float) -> list[Cell]:
    """All settings.

    Args:
        guidance: the model's own.
        apart: median squared distance of two codes.
    """
    usual, whole = DrawingRule(1.0, 100, guidance), WindowKnobs(whole=True)
    found = [Cell("reference", "plain", usual, seeds=OTHER_SEEDS)]
    found += [Cell("methods", name, usual) for name in ("plain", "sjd", "raced-jacobi")]
    groups = (replace(whole, group=each) for each in (1, 3, 10, 25, 50))
    found += [Cell("methods", "gsd", usual, each) for each in groups]
    found.append(Cell("methods", "gsd", usual, replace(whole, group=50, distance=apart)))
    found += [Cell("drift", "plain", replace(usual, temperature=each)) for each in DRIFTS]
    for name in ("raced-jacobi", "sjd"):
        windows = (replace(whole, window=each) for each in (2, 4, 8, 16))
        found += [Cell("window", name, usual, each) for each in windows]
        found += [Cell("start", name, usual, replace(whole, start=each)) for each in STARTS]
        hot = (replace(usual, temperature=each) for each in (0.0, 0.7, 1.0))
        found += [Cell("temperature", name, each) for each in hot]
        cuts = (replace(usual, top_k=each) for each in (10, 100, 0))
        found += [Cell("top-k", name, each) for each in cuts]
        scales = (replace(usual, guidance=each) for each in (1.0, 2.0, 4.0))
        found += [Cell("guidance", name, each) for each in scales]
    return found


def measure(
    drawing: DrawingModel, asked: Sequence[Cell], names: Sequence[str], seeds: int, folder: Path
) -> list[PictureRecord]:
    """Draw what a stopped run left; all records."""
    points = {each.key: each.point for each in asked}
    run = PictureRun(drawing, points, names, seeds, folder, SETTINGS, TOGETHER)
    with progress() as bar:
        task = bar.add_task("pictures", total=len(points) * len(names) * seeds)
        return run.run({}, lambda: bar.update(task, advance=1))


def features(
    records: Sequence[PictureRecord], drawing: DrawingModel, classifier: "Classifier | None" = None
) -> Float[np.ndarray, "pictures features"]:
    """Features of the classifier; without one, mean code vectors of each block of a picture."""
    if classifier is not None:
        return classifier.features(pixels(records, drawing))
    layout, vectors = drawing.layout, drawing.vectors
    assert vectors is not None
    codes = np.array([each.codes for each in records])
    grids = vectors[codes].reshape(len(codes), layout.rows, layout.columns, -1)
    rows = [part.mean(1) for part in np.array_split(grids, BLOCKS, 1)]
    blocks = [part.mean(1) for row in rows for part in np.array_split(row, BLOCKS, 1)]
    return np.concatenate(blocks, 1)


@dataclass(frozen=True)
class Row:
    """Figures of a setting.

    Attributes:
        table: that it belongs to.
        setting: all that its pictures depend on.
        tokens: for each pass.
        p_value: of features like plain drawing's; None where that is not asked.
        recognised: share of pictures whose base the classifier has among its likeliest five, of
            the names that it knows.
        over_plain: what that is above plain drawing's, by names.
        pictures: drawn.
    """

    table: str
    setting: str
    tokens: Estimate
    p_value: float | None
    recognised: Estimate | None
    over_plain: Estimate | None
    pictures: int


def rows(
    records: Sequence[PictureRecord],
    asked: Sequence[Cell],
    drawing: DrawingModel,
    classifier: "Classifier | None" = None,
) -> Iterator[Row]:
    """Figures of each setting, with 95 % intervals over names."""
    reference = _of(records, asked[0])
    seen = features(reference, drawing, classifier)
    plain = next((each for each in asked if (each.table, each.method) == PLAIN), asked[0])
    known = _recognised(_of(records, plain), drawing, classifier)
    for cell in asked:
        own, compared = _of(records, cell), cell.table in ("reference", "methods", "drift")
        found = _recognised(own, drawing, classifier) if compared else None
        p = None
        if compared and cell.table != "reference" and cell.method != "raced-jacobi":
            p = p_value(features(own, drawing, classifier), seen, [each.name for each in own])
        yield Row(
            cell.table,
            cell.key,
            difference(by_name(own, lambda each: each.tokens_per_pass)),
            p,
            None if found is None else difference(found),
            None if found is None or known is None else difference(found - known),
            len(own),
        )


def shown(row: Row) -> dict[str, str]:
    """A line of the table."""
    return {
        "setting": row.setting,
        "tokens a pass": str(row.tokens),
        "p": "" if row.p_value is None else f"{row.p_value:.3f}",
        "recognised": str(row.recognised or ""),
        "over plain": str(row.over_plain or ""),
    }


def _recognised(
    records: Sequence[PictureRecord], drawing: DrawingModel, classifier: "Classifier | None"
) -> Float[np.ndarray, " names"] | None:
    """Share of recognised pictures of each name that the classifier knows; None without one."""
    if classifier is None:
        return None
    records = [each for each in records if each.name in classifier.base_of]
    found = classifier.recognised(pixels(records, drawing), [each.name for each in records])
    right = dict(zip(((each.name, each.seed) for each in records), found, strict=True))
    return by_name(records, lambda each: float(right[each.name, each.seed]))


def pixels(
    records: Sequence[PictureRecord], drawing: DrawingModel
) -> UInt8[np.ndarray, "pictures height width 3"]:
    """The pictures, as the codec paints them."""
    layout = drawing.layout
    grids = (np.reshape(each.codes, (layout.rows, layout.columns)) for each in records)
    return np.stack([drawing.paint(grid) for grid in grids])


def _of(records: Sequence[PictureRecord], cell: Cell) -> list[PictureRecord]:
    """Pictures of a setting, in the order of their names and seeds."""
    own = (each for each in records if each.point == cell.key)
    return sorted(own, key=lambda each: (each.name, each.seed))


def drift(drawing: DrawingModel, records: Sequence[PictureRecord], temperature: float) -> Estimate:
    """Mean total variation of rows at a temperature from those at 1, along plain pictures."""
    found = list[float]()
    first = np.array(drawing.layout.tokens)
    for record in records[:: max(1, len(records) // 40)]:
        easel = Easel(drawing, record.name, DrawingRule(1.0, 100, drawing.guidance))
        session = easel.model.start()
        codes = first[list(record.codes)].tolist()
        session.extend(easel.prompt, keep="none")
        rows = session.extend(codes).rows[:-1]
        session.close()
        cold = replace(easel.sampling, temperature=temperature).probs(rows)
        found.append(float(np.abs(easel.sampling.probs(rows) - cold).sum(1).mean() / 2))
    return difference(np.array(found))


def seconds(
    drawing: DrawingModel, names: Sequence[str], rule: DrawingRule, folder: Path
) -> Iterator[str]:
    """Time each method beside plain drawing, windows as large as pays."""
    points = {each: DrawnPoint(each, rule) for each in ("plain", "raced-jacobi", "sjd", "gsd")}
    costs = MachineCosts(Easel(drawing, names[0], rule))
    steps = [costs.piece("plain", WindowKnobs())]
    for window in (1, 2, 4, 8, 16):
        steps.append(costs.piece("raced-jacobi", WindowKnobs(window=window, whole=True)))
    settings = {**asdict(rule), "threads": threads(), "processor": processor()}
    records = PictureRun(drawing, points, names, 1, folder).run(settings)
    yield f"guidance {rule.guidance:g}: ms of a step with 0, 1, 2, 4, 8, 16 draft tokens" + "".join(
        f" {1000 * step.seconds:.2f}" for step in steps
    )
    yield speeds(records).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="emoji")
    parser.add_argument("--names", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--dtype", default="int8", choices=["int8", "bfloat16", "float32"])
    parser.add_argument("--tables", help="some of the tables, for instance methods,window")
    parser.add_argument("--classifier", type=Path, help="file of draftwood train images")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", action="store_true")
    given = parser.parse_args()
    loaded = load_picture_model(given.model, given.dtype)
    drawing = DrawingModel.of(given.model, loaded)
    names = names_for(drawing.words, given.names)
    if given.seconds:
        for guidance in (1.0, 2.0):
            rule = DrawingRule(1.0, 100, guidance)
            folder = given.folder / f"guidance-{guidance:g}"
            print("\n".join(seconds(drawing, names, rule, folder)))
        return
    asked = cells(drawing.guidance, median_distance(drawing))
    if given.tables:
        asked = [each for each in asked if each.table in ("reference", *given.tables.split(","))]
    records = measure(drawing, asked, names, given.seeds, given.folder)
    classifier = None
    if given.classifier is not None:
        from draftwood_images.training.classifier import Classifier

        classifier = Classifier.read(given.classifier)
    found = list(rows(records, asked, drawing, classifier))
    apart = {at: drift(drawing, _of(records, asked[0]), at) for at in DRIFTS}
    if given.json:
        drifts = {f"{at:g}": asdict(each) for at, each in apart.items()}
        told = {"commit": commit(), "drift": drifts, "rows": [asdict(row) for row in found]}
        print(json.dumps(told))
        return
    for name, own in groupby(found, lambda row: row.table):
        print_table([shown(row) for row in own], name)
        print()
    for at, each in apart.items():
        print(f"planted drift: rows at temperature {at:g} are {each} apart")


def median_distance(drawing: DrawingModel) -> float:
    """Median squared distance of two codes."""
    vectors = drawing.vectors
    assert vectors is not None
    apart = ((vectors[:, None] - vectors) ** 2).sum(-1)
    return round(float(np.median(apart[np.triu_indices(len(vectors), 1)])), 6)


if __name__ == "__main__":
    main()
