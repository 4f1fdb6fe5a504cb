"""Files of a benchmark: one folder with ``run.json`` and ``records.jsonl``.

``records.jsonl`` only grows, by whole lines: a process killed at any moment leaves at most one line
without its end, which the next run takes away. One process at a time writes a folder. A large file
may be kept as ``records.jsonl.gz``; a run that goes on unpacks it.
"""

import errno
import gzip
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.storage.atomic import hold, write_file
from draftwood_bench.plan.units import Key
from draftwood_bench.records.typed_fields import Made, made_of

if TYPE_CHECKING:
    from filelock import BaseFileLock

RUN, RECORDS, TREE, LOCK = "run.json", "records.jsonl", "tree.json", ".lock"
PACKED = f"{RECORDS}.gz"

TRIES = 2  # starts of a run in which a peer may fail at one prompt


@dataclass(frozen=True)
class Record:
    """One configuration's answer to one turn of a prompt.

    Attributes:
        cell: key of the configuration: everything that tells it from the others of the run.
        method: its name; ``peer:NAME`` for another system.
        at: group of the configuration, for instance ``length 3`` or ``budget 14``.
        shape: of its trees, printed; None where the method has none.
        verifier: name of the rule.
        drafter: name of the drafter.
        lossless: whether the rule keeps the model's distribution.
        category: of the prompt.
        prompt: its id.
        turn: from 0.
        round: from 0; every round measures everything once.
        seed: of the request.
        temperature: 0 is greedy.
        prompt_tokens: length of the prompt with the conversation before it.
        token_ids: of the answer; None in old records without them.
        text: of the answer; None likewise.
        stats: ``Stats.as_json()``; of a peer at least ``tokens`` and ``tokens_per_second``. Numbers
            that were not measured are missing or None.
        seconds_end_to_end: of the whole request, prompt included, under load from its arrival;
            None where nothing was timed.
        identical_to_plain: whether a greedy text is plain decoding's; None where texts are drawn or
            nothing is known.
        divergence: where it is not: the fields of ``checking.Divergence``.
        law: two-sample test of next-token distributions: ``samples``, ``position``, ``p_value``.
        quality: ``{"name": ..., "value": ...}``, see ``bench.quality``.
        worker: worker that measured it; ``local`` without Ray.
        nodes: most draft tokens per pass, where a shape says so.
        draft_steps: levels of the tree, each a pass of the draft model; None where there is none.
        load: for the protocol ``load``: batch, rate, seconds waited and to the first token.
        beside: of a peer that answered when the run went on: ``stats`` and ``seconds_end_to_end``
            of plain decoding, measured once more at that moment; ratios of this record are to
            these.
        model: name of the weights, where a measurement covers several.
    """

    cell: str
    method: str
    at: str
    shape: str | None
    verifier: str | None
    drafter: str | None
    lossless: bool
    category: str
    prompt: str
    turn: int
    round: int
    seed: int
    temperature: float
    prompt_tokens: int
    token_ids: list[int] | None
    text: str | None
    stats: dict[str, Any]
    seconds_end_to_end: float | None
    identical_to_plain: bool | None = None
    divergence: dict[str, Any] | None = None
    law: dict[str, Any] | None = None
    quality: dict[str, Any] | None = None
    worker: str = "local"
    nodes: int | None = None
    draft_steps: int | None = None
    load: dict[str, Any] | None = None
    beside: dict[str, Any] | None = None
    model: str | None = None

    @property
    def key(self) -> Key:
        """Key under which a record is measured once."""
        return (self.cell, self.temperature, self.prompt, self.turn, self.round)

    @property
    def is_peer(self) -> bool:
        return self.method.startswith("peer:")


