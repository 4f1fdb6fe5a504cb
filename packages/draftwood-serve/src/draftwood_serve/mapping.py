"""Translate the fields of a request."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.text import infill
from draftwood_serve.errors import as_json, bad_request, unsupported
from draftwood_serve.jobs import Speculation, TextRequest, blaming_the_request
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.common import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    SamplingBody,
    SpeculativeOptions,
)
from draftwood_serve.schemas.completions import CompletionBody
from draftwood_serve.schemas.responses import (
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    MessageItem,
    NamedResponseTool,
    ReasoningItem,
    ResponsesBody,
    TextPart,
)
from draftwood_serve.schemas.sampling import read_options
from draftwood_serve.tool_requests import read_choice, read_functions

COMPLETION_TOKENS = 16  # OpenAI's own default
ANY_OBJECT = {"type": "object"}
ANY_SEED = -1
"""Seed that clients of Ollama and llama.cpp send where they want no certain one."""


def seed_of(given: int | None) -> int | None:
    """A seed as it is meant by Ollama's and llama.cpp's clients; None for any."""
    return None if given == ANY_SEED else given


def of_chat(body: ChatBody) -> TextRequest:
    """Translate a chat completion request."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise bad_request("max_tokens and max_completion_tokens differ", "max_completion_tokens")
    return TextRequest(
        [[message.as_message() for message in body.messages]],
        {
            **read_options(body),
            "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
            "prediction": None if body.prediction is None else body.prediction.text,
        },
        n=body.n or 1,
        seed=body.seed,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        **_formed(body, constraints(body)),
        names=body.chat_template_kwargs or {},
        thinks=_thinks(body.reasoning_effort),
        speculation=speculation(body.speculative),
    )


def of_completion(body: CompletionBody) -> TextRequest:
    """Translate a completion request."""
    n = body.n or 1
    if body.best_of not in (None, n):
        raise unsupported("best_of", " where it differs from n")
    length = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    if length == 0 and not body.echo:
        raise bad_request("max_tokens: 0 needs echo: true", "max_tokens")
    empty = body.suffix is not None and body.prompt == ""  # the gap may be in front
    prompts = [""] if empty else prompts_of(body.prompt)
    if body.suffix is not None and (body.echo or not isinstance(prompts[0], str)):
        raise bad_request("suffix goes with a prompt that is a text, without echo", "suffix")
    return TextRequest(
        prompts,
        {**read_options(body), "logprobs": body.logprobs},
        n=n,
        seed=body.seed,
        max_tokens=max(length, 1),
        raw=True,
        echo=bool(body.echo),
        prompt_logprobs=body.logprobs if body.echo else None,
        gap=None if body.suffix is None else infill.Gap(body.suffix),
        prompt_field="prompt",
        speculation=speculation(body.speculative),
        **_formed(body, {}),
    )


def of_responses(body: ResponsesBody) -> TextRequest:
    """Translate a responses request."""
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += messages_of(body.input)
    if not messages:
        raise bad_request("input holds no message", "input")
    # what the response repeats
    blaming_the_request(lambda: as_json([each.model_dump() for each in body.tools or ()]), "tools")
    blaming_the_request(lambda: as_json(body.text and body.text.model_dump()), "text.format")
    return TextRequest(
        [messages],
        {**read_options(body), "logprobs": body.logprobs},
        seed=body.seed,
        max_tokens=body.max_output_tokens,
        **response_constraints(body),
        thinks=None if body.reasoning is None else _thinks(body.reasoning.effort),
        prompt_field="input",
        speculation=speculation(body.speculative),
    )


def _formed(body: SamplingBody, others: dict[str, Any]) -> dict[str, Any]:
    """Constraints on texts, those of ``structured_outputs`` among them."""
    wanted = body.structured_outputs
    if wanted is None:
        return others
    if others.get("json_schema") is not None or others.get("tools"):
        other = "response_format" if others.get("json_schema") is not None else "tools"
        raise bad_request(f"give {other} or structured_outputs, not both", "structured_outputs")
    ((name, value),) = wanted.given.items()
    form = {name: value} if name == "json_schema" else {"form": (name, value)}
    return {**others, **form, "format_field": "structured_outputs"}


