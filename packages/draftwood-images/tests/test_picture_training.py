"""Training of models of pictures: to the end, killed and resumed, and without room on disk."""

import errno
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from draftwood.cli.main import main
from draftwood_images.folder import load_picture_model
from draftwood_images.training.autoencoder import (
    WARM_UP,
    Autoencoder,
    AutoencoderSizes,
    as_input,
    psnr,
)
from draftwood_images.training.classifier import Classifier
from draftwood_images.training.codec_lesson import CodecLesson
from draftwood_images.training.loop import LessonRun, LessonSchedule
from draftwood_images.training.named import read_pictures, scaled
from draftwood_images.training.picture_lesson import (
    MIRRORED,
    SHIFTED,
    Codes,
    PictureLesson,
    changed,
    settings_for,
)
from draftwood_images.training.run import PictureTraining
from draftwood_images.words import words_in
from draftwood_train.checkpoints import NAME, Checkpoint
from draftwood_train.places import alone_in
from small_pictures import write_png

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "pictures"
    place.mkdir()
    for at in range(24):
        write_png(place / f"grey {NAMES[at % 10]} {at}.png", 10 * at, size=8)
    return place


def small(place: Path, output: Path, **more: Any) -> PictureTraining:
    kept = {"size": 8, "patch": 4, "codes": 8, "layers": 1, "hidden": 64, "batch": 4}
    return PictureTraining(place, output, minutes=None, **{**kept, "steps": 6, **more})


def silent(line: str) -> None:
    pass


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes() + (folder / "codec.safetensors").read_bytes()


def test_two_trainings_of_one_output_do_not_run_at_once(folder: Path, tmp_path: Path) -> None:
    training = small(folder, tmp_path / "out")
    with alone_in(training.folder), pytest.raises(OSError, match="another process trains in"):
        training.run(silent)
    assert not training.output.exists()
    training.run(silent)
    assert training.output.exists()


def test_a_killed_training_goes_on_as_if_nothing_had_been(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(folder, tmp_path / "whole").run(silent)
    for kind in (CodecLesson, PictureLesson):
        with monkeypatch.context() as patched:
            patched.setattr(kind, "loss", stopping(kind.loss, after=3))
            with pytest.raises(KeyboardInterrupt):
                small(folder, tmp_path / "parts", resume=True).run(silent)
    assert not (tmp_path / "parts").exists()
    small(folder, tmp_path / "parts", resume=True).run(silent)

    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    small(folder, tmp_path / "other", seed=1).run(silent)
    assert weights(tmp_path / "other") != weights(tmp_path / "whole")


def stopping(loss: Callable[..., Any], after: int) -> Callable[..., Any]:
    """A loss that Ctrl-C stops after some steps."""
    seen: list[float] = []

    def stopped(self: Any, progress: float) -> Any:
        seen.append(progress)
        if len(seen) > after:
            raise KeyboardInterrupt
        return loss(self, progress)

    return stopped


def test_what_was_begun_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    small(folder, tmp_path / "model", steps=1).run(silent)

    with pytest.raises(ValueError, match="holds a training that was begun; go on with --resume"):
        small(folder, tmp_path / "model", steps=1).run(silent)
    with pytest.raises(ValueError, match="the training to resume had codes 8, not 16"):
        small(folder, tmp_path / "model", steps=1, codes=16, resume=True).run(silent)


def test_other_pictures_are_not_gone_on_with(folder: Path, tmp_path: Path) -> None:
    small(folder, tmp_path / "model", steps=1).run(silent)
    other = shutil.copytree(folder, tmp_path / "other")
    next(each for each in sorted(other.rglob("*")) if each.is_file()).unlink()
    before = {each.name: each.read_bytes() for each in (tmp_path / "model").iterdir()}
    with pytest.raises(ValueError, match="the training to resume had pictures of digest"):
        small(other, tmp_path / "model", steps=2, resume=True).run(silent)
    assert {each.name: each.read_bytes() for each in (tmp_path / "model").iterdir()} == before


def test_what_else_lies_in_the_output_folder_stays(folder: Path, tmp_path: Path) -> None:
    files = sorted(each.name for each in folder.iterdir())
    for training in (small(folder, folder, steps=1), small(folder, folder, resume=True)):
        for act in (partial(training.run, silent), training.store_best):
            with pytest.raises(ValueError, match="holds something else than a model of pictures"):
                act()
    assert sorted(each.name for each in folder.iterdir()) == files
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        small(folder, file, steps=1).run(silent)


def test_checkpoints_are_exported_with_their_own_words_alone(folder: Path, tmp_path: Path) -> None:
    training = small(folder, tmp_path / "model", steps=1)
    training.run(silent)
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, other / path.name.replace("grey", "gray"))
    for wrong, told in (
        (replace(training, place=other), "had pictures of digest"),
        (replace(training, layers=2), "had layers 1, not 2"),
    ):
        with pytest.raises(ValueError, match=f"the training to resume {told}"):
            wrong.store_best()
    place = tmp_path / "model.training" / PictureLesson.name
    stopped = Checkpoint.read(place)
    stopped.best_head = {}  # as a Ctrl-C before the first evaluation leaves it
    stopped.write(place)
    with pytest.raises(ValueError, match="were judged yet; go on with --resume"):
        training.store_best()


