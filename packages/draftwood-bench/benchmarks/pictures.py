"""Pictures: tokens per pass by method and knobs, and whether features stay plain drawing's.

    .venv/bin/python -m benchmarks.pictures FOLDER [--model emoji] [--seconds]

Draws 40 names by 4 seeds in each setting, every window whole, so that counts depend on no clock.
Writes a line of JSON per picture and goes on where it was stopped. ``--seconds`` times methods with
windows as large as pay beside plain drawing instead, as ``draftwood bench pictures`` does, in a
folder for each guidance.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from benchmarks.common.two_samples import p_value
from draftwood.cli.terminal import progress
from draftwood.native.threads import threads
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_images.drawing import DrawingRule, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model
from draftwood_images.measuring.names import names_for
from draftwood_images.measuring.run import DrawnPoint, PictureRecord, PictureRun
from draftwood_images.measuring.table import by_name
from draftwood_images.measuring.table import table as speeds
from draftwood_images.methods import MachineCosts, WindowKnobs
from draftwood_images.starts import STARTS

SETTINGS = "settings"
"""Names the file of the records of all settings."""
OTHER_SEEDS = 1000
"""Added to the seeds of the plain pictures that all others are compared with."""
DRIFT = 0.8
"""Temperature of the drift that is planted."""
TOGETHER = 8
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
    found.append(Cell("drift", "plain", replace(usual, temperature=DRIFT)))
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
    records: Sequence[PictureRecord], drawing: DrawingModel
) -> Float[np.ndarray, "pictures features"]:
    """Mean code vector of each block of a picture."""
    layout, vectors = drawing.layout, drawing.vectors
    assert vectors is not None
    codes = np.array([each.codes for each in records])
    grids = vectors[codes].reshape(len(codes), layout.rows, layout.columns, -1)
    rows = [part.mean(1) for part in np.array_split(grids, BLOCKS, 1)]
    blocks = [part.mean(1) for row in rows for part in np.array_split(row, BLOCKS, 1)]
    return np.concatenate(blocks, 1)


def table(
    records: Sequence[PictureRecord], asked: Sequence[Cell], drawing: DrawingModel
) -> Iterator[str]:
    """Tokens per pass with 95 % intervals over names, and p-values against plain drawing."""
    reference = _of(records, asked[0])
    for number, cell in enumerate(asked):
        if number and cell.table != asked[number - 1].table:
            yield f"\n{cell.table}"
        own = _of(records, cell)
        line = f"{difference(by_name(own, lambda each: each.tokens_per_pass))!s:24}"
        if cell.table in ("methods", "drift") and cell.method != "raced-jacobi":
            samples = features(own, drawing), features(reference, drawing)
            line += f"p = {p_value(*samples, [each.name for each in own]):.3f}  "
        yield f"{line:36}{cell.key}"
    yield f"\nplanted drift: rows at temperature {DRIFT} are {drift(drawing, reference):.3f} apart"


def _of(records: Sequence[PictureRecord], cell: Cell) -> list[PictureRecord]:
    """Pictures of a setting, in the order of their names and seeds."""
    own = (each for each in records if each.point == cell.key)
    return sorted(own, key=lambda each: (each.name, each.seed))


def drift(drawing: DrawingModel, records: Sequence[PictureRecord]) -> Estimate | float:
    """Mean total variation between rows at both temperatures, along plain pictures."""
    found = list[float]()
    first = np.array(drawing.layout.tokens)
    for record in records[:: max(1, len(records) // 40)]:
        easel = Easel(drawing, record.name, DrawingRule(1.0, 100, drawing.guidance))
        session = easel.model.start()
        codes = first[list(record.codes)].tolist()
        session.extend(easel.prompt, keep="none")
        rows = session.extend(codes).rows[:-1]
        session.close()
        cold = replace(easel.sampling, temperature=DRIFT).probs(rows)
        found.append(float(np.abs(easel.sampling.probs(rows) - cold).sum(1).mean() / 2))
    return float(np.mean(found))


def seconds(
    drawing: DrawingModel, names: Sequence[str], rule: DrawingRule, folder: Path
) -> Iterator[str]:
    """Time each method beside plain drawing, windows as large as pays."""
    points = {each: DrawnPoint(each, rule) for each in ("plain", "raced-jacobi", "sjd", "gsd")}
    costs = MachineCosts(Easel(drawing, names[0], rule)).windows.seconds
    settings = {**asdict(rule), "threads": threads(), "processor": processor()}
    records = PictureRun(drawing, points, names, 1, folder).run(settings)
    yield f"guidance {rule.guidance:g}: ms of a step with 0, 1, 2, 4, 8, 16 draft tokens" + "".join(
        f" {1000 * costs(1 + count):.2f}" for count in (0, 1, 2, 4, 8, 16)
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
    print("\n".join(table(records, asked, drawing)))


def median_distance(drawing: DrawingModel) -> float:
    """Median squared distance of two codes."""
    vectors = drawing.vectors
    assert vectors is not None
    apart = ((vectors[:, None] - vectors) ** 2).sum(-1)
    return round(float(np.median(apart[np.triu_indices(len(vectors), 1)])), 6)


if __name__ == "__main__":
    main()
