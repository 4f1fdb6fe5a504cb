"""Model folders on disk: written whole or not at all, checked before they are read.

A folder that draftwood makes is built under a hidden name beside its destination and renamed at the end, so a process
that dies half-way leaves nothing under the real name. `draftwood.json` inside says where the weights came from and
what every file must weigh.
"""

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path

from draftwood.models.progress import progress

MANIFEST = "draftwood.json"
Facts = dict[str, str | None]  # what a manifest says of the weights, see ``weight_facts``
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "spiece.model", "vocab.json", "vocab.txt")
CANNOT_WRITE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a file of that name is in the way",
}


def home() -> Path:
    """The folder where draftwood keeps models: `$DRAFTWOOD_HOME`, or `~/.cache/draftwood` when that is not set."""
    return Path(os.environ.get("DRAFTWOOD_HOME") or "~/.cache/draftwood").expanduser().absolute()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def publish(destination: Path, source: str, build: Callable[[Path], Facts | None]) -> Path:
    """Make the folder `destination` by letting `build` fill an empty folder, then renaming that folder in one step.

    `source` is what the manifest says about the origin; what `build` returns it says of the weights. Only one process
    builds a destination at a time; the others wait and take what the first one made. Raises OSError when the disk
    cannot take the folder.
    """
    with explain_write_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with _locked(destination):
            if destination.is_dir():
                return destination
            _remove_leftovers(destination)
            partial = _partial(destination)
            partial.mkdir()
            try:
                facts = build(partial)
                write_manifest(partial, source, facts or {})
                os.replace(partial, destination)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    return destination


def _partial(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.partial")


def _lock_path(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.lock")


@contextmanager
def _locked(destination: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(_lock_path(destination))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        with progress(f"waiting for another process that makes {destination.name}"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(destination: Path) -> None:
    """Remove half-made folders whose maker is dead; its lock being free proves that. Our own lock is held by us."""
    from filelock import FileLock, Timeout

    for partial in destination.parent.glob(".*.partial"):
        owner = destination.with_name(partial.name[1 : -len(".partial")])
        lock = nullcontext() if owner == destination else FileLock(_lock_path(owner), timeout=0)
        try:
            with lock:
                shutil.rmtree(partial)
        except Timeout:
            continue


@contextmanager
def explain_write_errors(destination: Path) -> Iterator[None]:
    """Turn the ways a disk refuses to take `destination` into one OSError that says what to do."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None)
        if code is None and "os error" in str(error):  # safetensors reports the number only inside its text
            code = next((number for number in CANNOT_WRITE if f"os error {number})" in str(error)), None)
        if code not in CANNOT_WRITE:
            raise
        cure = "free some space" if code in (errno.ENOSPC, errno.EDQUOT) else "make that folder writable"
        reason = f"cannot write {destination}: {CANNOT_WRITE[code]}; {cure}, or set DRAFTWOOD_HOME to another folder"
        raise OSError(reason) from error


def write_manifest(folder: Path, source: str, facts: Facts) -> None:
    """Write `draftwood.json`: the origin, the size and SHA-256 of every file, and the versions that made them."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = {"source": source, **facts, "files": files, "versions": _versions()}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("draftwood", "torch", "transformers", "gguf", "safetensors", "tokenizers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def check_folder(folder: Path) -> None:
    """Check that a folder can be loaded: the right files, whole. Cheap: sizes only, no content is read.

    Raises FileNotFoundError when a file is missing and ValueError when one is damaged.
    """
    if (folder / MANIFEST).is_file():
        _check_sizes(folder)
    if not (folder / "config.json").is_file():
        inside = sorted(path.name for path in folder.glob("*.gguf"))
        hint = f"pass the file {folder / inside[0]} instead" if inside else "a model folder needs that file"
        raise FileNotFoundError(f"{folder} is a folder without config.json; {hint}")
    weights = [path for pattern in WEIGHTS for path in folder.glob(pattern)]
    if not weights:
        raise FileNotFoundError(f"{folder} has no weights: a model folder needs one of {', '.join(WEIGHTS)}")
    _check_shards(folder)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise FileNotFoundError(f"{folder} has no tokenizer: a model folder needs one of {', '.join(TOKENIZERS)}")
    for path in weights:
        if path.suffix == ".safetensors":
            _check_safetensors(path)


def _check_shards(folder: Path) -> None:
    """Look for the files that an index of sharded weights names."""
    for path in folder.glob("*.index.json"):
        try:
            named = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} cannot be read as an index of weights; fetch the file again") from None
        missing = [name for name in named if not (folder / name).is_file()]
        if missing and not _is_copy(path, folder):
            raise FileNotFoundError(
                f"{folder} lacks {len(missing)} of the {len(named)} files that {path.name} names, the first is "
                f"{missing[0]}; fetch it again and put it there"
            )


def _is_copy(index: Path, folder: Path) -> bool:
    """Whether an index belongs to a second copy of the weights, which is left out where safetensors are whole."""
    return ".bin." in index.name and any(folder.glob("*.safetensors"))


def verify(folder: Path) -> None:
    """Read every file of a folder that draftwood made and compare it with its recorded SHA-256.

    Raises FileNotFoundError when the folder has no manifest and ValueError when a file differs.
    """
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(f"{folder} has no {MANIFEST}, so there is nothing to compare its files with")
    _check_sizes(folder)
    for name, record in _read_manifest(folder).items():
        if (found := sha256(folder / name)) != record["sha256"]:
            raise ValueError(_damaged(folder, f"{name} has SHA-256 {found}, recorded was {record['sha256']}"))


def _read_manifest(folder: Path) -> dict[str, dict]:
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {name: {"bytes": int(record["bytes"]), "sha256": record["sha256"]} for name, record in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(_damaged(folder, f"{MANIFEST} cannot be read")) from None


def _check_sizes(folder: Path) -> None:
    for name, record in _read_manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise ValueError(_damaged(folder, f"{name} is missing"))
        if path.stat().st_size != record["bytes"]:
            raise ValueError(
                _damaged(folder, f"{name} has {path.stat().st_size} bytes, written were {record['bytes']}")
            )


def _damaged(folder: Path, reason: str) -> str:
    return f"the model folder {folder} is damaged: {reason}; delete that folder and load the model again"


def _check_safetensors(path: Path) -> None:
    """Compare a safetensors file's length with the one its header promises."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if not 0 < header_size <= size - 8:
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(header_size))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        if 8 + header_size + max(ends, default=0) != size:
            raise ValueError(f"{size} bytes came, {8 + header_size + max(ends, default=0)} were promised")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); fetch the file again") from None