@dataclass(frozen=True)
class RunInfo:
    """Facts that all records of a folder share; stored as ``run.json``.

    Attributes:
        protocol: its name.
        options: its fields.
        command: as typed.
        commit: of the checkout, None outside of one.
        versions: of the packages that matter, and of those of others that bring methods.
        hardware: ``processor``, ``cores``, ``device``.
        threads: that PyTorch uses.
        model: name of the target.
        draft_model: name of the draft model.
        drafter: folder of the trained drafter.
        dtype: how the target's weights are multiplied.
        curve: measured seconds of a pass by nodes, and per node and token of context: ``{"nodes":
            [], "seconds": [], "per_place": [one]}``.
        bandwidth: bytes per second that memory gives; the roofline is this over ``weight_bytes``.
        weight_bytes: read for every token.
        prompts: ``source``, ``note``, ``count``, ``rule``; ``turns_left_out``: later turns that
            were too long, where there are some.
        started: date and time.
        draft_ratio: parameters of the draft model over those of the target.
        weights: SHA-256 that tells the target's weights from others, see ``origin.weights_digest``;
            None in records of earlier versions, and where they came from no folder.
        draft_weights: likewise of the draft model.
        drafter_weights: likewise of the trained drafter.
        datastore: file of texts that methods copied from; None without one.
        datastore_file: SHA-256 of its header, which holds that of its texts; None likewise, and in
            records of earlier versions.
        adapter: that was added to the model's weights; None without one.
        peers: by name what it is; why it is ``absent``, if it is; where it ``failed``: a ``key``
            and a ``reason`` each.
        resumed: later starts: ``command``, ``commit``, ``started``, ``versions``, which earlier
            versions did not tell, and ``records``: how many were there before; without it they
            cannot be told from those of the start before.
    """

    protocol: str
    options: dict[str, Any]
    command: str
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, Any]
    threads: int
    model: str
    draft_model: str | None
    dtype: str
    curve: dict[str, list] | None
    bandwidth: float | None
    weight_bytes: int | None
    prompts: dict[str, Any]
    started: str
    draft_ratio: float | None = None
    weights: str | None = None
    draft_weights: str | None = None
    drafter: str | None = None
    drafter_weights: str | None = None
    datastore: str | None = None
    datastore_file: str | None = None
    adapter: str | None = None
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    resumed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def dirty(self) -> list[str]:
        """The commits of its starts from which files of the checkout differed.

        Starts before which as many records lay as before the next one measured nothing.
        """
        starts = [{"commit": self.commit, "records": 0}, *self.resumed]
        commits = [
            start.get("commit")
            for start, later in zip(starts, [*starts[1:], {}], strict=True)
            if "records" not in start or start["records"] != later.get("records")
        ]
        return [
            commit
            for commit in dict.fromkeys(commits)
            if commit is not None and commit.endswith("-dirty")
        ]

    @property
    def clean_starts(self) -> list[tuple[range, list[str]]]:
        """Lines of records whose commits hold what was measured, and these commits."""
        starts = [{"commit": self.commit, "records": 0}, *self.resumed]
        begins = [place for place, start in enumerate(starts) if "records" in start]
        found = []
        for begin, end in zip(begins, [*begins[1:], None], strict=True):
            commits = [start.get("commit") for start in starts[begin:end]]
            last = starts[end]["records"] if end else sys.maxsize
            if all(map(is_clean, commits)):
                found.append((range(starts[begin]["records"], last), commits))
        return found

    @property
    def given_up(self) -> set[Key]:
        """Keys that peers failed too often to be asked again.

        Otherwise they would fail there at every start, and never reach later prompts.
        """
        failed = Counter(
            tuple(each["key"]) for known in self.peers.values() for each in known.get("failed", [])
        )
        return {key for key, times in failed.items() if times >= TRIES}


def is_clean(commit: str | None) -> bool:
    """True if a commit is known, and no file differed from it."""
    return commit is not None and not commit.endswith("-dirty")


def read_run(folder: Path) -> RunInfo:
    """Read a folder's ``run.json``.

    Raises:
        FileNotFoundError: where there is none.
        ValueError: for a file that is something else.
    """
    path = folder / RUN
    try:
        found = made_of(RunInfo, json.loads(path.read_text("utf-8")))
        if "device" not in found.hardware:
            raise TypeError("its hardware has no device")
        return found
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} holds no benchmark run: there is no {RUN}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is no description of a benchmark run: {_line(error)}; measure into a new"
            " folder"
        ) from None


