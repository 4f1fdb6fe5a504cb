"""PyTorch is an extra: without it, what needs it says so in one line."""

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoints
from inspect import signature
from typing import Any

import pytest

import draftwood
from draftwood import optional, testing
from draftwood.backend import Backend, CustomGenerate
from draftwood.optional import PACKAGES, backend, install_command, torch_needed
from draftwood_torch.backend import BACKEND, TorchBackend
from draftwood_torch.hook import custom_generate
from draftwood_torch.tiny import tiny_llama

CURE = install_command("draftwood-torch")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_one_line_with_the_cure(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_needed("nothing")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as told:
        torch_needed("a CUDA device")
    assert str(told.value) == f"a CUDA device needs PyTorch: {CURE}"
    assert told.value.name == package


def test_a_finder_that_refuses_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "torch":
                raise ModuleNotFoundError(name)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])
    with pytest.raises(ImportError, match="needs PyTorch"):
        torch_needed("this")


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Forget the backend; lists each search for its entry point, which finds what is planted."""
    seen, find = list[Any](), importlib.metadata.entry_points

    def searched(**asked: str) -> Any:
        seen.append(asked)
        return find(**asked)

    monkeypatch.setattr(importlib.metadata, "entry_points", searched)
    for name in ("installed", "_installed"):
        found = getattr(optional, name)
        monkeypatch.setattr(optional, name, optional.cache(found.__wrapped__))
    return seen


def test_the_backend_is_found_by_one_search(scans: list[Any]) -> None:
    assert backend("this") is backend("that") is BACKEND
    assert scans == [{}]


def test_a_missing_backend_is_one_line_with_the_cure(
    scans: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**asked: str) -> EntryPoints:
        scans.append(asked)
        return EntryPoints(())

    monkeypatch.setattr(importlib.metadata, "entry_points", none)
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError) as told:
            backend("a CUDA device")
        assert str(told.value) == f"a CUDA device needs PyTorch: {CURE}"
        assert told.value.name == "draftwood_torch"
    assert len(scans) == 1


def test_the_backend_has_all_that_the_protocol_asks_for() -> None:
    asked = {name for name in vars(Backend) if not name.startswith("_")}
    assert asked <= set(vars(TorchBackend))


def test_names_of_the_backend_are_reached_through_the_door() -> None:
    assert draftwood.custom_generate is custom_generate
    assert testing.tiny_llama is tiny_llama
    wanted = signature(CustomGenerate.__call__).parameters
    assert [*wanted][1:] == [*signature(custom_generate).parameters]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = optional.nonsense


def test_the_room_of_pytorch_is_closed_without_it() -> None:
    code = "import sys; sys.modules['torch'] = None; import draftwood; draftwood.custom_generate"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"this part of draftwood needs PyTorch: {CURE}")
