"""The checker of shapes: beartype, with whole numbers allowed where a float is asked for.

Functions that name no shape are left as they are: pyright has read their types, and checking them
would take two thirds of the time of all tests. A call is checked once for each combination of
shapes and types, of what it is given and of what it gives; what these say of it does not depend on
numbers. Which sizes the names of axes have is noted for each stack, as several may take turns.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable, Iterable
from types import CodeType, FunctionType
from typing import Any, get_args

import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import _storage

try:
    from torch import Tensor
except ModuleNotFoundError:  # the light road
    Tensor = np.ndarray

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(typechecker: Any) -> Callable[[Any], Any]:
    """In the place of jaxtyping's own, which the import hook calls for every function."""
    checked = _jaxtyped(typechecker=typechecker)

    def decorate(thing: Any) -> Any:
        annotations = getattr(thing, "__annotations__", {}).values()
        if not any(map(_has_shape, annotations)):
            return thing
        if dataclasses.is_dataclass(thing) and isinstance(thing, type):
            if inspect.isfunction(thing.__init__) and not hasattr(thing.__init__, "checks"):
                thing.__init__ = decorate(thing.__init__)  # type: ignore[misc]
            return thing
        if not inspect.isfunction(thing) or any(_reads_values(each) for each in annotations):
            return checked(thing)
        return remembering(thing, checked)

    return decorate


KNOWN: dict[tuple[CodeType, str], set[Hashable]] = {}
"""Calls found right, by function and annotations; one within another is the same at every call of
that one.
"""


class UnknownError(Exception):
    """The kind of a value cannot be told in short."""


def remembering(function: Any, checked: Callable[[Any], Any]) -> Any:
    """The function, checked where it has not been called in this way before."""
    known = KNOWN.setdefault((function.__code__, str(function.__annotations__)), set())

    @functools.cache
    def whole() -> Any:
        return checked(function)

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return function(*given, **named)
        try:
            key: Hashable = (_kinds(given), tuple(named), _kinds(named.values()))
        except UnknownError:
            return whole()(*given, **named)
        if key not in known:
            result = whole()(*given, **named)
        else:
            result = function(*given, **named)
            with contextlib.suppress(UnknownError):
                if (key, _kind(result)) in known:
                    return result
            checked(_giving(result, function))(*given, **named)
        known.add(key)
        with contextlib.suppress(UnknownError):
            known.add((key, _kind(result)))
        return result

    call.checks = True  # type: ignore[attr-defined]
    return call


def _giving(result: Any, function: FunctionType) -> Any:
    """A function with the same signature that gives this, whatever it is given."""

    def give(*_: Any, **__: Any) -> Any:
        return result

    made = FunctionType(give.__code__, function.__globals__, closure=give.__closure__)
    return functools.wraps(function)(made)


def _kinds(values: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple(map(_kind, values))


def _kind(value: Any) -> Hashable:
    """All that a check looks at. Raises UnknownError where that is long."""
    kind = type(value)
    if isinstance(value, Tensor | np.ndarray):
        return kind, value.dtype, tuple(value.shape)
    if kind in (list, tuple):
        if len(value) <= 8:
            return kind, _kinds(value)
        return kind, _kinds_of_many(value)
    if kind is dict:
        return kind, _kinds_of_many(value), _kinds_of_many(value.values())
    return kind


def _kinds_of_many(values: Iterable[Any]) -> Hashable:
    kinds = frozenset(map(type, values))
    if any(issubclass(kind, Tensor | np.ndarray | list | tuple | dict) for kind in kinds):
        raise UnknownError
    return kinds


def _reads_values(annotation: Any) -> bool:
    """True if a size is computed from an argument's value."""
    return "{" in str(annotation)


def _has_shape(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return "[Tensor, " in annotation
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, get_args(annotation)))


with contextlib.suppress(ImportError):  # without it nothing takes turns
    from greenlet import getcurrent

    class Notes:
        """In the place of what each thread has for itself."""

        def __getattr__(self, name: str) -> Any:
            try:
                return vars(getcurrent())[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name: str, value: Any) -> None:
            vars(getcurrent())[name] = value

    _storage._shape_storage = Notes()  # type: ignore[assignment]
