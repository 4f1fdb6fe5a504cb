"""The checker of shapes: beartype, with whole numbers allowed where a float is asked for.

Functions that name no shape are left as they are: pyright has read their types, and checking them
would take two thirds of the time of all tests. Which sizes the names of axes have is noted for each
stack, as several may take turns.
"""

import contextlib
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _storage

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(typechecker: Any) -> Callable[[Any], Any]:
    """In the place of jaxtyping's own, which the import hook calls for every function."""
    checked = _jaxtyped(typechecker=typechecker)

    def decorate(thing: Any) -> Any:
        annotations = getattr(thing, "__annotations__", {}).values()
        return checked(thing) if any(map(_has_shape, annotations)) else thing

    return decorate


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
