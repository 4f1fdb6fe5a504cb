"""Continuous tokens: how many drafted ones stand, what passes give, and how far pictures drift.

    draftwood train continuous my-digits --digits
    python -m benchmarks.continuous FOLDER --digits my-digits

Gaussians have a known distribution, and pictures are compared with it by Kolmogorov-Smirnov: the
largest distance over all coordinates and some projections. Digits are compared with as many that
the target drew alone. Intervals come from drawing pictures again. FOLDER keeps pictures and counts,
so that a run that was stopped goes on there; `--json` prints all figures for programs, and
`results/continuous.json` holds them.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from benchmarks.common.scripts import print_table
from benchmarks.self_speculation.paired_counts import figure, over
from draftwood.storage.atomic import write_file
from draftwood_bench.records.statistics import Estimate
from draftwood_bench.run.describe import commit
from draftwood_images.continuous.cspd import Cspd
from draftwood_images.continuous.gaussians import GaussianChains, gaussian_pair
from draftwood_images.continuous.kolmogorov import (
    normal_distance,
    normal_p_value,
    samples_distance,
    samples_p_value,
)
from draftwood_images.continuous.loop import Undrafted, draw
from draftwood_images.continuous.methods import METHODS
from draftwood_images.continuous.model import ContinuousModel
from draftwood_images.continuous.patches import PatchModel, load_pair
from draftwood_images.continuous.rule import ContinuousRule

PLAIN, QUIET, UNSHARED = "plain", "plain, last step without noise", "cspd, noise not shared"
ARMS: Mapping[str, ContinuousRule] = {
    PLAIN: Undrafted(),
    QUIET: Undrafted(last_noise=False),
    **METHODS,
    UNSHARED: Cspd(shared=False),
}
AT_ONCE = 100
"""Pictures that are drawn side by side, and kept in a file."""
LASTS = (0.05, 0.1, 0.2)
"""Deviations of the last step."""
SPREADS = (1.05, 1.15)
"""Deviations of a draft over the target's."""
LENGTH, LASTING = 16, (20, 0.9, (0.4, 0.2))
"""Tokens of Gaussians; steps, pull and deviations of chains in which noise lasts long."""
Pair = tuple[ContinuousModel, ContinuousModel]


@dataclass(frozen=True)
class Drawn:
    """Pictures of one setting and arm, and counts of each: passes, head passes, tested and kept."""

    tokens: np.ndarray
    counts: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Row:
    """Figures of an arm.

    Attributes:
        setting: models.
        arm: method.
        acceptance: share of tested drafted tokens that stand; None for the target alone.
        tokens: for each pass of the target's transformer.
        head: passes of the target's diffusion head for each token, one after the other.
        distance: of Kolmogorov-Smirnov.
        p_value: of such a distance.
        without_noise: distance from what the target draws without noise in the last step; None for
            arms that draw this noise.
        pictures: drawn.
    """

    setting: str
    arm: str
    acceptance: Estimate | None
    tokens: Estimate
    head: Estimate
    distance: float
    p_value: float
    without_noise: float | None
    pictures: int


def settings(digits: Path | None) -> dict[str, Pair]:
    """Target and draft of each setting, by name."""
    found: dict[str, Pair] = {}
    for size in (1, 2):
        found[f"Gaussians {size}-D, 5 steps"] = gaussian_pair(size, LENGTH)
        found[f"Gaussians {size}-D, 20 steps"] = gaussian_pair(size, LENGTH, *LASTING)
    for spread in SPREADS:
        name = f"Gaussians 2-D, 20 steps, draft {spread} as wide"
        found[name] = gaussian_pair(2, LENGTH, *LASTING, spread=spread)
    if digits is not None:
        pair = load_pair(digits)
        for last in LASTS:
            one, other = (
                replace(each, settings=replace(each.settings, last=last)) for each in pair
            )
            found[f"digits, last {last}"] = one, other
    return found


def takes(rule: ContinuousRule, pair: Pair) -> bool:
    """True if a method takes these models."""
    try:
        rule.require(*pair)
    except ValueError:
        return False
    return True


def drawn(folder: Path, setting: str, arm: str, pair: Pair, pictures: int) -> Drawn:
    """Draw pictures of an arm, as far as the folder has none yet."""
    parts = []
    # the target alone has seeds of its own, or pictures would be drawn of the same noise
    first = 1_000_000 if arm in (PLAIN, QUIET) else 0
    for begin in range(0, pictures, AT_ONCE):
        end = min(begin + AT_ONCE, pictures)
        file = folder / mark(pair) / f"{setting}; {arm}; {begin} to {end}.npz"
        if not file.exists():
            made = draw(*pair, ARMS[arm], range(first + begin, first + end))
            arrays = {name: getattr(made, name) for name in ("tokens", *COUNTS)}
            write_file(file, lambda partial, arrays=arrays: _store(partial, arrays))
            print(f"{setting}; {arm}; {end}", file=sys.stderr, flush=True)
        with np.load(file) as stored:
            parts.append({name: stored[name] for name in ("tokens", *COUNTS)})
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Drawn(joined.pop("tokens"), joined)