def _thinks(effort: str | None) -> bool | str | None:
    """Way to think, by OpenAI's names of efforts; None leaves it to the model."""
    return False if effort == "none" else effort or None


def constraints(body: ChatBody) -> dict[str, Any]:
    """Constraints on the answer to a chat: fields of ``TextRequest``."""
    schema, wanted = None, body.response_format
    if isinstance(wanted, JsonObjectFormat):
        schema = ANY_OBJECT if wanted.definition is None else wanted.definition
    elif isinstance(wanted, JsonSchemaFormat):
        schema = _given(wanted.json_schema.definition, "response_format.json_schema.schema")
    tools = [each.model_dump() for each in body.tools or ()]
    choice = body.tool_choice
    chosen = choice.model_dump() if isinstance(choice, NamedToolChoice) else choice
    return constraints_of(schema, tools, chosen, body.parallel_tool_calls)


def response_constraints(body: ResponsesBody) -> dict[str, Any]:
    """Constraints on a response; tools other than functions are skipped."""
    schema, wanted = None, body.text.format if body.text is not None else None
    if wanted is not None and wanted.type == "json_object":
        schema = ANY_OBJECT
    elif wanted is not None and wanted.type == "json_schema":
        schema = _given(wanted.definition, "text.format.schema")
    functions = [tool.model_dump() for tool in body.tools or () if tool.type == "function"]
    choice = body.tool_choice
    chosen = choice.model_dump() if isinstance(choice, NamedResponseTool) else choice
    return constraints_of(schema, functions, chosen, body.parallel_tool_calls, "text.format")


def _given(schema: dict[str, Any] | None, param: str) -> dict[str, Any]:
    if schema is None:
        raise bad_request(f"{param} is missing", param)
    return schema


def constraints_of(
    schema: dict[str, Any] | None,
    tools: list[Any],
    chosen: Any = None,
    parallel: bool | None = None,
    format_field: str = "response_format",
) -> dict[str, Any]:
    """Constraints by a schema, tools and a choice among them: fields of ``TextRequest``.

    Args:
        format_field: of the request's body, which holds the schema.

    Raises:
        ApiError: naming the field at fault.
    """
    read = blaming_the_request(lambda: read_functions(tools), "tools")
    choice = blaming_the_request(lambda: read_choice(chosen, read, parallel), "tool_choice")
    fields = {"json_schema": schema, "tools": read, "tool_choice": choice}
    return {**fields, "format_field": format_field}


def speculation(wanted: bool | SpeculativeOptions | None) -> Speculation:
    """Decoding options of a request; ``False`` is plain decoding."""
    if wanted is False:
        return Speculation("plain")
    if wanted is True or wanted is None:
        return Speculation()
    return Speculation(wanted.method, wanted.budget, wanted.trace, wanted.tree)


def prompts_of(prompt: str | Sequence[Any]) -> list[Any]:
    """Each prompt of a completion: a text or token ids."""
    several = not isinstance(prompt, str) and not isinstance(prompt[0], int)
    found = list(prompt) if several else [prompt]
    if any(len(each) == 0 for each in found):
        raise bad_request("a prompt is empty; give some text or at least one token", "prompt")
    return found


def messages_of(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The items of a response's input as messages.

    Calls join the assistant's message before them, a thought the one behind it.
    """
    found: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for item in items:
        if isinstance(item, ReasoningItem):
            thoughts += [text for part in item.content or () if (text := part.text)]
            continue
        if isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            found.append({"role": role, "content": _text(item.content)})
        elif isinstance(item, FunctionCallItem):
            call: Mapping[str, Any] = {
                "id": item.call_id,
                "type": "function",
                "function": {"name": item.name, "arguments": item.arguments},
            }
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif isinstance(item, FunctionOutputItem):
            told = {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
            found.append(told)
        if thoughts and found[-1]["role"] == "assistant":
            before = [found[-1].get("reasoning_content")]
            found[-1]["reasoning_content"] = "\n\n".join(filter(None, before + thoughts))
        thoughts = []
    return found


def _text(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
