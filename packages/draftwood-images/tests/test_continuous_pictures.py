"""Networks of continuous tokens: they learn, run alike in NumPy and PyTorch, and are drawn from."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command import refused, run
from draftwood_images.continuous.loop import draw, draw_plainly
from draftwood_images.continuous.methods import METHODS
from draftwood_images.continuous.network import PatchSettings, first_weights, states_of, velocities
from draftwood_images.continuous.patches import (
    FILES,
    PatchModel,
    load_pair,
    pictures_of,
    tokens_of,
)
from draftwood_images.continuous.schedule import Schedule

torch = pytest.importorskip("torch")
from draftwood_images.continuous import training  # noqa: E402

SMALL = PatchSettings(
    patch=2, edge=3, width=32, layers=2, head_width=32, head_layers=1, steps=8, last=0.1
)


def stripes(count: int, seed: int = 0) -> np.ndarray:
    """Pictures [count 6 6], bright or dark as a whole, so that tokens depend on the first."""
    signs = np.random.default_rng(seed).choice([-0.8, 0.8], count)
    return np.tile(signs[:, None, None], (1, 6, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def target() -> PatchModel:
    return training.train(training.Lesson(SMALL, 120), tokens_of(stripes(500), 2))


@pytest.fixture(scope="module")
def draft(target: PatchModel) -> PatchModel:
    small = replace(SMALL, width=16, heads=2, head_width=16)
    lesson = training.Lesson(small, 120, seed=1)
    return training.train(lesson, tokens_of(stripes(500), 2), teacher=target)


def test_squares_are_cut_row_by_row_and_put_together() -> None:
    pictures = np.arange(2 * 36.0).reshape(2, 6, 6)
    tokens = tokens_of(pictures, 2)
    assert tokens[0, :2].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9]]
    np.testing.assert_array_equal(pictures_of(tokens, 2), pictures)


def test_numpy_and_pytorch_compute_the_same() -> None:
    weights, rng = first_weights(SMALL, 0), np.random.default_rng(0)
    tensors = {name: torch.tensor(each) for name, each in weights.items()}
    shifted = rng.standard_normal((3, 9, 4)).astype(np.float32)
    own = states_of(weights, SMALL, shifted, np)
    other = states_of(tensors, SMALL, torch.tensor(shifted), torch)
    np.testing.assert_allclose(own, other.numpy(), atol=1e-5)
    points, steps = shifted[0], np.arange(9) % 8
    told = velocities(weights, SMALL, own[0], points, steps, np)
    also = velocities(tensors, SMALL, other[0], torch.tensor(points), torch.tensor(steps), torch)
    np.testing.assert_allclose(told, also.numpy(), atol=1e-5)


def test_a_state_sees_no_token_of_its_own_place_or_later() -> None:
    model = PatchModel(SMALL, first_weights(SMALL, 0))
    tokens = np.random.default_rng(0).standard_normal((1, 8, 4))
    changed = tokens.copy()
    changed[:, 4:] += 1
    one, other = model.states(tokens), model.states(changed)
    assert one.shape == (1, 9, 32)
    np.testing.assert_allclose(one[:, :5], other[:, :5], atol=1e-6)
    assert np.abs(one[:, 5] - other[:, 5]).max() > 1e-3


def test_a_chain_of_the_schedule_ends_at_its_token() -> None:
    schedule = Schedule.cosine(20, 0.05)
    assert schedule.alpha[0] < 0.01
    assert schedule.deviations.min() == schedule.deviations[-1] == 0.05
    token, rng = 0.7, np.random.default_rng(0)
    points = rng.standard_normal(20_000)
    for step in range(20):
        means = schedule.of_token[step] * token + schedule.of_point[step] * points
        points = means + schedule.deviations[step] * rng.standard_normal(20_000)
        if step < 18:  # until deviations are the least one, shares of noise are as planned
            alpha, sigma = schedule.alpha[step + 1], schedule.sigma[step + 1]
            assert points.mean() == pytest.approx(alpha * token, abs=0.03)
            assert points.std() == pytest.approx(sigma, rel=0.05)
    assert points.mean() == pytest.approx(token, abs=0.01)
    assert points.std() == pytest.approx(0.05, rel=0.05)


def test_training_learns_what_tokens_before_tell(target: PatchModel) -> None:
    pictures = pictures_of(draw_plainly(target, range(40)).tokens, 2)
    means = pictures.mean((1, 2))
    assert ((np.abs(means) > 0.5) & (np.abs(means) < 1.0)).mean() > 0.9
    held = tokens_of(stripes(50, 1), 2)
    alone = PatchModel(SMALL, first_weights(SMALL, 0))
    assert training.held_out_loss(target, held) < 0.3 * training.held_out_loss(alone, held)
    assert 5 < (means > 0).sum() < 35


def test_first_weights_may_have_any_seed() -> None:
    one, other = (first_weights(SMALL, seed)["embed"] for seed in (-1, 1))
    assert not np.array_equal(one, other)


def test_training_says_how_far_it_is_and_repeats_itself() -> None:
    told, tokens = list[tuple[int, int]](), tokens_of(stripes(80), 2)
    lesson = training.Lesson(SMALL, 3)
    one = training.train(lesson, tokens, report=lambda *each: told.append(each))
    other = training.train(lesson, tokens)
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert all(np.array_equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_a_draft_that_is_taught_is_kept_more_often(target: PatchModel, draft: PatchModel) -> None:
    shares = []
    untaught = PatchModel(draft.settings, first_weights(draft.settings, 1))
    for each in (draft, untaught):
        drawn = draw(target, each, METHODS["aligned"], range(40))
        shares.append(drawn.kept.sum() / drawn.tested.sum())
    assert shares[0] > shares[1] + 0.05
    for method in METHODS.values():
        pictures = pictures_of(draw(target, draft, method, range(20)).tokens, 2)
        assert (np.abs(pictures.mean((1, 2))) > 0.4).mean() > 0.8


def test_files_give_back_what_was_saved(
    target: PatchModel, draft: PatchModel, tmp_path: Path
) -> None:
    for role, model in (("target", target), ("draft", draft)):
        model.save(tmp_path / FILES[role])
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(FILES.values())
    found = load_pair(tmp_path)
    tokens = draw(*found, METHODS["reflected"], [3]).tokens
    np.testing.assert_array_equal(tokens, draw(target, draft, METHODS["reflected"], [3]).tokens)


def test_a_sheet_is_drawn_by_command(target: PatchModel, draft: PatchModel, tmp_path: Path) -> None:
    target.save(tmp_path / FILES["target"])
    draft.save(tmp_path / FILES["draft"])
    command = [sys.executable, "-m", "draftwood_images.continuous", str(tmp_path)]
    sheet = ["--count", "4", "--output", str(tmp_path / "sheet.png")]
    done = subprocess.run([*command, *sheet], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 pictures" in done.stdout
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / FILES["draft"]).write_bytes(b"no model")
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "draftwood train continuous" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    nowhere = ["--output", str(tmp_path / "none" / "sheet.png")]
    failed = subprocess.run([*command, *nowhere], capture_output=True, text=True, check=False)
    assert failed.stderr == f"Error: there is no folder {tmp_path / 'none'}; make it first\n"


def test_broken_files_are_told_in_one_line(target: PatchModel, tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    weights = dict(target.weights)
    for broken in (
        {**weights, "embed": np.full_like(weights["embed"], np.nan)},
        {name: each for name, each in weights.items() if name != "embed"},
    ):
        PatchModel(target.settings, broken).save(path)
        with pytest.raises(ValueError, match=r"is no model of continuous tokens.*make one with"):
            PatchModel.load(path)
    with pytest.raises(ValueError, match="is no model of continuous tokens"):
        PatchModel.load(tmp_path / "none.safetensors")


def test_the_trainer_needs_pictures(tmp_path: Path) -> None:
    assert "--digits takes" in refused("train", "continuous", str(tmp_path / "new"))
    told = refused("train", "continuous", str(tmp_path / "new"), "--digits", "--seed", "-1")
    assert "'--seed': -1" in told
    assert not (tmp_path / "new").exists()


@pytest.mark.proof
def test_digits_are_learnt_by_command(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs draftwood-images[train]")
    options = ("--digits", "--patch", "4", "--updates", "60")
    run("train", "continuous", str(tmp_path), *options)
    target, draft = load_pair(tmp_path)
    assert (target.length, target.size) == (4, 16)
    assert draft.settings.layers == 2
    _, held = training.split(training.digits())
    assert len(held) == 180
    untrained = PatchModel(target.settings, first_weights(target.settings, 0))
    tokens = tokens_of(held, 4)
    assert training.held_out_loss(target, tokens) < training.held_out_loss(untrained, tokens)
    assert np.isfinite(draw(target, draft, METHODS["reflected"], range(3)).tokens).all()
