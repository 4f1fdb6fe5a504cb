"""Figures of pictures: names, records that go on, and a test of two samples that finds a drift."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import pictures
from benchmarks.common.two_samples import p_value
from draftwood_images.drawing import DrawingRule
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.methods import WindowKnobs
from draftwood_images.small import small_picture_model
from draftwood_images.training.classifier import Classifier, RecognitionNetwork


@pytest.fixture(scope="module")
def drawing() -> DrawingModel:
    return DrawingModel.of("small", small_picture_model())


def cells() -> list[pictures.Cell]:
    """A few settings, the reference first."""
    rule, whole = DrawingRule(1.0, 5, 1.0), WindowKnobs(window=4, whole=True)
    return [
        pictures.Cell("reference", "plain", rule, seeds=pictures.OTHER_SEEDS),
        pictures.Cell("methods", "sjd", rule, whole),
        pictures.Cell("methods", "raced-jacobi", rule, whole),
        pictures.Cell("drift", "plain", DrawingRule(0.2, 5, 1.0)),
    ]


def test_records_go_on_where_they_were_stopped(drawing: DrawingModel, tmp_path: Path) -> None:
    names = ["red apple", "pear"]
    first = pictures.measure(drawing, cells()[:2], names, 2, tmp_path)
    assert len(first) == 2 * 4
    records = pictures.measure(drawing, cells(), names, 2, tmp_path)
    assert records[: len(first)] == first
    assert len({each.key for each in records}) == 4 * 4
    rows = list(pictures.rows(records, cells(), drawing))
    assert [row.p_value is None for row in rows] == [True, False, True, False]
    assert all(row.recognised is None and row.pictures == 4 for row in rows)
    assert pictures.shown(rows[2])["p"] == ""
    assert 0 < pictures.drift(drawing, records[:4], 0.5).value < 1


def test_pictures_of_two_names_have_seeds_of_their_own(
    drawing: DrawingModel, tmp_path: Path
) -> None:
    records = pictures.measure(drawing, cells()[1:2], ["red", "pear"], 3, tmp_path)
    assert sorted(each.seed for each in records) == [0, 1, 2, 3, 4, 5]


def test_settings_and_names(drawing: DrawingModel) -> None:
    asked = pictures.cells(1.0, pictures.median_distance(drawing))
    assert asked[0].table == "reference"
    assert len({each.key for each in asked}) < len(asked)  # some belong to several tables
    assert {"gsd", "sjd", "raced-jacobi", "plain"} == {each.method for each in asked}


def test_seconds_are_told_beside_plain_drawing(drawing: DrawingModel, tmp_path: Path) -> None:
    steps, table = pictures.seconds(drawing, ["red", "pear"], DrawingRule(1.0, 5, 1.0), tmp_path)
    assert len(steps.partition("draft tokens ")[2].split()) == 6
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [row[0].strip("| ") for row in rows] == ["plain", "raced-jacobi", "sjd", "gsd"]
    assert rows[1][-1].startswith("2 of 2")


def sample(chance: np.random.Generator, moved: float = 0.0) -> np.ndarray:
    """Features of ten names by four pictures, those of each name alike."""
    middles = 3 * np.random.default_rng(0).normal(size=(10, 5))
    return np.repeat(middles, 4, 0) + moved + chance.normal(size=(40, 5))


def test_two_samples_are_told_apart_only_where_they_differ() -> None:
    groups = np.repeat(np.arange(10), 4).tolist()
    found = []
    for seed in range(12):
        chance = np.random.default_rng(seed)
        found.append(p_value(sample(chance), sample(chance), groups, seed))
    assert np.mean(np.array(found) < 0.1) <= 0.34
    assert 0.2 < np.mean(found) < 0.8
    chance = np.random.default_rng(1)
    assert p_value(sample(chance), sample(chance, 0.7), groups) < 0.02


class ApplesAlone(RecognitionNetwork):
    """Network that takes every picture for an apple."""

    def seen(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.tensor([9.0, -9, 1, 2, 3, 4, 5, 6]).expand(len(pixels), -1)


def test_recognition_is_told_beside_plain_drawing(drawing: DrawingModel, tmp_path: Path) -> None:
    bases, base_of = tuple("abcdefgh"), {"red apple": "a", "pear": "b"}
    judge = Classifier(ApplesAlone(4, len(bases)), bases, base_of, {})
    records = pictures.measure(drawing, cells(), list(base_of), 2, tmp_path)
    for row in pictures.rows(records, cells(), drawing, judge):
        assert row.recognised is not None
        assert row.over_plain is not None
        assert (row.recognised.value, row.over_plain.value) == (0.5, 0.0)