def test_a_transformer_that_was_begun_is_told_before_a_codec_is_trained(
    folder: Path, tmp_path: Path
) -> None:
    training = small(folder, tmp_path / "model", steps=1)
    training.run(silent)
    shutil.rmtree(tmp_path / "model.training" / CodecLesson.name)
    with pytest.raises(ValueError, match=r"model\.training holds a training that was begun"):
        training.run(silent)
    assert not (tmp_path / "model.training" / CodecLesson.name).exists()


def test_a_classifier_of_other_pictures_is_trained_anew(folder: Path, tmp_path: Path) -> None:
    training = small(folder, tmp_path / "model", steps=1)
    training.run(silent)
    first = training.classify(silent)
    assert training.classify(silent).bases == first.bases
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        shutil.copy(path, other / path.name.replace("grey", "gray"))
    again = replace(training, place=other).classify(silent)
    assert {each.split()[0] for each in first.bases} == {"grey"}
    assert {each.split()[0] for each in again.bases} == {"gray"}


def test_a_lesson_that_is_made_longer_is_judged_by_its_own_weights(
    folder: Path, tmp_path: Path
) -> None:
    pictures = scaled(read_pictures(folder), 8)

    def run(steps: int, resume: bool) -> LessonRun:
        lesson = CodecLesson(pictures, AutoencoderSizes(4, 2, 8), batch=2)
        return LessonRun(lesson, LessonSchedule(None, steps, average=0.5), tmp_path, resume, silent)

    run(4, False).run()
    longer = run(40, True)
    assert longer.state.averaged
    longer._step(4 / 40)
    assert not longer.state.averaged


def test_new_weights_are_of_the_seed(folder: Path) -> None:
    pictures, sizes = scaled(read_pictures(folder), 8), AutoencoderSizes(4, 2, 8)
    drawn = [CodecLesson(pictures, sizes, seed=seed).module.decoder.last.weight for seed in (0, 1)]
    assert not torch.equal(*drawn)


def test_words_of_files_are_those_that_are_asked_for(tmp_path: Path) -> None:
    for name in ("Stra\u00dfe", "dr. no!", "e\u0301toile 1"):
        write_png(tmp_path / f"{name}.png", 10, size=8)
    found = {each.words for each in read_pictures(tmp_path)}
    assert found == {("strasse",), ("dr", "no"), ("\u00e9toile",)}
    assert found == {tuple(words_in(name)) for name in ("Stra\u00dfe", "Dr. No", "\u00e9toile")}
    write_png(tmp_path / "!!.png", 10, size=8)
    with pytest.raises(ValueError, match=r"!!\.png has no words; name a picture by what it"):
        read_pictures(tmp_path)


