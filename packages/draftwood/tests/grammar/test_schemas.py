"""Schemas that are mended, so that the compiler keeps what they ask."""

import json
from typing import Any

import pytest
from test_tools import TOKENIZER, compiler, fits  # noqa: F401  (a fixture)

from draftwood.grammar import Compiler, Tool, ToolChoice
from draftwood.grammar.schemas import mended


@pytest.mark.parametrize(
    ("bounds", "right", "wrong"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5", "0.000001"], ["0", "0.0", "0.6"]),
        ({"exclusiveMinimum": 1, "maximum": 1.5}, ["1.1", "1.5"], ["1", "1.0", "1.6"]),
        ({"exclusiveMinimum": -0.5, "exclusiveMaximum": 0}, ["-0.1"], ["0", "-0", "-0.5"]),
        ({"exclusiveMinimum": -2.5, "exclusiveMaximum": -2}, ["-2.1"], ["-2", "-2.0", "-2.6"]),
        ({"exclusiveMinimum": 0, "maximum": 1}, ["0.5", "1"], ["0", "1.1"]),
        ({"minimum": 0, "exclusiveMaximum": 1}, ["0", "0.9"], ["1", "1.0"]),
        ({"exclusiveMinimum": 0}, ["0.5", "7"], ["0"]),
    ],
)
def test_bounds_that_may_not_be_reached_are_not(
    compiler: Compiler,  # noqa: F811
    bounds: dict[str, Any],
    right: list[str],
    wrong: list[str],
) -> None:
    inside = {"type": "object", "properties": {"a": {"type": "number", **bounds}}}
    for schema, before, behind in (
        ({"type": "number", **bounds}, "", ""),
        ({**inside, "required": ["a"], "additionalProperties": False}, '{"a": ', "}"),
    ):
        grammar = compiler.json_schema(schema)
        assert [each for each in right if not fits(grammar, f"{before}{each}{behind}")] == []
        assert [each for each in wrong if fits(grammar, f"{before}{each}{behind}")] == []


def test_large_steps_are_refused_before_they_take_all_memory(compiler: Compiler) -> None:  # noqa: F811
    for step in (10**9 + 7, 1000003, 1.000003):
        with pytest.raises(ValueError, match=r"multipleOf .* is too large a step; give at most"):
            compiler.json_schema({"type": "number", "multipleOf": step})
    for step in (3600000, 0.01, 7, 2.5):
        compiler.json_schema({"type": "number", "multipleOf": step})


def test_alternatives_that_may_overlap_are_refused_with_a_cure(compiler: Compiler) -> None:  # noqa: F811
    some = [{"properties": {name: {"type": "string"}}} for name in "ab"]
    with pytest.raises(ValueError, match="Use anyOf, or alternatives that a required constant"):
        compiler.json_schema({"type": "object", "oneOf": some})


def test_what_is_no_schema_stays_as_it_is() -> None:
    data = {"exclusiveMinimum": 0, "maximum": 0.5, "multipleOf": 10**9 + 7, "uniqueItems": False}
    schema = {"enum": [data], "const": data, "default": data, "properties": {"multipleOf": {}}}
    assert mended(schema) == schema
    assert mended({"items": {"uniqueItems": False}}) == {"items": {}}
    assert mended(True) is True


OPEN, CLOSE = '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"


def call_of(compiler: Compiler, parameters: dict[str, Any], strict: bool = False) -> Any:  # noqa: F811
    found = compiler.tools([Tool("f", "", parameters, strict)], ToolChoice("named", "f"))
    assert found is not None
    return lambda arguments: fits(found, f"{OPEN}{json.dumps(arguments)}{CLOSE}")


def test_counts_of_properties_are_left_out_of_tools(compiler: Compiler) -> None:  # noqa: F811
    text = {"type": "string"}
    fitting = call_of(compiler, {"properties": {"a": text}, "minProperties": 1})
    assert fitting({"a": "x"})
    fitting = call_of(compiler, {"properties": {"a": text, "b": text}, "maxProperties": 1})
    assert fitting({"a": "x"})
    with pytest.raises(ValueError, match="schemas cannot be followed"):
        call_of(compiler, {"properties": {"a": text}, "minProperties": 1}, strict=True)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "string", "pattern": "(?=a)"},
        {"type": "object", "patternProperties": {"^a": {}, "^ab": {"type": "string"}}},
        {"$ref": "https://example.org/schema.json"},
        {"type": "integer", "multipleOf": 10**9 + 7},
    ],
)
def test_what_cannot_be_kept_is_left_out_of_the_tool_that_has_it(
    compiler: Compiler,  # noqa: F811
    odd: dict[str, Any],
) -> None:
    plain = {"properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    tools = [Tool("f", "", plain), Tool("g", "", {"properties": {"b": odd}, "required": ["b"]})]
    grammar = compiler.tools(tools, ToolChoice("required"))
    assert grammar is not None
    assert fits(grammar, f'{OPEN}{{"a": "x"}}{CLOSE}')
    assert not fits(grammar, f'{OPEN}{{"a": "y"}}{CLOSE}')  # the other tool keeps its schema
    assert fits(grammar, f'<tool_call>\n{{"name": "g", "arguments": {{"b": 2}}{CLOSE}') == (
        odd.get("type") in (None, "integer")
    )
    strict = Tool("g", "", tools[1].parameters, strict=True)
    with pytest.raises(ValueError, match="cannot be followed"):
        compiler.tools([tools[0], strict], ToolChoice("required"))
