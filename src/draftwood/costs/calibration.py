"""Curves on disk: measured once for a model on a machine, found again by every later load.

A curve lies under `home()/curves`, in a file named after the model, its dtype, the thread count and
a digest of these and the device. The file says in full what it was measured for; one that says
anything else is not used.
"""

import hashlib
import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from draftwood.costs.curve import Curve, measure
from draftwood.interfaces.model import Model
from draftwood.models.lean import LeanModel
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.threads import threads
from draftwood.storage.atomic import write_text
from draftwood.storage.home import home
from draftwood.storage.machine import device_name, processor
from draftwood.storage.progress import progress
from draftwood.storage.weights import WEIGHTS
from draftwood.version import __version__

STORED_SECONDS = 3.0  # for a curve that later loads find again
PASSING_SECONDS = 1.0  # for one that is forgotten with the process
LEAST_SHARE = 0.8  # of a CPU for the thread that runs the model; left alone, it has one to itself
# parts of a key that give each curve a file of its own
NAMING = ("model", "dtype", "runner", "device", "threads")


class CalibrationWarning(UserWarning):
    """A stored curve cannot be used, or a curve cannot be stored.

    Nothing depends on it but time.
    """


@dataclass(frozen=True)
class Key:
    """What a curve is measured for.

    Attributes:
        model: folder of the weights.
        weights: how many bytes they have and when they were written.
        dtype: of the weights in memory.
        runner: the class that runs them, and how, where it can do so in several ways.
        device: name of the GPU or the CPU.
        threads: that passes use on the CPU.
        versions: of the packages that decide how fast a pass is.
    """

    model: str
    weights: str
    dtype: str
    runner: str
    device: str
    threads: int
    versions: str

    @classmethod
    def of(cls, model: Model, folder: Path, dtype: str) -> "Key":
        """The key of a model whose weights come from a folder, as it would run now."""
        packages = ", ".join(
            f"{name} {metadata.version(name)}" for name in ("torch", "transformers")
        )
        return cls(
            model=str(folder.resolve()),
            weights=_weights(folder),
            dtype=dtype,
            runner=_runner(model),
            device=device_name(model.device),
            threads=threads() if isinstance(model, NativeModel) else torch.get_num_threads(),
            versions=f"draftwood {__version__}, {packages}",
        )

    @property
    def path(self) -> Path:
        """Where the curve lies, if there is one."""
        naming = json.dumps([asdict(self)[part] for part in NAMING])
        digest = hashlib.sha256(naming.encode()).hexdigest()[:8]
        folder = Path(self.model)
        # Hugging Face's cache names the folder after a commit
        if folder.parent.name == "snapshots":
            folder = folder.parent.parent
        name = re.sub(r"[^\w.-]+", "-", folder.name.removeprefix("models--"))[:60]
        return home() / "curves" / f"{name}-{self.dtype}-{self.threads}-threads-{digest}.json"


