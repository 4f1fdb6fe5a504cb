"""A CPU needs no PyTorch: the same texts where PyTorch and Transformers cannot be imported."""

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import light_road
from checkout import PYTHONPATH, ROOT
from command import with_library
from command_models import save_model
from draftwood.native import library
from draftwood.storage.home import home

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="there is no C++ compiler"),
    pytest.mark.timeout(280),
]
BUILT_IN = "smollm2-135m"
MOST_MODULES = 137
"""Modules of draftwood that loading the built-in model imports; they may only become fewer."""

MOST_SECONDS = 0.25
"""CPU time of a refusal or a page of help."""

Told = dict[str, dict[str, object]]


def own_home(folder: Path) -> dict[str, str]:
    """An environment whose home has the library and the models of the user's, and no curves."""
    environment = with_library(folder)
    for name in ("models", "downloads", "packages"):
        if (home() / name).is_dir():
            (folder / name).symlink_to(home() / name)
    path = os.pathsep.join([PYTHONPATH, str(ROOT / "tests")])
    return {**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run(hidden: str, folder: Path, *models: str) -> Told:
    """Values of the cases in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, light_road.__file__, hidden, *models],
        env=own_home(folder),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def both(tmp_path_factory: pytest.TempPathFactory, *models: str) -> tuple[Told, Told]:
    """Values of the cases with PyTorch at hand, and with PyTorch and Transformers hidden."""
    folders = [tmp_path_factory.mktemp("home") for _ in range(2)]
    return run("-", folders[0], *models), run(",".join(light_road.GUESTS), folders[1], *models)


@pytest.fixture(scope="module")
def of_tiny(tmp_path_factory: pytest.TempPathFactory, draft: str) -> tuple[Told, Told]:
    folder = tmp_path_factory.mktemp("models") / "ending"
    target, settings = save_model(folder), folder / "tokenizer_config.json"
    told = json.loads(settings.read_text()) | {"eos_token": "~"}  # without one there is no grammar
    settings.write_text(json.dumps(told))
    return both(tmp_path_factory, target, draft)


@pytest.fixture(scope="module")
def of_built_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    return both(tmp_path_factory, BUILT_IN, BUILT_IN, "built-in")


def agree(told: tuple[Told, Told], case: str) -> None:
    seen, hidden = (each[case] for each in told)
    assert "error" not in seen, seen["error"]
    assert "error" not in hidden, hidden["error"]
    assert hidden["value"] == seen["value"]


@pytest.mark.parametrize("case", light_road.CASES)
def test_a_folder_needs_no_pytorch(case: str, of_tiny: tuple[Told, Told]) -> None:
    agree(of_tiny, case)


@pytest.mark.model
@pytest.mark.parametrize("case", [*light_road.CASES, *light_road.OF_SHIPPED_HEADS])
def test_the_built_in_model_needs_no_pytorch(case: str, of_built_in: tuple[Told, Told]) -> None:
    agree(of_built_in, case)


def test_pytorch_is_not_imported_where_it_is_at_hand(of_tiny: tuple[Told, Told]) -> None:
    assert not [name for name in light_road.CASES if of_tiny[0][name]["guests"]]


def test_whoever_imports_pytorch_is_found(of_tiny: tuple[Told, Told]) -> None:
    seen, hidden = (each["control"] for each in of_tiny)
    assert seen["value"] == 1
    assert "torch" in str(seen["guests"])
    assert "No module named 'torch'" in str(hidden["error"])
    with pytest.raises(AssertionError):
        agree(of_tiny, "control")


MODULES = """
import sys, draftwood
def own():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "draftwood")
lm = draftwood.load(sys.argv[1])
loaded = own()
lm.generate("Hello", max_new_tokens=2)
print(len(loaded), len(own()))
"""


@pytest.mark.model
def test_few_modules_are_loaded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODULES, BUILT_IN],
        env=own_home(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, after = map(int, done.stdout.split())
    assert loaded <= MOST_MODULES, f"{loaded} modules: make those lazy that few need"
    assert after - loaded <= 4


CHEAP = {
    "--help": 0,
    "generate --help": 0,
    "generate ''": 2,
    "generate hi --method recyclin": 2,
    "generate hi --model ./nowhere.gguf": 2,
    "generate hi --dtype int3": 2,
    "serve --dtype int3": 2,
}
START = "from draftwood.cli.start import main; main()"


# what no command does without; where it takes longer than this, so may all
GROUND, GROUND_SECONDS = "import click, importlib.metadata", 0.1


def cpu_seconds(code: str, command: str = "", expected: int = 0) -> float:
    """CPU time of Python code with arguments, which must end with this exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code, *shlex.split(command)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == expected, done.stderr
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("command", CHEAP)
def test_refusals_and_help_are_cheap(command: str) -> None:
    # both in one moment, as machines are faster at one and slower at another
    found = []
    for _ in range(6):
        slowness = max(1.0, cpu_seconds(GROUND) / GROUND_SECONDS)
        found.append(cpu_seconds(START, command, CHEAP[command]) / slowness)
        if found[-1] <= MOST_SECONDS:
            return
    raise AssertionError(f"{min(found):.2f} s of CPU for {command!r}, at most {MOST_SECONDS}")
