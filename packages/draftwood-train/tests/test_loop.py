"""Training learns, stops, breaks and goes on."""

import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from draftwood_train.checkpoints import Checkpoint
from draftwood_train.loop import BrokenLossError, Trainer, TrainingSettings
from draftwood_train.optimisers import Optimisers, Rates
from draftwood_train.recipes.eagle import EagleRecipe
from training_cases import LAYERS, packing, target, texts

pytest.importorskip("accelerate", reason="an optional install")
pytest.importorskip("tensorboard", reason="an optional install")

SETTINGS = TrainingSettings(
    12, "steps", rates=Rates(3e-3, 3e-3, 2), judge_every=3, checkpoint_minutes=1e-9, rows=3
)
RECIPE = EagleRecipe(start_from="random", unroll=2)

SLOW = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_loop import trainer
def say(line):
    if "after step 9" in line:
        print("there", flush=True)
        time.sleep(600)
trainer(Path(sys.argv[1]), say=say).run()
"""


def trainer(
    folder: Path, settings: TrainingSettings = SETTINGS, recipe: EagleRecipe = RECIPE, **more
) -> Trainer:
    reads = recipe.reads(LAYERS)
    train = packing(texts(30, seed=7), reads=reads)
    held_out = packing(texts(9, seed=8), seed=None, reads=reads)
    return Trainer(recipe, target(), train, held_out, settings, folder, **more)


def curve(run: Trainer) -> list[dict[str, float]]:
    run.run()
    return run.state.history


def test_training_learns_what_the_texts_show(tmp_path: Path) -> None:
    settings = replace(SETTINGS, amount=60, judge_every=20)
    outcome = trainer(tmp_path, settings).run()
    history = Checkpoint.read(tmp_path).history
    assert outcome.step == 60
    assert history[-1]["kl"] < 0.7 * history[0]["kl"]
    assert outcome.figures["block_efficiency"] > history[0]["block_efficiency"] + 0.2


@pytest.mark.parametrize("variant", ["eagle-1", "fspad"])
def test_variants_learn_too(variant: Literal["eagle-1", "fspad"], tmp_path: Path) -> None:
    settings, recipe = (
        replace(SETTINGS, amount=40, judge_every=20),
        replace(RECIPE, variant=variant),
    )
    outcome = trainer(tmp_path, settings, recipe).run()
    history = Checkpoint.read(tmp_path).history
    assert history[-1]["kl"] < 0.9 * history[0]["kl"]
    assert outcome.figures["block_efficiency"] > 1.0


def test_a_killed_training_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    whole = curve(trainer(tmp_path / "whole"))
    folder = tmp_path / "killed"
    code = [sys.executable, "-c", SLOW, str(folder), str(Path(__file__).parent)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "there"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert Checkpoint.read(folder).step == 8
    again = curve(trainer(folder, resume=True))
    assert again == whole
    other = curve(trainer(tmp_path / "other", replace(SETTINGS, seed=1)))
    assert other[-1] != whole[-1]


def test_other_settings_do_not_go_on(tmp_path: Path) -> None:
    trainer(tmp_path, replace(SETTINGS, amount=1)).run()
    with pytest.raises(ValueError, match="had amount 1, not 12"):
        trainer(tmp_path, resume=True)
    with pytest.raises(ValueError, match="had loss_name kl, not nla"):
        trainer(
            tmp_path, replace(SETTINGS, amount=1), replace(RECIPE, loss_name="nla"), resume=True
        )
    (tmp_path / "checkpoint.pt").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        trainer(tmp_path, resume=True)
    with pytest.raises(FileNotFoundError, match="train without --resume"):
        trainer(tmp_path / "empty", resume=True)


@dataclass(frozen=True)
class Breaking(EagleRecipe):
    """Its loss is no number from the middle on."""

    def loss(self, head, rows, target, progress):  # type: ignore[no-untyped-def]
        loss, figures = super().loss(head, rows, target, progress)
        return (loss * float("nan") if progress >= 0.5 else loss), figures


def test_a_broken_loss_stops_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = trainer(tmp_path, recipe=Breaking(start_from="random", unroll=1))
    with pytest.raises(BrokenLossError, match=f"loss is nan at step 7.*{tmp_path.name}"):
        run.run()
    kept = Checkpoint.read(tmp_path)
    assert kept.step == 6
    assert all(bool(weight.isfinite().all()) for weight in kept.head.values())
    assert run.outcome("stopped").figures["block_efficiency"] >= 1


def test_it_ends_where_it_gets_no_better_and_on_ctrl_c(tmp_path: Path) -> None:
    stuck = replace(SETTINGS, amount=100, rates=Rates(1e-12, 1e-12), judge_every=1, patience=2)
    assert trainer(tmp_path / "a", stuck).run().reason == "no longer better"

    def say(line: str) -> None:
        if "after step 3" in line:
            raise KeyboardInterrupt

    outcome = trainer(tmp_path / "b", say=say).run()
    assert (outcome.reason, outcome.step) == ("stopped", 3)
    assert Checkpoint.read(tmp_path / "b").step == 3


def test_a_drafter_goes_on_from_its_weights(tmp_path: Path) -> None:
    first = trainer(tmp_path / "a").run()
    judged = Checkpoint.read(tmp_path / "a")
    run = trainer(tmp_path / "b", start=first.head)
    run.run()
    start = run.state.history[0]
    best = next(row for row in judged.history if row["step"] == judged.best_step)
    assert start["block_efficiency"] == pytest.approx(best["block_efficiency"], abs=1e-6)


def test_gradients_of_several_batches_make_one_step(tmp_path: Path) -> None:
    """Twice the same batch is that batch, and other batches are not."""
    once = trainer(tmp_path / "a", replace(SETTINGS, amount=1), replace(RECIPE, noise=0.0))
    twice = trainer(
        tmp_path / "b", replace(SETTINGS, amount=1, accumulate=2), replace(RECIPE, noise=0.0)
    )
    batch = next(once._train.batches())
    once._step(iter([batch]), 0.0)
    twice._step(iter([batch, batch]), 0.0)
    pairs = zip(once.head.parameters(), twice.head.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_matrices_and_the_rest_have_optimisers_of_their_own() -> None:
    head = EagleRecipe(start_from="random").build(target())
    optimisers = Optimisers(head, Rates())
    assert len(optimisers.parameters) == len(list(head.parameters()))
    muon, adamw = (part["param_groups"][0]["params"] for part in optimisers.state_dict())
    assert len(muon) == sum(each.dim() == 2 for each in head.parameters())
    assert len(adamw) == sum(each.dim() == 1 for each in head.parameters())


def test_rates_rise_stay_and_fall() -> None:
    rates = Rates(warm_up=4, decay=0.5)
    assert [rates.factor(step, 0.1) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert [rates.factor(9, progress) for progress in (0.5, 0.75, 1.0)] == [1, 0.5, 0]
