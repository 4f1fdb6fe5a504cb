"""Texts in packages: what is fetched, whose licence lets it in, and what is refused."""

import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from draftwood.loading import downloads
from draftwood_train.data.packages import Package, is_allowed

TEXTS = {"a.txt": "one", "b.txt": "two", "other.md": "three"}


def wheel(folder: Path, header: str, texts: dict[str, str] = TEXTS) -> Path:
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
        archive.writestr("tiny-1.0.dist-info/METADATA", f"Name: tiny\n{header}\n\nLicense: GPL\n")
    return path


def tarball(folder: Path, licence: object, texts: dict[str, str] = TEXTS) -> Path:
    path = folder / "tiny-1.0.tgz"
    told = {"package/package.json": json.dumps({"license": licence})}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {**texts, **told}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def debian(folder: Path, copyright: str, texts: dict[str, str] = TEXTS) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb, which unpacks Debian's packages")
    root = folder / "root"
    control = "Package: tiny\nVersion: 1:2.0\nArchitecture: all\nMaintainer: n\nDescription: n\n"
    files = {"DEBIAN/control": control, "usr/share/doc/tiny/copyright": copyright, **texts}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    path = folder / "tiny_1%3a2.0_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(root), str(path)], check=True, capture_output=True)
    shutil.rmtree(root)
    return path


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Serve one package; what was asked for is kept."""
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    asked = []

    def serve(make, *arguments):
        def fetched(registry: str, name: str, version: str, folder: Path) -> Path:
            asked.append((registry, name, version))
            return make(folder, *arguments)

        monkeypatch.setattr(downloads, "package_file", fetched)
        return asked

    return serve


@pytest.mark.parametrize(
    ("header", "licence"),
    [
        ("License-Expression: MIT OR GPL-3.0", "MIT OR GPL-3.0"),
        ("License: BSD-3-Clause", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD"),
    ],
)
def test_the_licence_of_a_wheel_is_read_from_its_header(registry, header, licence):
    registry(wheel, header)
    found = Package("pypi", "tiny", "1.0").fetch()
    assert found.licence == licence
    assert dict(found.texts("*.txt")) == {"a.txt": "one", "b.txt": "two"}


def test_npm_packages_are_read(registry):
    registry(tarball, {"type": "ISC"})
    found = Package("npm", "@some/tiny", "1.0").fetch()
    assert (found.licence, found.version) == ("ISC", "1.0")
    assert [name for name, _ in found.texts("*.md", "a*")] == ["a.txt", "other.md"]


@pytest.mark.parametrize(
    ("copyright", "licence"),
    [
        (
            "Format: x\nUpstream-Name: t\n\nFiles: *\nLicense: GPL-1+ or Artistic\n\nLicense: X\n",
            "GPL-1+ or Artistic",
        ),
        ("PYTHON SOFTWARE\n  FOUNDATION LICENSE VERSION 2\n", "PSF-2.0"),
    ],
)
def test_the_licence_of_a_debian_package_is_that_of_its_copyright(registry, copyright, licence):
    registry(debian, copyright)
    found = Package("debian", "tiny").fetch()
    assert (found.licence, found.version) == (licence, "1:2.0")
    assert dict(found.texts("*.txt")) == {"a.txt": "one", "b.txt": "two"}


@pytest.mark.parametrize("licence", ["GPL-3.0", "CC-BY-SA-4.0", "MIT and GPL-2", "UNLICENSED", ""])
def test_other_licences_are_refused_by_name(registry, licence):
    registry(tarball, licence)
    with pytest.raises(ValueError, match=r"package tiny states.*go on without it: --without tiny"):
        Package("npm", "tiny", "1.0").fetch()


def test_alternatives_and_sums_of_licences():
    assert is_allowed("GPL-1+ or Artistic")
    assert is_allowed("MIT and BSD")
    assert not is_allowed("MIT and GPL-3.0")
    assert not is_allowed("GPL-2 or LGPL-3")


def test_members_under_share_alike_terms_are_left_out(registry):
    planted = {**TEXTS, "jokes.txt": "Taken from a page under CC BY-SA 3.0."}
    registry(tarball, "MIT", planted)
    names = [name for name, _ in Package("npm", "tiny", "1.0").fetch().texts("*.txt")]
    assert names == ["a.txt", "b.txt"]


def test_a_package_is_fetched_once(registry):
    asked = registry(tarball, "MIT")
    first, second = (Package("npm", "tiny", "1.0").fetch() for _ in range(2))
    assert asked == [("npm", "tiny", "1.0")]
    assert first.sha256 == second.sha256
    Package("npm", "tiny", "1.1").fetch()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("package", "command"),
    [
        (Package("pypi", "tiny", "1.0"), "pip download --no-deps tiny==1.0"),
        (Package("npm", "tiny", "1.0"), "npm pack tiny@1.0"),
        (Package("debian", "tiny"), "apt-get update && apt-get download tiny"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command(registry, package, command, tmp_path):
    def missing(folder: Path) -> Path:
        raise OSError("no such package")

    registry(missing)
    with pytest.raises(OSError, match="the package tiny cannot be had") as caught:
        package.fetch()
    told = str(caught.value)
    assert command in told
    assert "--without tiny" in told
    assert "\n" not in told
    assert not list((tmp_path / "home").rglob("tiny*"))  # nothing half-made


def test_a_torn_package_is_named(registry, tmp_path):
    registry(tarball, "MIT")
    found = Package("npm", "tiny", "1.0").fetch()
    found.path.write_bytes(found.path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"tiny-1.0.tgz is damaged .*; delete .*and try again"):
        list(Package("npm", "tiny", "1.0").fetch().texts("*"))
