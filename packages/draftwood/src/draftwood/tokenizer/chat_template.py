"""Chats in a model's template, which is Jinja in the sandbox that Transformers defines for it.

Templates are files of strangers: they see plain data, and nothing that they could do harm with.
Jinja is imported with the first chat.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jinja2 import Environment, Template

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message may tell its reasoning; templates read the first or the second."""

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of a model's usual template, and of the one for chats with tools."""

TOLD = frozenset(
    {
        *("messages", "conversation", "tools", "documents", "add_generation_prompt"),
        *("chat_template", "tokenize", "return_dict", "continue_final_message"),
        *("padding", "truncation", "max_length", "return_tensors", "tokenizer_kwargs"),
    }
)
"""Names that every template is told, or that say how; beside them are those of special tokens."""

FAILURES = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(MemoryError, RecursionError, SyntaxError),
)
"""Errors of what a template computes, and of its size and depth, besides Jinja's own."""


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    names: Mapping[str, Any],
) -> str:
    """Write messages as a template says.

    Args:
        template: in Jinja.
        messages: keys whose value is None are left out.
        tools: JSON schemas of functions.
        names: what else the template may ask for, special tokens for instance.

    Raises:
        jinja2.TemplateError: for a template that cannot be read, and where it refuses the chat.
        Exception: one of ``FAILURES``, for what it computes.
    """
    told = [_message(message) for message in messages]
    data = {name: plain(value) for name, value in names.items()}
    return _compiled(template).render(messages=told, tools=plain(tools), **data)


def chosen(template: Any, has_tools: bool) -> Any:
    """The template that writes a chat; of several by name the one for tools where there are any,
    else the usual one, and None without it.
    """
    if not isinstance(template, Mapping):
        return template
    return template.get(TOOL_USE if has_tools and TOOL_USE in template else DEFAULT)


def every(template: object) -> tuple[str, ...]:
    """The templates of a model: its only one, all of several by name, or none."""
    several = template.values() if isinstance(template, Mapping) else (template,)
    return tuple(each for each in several if isinstance(each, str))


def names_in(template: object) -> frozenset[str]:
    """Names that a template leaves to who writes a chat, such as ``enable_thinking``.

    Args:
        template: in Jinja, or several by name; none in one that cannot be read.
    """
    return frozenset[str]().union(*map(_open_names, every(template)))


@lru_cache(maxsize=64)
def _open_names(template: str) -> frozenset[str]:
    from jinja2 import TemplateError, meta

    try:
        asked = meta.find_undeclared_variables(_environment().parse(template))
    except (TemplateError, *FAILURES):
        return frozenset()
    free = asked - {*_environment().globals} - TOLD
    return frozenset(name for name in free if not name.endswith("_token"))


def plain(value: Any) -> Any:
    """Rebuild a value of types that JSON has, and numbers of NumPy as Python's.

    Mappings, dataclasses and Pydantic's models become dicts; all else is told by its type's name.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):  # of a subclass, which may do more
            return getattr(kind, f"__{kind.__name__}__")(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return [*map(plain, value)]
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if callable(told := getattr(value, "model_dump", None)):
        return plain(told())
    return f"<{type(value).__name__}>"


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as plain data, with its reasoning under the names that templates read."""
    told = {key: value for key, value in plain(message).items() if value is not None}
    reasoning = next((told[name] for name in REASONING if told.get(name)), None)
    if reasoning is None:
        return told
    return {"thinking": reasoning, **told, "reasoning_content": reasoning}


@lru_cache(maxsize=64)
def _compiled(template: str) -> "Template":
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> "Environment":
    """The sandbox, with the extensions, filters and functions of Transformers' templates."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_block(), loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _namespace(),
    }
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter writes ``<`` and others as in HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


class _Dict:
    """``dict`` without its attributes, which lead out of the sandbox."""

    def __call__(self, *args: Any, **more: Any) -> dict[Any, Any]:
        return dict(*args, **more)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _namespace() -> type:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    def require_public(names: Any) -> None:
        for name in names:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(f"a chat template must not set the attribute {name!r}")

    class PublicNamespace(Namespace):
        """Namespace of a template, without names that begin with an underscore."""

        def __init__(*args: Any, **more: Any) -> None:  # a template may name one of them ``self``
            made = dict(*args[1:], **more)
            require_public(made)
            Namespace.__init__(args[0], made)

        def __setitem__(self, name: str, value: Any) -> None:
            require_public([name])
            super().__setitem__(name, value)

    return PublicNamespace


def _generation_block() -> Any:
    """Make the extension for ``{% generation %}``, which marks answers and changes no text."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationBlock(Extension):
        tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

        def _written(self, caller: Any) -> str:
            return caller()

    return GenerationBlock
