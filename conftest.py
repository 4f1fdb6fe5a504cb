"""Shape checking, data, devices and threads for all tests."""

import gc
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import jaxtyping
import pytest

import shape_checks
from fixed_costs import fix_costs

# Every shape annotation of the library is checked while tests run, and only then. The testing
# package is left out: its enumerations call small functions hundreds of thousands of times.
CHECKED = [
    "tree",
    "rng",
    "sampling",
    "stats",
    "engine",
    "methods",
    "drafters",
    "shapes",
    "verifiers",
    "models",
]
checked = [*(f"draftwood.{part}" for part in CHECKED), "draftwood_methods"]
jaxtyping.install_import_hook(checked, "shape_checks.check")
jaxtyping.jaxtyped = shape_checks.jaxtyped

os.environ.pop("COLUMNS", None)  # printed tables are as wide as in a pipe; pytest-xdist sets 80
os.environ["DRAFTWOOD_CONFIG"] = os.devnull  # not the user's defaults
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the commands that tests run; several run at once

try:  # the hook must stand before any import of the library
    import torch
except ModuleNotFoundError:  # the light road
    torch = None
else:
    torch.set_num_threads(1)  # tiny tensors: two threads only wait for each other

pytest_plugins = ["command_models"]  # models that commands of all packages are tested with


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the library once, before processes that share the tests start."""
    if not hasattr(session.config, "workerinput"):
        from draftwood.native import library

        library.available()


def pytest_collection_finish() -> None:
    """Keep what is imported by now; collect garbage less often, which takes a tenth of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No shape checks while tens of thousands of tiny trees are drawn; other tests check these
    shapes.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    # functions inside functions would still be compiled again at every call, for three quarters of
    # all time
    monkeypatch.setattr(jaxtyping, "jaxtyped", lambda typechecker: lambda function: function)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def folder_of_curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("curves")


@pytest.fixture(autouse=True)
def same_curve_everywhere(folder_of_curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of tests do not depend on how fast the machine is just now, and nothing is stored in
    the user's home.
    """
    fix_costs(monkeypatch, folder_of_curves)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty DRAFTWOOD_HOME, an empty cache of Hugging Face, and no network."""
    from huggingface_hub import constants

    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of data sets; skips where none is named."""
    named = os.environ.get("DRAFTWOOD_DATA")
    if not named:
        pytest.skip("DRAFTWOOD_DATA names no folder of data sets")
    if not Path(named).is_dir():
        pytest.fail(f"DRAFTWOOD_DATA names {named}, which is no folder")
    return Path(named)


@lru_cache(maxsize=1)
def built_in_model_problem() -> str | None:
    """Why the built-in model cannot be had; fetches it where it can."""
    from draftwood.loading import hub

    try:
        hub.resolve("smollm2-135m")
    except (OSError, ValueError) as error:
        return str(error)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without the built-in model its tests are skipped, but in continuous integration nothing may
    be left untested.
    """
    if "model" in item.keywords and (problem := built_in_model_problem()):
        end = pytest.fail if os.environ.get("CI", "").lower() in ("1", "true") else pytest.skip
        end(f"the built-in model cannot be had: {problem}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_gpu = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("model"):  # seconds each, and a download
            item.add_marker(pytest.mark.proof)
        if "gpu" in item.keywords and not (torch and torch.cuda.is_available()):
            item.add_marker(without_gpu)
