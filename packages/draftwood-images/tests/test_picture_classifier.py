"""Limits of the classifier of pictures: few bases, small pictures."""

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from draftwood.cli.main import main
from draftwood_images.training.classifier import LEAST, Classifier, RecognitionNetwork
from small_pictures import write_png


def test_a_classifier_of_few_bases_and_small_pictures() -> None:
    network = RecognitionNetwork(LEAST, 2).eval()
    judge = Classifier(network, ("one", "two"), {"a": "one", "b": "two"}, {})
    black = np.zeros((2, LEAST, LEAST, 3), np.uint8)
    assert judge.recognised(black, ["a", "b"], top=5).tolist() == [True, True]
    assert judge.recognised(black, ["a", "b"], top=1).sum() == 1


def test_a_classifier_of_too_small_pictures_is_refused_before_training(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for level, name in enumerate(("red", "green")):
        write_png(folder / f"{name}.png", 10 * level)
    given = ["train", "images", str(folder), str(tmp_path / "model"), "--classifier"]
    done = CliRunner().invoke(main, [*given, "--size", "2", "--patch", "1", "--steps", "1"])
    assert done.exit_code != 0
    assert "at least 3 pixels across, got 2" in f"{done.output} {done.exception}"
    assert not (tmp_path / "model.training").exists()
