"""A plugin for pytest: PyTorch, Transformers and what runs models in them cannot be imported.

    python -m pytest -p light_leg FILES

Tests that ask for one of them are skipped, by what they import and not by name. Where the library
itself asks for them a test fails.
"""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import TracebackType

import pytest

from light_road import GUESTS, Hiding

MADE_BY_GUESTS = {("optional.py", "__getattr__"), ("heads.py", "make")}
"""Files and functions in which the library makes models and heads for tests, of PyTorch alone."""

HIDDEN = (*GUESTS, "draftwood_methods", "draftwood_train", "draftwood_bench")
"""The guests, and the packages that depend on them."""


def entry_points_left(**wanted: str) -> metadata.EntryPoints:
    """Entry points of packages that are not hidden."""
    all_of_them = (each for found in metadata.distributions() for each in found.entry_points)
    left = (each for each in all_of_them if each.value.split(".")[0].split(":")[0] not in HIDDEN)
    return metadata.EntryPoints(left).select(**wanted)


HIDING = Hiding(HIDDEN)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Hide them in this run alone: who imports this file for its names loses nothing."""
    sys.meta_path.insert(0, HIDING)
    metadata.entry_points = entry_points_left  # type: ignore[assignment]


def is_asked_by_a_test(error: BaseException | None) -> bool:
    """True for an import of what is hidden that a test, or what tests share, asks for by name."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if (name or "").partition(".")[0] not in HIDDEN:
        return False
    assert error is not None
    frames = [
        (file, function)
        for file, function in _frames(error.__traceback__)
        if "importlib" not in file and Path(file).name != "light_road.py"
    ]
    by_name = any((Path(file).name, name) in MADE_BY_GUESTS for file, name in frames)
    return by_name or "tests" in Path(frames[-1][0]).parts


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, code.co_name
        traceback = traceback.tb_next


def pytest_configure() -> None:
    """Go before the finder that checks shapes, which stands first by now."""
    sys.meta_path.remove(HIDING)
    sys.meta_path.insert(0, HIDING)


class LightModule(pytest.Module):
    """A file of tests, skipped where it asks for what is hidden."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()
        except self.CollectError as error:
            if is_asked_by_a_test(error.__cause__):
                reason = f"{self.path.name}: {error.__cause__}"
                raise pytest.skip.Exception(reason, allow_module_level=True) from None
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return LightModule.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Iterator[pytest.TestReport]:
    report = yield
    if call.excinfo is not None and is_asked_by_a_test(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {call.excinfo.value}")
    return report
