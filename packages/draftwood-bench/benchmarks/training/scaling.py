"""Scaling laws of EAGLE heads: data, weights, batch and target, at most twelve runs.

    python -m benchmarks.training.scaling openings FILE
    python -m benchmarks.training.scaling plan [DATA] [--second DATA2]
    python -m benchmarks.training.scaling run [DATA] [--second DATA2] --work FOLDER
    python -m benchmarks.training.scaling show

Scylla (arXiv:2505.07858) has accepted tokens rise linearly with the logarithm of a drafter's data
and of its size. Here the figure is block efficiency with eight nodes, less one: accepted tokens of
a pass. Fitted are a line over the logarithm of tokens (0.1M to 1M), and slopes per factor of ten
for weights (1, 2 and 4 layers) and rows of a batch (1, 4 and 16), of one target; and a line of a
second target (0.1M to 3M), which is small, as an hour gives its data:

    draftwood train data DATA2 --model stories-15m --dtype int8 --prompts FILE --sets "" \\
      --self-written 0 --max-prompt 24 --max-answer 232 --answers-per-prompt 3 --tokens 8400k

The second target's run of most tokens (8M) is *foretold*: it is trained only once the smaller ones
are measured and the forecast from them is stored, and `show` sets both side by side. An interval
draws prompts again, and the deviation of a new point from the line by Student's distribution.

`run` prints the hours first and takes the cheapest runs first; what is there is left out, so that
it goes on where it was. Where data hold fewer tokens than a run sees, it says how often they are
passed over.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.scripts import parser_of, print_table
from benchmarks.training.drafters import (
    Arm,
    Measurement,
    eagle,
    tokens_per_second,
    train_one,
    training_of,
)
from draftwood.storage.atomic import write_file
from draftwood.storage.data_sets import DataFile
from draftwood_bench.plan.data_sets import DATA_SETS
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.statistics import DRAWS, Estimate
from draftwood_train.data.manifest import Manifest

RECORDS = RESULTS / "scaling" / "records.jsonl"
FORETOLD = RESULTS / "scaling" / "foretold.jsonl"
MILLION = 1_000_000
DATA = (MILLION // 10, 3 * MILLION // 10, MILLION)
OF_SECOND, LARGEST = (*DATA, 3 * MILLION), 8 * MILLION
COMMON = DATA[0]
ROWS, PLACES = 4, 512
TEMPERATURES = (0.0, 1.0)
TITLE = "What ten times as much adds to accepted tokens of a pass"
FORETOLD_TITLE = "The second target's largest run, foretold and measured"
AXES = {"data": "data", "weights": "weights", "batch": "batch", "target": "data, second target"}
OPENING = (3, 6, 10)  # words
PROMPTS = "stories"  # of the second target


@dataclass(frozen=True)
class ScalingArm(Arm):
    """A run on one axis.

    Attributes:
        rows: of a batch.
    """

    rows: int = ROWS
    cells: tuple[tuple[int, float], ...] = tuple((8, heat) for heat in TEMPERATURES)

    @property
    def is_of_second(self) -> bool:
        """True for a run of the second target."""
        return self.question == "target"


def arms() -> list[ScalingArm]:
    """Every run but the foretold one, the cheapest first."""
    found = [ScalingArm(f"data {n}", "data", eagle(), n) for n in DATA]
    for layers in (2, 4):
        found.append(ScalingArm(f"layers {layers}", "weights", eagle(layers=layers), COMMON))
    for rows in (1, 16):
        found.append(ScalingArm(f"rows {rows}", "batch", eagle(), COMMON, rows=rows))
    found += map(of_second, OF_SECOND)
    return sorted(found, key=lambda arm: hours([arm], 1))


def of_second(tokens: int) -> ScalingArm:
    """A run of the second target, whose stories need few words."""
    return ScalingArm(f"second target {tokens}", "target", eagle(), tokens, vocabulary=4096)


def largest() -> ScalingArm:
    """The foretold run."""
    return of_second(LARGEST)


def hours(missing: Sequence[ScalingArm], rate: float) -> float:
    """Hours of training, at so many tokens per second for a head of one layer.

    A layer and an output head cost as much as each other, and a batch of any size the same a token.
    """
    return sum(arm.tokens * (arm.recipe.layers + 1) / 2 / rate for arm in missing) / 3600  # type: ignore[attr-defined]


def measured_rate(arm: ScalingArm, data: Path, work: Path) -> float:
    """Tokens per second of a head of one layer, from three steps of a run."""
    return tokens_per_second(training(arm, data, work / "probe"))


def training(arm: ScalingArm, data: Path, folder: Path) -> Any:
    """The training of a run, with its own rows of a batch."""
    made = training_of(arm, data, folder)
    every = max(1, round(made.settings.judge_every * ROWS / arm.rows))
    return replace(made, settings=replace(made.settings, rows=arm.rows, judge_every=every))


def told_plan(
    wanted: Sequence[ScalingArm], data: Path, work: Path | None, rate: float
) -> Iterator[str]:
    """Lines of the plan of a target: runs, hours, and how often the data are passed over."""
    missing = [arm for arm in wanted if work is None or not arm.is_trained(work)]
    yield f"{len(wanted)} runs, {len(missing)} of them to train: {hours(missing, rate):.1f} hours"
    tokens = Manifest.read(data).counts()["tokens"]
    for arm in missing:
        passes = arm.tokens / tokens
        note = f", {passes:.1f} passes over the data" if passes > 1 else ""
        yield f"{arm.name}: {arm.tokens:,} tokens, {hours([arm], rate):.2f} h{note}"


def run(data: Path | None, second: Path | None, work: Path) -> None:
    """Train and measure what is missing; of the second target the forecast before the largest."""
    if data is not None:
        run_all([arm for arm in arms() if not arm.is_of_second], data, work, "spec-bench", 2)
    if second is None:
        return
    smaller = [arm for arm in arms() if arm.is_of_second]
    if run_all(smaller, second, work, PROMPTS, None):
        foretell()
        require_tokens(second, LARGEST)
        run_all([largest()], second, work, PROMPTS, None)


def require_tokens(data: Path, count: int) -> None:
    """Refuse data that the foretold run would pass over more than once.

    Raises:
        SystemExit: where they hold fewer tokens; it says how to make more.
    """
    held = Manifest.read(data).counts()["tokens"]
    if held < count:
        raise SystemExit(
            f"{data} holds {held:,} tokens, and the largest run sees {count:,}; let"
            " `draftwood train data` go on with more --tokens, then run this again"
        )


def run_all(
    wanted: Sequence[ScalingArm], data: Path, work: Path, prompts: str, per_category: int | None
) -> bool:
    """Train the runs of a target and decode with them; False where that was stopped."""
    if not all(arm.is_trained(work) for arm in wanted):
        for line in told_plan(wanted, data, work, measured_rate(wanted[0], data, work)):
            print(line, flush=True)
    target = Manifest.read(data).target.name
    measurement = Measurement(per_category, RECORDS, target, prompts)
    for arm in wanted:
        folder = arm.folder(work)
        if not arm.is_trained(work) and not train_one(arm.name, training(arm, data, folder)):
            return False
        measurement.arm(arm, folder)
    return True


def foretell() -> None:
    """Store the forecast of the largest run, once, before that is trained.

    Raises:
        RuntimeError: where the largest run is measured already.
    """
    if read(FORETOLD):
        return
    records = read(RECORDS)
    if any(record["name"] == largest().name for record in records):
        raise RuntimeError(f"{largest().name} is measured; what is foretold now is no forecast")
    for temperature in TEMPERATURES:
        figures = accepted(records, names_of("target"), temperature)
        found = forecast(figures, OF_SECOND, LARGEST)
        told = {"temperature": temperature, "tokens": LARGEST, "from": list(OF_SECOND)}
        append(FORETOLD, {**told, "value": found.value, "low": found.low, "high": found.high})


def openings() -> list[str]:
    """Beginnings of sentences of stories, in a fixed random order; none of a measured story."""
    measured = {each.turns[0] for each in load_prompts(PROMPTS).prompts}
    stories = DataFile.named(DATA_SETS[PROMPTS].file, "or leave --second out").lines()
    found = {
        " ".join(words[:count])
        for story in map(str.strip, stories)
        if len(story) > 200 and story not in measured
        for words in map(str.split, re.split(r'(?<=[.!?"])\s+', story))
        for count in OPENING
        if len(words) >= count
    }
    return random.Random(1).sample(sorted(found), len(found))


def names_of(axis: str) -> list[str]:
    """Runs of an axis, the common one among them."""
    return {
        "data": [f"data {n}" for n in DATA],
        "weights": [f"data {COMMON}", "layers 2", "layers 4"],
        "batch": ["rows 1", f"data {COMMON}", "rows 16"],
        "target": [of_second(n).name for n in OF_SECOND],
    }[axis]


def accepted(
    records: Sequence[Mapping[str, Any]], names: Sequence[str], temperature: float
) -> np.ndarray:
    """Accepted tokens of a pass [draws runs], the first draw being all prompts as they are."""
    own = [each for each in records if each["temperature"] == temperature]
    prompts = list(dict.fromkeys(each["prompt"] for each in own if each["name"] in names))
    sums = np.zeros((len(names), len(prompts), 2))
    for each in own:
        if each["name"] in names:
            place = names.index(each["name"]), prompts.index(each["prompt"])
            sums[place] += each["tokens"] - each["runs"], each["runs"]
    if not prompts or not sums[..., 1].all():
        raise ValueError(f"not all prompts are measured for {', '.join(names)}; run it again")
    draws = np.random.default_rng(0).integers(len(prompts), size=(DRAWS, len(prompts)))
    lots = np.concatenate([np.arange(len(prompts))[None], draws])
    pooled = sums[:, lots].sum(2)
    return (pooled[..., 0] / pooled[..., 1]).T


def lines(figures: np.ndarray, sizes: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Slopes per factor of ten and values at size 1, of each draw."""
    slopes, values = np.polyfit(np.log10(sizes), figures.T, 1)
    return slopes, values


