"""PyTorch is an extra: without it, what needs it says so in one line."""

import subprocess
import sys

import pytest

from draftwood.optional import PACKAGES, torch_needed


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_one_line_with_the_cure(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_needed("nothing")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as told:
        torch_needed("a CUDA device")
    assert str(told.value) == "a CUDA device needs PyTorch: pip install 'draftwood[torch]'"
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


def test_the_room_of_pytorch_is_closed_without_it() -> None:
    code = "import sys; sys.modules['torch'] = None; import draftwood; draftwood.custom_generate"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith("this part of draftwood needs PyTorch: pip install 'draftwood[torch]'")
