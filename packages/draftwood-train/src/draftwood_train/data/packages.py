"""Texts inside packages of public registries: fetched once, with their licence read from them."""

import hashlib
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Literal

from draftwood.loading import downloads

Registry = Literal["pypi", "npm", "debian"]
COMMANDS: Mapping[Registry, str] = {
    "pypi": "pip download --no-deps {name}=={version}",
    "npm": "npm pack {name}@{version}",
    "debian": "apt-get update && apt-get download {name}",
}
ALLOWED = frozenset(
    "MIT ISC BSD Apache-2.0 Artistic PSF-2.0 PostgreSQL WordNet3.0 MPL-2.0 CC0-1.0 CC-BY-4.0"
    " BSD-2-Clause BSD-3-Clause".split()
)
"""Licences whose texts anybody may train on and pass on; of alternatives one is enough."""
SHARE_ALIKE = re.compile(rb"CC[- ]BY(-NC)?[- ](SA|NC)|Share ?-?Alike|GNU Free Documentation", re.I)
"""Words in a file that say that it is under other terms than its package."""
SPOKEN = {
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
}
IN_PROSE = {"PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2": "PSF-2.0"}


@dataclass(frozen=True)
class Package:
    """A package by name.

    Attributes:
        version: of it; "" where the release of the system has one alone.
    """

    registry: Registry
    name: str
    version: str = ""

    @property
    def command(self) -> str:
        """Command that fetches it by hand."""
        return COMMANDS[self.registry].format(name=self.name, version=self.version)

    def fetch(self) -> "PackageFile":
        """Find it among those that were fetched, or fetch it.

        Raises:
            OSError: where it cannot be had; the message names it, the command and the way without.
            ValueError: where it is damaged or its licence is not allowed.
        """
        try:
            path = downloads.kept_package(self.registry, self.name, self.version)
        except OSError as error:
            raise OSError(
                f"the package {self.name} cannot be had ({error}); see `{self.command}`, or go on"
                f" without it: --without {self.name}"
            ) from error
        found = PackageFile(self, path)
        found.require_allowed()
        return found


class PackageFile:
    """A package on this machine.

    Args:
        package: its name.
        path: wheel, tarball of npm or Debian package.
    """

    def __init__(self, package: Package, path: Path) -> None:
        self.package, self.path = package, path

    @property
    def version(self) -> str:
        """Version of the file that is there, by its name."""
        if self.package.registry == "debian":
            return self.path.name.split("_")[1].replace("%3a", ":")
        return self.package.version

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @cached_property
    def licence(self) -> str:
        """Licence as the package states it; "" where it states none."""
        read = {"pypi": _wheel_licence, "npm": _npm_licence, "debian": self._debian_licence}
        return read[self.package.registry](self._bytes_of)

    def require_allowed(self) -> None:
        """Raise ValueError unless anybody may train on its text and pass it on."""
        if not is_allowed(self.licence):
            raise ValueError(
                f"the package {self.package.name} states the licence"
                f" {self.licence or 'nowhere'!r}, which is not among {', '.join(sorted(ALLOWED))};"
                f" go on without it: --without {self.package.name}"
            )

    def texts(self, *patterns: str) -> Iterator[tuple[str, str]]:
        """Name and text of each member that fits a pattern, by name.

        Members that are under a share-alike licence of their own are left out.
        """
        found = dict(self._bytes_of(lambda name: any(fnmatch(name, each) for each in patterns)))
        for name in sorted(found):
            if not SHARE_ALIKE.search(found[name]):
                yield name, found[name].decode(errors="replace").removeprefix("\ufeff")

    def _bytes_of(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        try:
            if self.path.suffix == ".whl":
                yield from _of_wheel(self.path, wanted)
            else:
                yield from _of_tar(self.path, wanted)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise ValueError(
                f"{self.path} is damaged ({error}); delete {self.path.parent} and try again"
            ) from None

    def _debian_licence(self, members: "Members") -> str:
        name = f"usr/share/doc/{self.package.name}/copyright"
        text = _first(members, lambda member: member == name)
        stated = re.search(r"^License:[ \t]*(\S.*)$", text, re.M)
        if text.startswith("Format:") and stated:
            return stated[1].strip()
        spaced = " ".join(text.split())
        return next((known for words, known in IN_PROSE.items() if words in spaced), "")


Members = Callable[[Callable[[str], bool]], Iterator[tuple[str, bytes]]]


def is_allowed(licence: str) -> bool:
    """True if a licence, or one of its alternatives, is allowed."""
    choices = re.split(r"\s+or\s+", licence, flags=re.I)
    return any(
        all(part.strip(" ()") in ALLOWED for part in re.split(r"\s+and\s+", choice, flags=re.I))
        for choice in choices
    )


def _first(members: Members, wanted: Callable[[str], bool]) -> str:
    return next((data.decode(errors="replace") for _, data in members(wanted)), "")


def _wheel_licence(members: Members) -> str:
    text = _first(members, lambda name: name.endswith(".dist-info/METADATA"))
    header = text.partition("\n\n")[0]
    for field in ("License-Expression", "License"):
        if stated := re.search(rf"^{field}: *(\S.*)$", header, re.M):
            return stated[1].strip()
    spoken = re.search(r"^Classifier: License :: (?:OSI Approved :: )?(.+)$", header, re.M)
    return SPOKEN.get(spoken[1].strip(), spoken[1].strip()) if spoken else ""


def _npm_licence(members: Members) -> str:
    found = json.loads(_first(members, lambda name: name == "package/package.json") or "{}")
    stated = found.get("license", "")
    return str(stated.get("type", "") if isinstance(stated, dict) else stated)


def _of_wheel(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if wanted(name):
                yield name, archive.read(name)


def _of_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Members of a tarball, or of a Debian package, whose own tool unpacks the outer layer."""
    if path.suffix == ".tgz":
        with tarfile.open(path) as archive:
            yield from _members(archive, wanted)
        return
    command = ["dpkg-deb", "--fsys-tarfile", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            yield from _members(archive, wanted)


def _members(
    archive: tarfile.TarFile, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        name = member.name.removeprefix("./")
        if member.isfile() and wanted(name):
            file = archive.extractfile(member)
            assert file is not None
            yield name, file.read()
