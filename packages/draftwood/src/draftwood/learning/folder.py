"""Folder of a learning buffer: a file for each text, and the head that was learnt."""

import json
import shutil
import weakref
from collections.abc import Collection, Container, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood.heads.folder import load, save
from draftwood.learning.texts import WatchedText
from draftwood.storage.atomic import LOCK, explain_write_errors, hold, write_file
from draftwood.storage.safetensors import read_header

if TYPE_CHECKING:
    from draftwood.heads.trained import TrainedHead

FORMAT, VERSION = "draftwood-learning", 1
SETTINGS, TEXTS, HEAD = "learning.json", "texts", "head"
ELSEWHERE = "keep the buffer in another folder"


class LearningFolder:
    """Keeps the texts of a buffer on disk, readable by their owner alone; one process at a time.

    Args:
        folder: a new or empty one, or one that was made by this class for the same head.
        trained: the head that learns.
        adapter: mark of that in the target's weights; empty for none.

    Attributes:
        outdated: whether a head was there that was learnt from another one; it is removed.
        is_open: until ``close``; nobody may write behind it.

    Raises:
        ValueError: for a folder that holds something else, or states of another head, and one that
            is in use.
        OSError: where the disk refuses.
    """

    def __init__(self, folder: Path, trained: "TrainedHead", adapter: str = "") -> None:
        self.folder, self._trained = folder, trained
        self._facts = {
            "format": FORMAT,
            "version": VERSION,
            "reads": list(trained.config.reads),
            "target": asdict(trained.target),
            "head": trained.digest,
            "adapter": adapter,
            "trained_on": [],
        }
        self.outdated, self.is_open = False, True
        self._files: weakref.WeakKeyDictionary[WatchedText, Path] = weakref.WeakKeyDictionary()
        self._paths, self._next = set[Path](), 0
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; {ELSEWHERE}")
        is_new = not (folder / SETTINGS).exists()
        if is_new and folder.exists() and {each.name for each in folder.iterdir()} - {LOCK}:
            raise ValueError(f"{folder} holds something else than a learning buffer; {ELSEWHERE}")
        with explain_write_errors(folder, ELSEWHERE):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_new:
                folder.chmod(0o700)
            taken = ValueError(
                f"a head learns in {folder} already, in this process or another; close that"
                f" learning, or {ELSEWHERE}"
            )
            self._lock = hold(folder / LOCK, taken)
        try:
            if not is_new:
                self._require_same(trained)
            self._write_settings()
            if is_new:  # behind the settings, by which the folder is known
                with explain_write_errors(folder, ELSEWHERE):
                    (folder / TEXTS).mkdir(mode=0o700, exist_ok=True)
        except BaseException:
            self._lock.release()
            raise

    def _write_settings(self) -> None:
        text = json.dumps(self._facts, indent=2) + "\n"
        write_file(self.folder / SETTINGS, text, _explained)

    def _require_same(self, trained: "TrainedHead") -> None:
        """Refuse another target's states, and remove what was learnt from another head.

        What a head that stays was trained on is known then.
        """
        try:
            says = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
            reads, target = says["reads"], says["target"]
            same = type(trained.target)(**{**target, "probe": tuple(target["probe"])})
            trained_on = [str(name) for name in says.get("trained_on", ())]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.folder / SETTINGS} is not whole ({error}); remove {self.folder}"
            ) from None
        if says.get("format") != FORMAT or says.get("version") != VERSION:
            raise ValueError(f"{self.folder} is of another version; {ELSEWHERE}")
        try:
            same.require(trained.target)
            if reads != self._facts["reads"]:
                raise ValueError(f"layers {reads}, and this one reads {self._facts['reads']}")
            if says.get("adapter", "") != self._facts["adapter"]:
                raise ValueError("the model had another adapter")
        except ValueError as error:
            raise ValueError(
                f"{self.folder} holds states of another head ({error}); {ELSEWHERE}"
            ) from None
        if says.get("head", trained.digest) != trained.digest and (self.folder / HEAD).exists():
            with explain_write_errors(self.folder, ELSEWHERE):
                shutil.rmtree(self.folder / HEAD)
            self.outdated = True
        if (self.folder / HEAD).exists():
            self._facts["trained_on"] = trained_on

    def read(self) -> Iterator[WatchedText]:
        """Read the texts that are kept, the oldest first.

        Raises:
            ValueError: for a file that is not whole.
        """
        for path in sorted((self.folder / TEXTS).glob("[0-9]*.safetensors")):
            if not path.stem.isdecimal():
                continue  # no file of this class
            text = _read(path)
            if text.states.shape[1:] != (len(self._facts["reads"]), text.final.shape[1]):
                raise ValueError(f"{path} holds states of another head; remove that file")
            self._files[text], self._next = path, int(path.stem) + 1
            self._paths.add(path)
            yield text

    def is_trained_on(self, text: WatchedText) -> bool:
        """True for a text that was read, where the head that is kept was trained on it."""
        return self._files[text].name in self._facts["trained_on"]

    def keep(self, texts: Collection[WatchedText], trained_on: Container[WatchedText] = ()) -> None:
        """Write the texts that are new, and remove files of those that are gone.

        Args:
            texts: of the buffer; no others are kept in memory.
            trained_on: texts that the head was trained on.

        Raises:
            OSError: where the disk refuses, and where the folder was removed.
        """
        self._require_there()
        kept = {self._files[text] for text in texts if text in self._files}
        for path in self._paths - kept:
            path.unlink(missing_ok=True)
        self._paths = kept
        for text in texts:
            if text not in self._files:
                path = self.folder / TEXTS / f"{self._next:09d}.safetensors"
                write_file(path, lambda partial, text=text: _write(partial, text), _explained)
                self._files[text], self._next = path, self._next + 1
                self._paths.add(path)
        names = [self._files[text].name for text in texts if text in trained_on]
        if names != self._facts["trained_on"]:
            self._facts["trained_on"] = names
            self._write_settings()

    def keep_head(self, trained: "TrainedHead") -> None:
        """Write the head that was learnt, in place of the one before.

        Raises:
            OSError: as ``keep``.
        """
        self._require_there()
        card = "Learnt by `lm.learn()` or `draftwood serve --learn` from the texts beside it."
        save(self.folder / HEAD, trained, card)

    def _require_there(self) -> None:
        """Refuse to write where the folder was removed: what is made again lacks its settings."""
        if not (self.folder / SETTINGS).exists():
            raise OSError(f"{self.folder} was removed; learn in it again, or {ELSEWHERE}")

    def close(self) -> None:
        """Leave the folder to other processes."""
        self.is_open = False
        self._lock.release()

    def head(self) -> "TrainedHead | None":
        """Read the head that was learnt; None where there is none.

        Raises:
            ValueError: for a head that is not whole, or of another draft vocabulary.
        """
        if not (self.folder / HEAD).exists():
            return None
        found = load(self.folder / HEAD)
        if _form(found) != _form(self._trained):
            raise ValueError(f"{self.folder / HEAD} is of another form; remove that folder")
        return found


