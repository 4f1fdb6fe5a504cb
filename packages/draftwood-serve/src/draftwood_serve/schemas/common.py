"""Fields that several endpoints have."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from draftwood_serve.errors import no_support
from draftwood_serve.schemas.lists import Items, require_few
from draftwood_serve.schemas.sampling import with_options
from draftwood_serve.settings import CHOICES

TopLogprobs = Annotated[int, Field(ge=0, le=20)]

# who asks, and what a server that keeps answers should do with them
IGNORED = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prompt_cache_options", "client_metadata"),
    }
)
# known from OpenAI's API or from other servers
UNSUPPORTED = frozenset(
    {
        *("audio", "modalities", "prediction", "web_search_options", "functions", "function_call"),
        *("reasoning_effort", "verbosity", "moderation", "suffix", "best_of", "background"),
        *("conversation", "previous_response_id", "prompt", "max_tool_calls", "chat_template"),
        *("chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message"),
        *(
            "add_special_tokens",
            "echo",
            "min_tokens",
            "stop_token_ids",
            "include_stop_str_in_output",
        ),
        *(
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "length_penalty",
            "use_beam_search",
        ),
        *("early_stopping", "bad_words", "allowed_token_ids", "prompt_logprobs", "guided_json"),
        *("guided_regex", "guided_choice", "guided_grammar", "priority"),
        *("return_token_ids", "cache_salt", "truncate_prompt_tokens", "mm_processor_kwargs"),
        *("typical_p", "mirostat", "n_probs", "logits_processors", "thinking_token_budget"),
    }
)
OFF: Mapping[str, object] = {
    **dict.fromkeys(("background", "echo", "use_beam_search", "early_stopping"), False),
    **dict.fromkeys(("include_stop_str_in_output", "continue_final_message"), False),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), True),
    **{name: [] for name in ("stop_token_ids", "bad_words", "logits_processors", "documents")},
    **dict.fromkeys(("min_tokens", "mirostat", "n_probs", "priority"), 0),
    **dict.fromkeys(("best_of", "typical_p", "length_penalty"), 1),
    **{"add_generation_prompt": True, "return_token_ids": False, "modalities": ["text"]},
}
"""Values of unsupported fields that ask for what is done without them."""
TEMPLATES = frozenset({"chat_template"})


NOT_TEXT = {
    **dict.fromkeys(("image_url", "image", "input_image"), "images"),
    **dict.fromkeys(("input_audio", "audio"), "sounds"),
    **dict.fromkeys(("file", "input_file"), "files"),
    **dict.fromkeys(("video_url", "input_video"), "videos"),
}
"""Parts of messages that others' models read, by their types."""


def refused(told: Any, **given: str) -> PydanticCustomError:
    """Error that repeats what a request gave: its beginning, and halves of characters as codes."""
    safe = {
        name: each[:80].encode(errors="backslashreplace").decode() for name, each in given.items()
    }
    return PydanticCustomError("unsupported_parameter", told, safe)


def type_of(given: Any) -> str | None:
    """Type that an object of a request says that it has."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    return kind if isinstance(kind, str) else None


def _as_text(part: Any) -> Any:
    """A part as it is, or a refusal as text; refuse what is no text in words."""
    kind = type_of(part)
    if kind in NOT_TEXT:
        raise refused(no_support(NOT_TEXT[kind]))
    return {"type": "text", "text": part.get("refusal")} if kind == "refusal" else part


def _as_texts(content: Any) -> Any:
    return [_as_text(part) for part in content] if isinstance(content, list) else content


TextAlone = BeforeValidator(_as_texts)
"""Validator of a message's content."""


