"""Tools and choices among them, read from requests."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftwood.grammar import Tool, ToolChoice

MOST_TOOLS = 128


def read_tools(
    tools: object, tool_choice: object = None, parallel_tool_calls: bool | None = None
) -> tuple[list[Tool], ToolChoice]:
    """Tools and choice from a request in OpenAI's form, of the chat or the responses API.

    Raises:
        ValueError: as ``read_functions`` and ``read_choice``.
    """
    found = read_functions(tools)
    return found, read_choice(tool_choice, found, parallel_tool_calls)


def read_functions(tools: object) -> list[Tool]:
    """The tools of a request; None for none.

    Raises:
        ValueError: for a malformed list, naming the place.
    """
    if tools is None:
        tools = []
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise ValueError("tools must be a list of tools")
    if len(tools) > MOST_TOOLS:
        raise ValueError(f"tools must be at most {MOST_TOOLS}, got {len(tools)}")
    found = [_tool(each, f"tools[{number}]") for number, each in enumerate(tools)]
    names = [tool.name for tool in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tools must have different names, got {', '.join(twice)} twice")
    return found


def _tool(given: object, place: str) -> Tool:
    if not isinstance(given, Mapping):
        raise ValueError(f"{place} must be an object, got {type(given).__name__}")
    if given.get("type") != "function":
        raise ValueError(f"{place}.type must be 'function', got {given.get('type')!r:.40}")
    function = given.get("function", given)
    if not isinstance(function, Mapping):
        raise ValueError(f"{place}.function must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        raise ValueError(f"{place} needs a name of letters, digits, _ and -, got {name!r:.80}")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise ValueError(f"the description of {place} must be a text")
    plain = Tool(name, description, strict=function.get("strict") is True)
    parameters = function.get("parameters")
    if parameters is None:
        return plain
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ValueError(f"the parameters of {place} must be a JSON schema of an object")
    return replace(plain, parameters=parameters)


def read_choice(
    given: object, tools: Sequence[Tool], parallel_tool_calls: bool | None = None
) -> ToolChoice:
    """The choice among tools; None for what a request means without one.

    Raises:
        ValueError: for a malformed choice, and one that the tools do not allow.
    """
    names = [tool.name for tool in tools]
    parallel = True if parallel_tool_calls is None else bool(parallel_tool_calls)
    if given is None:
        return ToolChoice("auto" if names else "none", parallel=parallel)
    if given in ("auto", "none"):
        return ToolChoice(given, parallel=parallel)  # type: ignore[arg-type]
    if given == "required":
        if not names:
            raise ValueError("tool_choice 'required' needs tools")
        return ToolChoice("required", parallel=parallel)
    if not isinstance(given, Mapping) or given.get("type") != "function":
        raise ValueError(
            "tool_choice must be 'auto', 'none', 'required' or an object of type 'function' with a"
            f" name, got {given!r:.80}"
        )
    function = given.get("function", given)
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise ValueError(f"tool_choice names {name!r:.80}, which is none of the tools")
    return ToolChoice("named", name, parallel=False)
