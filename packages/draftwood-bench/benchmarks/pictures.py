"""Pictures: tokens per pass by method and knobs, and whether features stay plain drawing's.

    .venv/bin/python -m benchmarks.pictures FOLDER [--model emoji] [--seconds]

Draws 40 names by 4 seeds in each setting, every window whole, so that counts depend on no clock.
Writes a line of JSON per picture and goes on where it was stopped. ``--seconds`` times methods with
windows as large as pay beside plain drawing instead, picture by picture in turns.
"""

import argparse
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.common import json_lines
from benchmarks.common.two_samples import p_value
from draftwood.native.threads import threads
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.run.describe import commit
from draftwood_images.drawing import DrawingRule, DrawnPicture, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model
from draftwood_images.methods import MachineCosts, WindowKnobs, picture_method
from draftwood_images.picture_model import PictureSettings
from draftwood_images.starts import STARTS

FILE, TIMES = "pictures.jsonl", "seconds.jsonl"
CHARACTERS = range(0x1F300, 0x1FB00)
"""Characters whose names are drawn, where the model knows all of their words."""
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


def names_for(settings: PictureSettings, count: int) -> list[str]:
    """Names of characters all of whose words the model knows, or its words; evenly spread."""
    known, found = set(settings.words), list[str]()
    for code in CHARACTERS:
        words = unicodedata.name(chr(code), "").lower().replace("-", " ").split()
        if words and known.issuperset(words):
            found.append(" ".join(words))
    found = found or list(settings.words)
    places = np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)
    return [found[place] for place in places]


def told(picture: DrawnPicture) -> dict[str, Any]:
    """Tell of a picture in plain types, for a record."""
    stats = picture.stats
    return {
        **{"name": picture.name, "seed": picture.seed, "tokens": stats.tokens},
        **{"passes": stats.target_runs, "tokens_per_pass": stats.block_efficiency},
        **{"drafted": stats.drafted, "accepted": stats.accepted},
        "codes": picture.codes.reshape(-1).tolist(),
    }


def measure(
    drawing: DrawingModel, asked: Sequence[Cell], names: Sequence[str], seeds: int, folder: Path
) -> list[dict[str, Any]]:
    """Draw what a stopped run left; all records."""
    path = folder / FILE
    known = {(each["key"], each["name"], each["seed"]) for each in json_lines.read(path)}
    facts = {"model": drawing.name, "commit": commit(), "processor": processor()}
    for cell in {each.key: each for each in asked}.values():
        for number, name in enumerate(names):  # equal seeds would make pictures of two names alike
            wanted = [cell.seeds + seeds * number + seed for seed in range(seeds)]
            left = [seed for seed in wanted if (cell.key, name, seed) not in known]
            if not left:
                continue
            easel = Easel(drawing, name, cell.rule)
            method = picture_method(cell.method, easel, cell.knobs)
            for picture in easel.draw(method, left, TOGETHER):
                json_lines.append(path, {"key": cell.key, **told(picture), **facts})
        print(cell.table, cell.key, flush=True)
    return json_lines.read(path)


def by_name(records: Sequence[Mapping[str, Any]], what: str) -> np.ndarray:
    """Mean of a number over the seeds of each name."""
    grouped = json_lines.grouped(records, "name").values()
    return np.array([np.mean([each[what] for each in own]) for own in grouped])


def features(
    records: Sequence[Mapping[str, Any]], drawing: DrawingModel
) -> Float[np.ndarray, "pictures features"]:
    """Mean code vector of each block of a picture."""
    layout, vectors = drawing.layout, drawing.vectors
    assert vectors is not None
    codes = np.array([each["codes"] for each in records])
    grids = vectors[codes].reshape(len(codes), layout.rows, layout.columns, -1)
    rows = [part.mean(1) for part in np.array_split(grids, BLOCKS, 1)]
    blocks = [part.mean(1) for row in rows for part in np.array_split(row, BLOCKS, 1)]
    return np.concatenate(blocks, 1)


def table(
    records: Sequence[Mapping[str, Any]], asked: Sequence[Cell], drawing: DrawingModel
) -> Iterator[str]:
    """Tokens per pass with 95 % intervals over names, and p-values against plain drawing."""
    by_key = json_lines.grouped(records, "key")
    reference = sorted(by_key[asked[0].key], key=_place)
    for number, cell in enumerate(asked):
        if number and cell.table != asked[number - 1].table:
            yield f"\n{cell.table}"
        own = sorted(by_key[cell.key], key=_place)
        line = f"{difference(by_name(own, 'tokens_per_pass'))!s:24}"
        if cell.table in ("methods", "drift") and cell.method != "raced-jacobi":
            samples = features(own, drawing), features(reference, drawing)
            line += f"p = {p_value(*samples, [each['name'] for each in own]):.3f}  "
        yield f"{line:36}{cell.key}"
    yield f"\nplanted drift: rows at temperature {DRIFT} are {drift(drawing, reference):.3f} apart"


def _place(record: Mapping[str, Any]) -> tuple[str, int]:
    return record["name"], record["seed"]


def drift(drawing: DrawingModel, records: Sequence[Mapping[str, Any]]) -> Estimate | float:
    """Mean total variation between rows at both temperatures, along plain pictures."""
    found = list[float]()
    first = np.array(drawing.layout.tokens)
    for record in records[:: max(1, len(records) // 40)]:
        easel = Easel(drawing, record["name"], DrawingRule(1.0, 100, drawing.guidance))
        session = easel.model.start()
        codes = first[record["codes"]].tolist()
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
    path, ways = folder / TIMES, ("plain", "raced-jacobi", "sjd", "gsd")
    costs = MachineCosts(Easel(drawing, names[0], rule))
    facts = {"commit": commit(), "processor": processor(), "threads": threads(), **asdict(rule)}
    for name in names:
        easel = Easel(drawing, name, rule)
        for way in ways:
            method = picture_method(way, easel, WindowKnobs(), costs)
            if name == names[0]:
                list(easel.draw(method, [1]))  # warm
            since = time.perf_counter()
            (picture,) = easel.draw(method, [0])
            spent = time.perf_counter() - since
            json_lines.append(path, {"way": way, "seconds": spent, **told(picture), **facts})
    found = [each for each in json_lines.read(path) if each["guidance"] == rule.guidance]
    by_way = json_lines.grouped(found, "way")
    plain = np.array([each["seconds"] for each in by_way["plain"]])
    yield f"guidance {rule.guidance:g}: ms of a step with 0, 1, 2, 4, 8, 16 draft tokens" + "".join(
        f" {1000 * costs.windows.seconds(1 + count):.2f}" for count in (0, 1, 2, 4, 8, 16)
    )
    for way, own in by_way.items():
        spent = np.array([each["seconds"] for each in own])
        passes = difference(np.array([each["tokens_per_pass"] for each in own]))
        yield f"{way:14} {np.median(spent):.3f} s  {difference(plain / spent)} of plain  {passes}"


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
    drawing, names = DrawingModel.of(given.model, loaded), names_for(loaded.settings, given.names)
    if given.seconds:
        for guidance in (1.0, 2.0):
            rule = DrawingRule(1.0, 100, guidance)
            print("\n".join(seconds(drawing, names, rule, given.folder)))
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