def of_types(what: str, *known: str) -> BeforeValidator:
    """Validator that refuses objects of other types by the names of all that are taken."""
    cure = f"leave it out or give one of type {', '.join(known[:-1])}{' or ' * (len(known) > 1)}"
    told = f"{what} of type {{type}} is not supported by this server; {cure}{known[-1]}"

    def require_known(given: Any) -> Any:
        kind = type_of(given)
        if kind is not None and kind not in known:
            raise refused(told, type=kind)
        return given

    return BeforeValidator(require_known)


class Strict(BaseModel):
    """Takes what it names and nothing else; null counts as left out where a value may be."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(require_few(data), Mapping):
            return data
        known = cls.model_fields
        return {
            name: each
            for name, each in data.items()
            if each is not None or name not in known or known[name].is_required()
        }


class Lenient(Strict):
    """Takes what it names and passes over the rest."""

    model_config = ConfigDict(strict=True, extra="ignore")


class RequestBody(Strict):
    """A request: fields without a value count as left out, and others' fields are named."""

    ignored: ClassVar[frozenset[str]] = IGNORED

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        kept = {}
        for name, value in data.items():
            if name not in cls.model_fields:
                if value is None or name in cls.ignored or value == OFF.get(name):
                    continue
                if name in TEMPLATES:
                    told = "{name} is refused: templates come with the model, not with a request"
                    raise refused(told, name=name)
                if name in UNSUPPORTED:
                    raise refused("{name} is not supported by this server; leave it out", name=name)
            kept[name] = value
        return kept


class StreamOptions(Strict):
    """Options of a stream besides its text.

    Attributes:
        include_usage: a last chunk with the usage.
        continuous_usage_stats: the usage so far in every chunk.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class SpeculativeOptions(Strict):
    """Options of decoding.

    Attributes:
        method: a name of ``draftwood methods``; None takes the server's.
        budget: most draft tokens in a step, for methods that size their trees by what pays.
        trace: tell what each step drafted and accepted; ``tree`` tells its tree too.
        tree: draft tree of the method, as ``--tree`` takes it.
    """

    method: Annotated[str, Field(max_length=64)] | None = None
    budget: Annotated[int, Field(ge=0, le=1024)] | None = None
    trace: bool | Literal["tree"] = False
    tree: Annotated[str, Field(max_length=64)] | None = None


def _read_json(given: Any) -> Any:
    """A schema as it is, or read from JSON."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        raise PydanticCustomError("value_error", "is no JSON") from None


AsJson = BeforeValidator(_read_json)


class StructuredOutputs(Strict):
    """A form of texts by vLLM's names: one of its fields.

    Attributes:
        json_schema: as a dict, or as JSON.
        regex: that the whole text matches.
        choice: texts of which it is one.
        grammar: in Lark.
    """

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    json_schema: Annotated[dict[str, Any] | None, Field(alias="json"), AsJson] = None
    regex: str | None = None
    choice: Annotated[Items[str], Field(min_length=1, max_length=1024)] | None = None
    grammar: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Fields that have a value."""
        told = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: each for name, each in told.items() if each is not None}

    @model_validator(mode="after")
    def _require_one(self) -> "StructuredOutputs":
        if len(self.given) != 1:
            told = "give one of json, regex, choice and grammar"
            raise PydanticCustomError("value_error", told)
        return self


TextOptions = with_options("TextOptions", RequestBody)


class SamplingBody(TextOptions):
    """Options of texts, and of the way they are reported."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculative: bool | SpeculativeOptions | None = None
    structured_outputs: StructuredOutputs | None = None


class FunctionDefinition(Strict):
    """A function that the model may call, its parameters as a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


FUNCTIONS = of_types("a tool", "function")
"""Validator of a chat's tool."""


class NamedFunction(Strict):
    name: str


class NamedToolChoice(Strict):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedToolChoice, of_types("a tool_choice", "function")
]


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    """An object, of a schema where there is one, as llama.cpp's clients give it."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    type: Literal["json_object"]
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class JsonSchema(Strict):
    """A schema that the answer must fit."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    name: Annotated[str, Field(max_length=64)] = "schema"
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]
