"""Training learns, stops, breaks and goes on."""

import errno
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from draftwood_train.checkpoints import Checkpoint
from draftwood_train.data.texts import TextsInMemory
from draftwood_train.flatness import EVERY, entropy, flattest
from draftwood_train.judging import means, summed
from draftwood_train.loop import BrokenLossError, Trainer, TrainingSettings
from draftwood_train.optimisers import EMBEDDING_LIKE, Optimisers, Rates, is_matrix
from draftwood_train.packing import RowPacking, TextPiece
from draftwood_train.plan import bytes_on_disk
from draftwood_train.recipe import DrafterRecipe, PackedRows
from draftwood_train.recipes.ctc import CtcRecipe
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.recipes.specdec import SpecdecRecipe
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


def test_judged_rows_are_drawn_from_all_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, read = RowPacking.packed, list[int]()

    def watched(own: RowPacking, batch: Sequence[Sequence[TextPiece]]) -> PackedRows:
        read.extend(piece.text for row in batch for piece in row)
        return packed(own, batch)

    run = trainer(tmp_path, replace(SETTINGS, judge_rows=5))
    run._held_out = packing(texts(60, seed=8), seed=None, reads=RECIPE.reads(LAYERS))
    monkeypatch.setattr(RowPacking, "packed", watched)
    run._judge()
    first = read.copy()
    read.clear()
    run._judge()
    assert first == read
    assert 5 <= len(first) < 20
    assert max(first) > 30
    assert run.state.history[0]["places"] == run.state.history[1]["places"] > 0


def test_what_is_judged_depends_on_no_batches(tmp_path: Path) -> None:
    """Only greedy answers count, also where a batch holds none, but where no text is greedy."""
    every, found = texts(9, seed=8), []
    for own in (every, [replace(text, is_greedy=False) for text in every]):
        for rows in (1, 9):
            run, held_out = trainer(tmp_path), TextsInMemory(own)
            run._held_out = packing(held_out, rows, seed=None, reads=RECIPE.reads(LAYERS))
            judged = summed(run._parts())
            found.append((judged.places, means(run._judged()), run._all_count))
    assert found[0][0] == found[1][0] > 0
    assert found[0][1] == pytest.approx(found[1][1])
    assert [(places > 0, every) for places, _, every in found] == 2 * [(True, False)] + 2 * [
        (False, True)
    ]
    assert found[2][1] == pytest.approx(found[3][1])
    assert found[2][1]["guess_1"] != pytest.approx(found[0][1]["guess_1"])
    assert found[2][1]["overlap"] == pytest.approx(found[0][1]["overlap"])


def test_texts_too_short_to_judge_by_are_told_with_their_cures(tmp_path: Path) -> None:
    run, reads = trainer(tmp_path), RECIPE.reads(LAYERS)
    run._held_out = packing(texts(9, seed=8), places=2, seed=None, reads=reads)
    with pytest.raises(ValueError, match="raise --places, train fewer heads or frames, or give"):
        run._judge()


def test_other_settings_do_not_go_on(tmp_path: Path) -> None:
    trainer(tmp_path, replace(SETTINGS, amount=1)).run()
    with pytest.raises(ValueError, match="had the length --steps 1, not --steps 12"):
        trainer(tmp_path, resume=True)
    minutes = replace(SETTINGS, amount=1.0, unit="cpu_minutes")
    with pytest.raises(ValueError, match="the length --steps 1, not --cpu-minutes 1; give"):
        trainer(tmp_path, minutes, resume=True)
    slower = replace(SETTINGS, amount=1, rates=Rates(1e-3, 3e-3, 2))
    with pytest.raises(ValueError, match=r"had --learning-rate 0.003, not 0.001; give"):
        trainer(tmp_path, slower, resume=True)
    with pytest.raises(ValueError, match="had the loss kl, not nla"):
        trainer(
            tmp_path, replace(SETTINGS, amount=1), replace(RECIPE, loss_name="nla"), resume=True
        )
    (tmp_path / "checkpoint.pt").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        trainer(tmp_path, resume=True)
    with pytest.raises(FileNotFoundError, match="train first, without --resume"):
        trainer(tmp_path / "empty", resume=True)


@dataclass(frozen=True)
class Breaking(EagleRecipe):
    """Its loss is no number from the middle on."""

    def loss(self, head, rows, target, progress):  # type: ignore[no-untyped-def]
        loss, figures = super().loss(head, rows, target, progress)
        return (loss * float("nan") if progress >= 0.5 else loss), figures


def test_a_broken_loss_stops_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = trainer(tmp_path, recipe=Breaking(start_from="random", unroll=1))
    with pytest.raises(BrokenLossError, match="loss is nan at step 7, so training ends"):
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