def write_run(folder: Path, run: RunInfo) -> None:
    """Write ``run.json``, whole or not at all. Raises OSError where the disk refuses."""
    write_whole(folder / RUN, json.dumps(asdict(run), indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written. Raises OSError where the disk refuses."""
    write_file(path, text, disk_errors)


def read_records(folder: Path) -> list[Record]:
    """Read the records of a folder; none if there is no file.

    A last line without its end does not count. Of a unit whose writer was killed some lines may be
    there; it is measured again whole, and the last records count.

    Raises:
        ValueError: for a line that is no record, naming file and line.
    """
    return list({record.key: record for record, _ in _read(folder / RECORDS)}.values())


def read_clean(folder: Path) -> tuple[RunInfo, list[Record]]:
    """A run as far as its commits hold what was measured: these starts and their records.

    Raises as ``read_run`` and ``read_records`` do.
    """
    run = read_run(folder)
    starts = run.clean_starts
    found = {
        record.key: (record, any(place in lines for lines, _ in starts))
        for place, (record, _) in enumerate(_read(folder / RECORDS))
    }
    first, *later = [commit for _, commits in starts for commit in commits] or [None]
    run = replace(run, commit=first, resumed=[{"commit": each} for each in later])
    return run, [record for record, clean in found.values() if clean]


def _read(path: Path) -> Iterator[tuple[Record, int]]:
    """Records and where their lines end."""
    return read_lines(path, _content(path), partial(made_of, Record))


def read_lines(
    path: Path, content: bytes, make: Callable[[Any], Made]
) -> Iterator[tuple[Made, int]]:
    """Read what each line holds in JSON, and tell where the line ends.

    Args:
        path: named in errors.
        content: of the file; a last line without its end does not count.
        make: makes a record of it.

    Raises:
        ValueError: for a line that is no record, naming file and line.
    """
    end = 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return  # its writer was killed
        end += len(line)
        if not line.strip():
            continue
        try:
            record = make(json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}:{number} is no record of a benchmark: {_line(error)}; delete that line,"
                " and its command measures it again"
            ) from None
        yield record, end


def _content(path: Path) -> bytes:
    """Bytes of the records, packed or not; none where there is no file."""
    if path.exists():
        return path.read_bytes()
    packed = path.with_name(PACKED)
    try:
        return gzip.decompress(packed.read_bytes()) if packed.exists() else b""
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{packed} is no packed file of records: {_line(error)}") from None


class Writer:
    """Writer of records to a folder; ``done`` holds the keys of existing ones.

    Made by ``writing``.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORDS
        found = list(_read(self.path))
        self.lines = len(found)
        self.records = [record for record, _ in found]
        self.done = {record.key for record in self.records}
        end = found[-1][1] if found else 0
        self._unpack()
        with disk_errors(self.path), self.path.open("ab") as file:
            file.truncate(end)  # takes away the line of a writer that was killed

    def _unpack(self) -> None:
        """Go on with the lines of a packed file."""
        packed = self.path.with_name(PACKED)
        if packed.exists() and not self.path.exists():
            write_whole(self.path, _content(self.path).decode())
            packed.unlink()

    def append(self, records: Sequence[Record]) -> None:
        """Add records that belong together: all of them or, where the disk refuses, none.

        Raises OSError then.
        """
        lines = b"".join(json.dumps(asdict(record)).encode() + b"\n" for record in records)
        append_lines(self.path, lines)
        self.records += records
        self.done |= {record.key for record in records}


@contextmanager
def writing(folder: Path) -> Iterator[Writer]:
    """The one writer of a folder, which is made where it is not there.

    Raises:
        OSError: where another process is writing it, or the disk refuses.
        ValueError: for a file with a line that is no record.
    """
    lock = held(folder)
    try:
        yield Writer(folder)
    finally:
        lock.release()


def held(folder: Path) -> "BaseFileLock":
    """Make a folder where it is missing, and keep other processes from writing it.

    Returns:
        The lock, to be released at the end.

    Raises:
        OSError: where another process is writing it, or the disk refuses.
    """
    taken = OSError(f"another process is writing {folder}; wait for it, or name another folder")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return hold(folder / LOCK, taken)


def append_lines(path: Path, lines: bytes) -> None:
    """Add lines to a file: all of them or, where the disk refuses, none.

    Raises:
        OSError: then.
    """
    with disk_errors(path), path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            _write_all(file.fileno(), lines)
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(before)
            raise


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Report in one line which file the disk refused, and that nothing is lost."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space",
        errno.EDQUOT: "the disk quota is used up; free some space",
        errno.EFBIG: "the file is as large as the system allows; choose another --output",
        errno.EROFS: "the file system is read-only; choose another --output",
        errno.EACCES: "permission denied; choose another --output",
        errno.ENOTDIR: "a part of the path is a file; choose another --output",
        errno.EEXIST: "a file of that name is in the way; choose another --output",
    }
    try:
        yield
    except OSError as error:
        if error.errno not in reasons:
            raise
        kept = "; what was measured before is kept, and the same command goes on from there"
        raise OSError(f"cannot write {path}: {reasons[error.errno]}{kept}") from error


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
