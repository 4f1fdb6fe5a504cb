"""Curves on disk: measured for a model on a machine, reused by later loads, and corrected.

A curve lies under `home()/curves`, in a file named after the model, its dtype, the thread count and
a digest of these and the device. The file says in full what it was measured for; one that says
anything else is not used. A curve that was measured beside other programs, or that passes
contradict, is marked and measured again while a longer run is idle.
"""

import hashlib
import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from draftwood.costs.budget import default_cost, require_curve
from draftwood.costs.curve import Curve, measure
from draftwood.costs.disturbance import CpuShare, MeasuredCurve, is_disturbed, watched
from draftwood.costs.following import Following
from draftwood.models.fingerprint import adapter_of
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.threads import allowed, threads
from draftwood.storage.atomic import locked_where_possible, write_file
from draftwood.storage.home import home
from draftwood.storage.machine import device_name, processor
from draftwood.storage.progress import progress
from draftwood.storage.weights import WEIGHTS
from draftwood.version import __version__

ASSUMED = Curve((1, 65), (default_cost(1), default_cost(65)))
"""Curve of a machine without a measured one, until passes correct it."""
LEAST_PASSES = 16  # that are worth a file
STORED_SECONDS = 3.0  # for a curve that later loads find again
PASSING_SECONDS = 1.0  # for one that is forgotten with the process
# parts of a key that give each curve a file of its own
NAMING = ("model", "dtype", "runner", "device", "threads")


class CalibrationWarning(UserWarning):
    """A stored curve cannot be used, or a curve cannot be stored.

    It affects speed alone.
    """


@dataclass(frozen=True)
class Key:
    """Identity of a curve: model, machine and software that it was measured for.

    Attributes:
        model: folder of the weights.
        weights: how many bytes they have and when they were written.
        dtype: of the weights in memory, and the mark of the adapter in them.
        runner: the class that runs them, and how, where it can do so in several ways.
        device: name of the GPU or the CPU.
        threads: that passes use on the CPU.
        versions: of the packages that decide how fast a pass is; PyTorch's where it makes them.
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
        return cls(
            model=str(folder.resolve()),
            weights=_weights(folder),
            dtype="+".join(filter(None, (dtype, adapter_of(model)))),
            runner=_runner(model),
            device=device_name(model.device),
            threads=threads() if isinstance(model, NativeModel) else allowed(),
            versions=_versions(model),
        )

    @property
    def path(self) -> Path:
        """Path of the curve's file, which may not exist."""
        naming = json.dumps([asdict(self)[part] for part in NAMING])
        digest = hashlib.sha256(naming.encode()).hexdigest()[:8]
        folder = Path(self.model)
        # Hugging Face's cache names the folder after a commit
        if folder.parent.name == "snapshots":
            folder = folder.parent.parent
        name = re.sub(r"[^\w.-]+", "-", folder.name.removeprefix("models--"))[:60]
        return home() / "curves" / f"{name}-{self.dtype}-{self.threads}-threads-{digest}.json"


@dataclass(frozen=True)
class KnownCurve:
    """A curve, and whether it was measured while nothing disturbed it.

    Attributes:
        speed_ups: expected over plain decoding, by what the curve and measured drafts and
            acceptance say; by folder of a draft model and then by method.
    """

    curve: Curve
    is_good: bool = True
    speed_ups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read(key: Key) -> KnownCurve:
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
        is_good = not (record.get("busy") or record.get("passes"))
        speed_ups = {
            str(draft): {str(name): float(value) for name, value in found.items()}
            for draft, found in record.get("speed_ups_by_draft_model", {}).items()
        }
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
    return KnownCurve(curve, is_good, speed_ups)