def read(key: Key) -> Curve:
    """The stored curve of this key.

    Raises:
        FileNotFoundError: where none is stored.
        ValueError: where the file is damaged or was measured for something else; the message says
        what. OSError: where the disk refuses.
    """
    path = key.path
    try:
        text = path.read_text(encoding="utf-8")
    except NotADirectoryError as error:
        raise FileNotFoundError(f"there is no folder {path.parent}") from error
    except UnicodeDecodeError:
        raise ValueError(f"the curve in {path} is damaged: it is not text") from None
    try:
        record = json.loads(text)
        measured_for = dict(record["measured_for"])
        times = {
            int(nodes): float(seconds) for nodes, seconds in record["seconds_by_nodes"].items()
        }
        curve = Curve(
            tuple(times),
            tuple(times.values()),
            float(record.get("seconds_per_node_and_token", 0.0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (
            f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        )
        raise ValueError(f"the curve in {path} is damaged: {reason[:160]}") from None
    for part, wanted in asdict(key).items():
        if (found := measured_for.get(part)) != wanted:
            raise ValueError(
                f"the curve in {path} was measured for {part} {found!r}, this is {wanted!r}"
            )
    return curve


def store(
    key: Key, curve: Curve, command: str, drafters: Mapping[str, float] | None = None
) -> Path:
    """Write a curve, whole or not at all.

    Args:
        command: that measured it.
        drafters: seconds per step of drafting methods, for the reader.

    Returns:
        The file.

    Raises:
        OSError: where the disk refuses; the message says why and what to do.
    """
    record: dict[str, object] = {
        "measured_for": asdict(key),
        "measured_by": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "seconds_by_nodes": {
            str(nodes): seconds for nodes, seconds in zip(curve.nodes, curve.seconds, strict=True)
        },
        "seconds_per_node_and_token": curve.per_context_token,
    }
    if drafters:
        record["draft_seconds_per_step"] = dict(drafters)
    path = key.path
    write_text(path, json.dumps(record, indent=2) + "\n")
    return path


def curve_for(model: Model, key: Key | None) -> Curve:
    """The stored curve of a model, or else one measured now.

    Measuring takes at most 3 s if the curve can be stored, 1 s if it cannot. What is wrong with a
    stored curve, or keeps this one from being stored, is a ``CalibrationWarning``, never an error.
    """
    if key is None:
        return _measure(model, PASSING_SECONDS).curve
    try:
        return read(key)
    except FileNotFoundError:
        pass
    except (ValueError, OSError) as error:
        _warn(f"{error}; it is measured again")
    measured = _measure(model, STORED_SECONDS)
    if measured.busy:
        _warn(
            "other programs kept the CPU busy while it was measured what a run costs; the next load"
            " measures it again, and draftwood tune stores it in any case"
        )
        return measured.curve
    try:
        store(key, measured.curve, "draftwood.load")
    except OSError as error:
        _warn(f"{error}; until then every load measures what a run costs")
    return measured.curve


class Calibration:
    """A model's curve, made when it is first asked for: given, stored or measured.

    Args:
        model: whose passes it is about.
        folder: of the weights; None for a model that came from memory, whose curve is not stored.
        dtype: of the weights in memory.
        curve: spares reading and measuring.

    Raises:
        TypeError: for a curve that cannot be called.
    """

    def __init__(
        self,
        model: Model,
        folder: Path | None = None,
        dtype: str = "",
        curve: Callable[[int], float] | None = None,
    ) -> None:
        if curve is not None and not callable(curve):
            raise TypeError(
                "curve must be a draftwood.costs.curve.Curve or a function from nodes to seconds,"
                f" got {curve!r}"
            )
        self.model, self.folder, self.dtype, self._curve = model, folder, dtype, curve
        self._making = threading.Lock()  # two threads that measure at once slow each other down

    @property
    def curve(self) -> Callable[[int], float]:
        """Seconds of one forward pass by number of nodes; the first look may take 3 s."""
        with self._making:
            if self._curve is None:
                self._curve = curve_for(self.model, self.key)
            return self._curve

    @property
    def is_known(self) -> bool:
        """Whether there is a curve without measuring one."""
        with self._making:
            if self._curve is None and (key := self.key) is not None:
                with suppress(ValueError, OSError):  # measuring it again says what is wrong
                    self._curve = read(key)
            return self._curve is not None

    def use(self, curve: Callable[[int], float]) -> None:
        """Take this curve from now on."""
        self._curve = curve

    @property
    def key(self) -> Key | None:
        """Under which the curve is stored; None where it is not."""
        return None if self.folder is None else Key.of(self.model, self.folder, self.dtype)


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve, and whether other programs took so much of the CPU meanwhile that it says little."""

    curve: Curve
    busy: bool


def watched(model: Model, make: Callable[[], Curve]) -> MeasuredCurve:
    """Measure a curve by calling ``make``, and see whether the CPU was there for it."""
    since, used = time.perf_counter(), time.thread_time()
    curve = make()
    share = (time.thread_time() - used) / max(time.perf_counter() - since, 1e-9)
    return MeasuredCurve(curve, model.device.type == "cpu" and share < LEAST_SHARE)


def _measure(model: Model, seconds: float) -> MeasuredCurve:
    with progress(f"measuring what a run over a tree costs here, at most {seconds:.0f} s"):
        return watched(model, lambda: measure(model, seconds=seconds))


def _runner(model: Model) -> str:
    if isinstance(model, NativeModel):
        return f"NativeModel, {model.products} products, library {library.key()}"
    if isinstance(model, LeanModel) and model.graphs is not None:
        return "LeanModel, recorded as graphs"
    return type(model).__name__


def _weights(folder: Path) -> str:
    found = [path.stat() for pattern in WEIGHTS for path in folder.glob(pattern)]
    newest = max((file.st_mtime_ns for file in found), default=0)
    written = datetime.fromtimestamp(newest // 10**9, timezone.utc).isoformat()
    return f"{sum(file.st_size for file in found)} bytes of {written}"


def _warn(message: str) -> None:
    warnings.warn(message, CalibrationWarning, stacklevel=3)
