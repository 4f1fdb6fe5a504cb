"""Options of a text as fields of a request, made from ``SamplingParams``."""

from typing import Annotated, Any, Union

from pydantic import BaseModel, Field, FiniteFloat, create_model

from draftwood.sampling_params import OPTIONS
from draftwood_serve.schemas.lists import Items, at_most
from draftwood_serve.settings import STOP_CHARACTERS, STOPS

LARGEST = 2**31 - 1
StopString = Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS)]
TokenName = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
Bias = Annotated[FiniteFloat, Field(ge=-100, le=100)]
KINDS: dict[str, Any] = {
    "number": FiniteFloat,
    "whole": int,
    "flag": bool,
    "stops": StopString | Annotated[Items[StopString], Field(max_length=STOPS)],
    "rules": Annotated[dict[str, FiniteFloat], Field(max_length=16), at_most(16)],
    "biases": Annotated[dict[TokenName, Bias], Field(max_length=1024), at_most(1024)],
}
NARROWER: dict[str, dict[str, float]] = {
    "seed": {"ge": -(2**63), "lt": 2**63},
    "temperature": {"le": 100},
    "top_k": {"ge": -1},  # -1 keeps all, as elsewhere
    "repetition_penalty": {"ge": 0.01, "le": 100},
    "presence_penalty": {"ge": -100, "le": 100},
    "frequency_penalty": {"ge": -100, "le": 100},
}
"""Ranges that OpenAI's API and other servers have, where they differ from the text's own."""

CREATIVE = {"temperature": 1.0}
"""OpenAI's defaults, where they differ from the text's own."""

SERVED = tuple(name for name, option in OPTIONS.items() if "server" in option.places)
"""Options of a text that a request may give."""


def field_of(name: str) -> Any:
    """A field's type for an option, which may be left out; its default is None."""
    option = OPTIONS[name]
    limits: dict[str, Any] = {**option.bounds, **NARROWER.get(name, {})}
    kind = Annotated[KINDS[option.kind], Field(description=option.help, **limits)]
    return Union[kind, None], None  # noqa: UP007  ``|`` does not take what Annotated gives


def with_options(name: str, base: type[BaseModel], options: tuple[str, ...] = SERVED) -> Any:
    """A request's class that has these options of a text besides the base's fields."""
    fields = {option: field_of(option) for option in options}
    return create_model(name, __base__=base, __module__=__name__, **fields)


def read_options(body: BaseModel) -> dict[str, Any]:
    """Options of ``LanguageModel.stream`` that a request gives, with OpenAI's defaults."""
    sent = {name: getattr(body, name, None) for name in SERVED}
    given = {**CREATIVE, **{name: value for name, value in sent.items() if value is not None}}
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    if "top_k" in given:
        given["top_k"] = min(max(given["top_k"], 0), LARGEST)
    return {name: value for name, value in given.items() if name != "seed"}
