"""Kinds of networks that a drafter's folder may hold, and their settings as JSON."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from torch import nn

KINDS = ("ctc", "dflash", "eagle", "lm", "longspec", "medusa", "s2d", "specdec")
"""Kinds of networks, each in a file of its own: ``EagleConfig`` and ``EagleHead`` in ``eagle``."""

Network = TypeVar("Network", bound=nn.Module)


def require_kind(head: nn.Module, network: type[Network], method: str) -> Network:
    """Return the head, which must be the network that a method drafts with.

    Raises:
        ValueError: for another kind.
    """
    if not isinstance(head, network):
        kind = getattr(getattr(head, "config", None), "kind", type(head).__name__)
        raise ValueError(
            f"method {method!r} does not draft with a drafter of the kind {kind!r}; choose a method"
            " for it, or another drafter"
        )
    return head


def parts_of(kind: str) -> tuple[type, type[nn.Module]]:
    """Settings and network of a kind."""
    home, title = import_module(f"draftwood.heads.{kind}"), kind.capitalize()
    return getattr(home, f"{title}Config"), getattr(home, f"{title}Head")


def config_of(kind: str, values: Mapping[str, Any]) -> Any:
    """Make the settings of a kind.

    Raises:
        ValueError: for an unknown kind, and for settings that it does not have or allow.
    """
    if kind not in KINDS:
        raise ValueError(
            f"there is no drafter of the kind {kind!r}, there are: {', '.join(KINDS)};"
            " a newer draftwood may know it"
        )
    return _filled(parts_of(kind)[0], values)


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
