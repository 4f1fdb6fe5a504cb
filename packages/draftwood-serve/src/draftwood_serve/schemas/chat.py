"""`/v1/chat/completions`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from draftwood_serve.schemas.common import (
    FUNCTIONS,
    IGNORED,
    FunctionTool,
    Lenient,
    ResponseFormat,
    SamplingBody,
    Strict,
    TextAlone,
    ToolChoice,
    TopLogprobs,
    of_types,
)
from draftwood_serve.schemas.lists import Items


class TextContent(Strict):
    """A part of a message. Parts of other types are refused: the model reads text alone."""

    type: Literal["text"]
    text: str


class MessageFunction(Strict):
    name: str
    arguments: str


class MessageCall(Lenient):
    id: str
    type: Literal["function"] = "function"
    function: MessageFunction


class ChatMessage(Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | Items[TextContent] | None, TextAlone] = None
    name: str | None = None
    tool_calls: Items[Annotated[MessageCall, of_types("a call", "function")]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def as_message(self) -> dict[str, Any]:
        """As chat templates read it."""
        found = self.model_dump(exclude_none=True)
        found["role"] = "system" if self.role == "developer" else self.role
        return {"content": None, **found}


class PredictedContent(Strict):
    """A text that the answer may follow, which drafts for free."""

    type: Literal["content"]
    content: str | Items[TextContent]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(SamplingBody):
    """A conversation that the model goes on with."""

    ignored: ClassVar[frozenset[str]] = IGNORED | {"verbosity"}

    messages: Annotated[Items[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Items[Annotated[FunctionTool, FUNCTIONS]], Field(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
