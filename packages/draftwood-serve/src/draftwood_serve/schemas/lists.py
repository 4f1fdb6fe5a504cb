"""Bounds on what a wrong list or object of a request costs: its errors are told one by one."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, GetCoreSchemaHandler
from pydantic_core import PydanticCustomError

MOST_FIELDS = 256
"""Fields of an object, known ones and others."""

Value = TypeVar("Value")


class EndAtFirstFault:
    """Annotation of a list, whose reading ends at the first item that does not fit.

    pydantic collects the errors of every item otherwise, each form of it apart: a body of 300 KB
    makes a million. Its own ``FailFast`` has no hash, which unions ask for.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return {**handler(source), "fail_fast": True}


Items = Annotated[list[Value], EndAtFirstFault()]
"""A list of a request."""


def require_few(given: Any, most: int = MOST_FIELDS) -> Any:
    """Refuse an object with more fields before any of them is read; return what is given."""
    if isinstance(given, Mapping) and len(given) > most:
        raise PydanticCustomError("too_long", "give at most {most} fields", {"most": most})
    return given


def at_most(fields: int) -> BeforeValidator:
    """Validator of an object with so many fields at most."""
    return BeforeValidator(partial(require_few, most=fields))
