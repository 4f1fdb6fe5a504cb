"""Public names exist, are documented, and nothing else is public by accident."""

import ast
import importlib
import inspect
import pkgutil
import re
from typing import get_origin

import pytest

import draftwood
from checkout import SOURCES

PACKAGES = [
    "draftwood",
    "draftwood.drafters",
    "draftwood.shapes",
    "draftwood.verifiers",
    "draftwood_methods.drafters",
    "draftwood_methods.shapes",
    "draftwood_methods.verifiers",
    "draftwood.testing",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(
        module.__all__, key=lambda name: (name.lower(), name)
    ) or list(module.__all__) == sorted(module.__all__)
    for name in module.__all__:
        thing = getattr(module, name)
        # Python 3.10 takes an alias such as Callable[[int], str] for a class
        alias = get_origin(thing) is not None
        if (inspect.isclass(thing) and not alias) or inspect.isfunction(thing):
            assert thing.__doc__, f"{package}.{name} has no docstring"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = draftwood.Nonsense
    assert set(draftwood.__all__) <= set(dir(draftwood))


def test_every_module_is_documented() -> None:
    packages = [name.replace("-", "_") for name in SOURCES]
    everything = [
        found
        for name in packages
        for found in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
    ]
    for found in everything:
        if found.name.endswith("__main__"):
            continue
        assert docstring(found.name), f"{found.name} has no docstring"


def docstring(module: str) -> str | None:
    """Docstring of a module that can be imported, or of an adapter that only runs in another
    system's environment.
    """
    if not re.fullmatch(r"draftwood_bench\.peers\.(run_\w+|openvino_int8)", module):
        return importlib.import_module(module).__doc__
    path = SOURCES["draftwood-bench"] / f"{module.replace('.', '/')}.py"
    return ast.get_docstring(ast.parse(path.read_text()))
