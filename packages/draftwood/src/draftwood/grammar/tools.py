"""Tools that a model may call: shown to the model, required in its text.

Calls are written as Hermes and Qwen models write them: a JSON object with ``name`` and
``arguments`` between two tags. The grammar asks for the same of every model.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: letters, digits, ``_`` and ``-``, at most 64.
        description: for the model.
        parameters: JSON schema of its arguments, an object.
        strict: refuse a schema with keywords that cannot be kept; else these are left out.
        opening, closing: tags around a call in a text.
    """

    opening: ClassVar[str] = "<tool_call>"
    closing: ClassVar[str] = "</tool_call>"
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_ARGUMENTS)
    strict: bool = False

    def as_json(self) -> dict[str, Any]:
        """Tool in the form of chat templates and the chat API."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


OPEN, CLOSE = Tool.opening, Tool.closing
OTHER_CALLS = ("<function=", "<arg_key>")
"""Signs of chat templates that want calls in XML."""


@dataclass(frozen=True)
class ToolChoice:
    """Rule for calls of tools in a text.

    Attributes:
        mode: ``auto`` leaves it to the model, ``none`` calls none, ``required`` calls one at least,
            ``named`` calls ``name``.
        name: of the tool.
        parallel: whether there may be several calls; else the text ends behind the first.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True


def lark_of_tools(
    tools: Sequence[Tool],
    choice: ToolChoice,
    spelling: Mapping[str, str],
    words: Mapping[str, int],
    answer: Mapping[str, Any] | None = None,
) -> str:
    """The grammar of an answer, in Lark.

    Args:
        answer: schema of an answer without calls, where there may be one.
        spelling: options for the compiler of schemas.
        words: tokens that are whole words; where tags are among them, calls that have to be there
            begin with that token, and any call may end with one.
    """
    from draftwood.grammar.schemas import mended

    chosen = [tool for tool in tools if choice.mode != "named" or tool.name == choice.name]
    opening, closing = json.dumps(OPEN), json.dumps(CLOSE)
    lines = ["%llguidance {}"]
    if choice.mode == "auto" and answer is None:
        lines += [
            f"start: {'called* ANY' if choice.parallel else 'called | ANY'}",
            "called: opened body",
            f"opened[lazy]: ANY {opening}",
            r"ANY: /(.|\n)*/",
        ]
    else:
        begin = f"<[{words[OPEN]}]>" if OPEN in words else opening
        more = f' ("\\n" {begin} body)*' if choice.parallel else ""
        other = " | answer" if choice.mode == "auto" else ""
        lines.append(f"start: {begin} body{more}{other}")
    names = [f"tool_{number}" for number in range(len(chosen))]
    lines += [
        f'body: "\\n" ({" | ".join(names)}) {json.dumps("}" + chr(10))} end',
        f"end: <[{words[CLOSE]}]> | {closing}" if CLOSE in words else f"end: {closing}",
    ]
    for name, tool in zip(names, chosen, strict=True):
        begin = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        lenient = not tool.strict
        guidance = {**spelling, "lenient": lenient, "coerce_one_of": lenient}
        asked = mended({"type": "object", **tool.parameters}, lenient)
        schema = {**asked, "x-guidance": guidance}
        lines.append(f"{name}: {json.dumps(begin)} %json {json.dumps(schema)}")
    if answer is not None and choice.mode == "auto":
        schema = {**mended(answer), "x-guidance": spelling}
        lines.append(f"answer: %json {json.dumps(schema)}")
    return "\n".join(lines)


def with_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Tool],
    choice: ToolChoice,
    role: Literal["system", "user"] = "system",
) -> list[dict[str, Any]]:
    """Describe the tools in the messages, for chat templates without tools.

    Tools go into the system message, earlier calls into the assistant's and their results into the
    user's, in the words of Hermes models.

    Args:
        role: who tells of the tools: the system in the first message, or the user in the first
            question. Where there is none, one is put before all.
    """
    plain = _together(messages)
    if not tools or choice.mode == "none":
        return plain
    note = tools_note(tools, choice)
    looked_at = plain[:1] if role == "system" else plain
    at = next((number for number, each in enumerate(looked_at) if each.get("role") == role), None)
    if at is None:
        return [{"role": role, "content": note}, *plain]
    said = plain[at].get("content") or ""
    parts = (said, note) if role == "system" else (note, said)
    plain[at] = {**plain[at], "content": "\n\n".join(parts).strip()}
    return plain


def tools_note(tools: Sequence[Tool], choice: ToolChoice) -> str:
    """Words that tell a model of tools, in those of Hermes models."""
    listed = "\n".join(json.dumps(tool.as_json(), ensure_ascii=False) for tool in tools)
    asked = {
        "auto": "You may call one or more functions to assist with the user query.",
        "required": "Call one or more functions to assist with the user query.",
        "named": f"Call the function {choice.name} to assist with the user query.",
    }[choice.mode]
    call = '{"name": <function-name>, "arguments": <args-json-object>}'
    return (
        f"# Tools\n\n{asked}\n\nYou are provided with function signatures within <tools></tools>"
        f" XML tags:\n<tools>\n{listed}\n</tools>\n\nFor each function call, return a json object"
        f" with function name and arguments within {OPEN}{CLOSE} XML tags:\n{OPEN}\n{call}\n{CLOSE}"
    )


def _together(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with calls and results as text; results, and what the user says then, are one."""
    told, is_open = list[dict[str, Any]](), False
    for message in messages:
        found, is_result = _told(message), message.get("role") == "tool"
        if is_open and found.get("role") == "user":
            told[-1]["content"] += f"\n{found.get('content') or ''}"
        else:
            told.append(found)
        is_open = is_result
    return told


def _told(message: Mapping[str, Any]) -> dict[str, Any]:
    """Message with its calls or its result as text."""
    told = {key: value for key, value in message.items() if key != "tool_calls"}
    if message.get("role") == "tool":
        content = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
        return {"role": "user", "content": content}
    calls = [_written(call) for call in message.get("tool_calls") or ()]
    if calls:
        told["content"] = "\n".join([*([told["content"]] if told.get("content") else []), *calls])
    return told


def _written(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    plain = isinstance(arguments, str)
    text = arguments if plain else json.dumps(arguments, ensure_ascii=False)
    return f'{OPEN}\n{{"name": {json.dumps(function.get("name"))}, "arguments": {text}}}\n{CLOSE}'


def template_tells_tools(template: object) -> bool:
    """True if a chat template shows tools in the form in which the grammar asks for calls.

    Other templates have the same tag around calls that are no JSON.
    """
    if not isinstance(template, str) or any(sign in template for sign in OTHER_CALLS):
        return False
    plain = template.replace("\\", "")  # quotes in the template's own texts
    return all(sign in plain for sign in ("tools", OPEN, '"name"', '"arguments"'))


def with_read_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have arguments as objects, as chat templates want them.

    The chat API has them as JSON in a text. They stay a text where that is no JSON, or spells half
    a character: a model may write it, and no tokenizer can read it.
    """
    told = dict(message)
    if message.get("tool_calls"):
        told["tool_calls"] = [_read(call) for call in message["tool_calls"]]
    return told


def _read(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", call))
    with suppress(TypeError, ValueError, RecursionError):
        read = json.loads(function.get("arguments") or "{}")
        json.dumps(read, ensure_ascii=False).encode("utf-8")
        function["arguments"] = read
    return {"type": "function", "function": function}