@pytest.mark.parametrize("hidden", [64, 128, 192, 256, 320, 576, 960])
def test_heads_share_keys_evenly(folder: Path, hidden: int) -> None:
    sizes = small(folder, folder, hidden=hidden)._sizes
    assert sizes.heads % sizes.key_heads == 0
    if hidden // 64 in (1, 2, 3, 4):
        assert sizes.key_heads == max(1, hidden // 128)


def test_an_odd_number_of_heads_is_trained(folder: Path, tmp_path: Path) -> None:
    small(folder, tmp_path / "model", hidden=320, steps=1).run(silent)
    assert load_picture_model(tmp_path / "model").settings.words


def test_a_transformer_of_other_codes_is_not_resumed(folder: Path, tmp_path: Path) -> None:
    training = small(folder, tmp_path / "model", steps=2)
    training.run(silent)
    small(folder, tmp_path / "other", steps=3).run(silent)
    codec = tmp_path / "model.training" / "autoencoder"
    replace(training, resume=True, steps=3).run(silent)
    assert Checkpoint.read(codec).step == 2, "steps that are added are the transformer's"

    (tmp_path / "other.training" / "autoencoder" / NAME).replace(codec / NAME)
    with pytest.raises(ValueError, match="the training to resume had codec"):
        replace(training, resume=True, steps=4).run(silent)


def test_a_full_disk_ends_training_with_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    training = small(folder, tmp_path / "model", steps=1)
    with monkeypatch.context() as patched:
        patched.setattr("draftwood_images.training.export.write_arrays", full)
        with pytest.raises(OSError, match="the disk is full; free some space") as refused:
            training.run(silent)
    assert "\n" not in str(refused.value)
    assert [each.name for each in tmp_path.glob("*model*")] == ["model.training"]
    figures = training.store_best()
    assert load_picture_model(tmp_path / "model").settings.words
    assert figures["transformer"]["step"] == 1


def test_a_loss_that_is_no_number_ends_training(folder: Path, tmp_path: Path) -> None:
    pictures = scaled(read_pictures(folder), 8)
    lesson = CodecLesson(pictures, AutoencoderSizes(4, 2, 8), batch=2)
    with torch.no_grad():
        lesson.module.decoder.last.weight.fill_(float("nan"))

    with pytest.raises(ValueError, match="loss of the autoencoder is nan at step 1"):
        LessonRun(lesson, LessonSchedule(None, 2), tmp_path, False, silent).run()


def test_a_gradient_that_is_no_number_ends_training_before_its_step(
    folder: Path, tmp_path: Path
) -> None:
    lesson = CodecLesson(scaled(read_pictures(folder), 8), AutoencoderSizes(4, 2, 8), batch=2)
    weight = lesson.module.decoder.last.weight
    weight.register_hook(lambda gradient: gradient * float("inf"))
    before, told = weight.detach().clone(), "norm of the gradient of the autoencoder is (inf|nan)"

    with pytest.raises(ValueError, match=f"{told} at step 1, .* checkpoint is in {tmp_path}"):
        LessonRun(lesson, LessonSchedule(None, 2), tmp_path, False, silent).run()
    assert torch.equal(weight, before)


def test_more_codes_than_places_are_revived(folder: Path) -> None:
    lesson = CodecLesson(scaled(read_pictures(folder), 8), AutoencoderSizes(4, 2, 64), batch=2)
    module = lesson.module
    module.loss(as_input(lesson._train[:2]), WARM_UP)
    module.counts.zero_()[0] = 1.0

    assert module.loss(as_input(lesson._train[:2]), WARM_UP).isfinite()
    assert module.vectors.isfinite().all()
    assert len(module.vectors.unique(dim=0)) > 1


def test_held_out_pictures_are_never_shown(folder: Path) -> None:
    pictures = scaled(read_pictures(folder), 8)
    levels = set(pictures.pixels[pictures.is_held_out][:, 4, 4, 0].tolist())
    lesson = CodecLesson(pictures, AutoencoderSizes(4, 2, 8), batch=2)

    assert levels
    assert not levels & set(lesson._train[:, 4, 4, 0].tolist())


def test_changed_pictures_say_so() -> None:
    pixels = torch.randint(0, 256, (400, 8, 8, 3)).to(torch.uint8)
    words = [("apple",), ("left", "arrow")] * 200
    painted, told = changed(pixels, words)

    for before, after, known, said in zip(pixels, painted, words, told, strict=True):
        assert said[: len(known)] == known
        if set(said) & {MIRRORED, SHIFTED}:
            continue
        assert torch.equal(before, after)
    assert all(MIRRORED not in said for said in told[1::2])
    assert {each for said in told for each in said} >= {MIRRORED, SHIFTED}
    assert not torch.equal(pixels, painted)


def test_an_autoencoder_learns_flat_pictures(folder: Path, tmp_path: Path) -> None:
    pictures = scaled(read_pictures(folder), 8)
    lesson = CodecLesson(pictures, AutoencoderSizes(4, 2, 64, width=32, fine_width=16), batch=8)
    with torch.no_grad():
        before = lesson.judge()["train dB"]
    state = LessonRun(lesson, LessonSchedule(None, 150), tmp_path, False, silent).run()

    assert state.history[-1]["train dB"] > before + 6
    assert state.history[-1]["codes in use"] > 4


def test_decibels_of_a_known_error() -> None:
    black = as_input(torch.zeros(1, 2, 2, 3, dtype=torch.uint8))

    assert psnr(black + 0.2, black) == pytest.approx(20.0, abs=1e-3)


def test_the_command_tells_its_figures(folder: Path, tmp_path: Path) -> None:
    given = ["train", "images", str(folder), str(tmp_path / "model"), "--json", "--classifier"]
    given += ["--size", "8", "--codes", "8", "--layers", "1", "--hidden", "64", "--steps", "2"]
    done = CliRunner().invoke(main, given, catch_exceptions=False)

    told = json.loads(done.stdout)
    assert set(told) == {"folder", "autoencoder", "transformer", "classifier"}
    assert set(told["classifier"]) >= {"painted top 5", "real top 5"}
    judge = Classifier.read(tmp_path / "model.training" / "classifier.pt")
    black = np.zeros((2, 8, 8, 3), np.uint8)
    assert judge.recognised(black, ["grey one", "grey two"], top=10).tolist() == [True, True]
    assert judge.features(black).shape == (2, 128)
    alone = CliRunner().invoke(main, [*given[:-2], "--steps", "3", "--classifier-only"])
    assert set(json.loads(alone.stdout)) == {"folder", "classifier"}
    both = CliRunner().invoke(main, [*given, "--classifier-only", "--export-only"])
    assert (both.exit_code, "not both" in both.output) == (2, True)
    with pytest.raises(ValueError, match="knows no picture 'blue one'"):
        judge.recognised(black, ["blue one", "grey two"])
    with pytest.raises(ValueError, match="holds no classifier"):
        Classifier.read(tmp_path / "model" / "card.md")
    card = (tmp_path / "model" / "card.md").read_text()
    assert "pictures were learnt from" in card
    assert "held-out dB" in card


def test_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no whole number of squares of 3"):
        PictureTraining(tmp_path, tmp_path / "model", size=8, patch=3)
    with pytest.raises(ValueError, match="an even number of pixels across, got 3"):
        AutoencoderSizes(patch=3)
    with pytest.raises(ValueError, match="hidden is a multiple of 64"):
        PictureTraining(tmp_path, tmp_path / "model", hidden=100)
    with pytest.raises(ValueError, match="there is no font or folder"):
        small(tmp_path / "nothing", tmp_path / "model").run(silent)
    with pytest.raises(ValueError, match="give one of them"):
        LessonSchedule(None)


def test_tokens_are_words_then_the_mark_then_codes(folder: Path) -> None:
    pictures = scaled(read_pictures(folder), 8)
    settings = settings_for(pictures, 2, 8)
    training = small(folder, folder)
    autoencoder = Autoencoder(AutoencoderSizes(4, 2, 8))
    lesson = PictureLesson(pictures, Codes(autoencoder), settings, training._sizes)
    tokens, targets = lesson._rows(
        [[10, 12], [settings.unconditional]], torch.arange(8).view(2, 2, 2)
    )

    assert tokens[0].tolist() == [10, 12, settings.begin, 0, 1, 2]
    assert targets[0, 2:].tolist() == [0, 1, 2, 3]
    assert tokens[1, :5].tolist() == [settings.unconditional, settings.begin, 4, 5, 6]
    assert targets[1, 1:5].tolist() == [4, 5, 6, 7]


@pytest.mark.proof
def test_digits_are_learnt_within_two_minutes_of_one_core(tmp_path: Path) -> None:
    digits = pytest.importorskip("sklearn.datasets", reason="scikit-learn has the digits")
    found = digits.load_digits()
    place = tmp_path / "digits"
    place.mkdir()
    for at, (image, digit) in enumerate(zip(found.images, found.target, strict=True)):
        grey = (np.minimum(image, 15) * 17).astype(np.uint8)
        Image.fromarray(grey).save(place / f"{NAMES[digit]} {at}.png")
    training = PictureTraining(place, tmp_path / "model", 8, 1, 16, 2, 128, None, 160, seed=0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where other programs run
    since = time.thread_time()
    try:
        figures = training.run(silent)["transformer"]
    finally:
        torch.set_num_threads(threads)
    minutes = (time.thread_time() - since) / 60

    assert figures["held-out bits"] < 2.2, "4 bits for equal grey levels"
    assert minutes < 2
    lesson = training._lesson(None)
    lesson.module.load_state_dict(_best_weights(training))
    lesson.module.eval()
    with torch.no_grad():
        right = lesson.judge()["held-out bits"]
        lesson._words = [(NAMES[(NAMES.index(words[0]) + 1) % 10],) for words in lesson._words]
        wrong = lesson.judge()["held-out bits"]
    assert right == pytest.approx(figures["held-out bits"], abs=1e-3)
    assert wrong > right + 0.05, "another digit's word makes its picture less likely"


def _best_weights(training: PictureTraining) -> dict[str, torch.Tensor]:
    return Checkpoint.read(training.folder / PictureLesson.name).best_head
