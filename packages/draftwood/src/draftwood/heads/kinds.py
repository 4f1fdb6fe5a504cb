"""Kinds of trained heads, and their settings as JSON.

Each kind is a file: ``EagleConfig`` in ``eagle.py``. Installed packages with methods (see
``methods.parts``) add kinds in a folder ``heads`` of their own.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from draftwood.native.formats import HeadSizes
from draftwood.optional import entry_points, install_command

KINDS = ("ctc", "eagle", "lm", "medusa")
"""Kinds of draftwood itself."""
ELSEWHERE = dict.fromkeys(("dflash", "longspec", "masked", "s2d", "specdec"), "draftwood-methods")
"""Packages that have other kinds, to be named where they are not installed."""
GROUP = "draftwood"
"""Entry points by which packages add methods."""


class HeadConfig(Protocol):
    """Settings of a head, a frozen dataclass.

    Attributes:
        kind: its name in a head's folder.
    """

    kind: ClassVar[str]

    @property
    def sizes(self) -> HeadSizes:
        """Sizes of the head's layers."""
        ...

    @property
    def reads(self) -> tuple[int, ...]:
        """The target's layers whose inputs the head reads."""
        ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the weights, by their names in the network."""
        ...


Config = TypeVar("Config", bound=HeadConfig)


def require_kind(config: HeadConfig, wanted: type[Config], method: str) -> Config:
    """Return a head's settings, which must be of the kind that a method drafts with.

    Raises:
        ValueError: for another kind.
    """
    if not isinstance(config, wanted):
        raise ValueError(
            f"method {method!r} does not draft with a drafter of the kind {config.kind!r}; choose a"
            " method for it, or another drafter"
        )
    return config


@cache
def known_kinds() -> dict[str, str]:
    """Modules of all kinds, by kind: draftwood's own, and those of installed packages.

    Looked for once; nothing is imported.
    """
    found = {kind: _own(kind) for kind in KINDS}
    for package in sorted({entry.value for entry in entry_points(GROUP)}):
        spec = None if ":" in package or "." in package else find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in Path(folder, "heads").glob("[a-z]*.py"):
                found.setdefault(path.stem, f"{package}.heads.{path.stem}")
    return found


def _own(kind: str) -> str:
    return f"draftwood.heads.{kind}"


def config_type(kind: str) -> Any:
    """The class of a kind's settings; packages are looked for where it is not draftwood's own.

    Raises:
        ValueError: for an unknown kind, naming the package that has it where that is known.
    """
    module = _own(kind) if kind in KINDS else known_kinds().get(kind)
    if module is not None:
        return getattr(import_module(module), f"{kind.capitalize()}Config")
    if kind in ELSEWHERE:
        raise ValueError(
            f"drafters of the kind {kind!r} need a package: {install_command(ELSEWHERE[kind])}"
        )
    raise ValueError(
        f"there is no drafter of the kind {kind!r}, there are: {', '.join(sorted(known_kinds()))};"
        " a newer draftwood may know it"
    )


def config_of(kind: str, values: Mapping[str, Any]) -> Any:
    """Make the settings of a kind.

    Raises:
        ValueError: for an unknown kind, and for settings that it does not have or allow.
    """
    return _filled(config_type(kind), values)


def require_parts(config: Any, tensors: int) -> None:
    """Raise ValueError for more parts than there are tensors, which would take long to make."""
    parts = max(getattr(config, "layers", 1), getattr(config, "heads", 1), len(config.reads))
    if parts > tensors:
        raise ValueError(f"it asks for {parts} layers, and the weights are {tensors} tensors")


def _filled(config: type, values: Any) -> Any:
    """Make a dataclass from its JSON values."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{config.__name__} is made of named values, got {values!r}")
    known = {each.name for each in fields(config)}
    if other := sorted(set(values) - known):
        raise ValueError(f"{config.__name__} has no {', '.join(other)}")
    types, given = get_type_hints(config), dict[str, Any]()
    for name, value in values.items():
        if is_dataclass(types[name]):
            given[name] = _filled(types[name], value)
        else:
            given[name] = tuple(value) if isinstance(value, list) else value
            if not _fits(given[name], types[name]):
                raise ValueError(f"{name} of {config.__name__} cannot be {value!r:.60}")
    try:
        return config(**given)
    except (TypeError, ZeroDivisionError) as error:
        raise ValueError(str(error)) from None


def _fits(value: Any, wanted: Any) -> bool:
    """True if a value from JSON is of a setting's type."""
    inside = get_args(wanted)
    if wanted in (int, bool):
        return type(value) is wanted
    if wanted is float:
        return type(value) in (int, float) and isfinite(value)
    if get_origin(wanted) is tuple:
        return isinstance(value, tuple) and all(_fits(each, inside[0]) for each in value)
    if get_origin(wanted) is Literal:
        return type(value) is str and value in inside
    if inside:
        return any(_fits(value, each) for each in inside)
    return value is None
