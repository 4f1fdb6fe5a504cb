"""The buffer is bounded, and its folder gives back what it was given or refuses in one line."""

import errno
import gc
import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from draftwood.heads.trained import TrainedHead
from draftwood.learning import folder as folders
from draftwood.learning.buffer import LearningBuffer
from draftwood.learning.folder import LearningFolder
from draftwood.learning.idle import EndedError
from draftwood.learning.learning import Learning
from draftwood.learning.texts import WatchedText
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.testing import tiny_llama
from tiny_heads import tiny_eagle


def a_text(
    number: int, rows: int = 10, dim: int = 4, reads: int = 2, answer: int = 2
) -> WatchedText:
    drawn = np.random.default_rng(number)
    states = drawn.integers(0, 60000, (rows, reads, dim)).astype(np.uint16)
    final = drawn.integers(0, 60000, (rows, dim)).astype(np.uint16)
    return WatchedText(
        np.arange(rows) + number, states, final, drawn.random(rows) < 0.5, answer, 0.5
    )


def test_the_newest_tenth_is_held_out_and_what_is_old_goes_by_chance() -> None:
    buffer = LearningBuffer(40 * a_text(0).memory)
    texts = [a_text(number) for number in range(200)]
    for text in texts:
        buffer.add(text)
        assert buffer.memory <= buffer.limit
    assert buffer.added == 200 * 8
    kept = [texts.index(text) for text in buffer.texts]
    assert len(kept) == 40
    assert kept == sorted(kept)
    assert kept[-4:] == [196, 197, 198, 199]  # the newest tenth is never dropped
    assert kept[0] < 160  # old places stay for replay
    older, newest = buffer.split()
    assert older + newest == buffer.texts
    assert len(newest) == 4
    buffer.add(a_text(0, rows=1000))  # larger than all of it
    assert len(buffer.texts) == 40
    with pytest.raises(ValueError, match="at least one byte"):
        LearningBuffer(0)


@pytest.fixture(scope="module")
def target() -> NativeModel:
    if not library.available():
        pytest.skip("there is no C++ compiler")
    return NativeModel(tiny_llama(0, layers=6), "float32")


@pytest.fixture
def trained(target: NativeModel) -> TrainedHead:
    return tiny_eagle(target)


class NoLearner:
    """Trains nothing."""

    steps = 0

    def train(self, head: Any, new: Any, old: Any, pause: Any) -> Any:
        raise AssertionError("nothing is to be trained")

    def judge(self, head: Any, texts: Any, pause: Any) -> Any:
        raise AssertionError("nothing is to be judged")


def opened(target: NativeModel, trained: TrainedHead, folder: Path) -> Learning:
    return Learning(target, trained, NoLearner(), folder=folder)


def fitting(number: int, trained: TrainedHead) -> WatchedText:
    config: Any = trained.config
    return a_text(number, dim=config.sizes.hidden, reads=3)


def test_a_folder_gives_back_the_buffer_and_the_head(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    folder = tmp_path / "learnt"
    first = opened(target, trained, folder)
    texts = [fitting(number, trained) for number in range(5)]
    for text in texts:
        first.take(text)
    other = tiny_eagle(target, seed=3)
    first._swap(other)
    first.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o077 for each in (folder / "texts").iterdir()} == {0}
    second = opened(target, trained, folder)
    for text, found in zip(texts, second.buffer.texts, strict=True):
        for name in ("tokens", "states", "final", "rejected"):
            assert np.array_equal(getattr(text, name), getattr(found, name))
        assert (text.answer, text.temperature) == (found.answer, found.temperature)
    found, wanted = (each.weights["fc.weight"] for each in (second.trained, other))
    assert np.abs(found - wanted).max() < 0.01
    with pytest.raises(ValueError, match=r"a head learns in .*learnt already, .*; close that"):
        LearningFolder(folder, trained)
    second.close()
    (folder / "texts" / "000000000x.safetensors").touch()
    kept = LearningFolder(folder, trained)
    left = list(kept.read())[3:]
    kept.keep(left)
    assert len(list((folder / "texts").glob("*[0-9].safetensors"))) == 2


