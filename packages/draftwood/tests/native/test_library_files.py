"""All C++ files make the library's name, and are shipped."""

import fnmatch
import re
from ctypes import Structure, c_void_p
from pathlib import Path

import pytest

from checkout import SOURCES
from draftwood.native import compiler, library, structures


def files() -> list[Path]:
    return sorted(path for path in compiler.SOURCES.rglob("*") if path.suffix in (".h", ".cpp"))


def test_the_name_of_the_library_covers_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiler.source_files() == files()
    for path in files():
        copy = tmp_path / path.relative_to(compiler.SOURCES)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text())
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    key = library.key.__wrapped__
    before = key()
    for path in [copy for copy in tmp_path.rglob("*") if copy.is_file()]:
        text = path.read_text()
        path.write_text(text + "\n")
        assert key() != before, path
        path.write_text(text)
    assert key() == before


def test_the_package_ships_all_files() -> None:
    [data] = re.findall(
        r"^draftwood = \[(.*)\]", (SOURCES["draftwood"].parent / "pyproject.toml").read_text(), re.M
    )
    patterns = re.findall(r'"([^"]+)"', data)
    for path in files():
        name = path.relative_to(compiler.SOURCES.parent).as_posix()
        near = [pattern for pattern in patterns if pattern.count("/") == name.count("/")]
        assert any(fnmatch.fnmatch(name, pattern) for pattern in near), name


class CNorm(Structure):
    """With a field that C++ does not know."""

    _fields_ = (*structures.CNorm._fields_, ("scale", c_void_p))


needs_compiler = pytest.mark.skipif(not library.available(), reason="no C++ compiler")


@needs_compiler
def test_a_structure_of_another_size_than_in_cpp_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, known = library.library.__wrapped__, structures.STRUCTURES
    load()
    for place, wrong in enumerate((CNorm, structures.CLayer)):
        planted = [*known[:place], wrong, *known[place + 1 :]]
        monkeypatch.setattr(library, "STRUCTURES", tuple(planted))
        with pytest.raises(
            RuntimeError, match=rf"{wrong.__name__} of structures\.py must have \d+"
        ):
            load()
    monkeypatch.setattr(library, "STRUCTURES", known[:-1])
    with pytest.raises(RuntimeError, match="must name all"):
        load()


def test_all_structures_of_the_library_are_checked() -> None:
    found = {
        each
        for each in vars(structures).values()
        if isinstance(each, type) and issubclass(each, Structure) and each is not Structure
    }
    assert found == set(structures.STRUCTURES)