def store(
    key: Key,
    curve: Curve,
    command: str,
    drafters: Mapping[str, float] | None = None,
    *,
    busy: bool = False,
    passes: int = 0,
    speed_ups: Mapping[str, Mapping[str, float]] | None = None,
) -> Path:
    """Write a curve, whole or not at all.

    Args:
        command: that measured it.
        drafters: seconds per step of drafting methods, for the reader.
        busy: whether other programs took much of the CPU meanwhile.
        passes: of texts that it was learnt from, where it was not measured.
        speed_ups: of ``KnownCurve``.

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
    if busy:
        record["busy"] = True
    if passes:
        record["passes"] = passes
    if drafters:
        record["draft_seconds_per_step"] = dict(drafters)
    if speed_ups:
        record["speed_ups_by_draft_model"] = {name: dict(each) for name, each in speed_ups.items()}
    path = key.path
    write_file(path, json.dumps(record, indent=2) + "\n")
    return path


def curve_for(model: Model, key: Key | None, measures: bool = True) -> KnownCurve:
    """The stored curve of a model, or else one measured now.

    Measuring takes at most 3 s if the curve can be stored, 1 s if it cannot. A curve that cannot be
    read or stored is a ``CalibrationWarning``, never an error.

    Args:
        measures: False assumes one instead, of a machine where draft tokens are dear.
    """
    known = _read_or_warn(key, measures)
    if known is not None:
        return known
    if not measures:
        return KnownCurve(ASSUMED, is_good=False)
    with locked_where_possible(None if key is None else key.path):
        with suppress(OSError, ValueError):
            if key is not None:  # of two processes one measures
                return read(key)
        measured = _measure(model, PASSING_SECONDS if key is None else STORED_SECONDS)
        if key is not None:
            try:
                store(key, measured.curve, "draftwood.load", busy=measured.busy)
            except OSError as error:
                _warn(f"{error}; until then every load measures what a pass costs")
    return KnownCurve(measured.curve, not measured.busy)


def _read_or_warn(key: Key | None, measures: bool) -> KnownCurve | None:
    try:
        return None if key is None else read(key)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        _warn(f"{error}; {'it is measured again' if measures else 'passes of texts replace it'}")
        return None


def is_known_well(key: Key) -> bool:
    """True if a curve is stored that was measured while nothing disturbed it."""
    try:
        return read(key).is_good
    except (ValueError, OSError):  # none, or a damaged one
        return False


def known_speed_ups(key: Key) -> dict[str, Mapping[str, float]]:
    """The expected speed-ups that are stored with a curve; see ``KnownCurve``."""
    try:
        return dict(read(key).speed_ups)
    except (ValueError, OSError):
        return {}


class Calibration:
    """A model's curve, made when it is first asked for: given, or stored, measured or assumed.

    All but a given one follow the passes of texts; see ``Following``.

    Args:
        model: whose passes it is about.
        folder: of the weights; None for a model that came from memory, whose curve is not stored.
        dtype: of the weights in memory.
        curve: spares reading, measuring and following.

    Raises:
        TypeError: for a curve that cannot be called, or gives what is no number.
        ValueError: for one that is not finite and positive, or falls.
    """

    def __init__(
        self,
        model: Model,
        folder: Path | None = None,
        dtype: str = "",
        curve: Callable[[int], float] | None = None,
    ) -> None:
        if curve is not None:
            require_curve(curve)
        self.model, self.folder, self.dtype, self._given = model, folder, dtype, curve
        self._following: Following | None = None
        self._cpu = CpuShare()  # since the curve is followed
        self._assumed = self._gave_up = False
        self._making = threading.Lock()  # two threads that measure at once slow each other down

    @property
    def curve(self) -> Callable[[int], float]:
        """Seconds of one forward pass by number of nodes, as far as they are known now.

        The first access may take 3 s.
        """
        found = self.followed()
        return found.curve if isinstance(found, Following) else found

    def followed(self, measures: bool = True) -> Callable[[int], float]:
        """The curve that was given, or one that follows passes from now on.

        Args:
            measures: False skips the 3 s of measuring: without a stored curve, the assumed one is
                used.
        """
        with self._making:
            if self._given is not None:
                return self._given
            if self._following is None or (self._assumed and measures):
                self._begin(measures)
            assert self._following is not None
            return self._following

    def known(self) -> Callable[[int], float] | None:
        """The curve, where it is known without measuring it now; else None."""
        found = self.followed(measures=False)
        return None if self._assumed else found

    def speed_ups(self, draft: "Calibration") -> dict[str, float]:
        """Expected speed-ups over plain decoding with a draft model, by method; see ``tune``."""
        if (key := self.key) is None or draft.folder is None:
            return {}
        return dict(known_speed_ups(key).get(str(draft.folder.resolve()), {}))

    def _begin(self, measures: bool) -> None:
        found = curve_for(self.model, self.key, measures)
        self._assumed = found.curve is ASSUMED
        if self._following is None:
            self._following = Following(found.curve, found.is_good)
        else:
            self._following.restart(found.curve, found.is_good)
        self._cpu = CpuShare()

    def use(self, curve: Callable[[int], float]) -> None:
        """Use this curve from now on, and ignore measured passes."""
        self._given, self._assumed = curve, False

    @property
    def is_doubtful(self) -> bool:
        """True if it is worth measuring again: assumed, learnt, disturbed, or off by a quarter."""
        found = self._following
        if self._given is not None or found is None or self.folder is None or self._gave_up:
            return False
        return not found.is_good or found.is_off

    def first_doubtful(self, *others: "Calibration | None") -> "Calibration | None":
        """This calibration or the first of others that is doubtful; None where all are good."""
        found = (each for each in (self, *others) if each is not None and each.is_doubtful)
        return next(found, None)

    def mend(self, disturbed: Callable[[], bool] = lambda: False) -> None:
        """Measure and store a doubtful curve again while idle.

        Tried once: if other programs disturb that too, passes alone correct the curve.

        Args:
            disturbed: called before each pass; True gives up and leaves the curve as it was.
        """
        if not self.is_doubtful:
            return

        def clock() -> float:
            if disturbed():
                raise _DisturbedError
            return time.perf_counter()

        try:
            with self._making:
                measured = watched(
                    self.model, lambda: measure(self.model, seconds=STORED_SECONDS, clock=clock)
                )
        except _DisturbedError:
            return
        except Exception:  # no memory left, for instance; texts say what is wrong
            self._gave_up = True
            return
        self._gave_up = True
        if measured.busy or self._following is None or (key := self.key) is None:
            return
        self._assumed = False
        self._following.restart(measured.curve)
        _store(key, measured.curve, "draftwood, when idle")

    @contextmanager
    def mending(self, after: float = 2.0) -> Iterator[None]:
        """Let another thread ``mend`` while this one waits for something.

        Args:
            after: seconds of waiting.
        """
        over = threading.Event()

        def wait() -> None:
            if not over.wait(after):
                self.mend(over.is_set)

        thread = threading.Thread(target=wait, name="draftwood-idle", daemon=True)
        if self.is_doubtful:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.is_alive():
                thread.join()

    def keep(self, command: str) -> None:
        """Store the corrections that passes made to a doubtful curve; takes a millisecond.

        Corrections learnt beside other programs never replace an undisturbed measurement, and
        no corrections replace one that another process made meanwhile.

        Args:
            command: whose passes they were.
        """
        found = self._following
        if not self.is_doubtful or found is None or found.passes < LEAST_PASSES:
            return
        busy = is_disturbed(self._cpu.share)
        if (key := self.key) is None or (busy and found.is_good):
            return
        if found.is_good or not is_known_well(key):
            _store(key, found.curve, command, busy=busy, passes=found.passes)

    @property
    def key(self) -> Key | None:
        """Key under which the curve is stored; None if it is not."""
        return None if self.folder is None else Key.of(self.model, self.folder, self.dtype)


class _DisturbedError(Exception):
    """Raised when there is other work to do."""


def _measure(model: Model, seconds: float) -> MeasuredCurve:
    with progress(f"measuring forward passes over trees, at most {seconds:.0f} s"):
        return watched(model, lambda: measure(model, seconds=seconds))


def _runner(model: Model) -> str:
    if isinstance(model, NativeModel):
        return f"NativeModel, {model.products} products, library {library.key()}"
    if getattr(model, "graphs", None) is not None:
        return f"{type(model).__name__}, recorded as graphs"
    return type(model).__name__


def _versions(model: Model) -> str:
    """Versions of all that runs the passes; of native ones PyTorch and Transformers see nothing."""
    from importlib.metadata import version

    from draftwood.optional import PACKAGES

    others = () if isinstance(model, NativeModel) else PACKAGES
    return ", ".join([f"draftwood {__version__}", *(f"{name} {version(name)}" for name in others)])


def _weights(folder: Path) -> str:
    found = [path.stat() for pattern in WEIGHTS for path in folder.glob(pattern)]
    newest = max((file.st_mtime_ns for file in found), default=0)
    written = datetime.fromtimestamp(newest // 10**9, timezone.utc).isoformat()
    return f"{sum(file.st_size for file in found)} bytes of {written}"


def _store(key: Key, curve: Curve, command: str, **how: Any) -> None:
    with suppress(OSError):  # the next run learns it again
        store(key, curve, command, speed_ups=known_speed_ups(key), **how)


def _warn(message: str) -> None:
    warnings.warn(message, CalibrationWarning, stacklevel=3)