@dataclass(frozen=True)
class Pressed(EagleRecipe):
    """Ctrl-C comes in the middle of the fifth step, behind what it drew."""

    def loss(self, head, rows, target, progress):  # type: ignore[no-untyped-def]
        made = super().loss(head, rows, target, progress)
        if 4 / 12 <= progress < 5 / 12:
            signal.raise_signal(signal.SIGINT)
        return made


@pytest.mark.parametrize("judge_every", [3, 5])
def test_ctrl_c_changes_no_training(tmp_path: Path, judge_every: int) -> None:
    settings = replace(SETTINGS, judge_every=judge_every, checkpoint_minutes=60)
    whole = trainer(tmp_path / "whole", settings)
    wanted = curve(whole)
    pressed = trainer(tmp_path / "pressed", settings, Pressed(start_from="random", unroll=2))
    outcome = pressed.run()
    assert (outcome.reason, outcome.step) == ("stopped", 5)
    assert outcome.figures
    kept = Checkpoint.read(tmp_path / "pressed")
    assert [row["step"] for row in kept.history] == ([0, 3] if judge_every == 3 else [0, 5])
    again = trainer(tmp_path / "pressed", settings, resume=True)
    assert curve(again) == wanted
    pairs = zip(again.head.parameters(), whole.head.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_another_recipe_is_told_as_such(tmp_path: Path) -> None:
    """Its other settings differ too."""
    state = Checkpoint({"recipe": "eagle", "accept": 1}, {}, [], {})
    with pytest.raises(ValueError, match="had recipe eagle, not ctc"):
        state.require({"recipe": "ctc", "frames": 4}, {})


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


@pytest.mark.parametrize(
    ("recipe", "table"),
    [(CtcRecipe(start_from="random"), "frame_bias"), (SpecdecRecipe(), "queries")],
    ids=["ctc", "specdec"],
)
def test_tables_of_vectors_are_no_matrices(recipe: DrafterRecipe, table: str) -> None:
    parameters = dict(recipe.build(target()).named_parameters())
    assert parameters[table].dim() == 2
    assert not is_matrix(table, parameters[table])
    tables = [n for n, each in parameters.items() if each.dim() == 2 and not is_matrix(n, each)]
    assert all(any(part in name for part in EMBEDDING_LIKE) for name in tables)
    assert any(is_matrix(*each) for each in parameters.items())


def test_frames_of_one_state_learn_with_adamw_alone() -> None:
    options = {"form": "linear", "loss_name": "kl", "start_from": "random"}
    for reads_root in (False, True):
        head = CtcRecipe(reads_root=reads_root, **options).build(target())  # type: ignore[arg-type]
        assert Optimisers(head, Rates()).has_matrices == reads_root


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_the_disk_is_asked_for_what_two_checkpoints_take(average: float, tmp_path: Path) -> None:
    """A checkpoint is written beside the one before it."""
    settings = replace(SETTINGS, average=average)
    run = trainer(tmp_path, settings)
    run.run()
    kept = Checkpoint.read(tmp_path)
    states = [own for part in kept.optimisers for own in part["state"].values()]
    moments = [each for own in states for each in own.values() if each.dim()]
    weights = [*kept.head.values(), *kept.best_head.values(), *kept.averaged.values()]
    size = sum(each.nbytes for each in [*weights, *moments])
    head = 2 * sum(each.numel() for each in run.head.parameters())
    assert bytes_on_disk(run.head, settings) == 2 * size + head


def test_a_head_may_be_narrower_than_its_target() -> None:
    head = EagleRecipe(width=32).build(target())
    assert head.config.sizes == replace(target().sizes, intermediate_size=32)
    assert head.layers[0].mlp.up_proj.weight.shape[0] == 32
    with pytest.raises(ValueError, match="width is a multiple of 32"):
        EagleRecipe(width=40)
    with pytest.raises(ValueError, match="leave out --width"):
        EagleRecipe(width=32, start_from="last-layer").build(target())
    head = EagleRecipe(heads=2, features="two").build(target())
    assert head.config.sizes == replace(target().sizes, heads=2)
    assert head.config.reads == EagleRecipe().reads(target().layers)[1:]
    assert head.layers[0].self_attn.o_proj.weight.shape[1] == 2 * target().sizes.head_dim
    with pytest.raises(ValueError, match="a multiple of 2, not 3"):
        EagleRecipe(heads=3).build(target())
    with pytest.raises(ValueError, match="heads are 1 or more"):
        EagleRecipe(heads=-2)
    with pytest.raises(ValueError, match="leave out --features"):
        EagleRecipe(variant="eagle-1", features="two")


def test_options_out_of_range_are_refused() -> None:
    for options, what in (
        ({"sampled_rows": -5}, "sampled_rows is 0 or more, got -5"),
        ({"noise": -1.0}, "noise is 0 or more"),
        ({"noise": float("nan")}, "noise is 0 or more"),
        ({"replay": 2.0}, "replay is a share from 0 to 1"),
        ({"lk_from": -1.0}, "lk_from is a share"),
        ({"unroll_from": 5.0}, "unroll_from is a share"),
        ({"window": 0}, "window"),
    ):
        with pytest.raises(ValueError, match=what):
            EagleRecipe(**options)


def test_rates_rise_stay_and_fall() -> None:
    rates = Rates(warm_up=4, decay=0.5)
    assert [rates.factor(step, 0.1) for step in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert [rates.factor(9, progress) for progress in (0.5, 0.75, 1.0)] == [1, 0.5, 0]


def test_averaged_weights_are_the_mean_of_the_last_steps_and_judged(tmp_path: Path) -> None:
    settings = replace(SETTINGS, amount=8, average=0.5, judge_every=8)
    run, seen = trainer(tmp_path / "a", settings), []
    step = run.optimisers.step

    def remembered(number: int, progress: float) -> float:
        factor = step(number, progress)
        seen.append({name: each.detach().clone() for name, each in run.head.named_parameters()})
        return factor

    run.optimisers.step = remembered  # type: ignore[method-assign]
    outcome = run.run()
    assert (run.state.averaged_steps, run.state.best_step) == (4, 8)
    for name, weight in outcome.head.named_parameters():
        mean = torch.stack([weights[name] for weights in seen[4:]]).mean(0)
        assert torch.allclose(weight, mean, atol=1e-6)
    assert not torch.allclose(run.state.head["norm.weight"], seen[4]["norm.weight"])
    assert all(torch.equal(run.state.head[name], each) for name, each in seen[-1].items())


def test_an_average_goes_on_after_a_stop(tmp_path: Path) -> None:
    settings = replace(SETTINGS, average=0.7, judge_every=2)
    whole = curve(trainer(tmp_path / "whole", settings))

    def say(line: str) -> None:
        if "after step 8" in line:
            raise KeyboardInterrupt

    trainer(tmp_path / "parts", settings, say=say).run()
    assert curve(trainer(tmp_path / "parts", settings, resume=True))[-1] == whole[-1]
    assert curve(trainer(tmp_path / "none", replace(settings, average=0.0)))[-1] != whole[-1]


def test_it_judges_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path, replace(SETTINGS, judge_minutes=0.5))
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(run, "_clock", lambda: float(next(clock)))
    run.run()
    assert [row["step"] for row in run.state.history] == [0, 3, 6, 9, 12]


def test_minutes_of_the_processor_leave_out_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = iter(range(0, 10_000, 30))
    monkeypatch.setattr("draftwood_train.loop.time.process_time", lambda: float(next(ran)))
    monkeypatch.setattr("draftwood_train.loop.torch.get_num_threads", lambda: 2)
    settings = replace(SETTINGS, amount=2, unit="cpu_minutes")
    outcome = trainer(tmp_path, settings).run()
    assert (outcome.step, outcome.seconds) == (8, 120.0)


def test_a_checkpoint_of_before_an_option_goes_on_without_it(tmp_path: Path) -> None:
    trainer(tmp_path, replace(SETTINGS, amount=1)).run()
    kept = Checkpoint.read(tmp_path)
    for name in ("average", "flattest", "later_share", "replay"):
        del kept.settings[name]
    kept.write(tmp_path)
    trainer(tmp_path, replace(SETTINGS, amount=1), resume=True)
    with pytest.raises(ValueError, match=r"had average 0.0, not 0.5"):
        trainer(tmp_path, replace(SETTINGS, amount=1, average=0.5), resume=True)


def test_a_full_disk_keeps_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(tmp_path, replace(SETTINGS, amount=2))
    run.run()

    def full(path: Path, content: object) -> None:
        with Path.open(path, "wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    run.state.step = 3
    with pytest.raises(
        OSError, match=r"checkpoint.pt: the disk is full; free some.*--resume goes on"
    ):
        run.save()
    assert Checkpoint.read(tmp_path).step == 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".checkpoint")]


def test_the_texts_of_which_the_target_was_least_sure_are_chosen() -> None:
    found, weights = texts(12, seed=3), target(40)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    for number, place in enumerate(order):
        scale = 0.2 if place < 6 else 2.0  # the larger, the surer
        states = scale * found[number].states
        normalizer = (states[:, 2] @ weights.embedding.T).logsumexp(-1)
        found[number] = replace(found[number], states=states, log_normalizer=normalizer)
    chosen = flattest(found, 2, weights, 0.5)  # type: ignore[arg-type]
    assert chosen == {number for number, place in enumerate(order) if place < 6}
    text = found[0]
    law = (text.states[2::EVERY, 2] @ weights.embedding.T).softmax(-1)[: len(text.tokens)]
    wanted = -(law * law.log()).sum(-1)[: -(-(len(text.tokens) - 3) // EVERY)].mean()
    assert entropy(text, 2, weights) == pytest.approx(float(wanted), rel=1e-3)
    rows = replace(packing(found), only=chosen)
    seen = {piece.text for batch in rows.plan(0) for row in batch for piece in row}
    assert seen == chosen
