"""`train lists`: small recipes that stop and go on, and what they have learnt."""

import json
from pathlib import Path

import pytest
import torch

from command import refused, run
from draftwood_diffusion.training.list_recipes import ListSettings, ListTraining


@pytest.mark.parametrize("recipe", ["insertion", "order-agnostic"])
def test_a_stopped_training_goes_on_as_if_it_was_not(tmp_path: Path, recipe: str) -> None:
    settings = ListSettings(recipe, steps=6, rows=4, items=3)
    whole = ListTraining(settings, tmp_path / "whole")
    figures = whole.run()
    part = ListTraining(settings, tmp_path / "part")
    for _ in range(3):
        part.step()
    part.save()
    part.step()  # lost, as it was stopped before it was saved
    again = ListTraining(settings, tmp_path / "part", resume=True)
    assert again.state.step == 3
    assert again.run() == figures
    for name, weight in whole.decoder.state_dict().items():
        assert torch.equal(weight, again.decoder.state_dict()[name])
    assert any(
        not torch.equal(weight, part.decoder.state_dict()[name])
        for name, weight in whole.decoder.state_dict().items()
    )


def test_the_command_trains_and_refuses_in_a_line(tmp_path: Path) -> None:
    asked = ("train", "lists", "insertion", str(tmp_path / "a"), "--steps", "3", "--rows", "4")
    found = run(*asked, "--json")
    assert found.exit_code == 0, found.output
    assert set(json.loads(found.stdout)) == {"right", "passes"}
    assert "go on with --resume, or delete it" in refused(*asked)
    assert "had items 5, not 4" in refused(*asked, "--resume", "--items", "4")
    none = ("train", "lists", "order-agnostic", str(tmp_path / "b"), "--resume")
    assert "to resume from" in refused(*none)
    (tmp_path / "a" / "checkpoint.pt").write_bytes(b"torn")
    assert "cannot be read" in refused(*asked, "--resume")


@pytest.mark.proof
def test_insertion_sorts_lists_in_few_passes(tmp_path: Path) -> None:
    settings = ListSettings("insertion")
    assert ListTraining(settings, tmp_path).judged()["right"] == 0  # untrained, it knows none
    found = ListTraining(settings, tmp_path).run()
    assert found["right"] > 0.6, found
    assert found["passes"] < 4.5  # of five items one by one, it would be six


@pytest.mark.proof
def test_errors_are_mended_by_rows_that_look_back(tmp_path: Path) -> None:
    found = ListTraining(
        ListSettings("order-agnostic", items=3, rows=32, rate=4e-3), tmp_path
    ).run()
    assert found["mended"] > 0.35, found
    assert found["mended_without_looking_back"] < 0.25, found
