"""Figures of continuous tokens: counted by picture, kept in a folder, told apart by weights."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import continuous
from checkout import BENCH, PYTHONPATH
from draftwood_images.continuous.gaussians import gaussian_pair
from draftwood_images.continuous.network import PatchSettings, first_weights
from draftwood_images.continuous.patches import FILES, PatchModel, load_pair

COUNTS = {"digits": 12, "Gaussians": 40}


def untrained(folder: Path, seed: int = 0) -> Path:
    """Write a target and a draft that have learnt nothing."""
    settings = PatchSettings(2, 2, width=8, layers=1, heads=2, head_width=8, head_layers=1, steps=4)
    for number, name in enumerate(FILES.values()):
        PatchModel(settings, first_weights(settings, seed + number)).save(folder / name)
    return folder


def test_rows_hold_what_was_counted(tmp_path: Path) -> None:
    rows = list(continuous.rows(tmp_path, untrained(tmp_path), COUNTS))
    found = {(row.setting, row.arm): row for row in rows}
    assert {row.setting for row in rows} == set(continuous.settings(tmp_path))
    plain = found["Gaussians 1-D, 20 steps", "plain"]
    assert plain.acceptance is None
    assert plain.tokens.value == 1.0
    assert plain.head.value == 20.0
    reflected = found["Gaussians 1-D, 5 steps", "reflected"]
    assert reflected.acceptance is not None
    assert 0.4 < reflected.acceptance.low < reflected.acceptance.high < 0.9
    assert reflected.tokens.value > 1.5
    quiet = found["Gaussians 1-D, 20 steps", continuous.QUIET]
    assert quiet.without_noise is not None
    assert plain.without_noise is None
    assert quiet.without_noise < 0.3  # of 40 pictures
    assert ("Gaussians 2-D, 20 steps, draft 1.15 as wide", "reflected") not in found
    assert found["Gaussians 2-D, 5 steps", "cspd-released"].p_value < 1e-4 < reflected.p_value
    assert all(row.pictures == COUNTS[row.setting.split()[0].strip(",")] for row in rows)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    assert list(continuous.rows(tmp_path, tmp_path, COUNTS)) == rows  # a run goes on from files
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    shared = continuous.sharing(tmp_path, tmp_path, COUNTS)
    assert shared["Gaussians 2-D, 20 steps"].low > 3


def test_pictures_of_other_weights_are_not_mixed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (
        load_pair(untrained(tmp_path / name, seed)) for name, seed in (("one", 0), ("two", 5))
    )
    assert continuous.mark(one) == continuous.mark(load_pair(tmp_path / "one"))
    assert len({continuous.mark(one), continuous.mark(two), continuous.mark(gaussian_pair(1))}) == 3


def test_methods_that_refuse_models_have_no_row() -> None:
    pair = gaussian_pair(1, spread=1.1)
    took = [arm for arm, rule in continuous.ARMS.items() if continuous.takes(rule, pair)]
    assert took == ["plain", continuous.QUIET, "cspd", "cspd-released", "cspd, noise not shared"]
    assert continuous.takes(continuous.ARMS["reflected"], gaussian_pair(1))


def test_a_ratio_of_sums_has_an_interval() -> None:
    found = continuous.ratio(np.array([1, 3, 2]), np.array([2, 4, 4]))
    assert found.value == pytest.approx(0.6)
    assert found.low <= 0.6 <= found.high
    line = continuous.shown(
        continuous.Row(
            "setting", "cspd", None, found, replace(found, value=2.0), 0.01, 1e-12, None, 3
        )
    )
    assert line["kept of tested"] == ""
    assert line["p"] == "0"


@pytest.mark.proof
def test_the_script_prints_figures_for_programs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.continuous", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--gaussians", "4"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        cwd=BENCH,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"][0]["setting"] == "Gaussians 1-D, 5 steps"
    assert set(told["sharing"]) == {row["setting"] for row in told["rows"]}