def test_a_head_that_was_learnt_from_another_one_is_dropped_and_its_texts_stay(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    first = opened(target, trained, tmp_path)
    first.take(fitting(0, trained))
    first._swap(tiny_eagle(target, seed=3))
    first.close()
    newer = tiny_eagle(target, seed=4)
    with pytest.warns(UserWarning, match="was learnt from another one than is given now"):
        second = opened(target, newer, tmp_path)
    assert second.trained is newer
    assert len(second.buffer.texts) == 1
    assert second.buffer.added > second._read
    second._swap(tiny_eagle(target, seed=5))
    second.close()
    third = opened(target, newer, tmp_path)
    assert third.trained is not newer
    third.close()
    settings = tmp_path / "learning.json"
    says = json.loads(settings.read_text())
    del says["head"]  # as before it was told
    settings.write_text(json.dumps(says))
    assert opened(target, newer, tmp_path).trained is not newer


class SteadyLearner(NoLearner):
    """Gives weights back as they are, better than before; keeps what it was given."""

    def train(self, head: Any, new: Any, old: Any, pause: Any) -> Any:
        self.steps, self.new, self.old = self.steps + 1, list(new), list(old)
        return head

    def judge(self, head: Any, texts: Any, pause: Any) -> Any:
        self.gain = getattr(self, "gain", 0.0) + 1.0
        return np.full((4, 2), self.gain)


def learns(target: NativeModel, trained: TrainedHead, folder: Path) -> Learning:
    return Learning(
        target, trained, SteadyLearner(), folder=folder, round_rows=10**9, least_judged=1
    )


def learn_of_three(learning: Learning, trained: TrainedHead) -> None:
    """Take three texts and swap the head, which learnt of two of them."""
    for number in range(3):
        learning.take(fitting(number, trained))
    learning.catch_up()
    assert learning.status.swaps == 1


def test_texts_that_nothing_was_learnt_from_are_pending_in_a_folder_that_is_opened_again(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    with learns(target, trained, tmp_path) as first:
        learn_of_three(first, trained)
        for number in range(3, 6):
            first.take(fitting(number, trained))
    with learns(target, trained, tmp_path) as second:
        rows = [text.answer_rows for text in second.buffer.texts]
        assert second.buffer.added - second._read == sum(rows[2:])
        second.catch_up()
        numbers = [[int(text.tokens[0]) for text in of] for of in _given(second)]
        assert numbers == [[2, 3, 4], [0, 1]]
    with learns(target, trained, tmp_path) as third:
        third.take(fitting(6, trained))
        third.catch_up()
        assert [int(text.tokens[0]) for text in _given(third)[0]] == [5]
    (tmp_path / "head").rename(tmp_path.parent / "away")
    with learns(target, trained, tmp_path) as fourth:
        assert fourth._read == 0


def test_texts_of_a_round_that_was_stopped_are_pending(
    target: NativeModel, trained: TrainedHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with learns(target, trained, tmp_path) as first:
        learn_of_three(first, trained)
        first.take(fitting(3, trained))

        def stopped(*given: Any) -> np.ndarray:
            first.gate.close()
            return np.zeros((4, 2))

        monkeypatch.setattr(first.learner, "judge", stopped)
        with pytest.raises(EndedError):
            first._round(first.gate.pause)
    with learns(target, trained, tmp_path) as second:
        rows = [text.answer_rows for text in second.buffer.texts]
        assert second.buffer.added - second._read == sum(rows[2:])


def _given(learning: Learning) -> tuple[list[WatchedText], list[WatchedText]]:
    """New and old texts of the newest round."""
    learner: Any = learning.learner
    return learner.new, learner.old


def test_a_folder_holds_no_text_in_memory(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    with opened(target, trained, tmp_path) as learning:
        for number in range(4):
            learning.take(fitting(number, trained))
        one = learning.buffer.texts[0].memory
    learning = Learning(target, trained, NoLearner(), memory=2 * one, folder=tmp_path)
    assert len({id(each) for each in learning._folder._files}) == 2  # type: ignore[union-attr]
    learning.close()
    assert len(list((tmp_path / "texts").iterdir())) == 2
    kept = LearningFolder(tmp_path, trained)
    (text, other), seen = kept.read(), weakref.WeakSet[WatchedText]()
    seen.update((text, other))
    del text
    gc.collect()
    assert list(seen) == [other]
    kept.keep([other])
    assert len(list((tmp_path / "texts").iterdir())) == 1


def test_nothing_is_written_unless_a_folder_is_named(
    target: NativeModel, trained: TrainedHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any, **more: Any) -> None:
        raise AssertionError("nothing is to be written")

    monkeypatch.setattr(folders, "write_file", refused)
    monkeypatch.setattr(folders, "save", refused)
    learning = Learning(target, trained, NoLearner())
    learning.take(fitting(0, trained))
    learning._swap(trained)
    learning.close()


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "learning.json").write_text("{"), "not whole"),
        (lambda folder: (folder / "learning.json").unlink(), "something else"),
        (lambda folder: _cut(sorted((folder / "texts").iterdir())[0]), "remove that file"),
        (lambda folder: (folder / "head").mkdir(), "head"),
        (lambda folder: _flatten(folder / "texts", "final"), "remove that file"),
        (lambda folder: _flatten(folder / "texts", "tokens"), "remove that file"),
    ],
)
def test_a_torn_folder_is_refused_in_one_line(
    break_it: Any, says: str, target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    learning = opened(target, trained, tmp_path)
    learning.take(fitting(0, trained))
    learning.close()
    break_it(tmp_path)
    with pytest.raises(ValueError, match=says) as error:
        opened(target, trained, tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_folder_opens_once_what_was_wrong_is_mended(
    target: NativeModel, trained: TrainedHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folders, "write_file", full)
        with pytest.raises(OSError, match="No space left"):
            opened(target, trained, tmp_path)
    learning = opened(target, trained, tmp_path)
    learning.take(fitting(0, trained))
    learning.close()
    (kept,) = (tmp_path / "texts").iterdir()
    _cut(kept)
    with pytest.raises(ValueError, match="remove that file") as error:
        opened(target, trained, tmp_path)
    kept.unlink()
    opened(target, trained, tmp_path).close()
    assert error.tb is not None  # its frames still hold what was opened in vain


def _flatten(texts: Path, name: str) -> None:
    """Take one number of each row, or of all rows."""
    (path,) = texts.iterdir()
    arrays = load_file(path)
    save_file({**arrays, name: np.ascontiguousarray(arrays[name][..., 0])}, path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def test_a_file_is_no_folder_to_learn_in(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; keep the buffer in another folder"):
        opened(target, trained, tmp_path / "file")


def test_states_of_another_head_are_refused(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    opened(target, trained, tmp_path).close()
    with pytest.raises(ValueError, match="states of another head"):
        opened(target, tiny_eagle(target, reads=(2, 3, 4)), tmp_path)
    strange = NativeModel(tiny_llama(1, layers=6), "float32")
    with pytest.raises(ValueError, match="states of another head"):
        opened(strange, tiny_eagle(strange), tmp_path)


def test_states_under_another_adapter_are_refused(trained: TrainedHead, tmp_path: Path) -> None:
    LearningFolder(tmp_path, trained, "one").close()
    LearningFolder(tmp_path, trained, "one").close()
    for other in ("", "two"):
        with pytest.raises(ValueError, match="the model had another adapter"):
            LearningFolder(tmp_path, trained, other)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full; free some space"),
        (SafetensorError("IoError: Input/output error (os error 5)"), "Input/output error"),
    ],
)
def test_a_full_disk_leaves_the_buffer_in_memory(
    target: NativeModel,
    trained: TrainedHead,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    why: str,
) -> None:
    learning, lines = opened(target, trained, tmp_path), list[str]()
    learning.say = lines.append

    def full(*given: Any) -> None:
        raise error

    monkeypatch.setattr(folders, "_write", full)
    learning.take(fitting(0, trained))
    learning.close()
    assert len(lines) == 1
    assert lines[0].startswith("learning goes on in memory: ")
    assert why in lines[0]
    opened(target, trained, tmp_path).close()  # others may have the folder
    assert not list((tmp_path / "texts").iterdir())
    assert learning.status.rows == 8


def test_a_removed_folder_is_not_made_again(
    target: NativeModel, trained: TrainedHead, tmp_path: Path
) -> None:
    learning, lines = opened(target, trained, tmp_path / "learnt"), list[str]()
    learning.say = lines.append
    learning.take(fitting(0, trained))
    learning.go_on()
    shutil.rmtree(tmp_path / "learnt")
    learning.take(fitting(1, trained))
    learning.go_on()
    learning._swap(trained)
    learning.close()
    assert [line.partition(": ")[0] for line in lines] == ["learning goes on in memory"]
    assert "learnt was removed; learn in it again, or keep" in lines[0]
    assert learning.status.error == lines[0]
    assert not (tmp_path / "learnt").exists()


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (0.9, r"a text of \d+ bytes does not fit"),
        (5.0, "it holds out 8 rows of answers, and nothing is learnt below 128"),
    ],
)
def test_a_buffer_that_is_too_small_is_told_once(
    share: float, why: str, target: NativeModel, trained: TrainedHead
) -> None:
    memory, lines = int(share * fitting(0, trained).memory), list[str]()
    learning = Learning(target, trained, NoLearner(), memory=memory)
    learning.say = lines.append
    for number in range(8):
        learning.take(fitting(number, trained))
        learning.go_on()
    assert len(lines) == 1
    assert re.search(f"the buffer of {memory} bytes is too small: {why}.*more memory", lines[0])
    assert learning.status.error == lines[0]
    learning.close()
