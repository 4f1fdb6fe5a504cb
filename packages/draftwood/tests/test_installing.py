"""The command that an error names for a missing package is one that installs it."""

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwood import optional
from draftwood.optional import install_command

NEEDED = {
    "draftwood": [],
    "draftwood-torch": ["draftwood==0.1.0", "torch>=2.6"],
    "draftwood-train": ["draftwood==0.1.0", "draftwood-torch==0.1.0", "tensorboard"],
    "draftwood-serve": ["draftwood[grammar]==0.1.0", "fastapi"],
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Folder of packages, each with what it needs."""
    for name, needed in NEEDED.items():
        (tmp_path / "a clone" / name).mkdir(parents=True)
        text = f"[project]\nname = {json.dumps(name)}\ndependencies = {json.dumps(needed)}\n"
        text += '[project.optional-dependencies]\nlearn = ["draftwood-train==0.1.0", "ray"]\n'
        (tmp_path / "a clone" / name / "pyproject.toml").write_text(text)
    return tmp_path / "a clone"


def installed(monkeypatch: pytest.MonkeyPatch, **records: str | None) -> None:
    """Have these packages alone, each with a record of where it came from."""

    def found(name: str) -> Any:
        if name.replace("-", "_") not in records:
            raise metadata.PackageNotFoundError(name)
        return SimpleNamespace(read_text=lambda file: records[name.replace("-", "_")])

    monkeypatch.setattr(metadata, "distribution", found)
    monkeypatch.setattr(optional, "is_there", records.__contains__)


def from_folder(folder: Path, **more: bool) -> str:
    return json.dumps({"url": folder.as_uri(), "dir_info": more})


def test_in_a_clone_it_names_folders_and_what_they_need(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = from_folder(clone / "draftwood", editable=True)
    installed(monkeypatch, draftwood=record)
    monkeypatch.chdir(clone)
    assert install_command("draftwood-serve") == "pip install -e draftwood-serve"
    assert install_command("draftwood[ray]") == "pip install -e 'draftwood[ray]'"
    assert install_command("draftwood-serve[x,learn]") == (
        "pip install -e draftwood-torch -e draftwood-train -e 'draftwood-serve[x,learn]'"
    )
    both = "pip install -e draftwood-torch -e 'draftwood-train[x]'"
    assert install_command("draftwood-train[x]") == both
    installed(monkeypatch, draftwood=record, draftwood_torch=None, draftwood_train=None)
    assert install_command("draftwood-train") == "pip install -e draftwood-train"
    assert install_command("draftwood-others") == "pip install draftwood-others"


def test_elsewhere_than_in_the_clone_it_names_whole_paths(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, draftwood=from_folder(clone / "draftwood"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert install_command("draftwood-torch") == f"pip install '{clone}/draftwood-torch'"


@pytest.mark.parametrize(
    "records",
    [
        {},  # a copy that was never installed
        {"draftwood": None},  # from an index
        {"draftwood": "{"},
        {"draftwood": json.dumps({"url": "file:///a/draftwood.whl", "archive_info": {}})},
        {"draftwood": json.dumps({"url": "file:///gone/packages/draftwood", "dir_info": {}})},
    ],
)
def test_without_a_folder_pip_finds_packages_by_name(
    records: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, **records)
    assert install_command("draftwood-train") == "pip install draftwood-train"
    assert install_command("draftwood[ray]") == "pip install 'draftwood[ray]'"
