"""Commands, methods and heads of packages come by entry point; old paths forward."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkout import ROOT, SOURCES
from draftwood import moved
from draftwood.cli import main as command_line
from draftwood.heads import places
from draftwood.methods import known, parts
from draftwood.optional import install_command


def test_all_packages_have_one_version() -> None:
    from draftwood.version import __version__

    for name, source in SOURCES.items():
        text = (source.parent / "pyproject.toml").read_text()
        found = set(
            re.findall(r'\nversion = "([^"]+)"|draftwood[\w-]*(?:\[\w+\])?==([\d.]+)', text)
        )
        assert {version for pair in found for version in pair if version} <= {__version__}, name
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_one_command_sets_the_version_everywhere(tmp_path: Path) -> None:
    places = [*ROOT.glob("packages/*/pyproject.toml"), ROOT / "CITATION.cff", ROOT / "Makefile"]
    for place in (*places, SOURCES["draftwood"] / "draftwood" / "version.py"):
        copy = tmp_path / place.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place, copy)
    command = ["make", "--silent", "version"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 2
    subprocess.run([*command, "TO=8.7.6"], cwd=tmp_path, check=True)
    own = r"(?:^version = |^version: |__version__ = |draftwood[\w-]*(?:\[\w+\])?==)\"?([\d.]+)"
    for path in (path for path in tmp_path.rglob("*") if path.suffix in (".toml", ".cff", ".py")):
        found = re.findall(own, path.read_text(), re.M)
        assert set(found) == {"8.7.6"}, path


def test_commands_of_packages_come_by_entry_point() -> None:
    listed = CliRunner().invoke(command_line.main, ["--help"]).output
    for name in command_line.HOMES:
        assert re.search(rf"^  {name} ", listed, re.M)


@pytest.mark.parametrize(
    ("name", "package"), [(name, home) for name, (home, _) in command_line.HOMES.items()]
)
def test_a_missing_package_is_named(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "_commands_of_packages", dict)
    with pytest.raises(SystemExit) as end:
        command_line.main([name, "--help"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1
    assert install_command(package) in said
    assert name not in CliRunner().invoke(command_line.main, ["--help"]).output.split()


def test_methods_and_heads_of_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"jacobi", "stand", "typical"} <= set(known())
    assert {"smollm2-135m-ctc", "smollm2-135m-eagle"} <= set(places.shipped())
    parts.known_parts.cache_clear()
    monkeypatch.setattr(parts, "entry_points", lambda group: ())
    monkeypatch.setattr(places, "places_of_packages", tuple)
    assert "jacobi" not in known()
    assert places.shipped() == ["smollm2-135m-eagle"]
    parts.known_parts.cache_clear()


def test_the_package_of_more_methods_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listings = importlib.import_module("draftwood.methods.listings")

    def refused() -> str:
        with pytest.raises(ValueError, match="there is no method 'recyclin'") as told:
            listings.listing("recyclin")
        return str(told.value)

    assert "pip install" not in refused()
    monkeypatch.setattr(listings, "entry_points", lambda group: ())
    listings.written_listings.cache_clear()
    assert refused().endswith(f"; more come with: {install_command('draftwood-methods')}")
    listings.written_listings.cache_clear()


@pytest.mark.parametrize("old", [*moved.MOVED, "draftwood.serve.formats.chat"])
def test_old_paths_are_the_same_modules(old: str) -> None:
    new = moved.new_path(old)
    assert new is not None
    sys.modules.pop(old, None)  # the package of another old path
    with pytest.warns(moved.MovedWarning, match=re.escape(new)):
        found = importlib.import_module(old)
    assert found is importlib.import_module(new)
    sys.modules.pop(old, None)


@pytest.mark.parametrize("axis", sorted(moved.EXPORTED))
def test_old_names_of_folders_are_the_same_objects(axis: str) -> None:
    core = importlib.import_module(f"draftwood.{axis}")
    for name in moved.EXPORTED[axis]:
        with pytest.warns(moved.MovedWarning):
            found = getattr(core, name)
        home = importlib.import_module(f"draftwood_methods.{axis}")
        assert found is getattr(home, moved.RENAMED.get(name, name))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = core.Nonsense


@pytest.mark.parametrize("old", sorted(moved.RENAMED))
def test_renamed_names_are_the_same_objects(old: str) -> None:
    (home, _, name), (other, _, new) = old.rpartition("."), moved.RENAMED[old].rpartition(".")
    with pytest.warns(moved.MovedWarning, match=re.escape(moved.RENAMED[old])):
        found = getattr(importlib.import_module(home), name)
    assert found is getattr(importlib.import_module(other), new)


def test_an_old_path_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(moved.MOVED, "draftwood.old", "draftwood_nowhere")
    with (
        pytest.warns(moved.MovedWarning),
        pytest.raises(ModuleNotFoundError, match="pip install draftwood-nowhere"),
    ):
        importlib.import_module("draftwood.old")


def test_the_core_works_without_its_satellites() -> None:
    """A process that sees the core's folder alone, and no installed metadata of the others."""
    code = (
        "import importlib.metadata as m; m.entry_points = m.EntryPoints;"
        "from draftwood.methods import known; import sys; assert 'auto' in known();"
        "assert not [name for name in sys.modules if name.startswith('draftwood_')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
