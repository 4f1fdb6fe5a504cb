"""Ollama's `/api/chat` and `/api/generate`."""

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, model_validator
from pydantic_core import PydanticCustomError

from draftwood_serve.schemas.common import (
    FUNCTIONS,
    FunctionTool,
    Lenient,
    RequestBody,
    Strict,
    refused,
)
from draftwood_serve.schemas.lists import Items
from draftwood_serve.settings import STOPS

OF_ITS_OWN = frozenset(
    {
        *("num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa"),
        *("use_mmap", "use_mlock", "low_vram", "f16_kv", "logits_all", "vocab_only"),
        *("embedding_only", "penalize_newline", "mirostat_tau", "mirostat_eta"),
    }
)
"""Options that say how Ollama is to run a model, or details of what is off."""
OFF: Mapping[str, float] = {"mirostat": 0, "typical_p": 1, "tfs_z": 1}
"""Ways to draw that this server has not, and the values that turn them off."""

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
LONGEST_TIME = 64
"""Characters of a time; the parts of a longer text would be looked for in hours."""
FOREVER = 1e9
"""Seconds from which on a model stays for good."""


def _seconds(given: Any) -> Any:
    """Seconds of a number or a text such as ``1h30m``; infinite ones for those below 0.

    Raises:
        PydanticCustomError: for anything else.
    """
    text = given.strip() if isinstance(given, str) and len(given) <= LONGEST_TIME else ""
    sign, parts = text[:1] == "-", PART.findall(text.lstrip("+-"))
    found: Any = given
    if parts and "".join(map("".join, parts)) == text.lstrip("+-"):
        found = sum(float(count) * UNITS[unit] for count, unit in parts) * (-1 if sign else 1)
    elif re.fullmatch(r"[+-]?\d{1,12}(\.\d{1,12})?", text):
        found = float(text)
    if isinstance(found, bool) or not isinstance(found, int | float) or math.isnan(found):
        told: Any = "give seconds, or a text such as 5m; 0 unloads the model, -1 keeps it"
        raise PydanticCustomError("keep_alive", told)
    return float(found) if 0 <= found < FOREVER else math.inf


KeepAlive = Annotated[float, BeforeValidator(_seconds)]
"""Seconds that a model stays in memory behind its last request."""
Stop = Annotated[str, Field(min_length=1, max_length=256)]


def _whole(given: Any) -> Any:
    """A number that is whole, as languages without whole numbers write it."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Whole = BeforeValidator(_whole)


class OllamaOptions(Strict):
    """Options of a text by Ollama's names, with its defaults where they differ from none."""

    model_config = ConfigDict(strict=True, extra="forbid")

    temperature: Annotated[FiniteFloat, Field(ge=0, le=100)] = 0.8
    top_k: Annotated[int, Field(ge=-1), Whole] = 40
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.9
    min_p: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.0
    repeat_penalty: Annotated[FiniteFloat, Field(ge=0.01, le=100)] = 1.0
    presence_penalty: Annotated[FiniteFloat, Field(ge=-100, le=100)] = 0.0
    frequency_penalty: Annotated[FiniteFloat, Field(ge=-100, le=100)] = 0.0
    repeat_last_n: Annotated[int, Field(ge=-1), Whole] = -1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), Whole] | None = None
    num_predict: Annotated[int, Whole] = -1
    stop: Stop | Annotated[Items[Stop], Field(max_length=STOPS)] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        """Leave out what Ollama alone needs; refuse unknown options by name."""
        if not isinstance(data, Mapping):
            return data
        kept = {name: value for name, value in data.items() if value is not None}
        for name in OF_ITS_OWN & kept.keys():
            kept.pop(name)
        for name in OFF.keys() & kept.keys():
            if kept.pop(name) != OFF[name]:
                raise refused("{name} is not supported by this server; leave it out", name=name)
        for name in kept.keys() - cls.model_fields.keys():
            near = get_close_matches(str(name), [*cls.model_fields, *OF_ITS_OWN], 1)
            cure = f"did you mean {near[0]}?" if near else "leave it out"
            raise refused("invalid option {name}; " + cure, name=str(name))
        return kept

    def as_text_options(self) -> dict[str, Any]:
        """By the names of ``SamplingParams``; penalties look at the whole text, or at nothing."""
        same = ("temperature", "top_p", "min_p")
        options = {
            **{name: getattr(self, name) for name in same},
            "top_k": max(0, self.top_k),
            "stop": self.stop,
        }
        if self.repeat_last_n:
            options["repetition_penalty"] = self.repeat_penalty
            options["presence_penalty"] = self.presence_penalty
            options["frequency_penalty"] = self.frequency_penalty
        return options


class OllamaModelBody(RequestBody):
    """A model, and for how long it stays in memory."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    model: Annotated[str, Field(max_length=1024)]
    keep_alive: KeepAlive | None = None


class OllamaBody(OllamaModelBody):
    """Fields of both endpoints."""

    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions = Field(default_factory=OllamaOptions)
    think: bool | Literal["low", "medium", "high"] | None = None
    images: list[Any] | None = None


class OllamaFunction(Lenient):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaCall(Lenient):
    function: OllamaFunction


class OllamaMessage(Lenient):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: Items[OllamaCall] | None = None


class OllamaTool(FunctionTool):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["function"] = "function"


class OllamaChatBody(OllamaBody):
    """A conversation that the model goes on with."""

    messages: Items[OllamaMessage] = Field(default_factory=list)
    tools: Annotated[Items[Annotated[OllamaTool, FUNCTIONS]], Field(max_length=128)] | None = None


class OllamaGenerateBody(OllamaBody):
    """A prompt, for which the chat template is taken unless it is raw."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    template: str = ""
    context: Items[int] | None = None


class OllamaShowBody(RequestBody):
    """A model by its name, or by the older name of the field."""

    ignored: ClassVar[frozenset[str]] = frozenset({"verbose"})

    model: str = ""
    name: str = ""