def slope(figures: np.ndarray, sizes: Sequence[float]) -> Estimate:
    """Gain of ten times as much, with its interval over prompts."""
    found = lines(figures, sizes)[0]
    low, high = np.quantile(found[1:], (0.025, 0.975))
    return Estimate(float(found[0]), float(low), float(high), len(sizes))


def explained(figures: np.ndarray, sizes: Sequence[float]) -> float:
    """R squared of the line through the points as they are measured."""
    slopes, values = lines(figures[:1], sizes)
    off = figures[0] - slopes[0] * np.log10(sizes) - values[0]
    return float(1 - (off**2).sum() / max(((figures[0] - figures[0].mean()) ** 2).sum(), 1e-12))


def forecast(figures: np.ndarray, sizes: Sequence[float], at: float) -> Estimate:
    """The line's value at another size, with an interval for a new point there.

    Each draw of prompts has its own line; what a new point is off this line is drawn from Student's
    distribution, by how far the measured points are off the line through them.
    """
    logs, count = np.log10(sizes), len(sizes)
    slopes, values = lines(figures, sizes)
    found = slopes * np.log10(at) + values
    off = figures[0] - slopes[0] * logs - values[0]
    freedom = max(count - 2, 1)
    spread = 1 + 1 / count + (np.log10(at) - logs.mean()) ** 2 / ((logs - logs.mean()) ** 2).sum()
    scale = np.sqrt((off**2).sum() / freedom * spread)
    drawn = found[1:] + scale * np.random.default_rng(1).standard_t(freedom, len(found) - 1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Estimate(float(found[0]), float(low), float(high), count)


def rows() -> list[dict[str, str]]:
    """A line per axis and temperature that is measured."""
    records, found = read(RECORDS), []
    known = {each["name"] for each in records}
    for axis in AXES:
        names = [name for name in names_of(axis) if name in known]
        if len(names) < 2:
            continue
        for temperature in TEMPERATURES:
            figures, sizes = accepted(records, names, temperature), sizes_of(records, axis, names)
            points = zip(sizes, figures[0], strict=True)
            found.append(
                {
                    "ten times the": f"{AXES[axis]}, T = {temperature:g}",
                    "accepted": ", ".join(f"{amount(size)}: {value:.2f}" for size, value in points),
                    "adds": str(slope(figures, sizes)),
                    "R squared": f"{explained(figures, sizes):.3f}" if len(names) > 2 else "-",
                }
            )
    return found


def amount(size: float) -> str:
    """A number of tokens or weights in thousands or millions."""
    return f"{size / MILLION:.3g}M" if size >= MILLION else f"{size / 1000:.3g}k"


def sizes_of(records: Sequence[Mapping[str, Any]], axis: str, names: Sequence[str]) -> list[float]:
    """Place of each run on an axis."""
    if axis == "batch":
        return [1.0 * PLACES, ROWS * PLACES, 16.0 * PLACES]
    field = "weights" if axis == "weights" else "data"
    return [next(float(each[field]) for each in records if each["name"] == name) for name in names]


def foretold_rows() -> list[dict[str, str]]:
    """Forecast and measurement of the largest run."""
    records, found = read(RECORDS), []
    is_measured = any(each["name"] == largest().name for each in records)
    for told in read(FORETOLD):
        heat = told["temperature"]
        row = {"T": f"{heat:g}", "tokens": f"{told['tokens']:,}"}
        row["foretold"] = f"{told['value']:.2f} [{told['low']:.2f}, {told['high']:.2f}]"
        row["measured"] = ""
        if is_measured:
            value = float(accepted(records, [largest().name], heat)[0, 0])
            row["measured"] = f"{value:.2f}"
            row["within"] = "yes" if told["low"] <= value <= told["high"] else "no"
        found.append(row)
    return found


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    opening = commands.add_parser("openings")
    opening.add_argument("file", type=Path, help="JSON Lines of prompts to write")
    for name in ("plan", "run"):
        command = commands.add_parser(name)
        command.add_argument("data", type=Path, nargs="?", help="data of the first target")
        command.add_argument("--second", type=Path, help="data of the second target")
        command.add_argument("--threads", type=int, default=1)
        if name == "run":
            command.add_argument("--work", type=Path, required=True)
        else:
            command.add_argument("--rate", type=float, default=700.0, help="tokens per second")
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command in ("plan", "run") and not (given.data or given.second):
        parser.error("there are no data; give DATA, --second DATA2 or both")
    if given.command == "show":
        show()
    elif given.command == "openings":
        lines = "".join(json.dumps({"prompt": each}) + "\n" for each in openings())
        write_file(given.file, lines)
    elif given.command == "plan":
        every = [*arms(), largest()]
        for place, is_second in ((given.data, False), (given.second, True)):
            if place is not None:
                wanted = [arm for arm in every if arm.is_of_second is is_second]
                print("\n".join(told_plan(wanted, place, None, given.rate)))
    else:
        torch.set_num_threads(given.threads)
        run(given.data, given.second, given.work)


def show() -> None:
    """The tables, in Markdown."""
    print_table(rows(), f"### {TITLE}")
    print()
    print_table(foretold_rows(), f"### {FORETOLD_TITLE}")


if __name__ == "__main__":
    main()