def _form(trained: "TrainedHead") -> tuple[Any, ...]:
    return trained.config, trained.draft_tokens.tolist()


def _explained(path: Path) -> Any:
    return explain_write_errors(path, ELSEWHERE)


def _write(path: Path, text: WatchedText) -> None:
    from safetensors.numpy import save_file

    arrays = {
        "tokens": text.tokens,
        "states": text.states,
        "final": text.final,
        "rejected": text.rejected,
        "answer": np.array([text.answer]),
        "temperature": np.array([text.temperature]),
    }
    path.touch(mode=0o600)
    save_file(arrays, path)


def _read(path: Path) -> WatchedText:
    from safetensors.numpy import load_file

    try:
        read_header(path)
    except ValueError:
        raise ValueError(f"{path} is not whole (its header is torn); remove that file") from None
    try:
        found = load_file(path)
        names = ("tokens", "states", "final", "rejected")
        tokens, states, final, rejected = (found[name] for name in names)
        answer, temperature = int(found["answer"][0]), float(found["temperature"][0])
    except (KeyError, IndexError) as error:
        raise ValueError(f"{path} is not whole ({error}); remove that file") from None
    forms = [each.ndim for each in (tokens, states, final, rejected)]
    if forms != [1, 3, 2, 1] or not (
        len(states) == len(final) == len(rejected) == len(tokens) >= answer >= 0
    ):
        raise ValueError(f"{path} is not whole (its arrays differ in length); remove that file")
    return WatchedText(tokens, states, final, rejected, answer, temperature)