def mark(pair: Pair) -> str:
    """Name of what is drawn from, so that a folder does not mix pictures of other weights."""
    if not isinstance(pair[0], PatchModel) or not isinstance(pair[1], PatchModel):
        return "gaussians"
    weights = (*pair[0].weights.values(), *pair[1].weights.values())
    sums = [crc32(each.tobytes()) for each in weights]
    return f"digits {crc32(repr(sums).encode()):08x}"


COUNTS = ("passes", "head_passes", "tested", "kept")


def _store(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def ratio(top: np.ndarray | int, bottom: np.ndarray) -> Estimate:
    """Ratio of sums over pictures, with its interval."""
    return figure(side(top, bottom))


def side(top: np.ndarray | int, bottom: np.ndarray) -> dict[str, tuple[float, float]]:
    """Terms of a ratio, by picture."""
    tops = np.broadcast_to(np.asarray(top), bottom.shape)
    pairs = zip(tops.tolist(), bottom.tolist(), strict=True)
    return {str(number): (float(one), float(other)) for number, (one, other) in enumerate(pairs)}


def rows(folder: Path, digits: Path | None, pictures: Mapping[str, int]) -> Iterator[Row]:
    """Draw what is missing, and count.

    Args:
        pictures: of each arm, by the first word of a setting.
    """
    for setting, pair in settings(digits).items():
        count = pictures[setting.split()[0].strip(",")]
        arms = {arm: rule for arm, rule in ARMS.items() if takes(rule, pair)}
        made = {arm: drawn(folder, setting, arm, pair, count) for arm in arms}
        for arm, own in made.items():
            yield _row(setting, arm, pair[0], own, made)


def _row(
    setting: str, arm: str, target: ContinuousModel, own: Drawn, made: Mapping[str, Drawn]
) -> Row:
    counts = own.counts
    tested = bool(counts["tested"].sum())
    quiet = None if ARMS[arm].last_noise else _distance(target, own, made[QUIET], False)[0]
    return Row(
        setting,
        arm,
        ratio(counts["kept"], counts["tested"]) if tested else None,
        ratio(target.length, counts["passes"]),
        ratio(counts["head_passes"], np.full(len(own.tokens), target.length)),
        *(*_distance(target, own, made[PLAIN], True), quiet, len(own.tokens)),
    )


def _distance(
    target: ContinuousModel, own: Drawn, alone: Drawn, last_noise: bool
) -> tuple[float, float]:
    """Distance from the target's distribution where it is known, else from its pictures."""
    flat, other = (each.tokens.reshape(len(each.tokens), -1) for each in (own, alone))
    if isinstance(target, GaussianChains):
        known = target.distribution(last_noise)
        return normal_distance(flat, known), normal_p_value(flat, known)
    return samples_distance(flat, other), samples_p_value(flat, other)


def sharing(folder: Path, digits: Path | None, pictures: Mapping[str, int]) -> dict[str, Estimate]:
    """Acceptance of CSpD over that of the same without shared noise, by setting."""
    found = {}
    for setting, pair in settings(digits).items():
        count = pictures[setting.split()[0].strip(",")]
        sides = []
        for arm in ("cspd", UNSHARED):
            counts = drawn(folder, setting, arm, pair, count).counts
            sides.append(side(counts["kept"], counts["tested"]))
        with np.errstate(invalid="ignore"):  # of pictures drawn again of which nothing was kept
            found[setting] = over(sides[0], sides[1])
    return found


def shown(row: Row) -> dict[str, str]:
    """A line of the table."""
    p_value = f"{row.p_value:.2g}" if row.p_value >= 1e-9 else "0"
    return {
        "setting": row.setting,
        "method": row.arm,
        "kept of tested": "" if row.acceptance is None else str(row.acceptance),
        "tokens a pass": str(row.tokens),
        "head passes a token": str(row.head),
        "KS": f"{row.distance:.4f}",
        "p": p_value,
        "KS, no last noise": "" if row.without_noise is None else f"{row.without_noise:.4f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of pictures and counts")
    parser.add_argument("--digits", type=Path, help="folder of draftwood train continuous")
    parser.add_argument("--pictures", type=int, default=1000, help="of digits, by method")
    parser.add_argument("--gaussians", type=int, default=2000, help="of Gaussians, by method")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    counts = {"digits": given.pictures, "Gaussians": given.gaussians}
    found = list(rows(given.folder, given.digits, counts))
    shared = sharing(given.folder, given.digits, counts)
    if given.json:
        told: dict[str, Any] = {"commit": commit(), "rows": [asdict(row) for row in found]}
        print(
            json.dumps({**told, "sharing": {name: asdict(each) for name, each in shared.items()}})
        )
        return
    print_table([shown(row) for row in found], "continuous tokens")
    for name, each in shared.items():
        print(f"{name}: shared noise multiplies acceptance by {each}")


if __name__ == "__main__":
    main()
