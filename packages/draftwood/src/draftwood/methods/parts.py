"""All that methods are made of: found in the folders of the axes, and outside by entry points.

An installed package adds parts with one entry point of the group ``draftwood`` that names a module,
or a package with folders of the axes. Its classes with a ``name``, and the recipes in its
``RECIPES``, are found as those of draftwood itself are. Nothing is registered, so importing a part
has no effect.
"""

import pkgutil
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

from draftwood.drafters.drafter import Drafter
from draftwood.methods.composition import MethodSpec
from draftwood.methods.listings import GROUP, package_of
from draftwood.optional import entry_points

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Axis = Literal["drafters", "shapes", "verifiers", "sources"]


class PartsWarning(UserWarning):
    """An installed package's parts cannot be used."""


@dataclass(frozen=True, eq=False)
class Parts:
    """All parts there are, by name, draftwood's own first: classes, and recipes made of them.

    Attributes:
        shapes: classes whose instances are a ``Shape``.
        verifiers: classes whose instances are a ``Verifier``.
        sources: classes whose instances are a ``Source`` or a ``CompiledSource``.
    """

    drafters: dict[str, type[Drafter]]
    shapes: dict[str, type[Any]]
    verifiers: dict[str, type[Any]]
    sources: dict[str, type[Any]]
    recipes: dict[str, MethodSpec]


@cache
def known_parts() -> Parts:
    """The parts of draftwood and of the packages installed beside it; looked for once.

    A package whose module cannot be imported is left out, with a warning.

    Raises:
        ValueError: where two parts of one kind have the same name, naming both files.
    """
    modules = list(dict.fromkeys([*_own_modules(), *_found_modules()]))
    classes: dict[Axis, list[tuple[str, Any, ModuleType]]] = {axis: [] for axis in get_args(Axis)}
    recipes: list[tuple[str, Any, ModuleType]] = []
    for module in modules:
        for part in vars(module).values():
            axis = axis_of(part) if isinstance(part, type) else None
            if axis is not None and part.__module__ == module.__name__:
                classes[axis].append((part.name, part, module))
        recipes += [(recipe.name, recipe, module) for recipe in getattr(module, "RECIPES", ())]
    by_name = {axis: _by_name(axis.removesuffix("s"), found) for axis, found in classes.items()}
    return Parts(**by_name, recipes=_by_name("method", recipes))


def axis_of(part: type) -> Axis | None:
    """The question that a class answers; None where it is no part, as its sessions are."""
    if not isinstance(getattr(part, "name", None), str):
        return None
    if issubclass(part, Drafter):
        return "drafters"
    if hasattr(part, "exact_for"):
        return "verifiers"
    if hasattr(part, "grow"):
        return "shapes"
    return "sources" if hasattr(part, "start") or hasattr(part, "native") else None


def _own_modules() -> Iterator[ModuleType]:
    yield from _modules_of_axes("draftwood")
    yield import_module("draftwood.methods.recipes")


def _modules_of_axes(package: str) -> Iterator[ModuleType]:
    """Import what lies in a package's folders of the axes; those that it lacks are passed over."""
    folders = {found.name for found in pkgutil.iter_modules(import_module(package).__path__)}
    for axis in get_args(Axis):
        if axis in folders:
            folder = import_module(f"{package}.{axis}")
            for found in pkgutil.walk_packages(folder.__path__, f"{package}.{axis}."):
                yield import_module(found.name)


def _found_modules() -> Iterator[ModuleType]:
    for entry in entry_points(GROUP):
        try:
            module = _module(entry)
            yield from _modules_of_axes(entry.value) if hasattr(module, "__path__") else ()
            yield module
        except (Exception, SystemExit) as error:
            warnings.warn(
                f"the parts of {package_of(entry)} are left out: its module {entry.value} cannot be"
                f" imported ({type(error).__name__}: {error}); mend or remove the package",
                PartsWarning,
                stacklevel=2,
            )


def _module(entry: "EntryPoint") -> ModuleType:
    module = entry.load()
    if not isinstance(module, ModuleType):
        raise TypeError(f"an entry point of the group {GROUP} names a module, without a colon")
    for recipe in getattr(module, "RECIPES", ()):
        if not isinstance(recipe, MethodSpec):
            raise TypeError(f"RECIPES holds recipes, not {recipe!r}")
        _ = recipe.promise  # asks its parts what they say of themselves
    return module


def _by_name(kind: str, found: Iterable[tuple[str, Any, ModuleType]]) -> dict[str, Any]:
    known: dict[str, tuple[Any, ModuleType]] = {}
    for name, part, module in found:
        if name in known:
            files = " and ".join(str(each.__file__) for each in (known[name][1], module))
            raise ValueError(
                f"two {kind}s have the name {name!r}, in {files}; rename one of them, or remove its"
                " package"
            )
        known[name] = (part, module)
    return {name: part for name, (part, _) in known.items()}
