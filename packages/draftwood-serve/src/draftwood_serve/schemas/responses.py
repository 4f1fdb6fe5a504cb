"""`/v1/responses`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from draftwood_serve.schemas.common import (
    IGNORED,
    Lenient,
    RequestBody,
    SpeculativeOptions,
    Strict,
    TextAlone,
    TopLogprobs,
    of_types,
    refused,
    type_of,
)
from draftwood_serve.schemas.lists import Items, at_most
from draftwood_serve.schemas.sampling import with_options


class TextPart(Lenient):
    """A part of a message's content."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class MessageItem(Lenient):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | Items[TextPart], TextAlone]


class FunctionCallItem(Lenient):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(Lenient):
    """Output of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str | Items[TextPart], TextAlone]


class ReasoningPart(Lenient):
    text: str = ""


class ReasoningItem(Lenient):
    """A thought before a message; one that another model has encrypted is passed over."""

    type: Literal["reasoning"]
    content: Items[ReasoningPart] | None = None


def _require_whole(item: Any) -> Any:
    if type_of(item) == "item_reference":
        raise refused(
            "item_reference is not supported, as this server stores nothing; send the item itself"
        )
    return item


InputItem = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem,
    of_types("an item", "message", "function_call", "function_call_output", "reasoning"),
    BeforeValidator(_require_whole),
]


class ResponseTextFormat(Strict):
    """As ``response_format`` of a chat completion, without the nesting."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseText(Lenient):
    format: ResponseTextFormat | None = None


class ResponseTool(Strict):
    """A function; tools of other types are passed over."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedResponseTool(Strict):
    type: Literal["function"]
    name: str


LOGPROBS = "message.output_text.logprobs"
"""Value of ``include`` that asks for log-probabilities."""
ResponseOptions = with_options("ResponseOptions", RequestBody, ("temperature", "top_p", "seed"))


class ResponseReasoning(Lenient):
    effort: str | None = None


class ResponsesBody(ResponseOptions):
    """A conversation in items; nothing of it is kept."""

    ignored: ClassVar[frozenset[str]] = IGNORED | {"max_tool_calls"}

    input: str | Annotated[Items[InputItem], Field(min_length=1)]
    model: Annotated[str, Field(max_length=1024)] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: TopLogprobs | None = None
    include: Items[str] | None = None
    metadata: Annotated[dict[str, str], at_most(16)] | None = None
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    tools: Annotated[Items[ResponseTool], Field(max_length=128)] | None = None
    tool_choice: (
        Annotated[
            Literal["none", "auto", "required"] | NamedResponseTool,
            of_types("a tool_choice", "function"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    speculative: bool | SpeculativeOptions | None = None

    @property
    def logprobs(self) -> int | None:
        """Most probable tokens told beside each token; None where none are told."""
        included = LOGPROBS in (self.include or ())
        return 0 if included and self.top_logprobs is None else self.top_logprobs
