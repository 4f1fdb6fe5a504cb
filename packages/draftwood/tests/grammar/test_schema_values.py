"""Numbers and constants of schemas, which the compiler keeps as floats and counts in 32 bits."""

import math
from typing import Any

import pytest
from test_tools import TOKENIZER, compiler, fits  # noqa: F401  (a fixture)

from draftwood.grammar import Compiler, Tool, ToolChoice
from draftwood.grammar.schema_values import CLOSE
from draftwood.grammar.schemas import mended

LONG = 2**53 + 1
"""Whole number that no float of 64 bits holds."""
STEP = {"type": "integer", "multipleOf": 100_000}


@pytest.mark.parametrize(
    "schema",
    [
        {"const": LONG},
        {"enum": ["a", [{"b": 1234567890123456789}]]},
        {"enum": [2**63]},
        {"type": "integer", "minimum": LONG},
        {"type": "integer", "exclusiveMinimum": 2**53},
        {"type": "number", "maximum": 10**400},
        {"type": "integer", "multipleOf": 10**400},
        {"properties": {"a": {"items": {"const": LONG}}}},
    ],
)
def test_numbers_that_no_float_holds_are_refused(
    compiler: Compiler,  # noqa: F811
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"has the number \d+; give one that a float"):
        compiler.json_schema(schema)


@pytest.mark.parametrize("number", [-(2**63), 1 - 2**63, -1e19])
def test_numbers_that_would_end_the_process_are_refused(
    compiler: Compiler,  # noqa: F811
    number: float,
) -> None:
    with pytest.raises(ValueError, match="const has the number -"):
        compiler.json_schema({"type": "integer", "const": number})


def test_long_numbers_that_a_float_holds_are_kept(compiler: Compiler) -> None:  # noqa: F811
    for number in (2**53, 2**62, 1024 - 2**63, 10**18):
        grammar = compiler.json_schema({"const": number})
        assert fits(grammar, str(number))
        assert not fits(grammar, str(number + 1))
    grammar = compiler.json_schema({"type": "integer", "exclusiveMinimum": 2**53 - 1})
    assert fits(grammar, str(2**53))
    assert not fits(grammar, str(2**53 - 1))


def test_what_no_float_holds_is_left_out_of_tools(compiler: Compiler) -> None:  # noqa: F811
    fields = {"a": {"type": "integer", "minimum": 10**400}, "b": {"enum": [LONG]}}
    asked = {"properties": fields, "required": ["a"], "additionalProperties": False}
    grammar = compiler.tools([Tool("f", "", asked)], ToolChoice("required"))
    assert grammar is not None
    opening, closing = '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"
    assert fits(grammar, f'{opening}{{"a": 1, "b": {LONG}}}{closing}')
    assert not fits(grammar, f'{opening}{{"b": {LONG}}}{closing}')
    with pytest.raises(ValueError, match="has the number"):
        compiler.tools([Tool("f", "", asked, strict=True)], ToolChoice("required"))


def test_constants_with_control_characters_are_refused(compiler: Compiler) -> None:  # noqa: F811
    for schema in ({"const": "a\x01"}, {"enum": ["b", ["\x7f"]]}):
        with pytest.raises(ValueError, match="with a control character"):
            compiler.json_schema(schema)
    assert fits(compiler.json_schema({"const": 'a\n\t"\\'}), r'"a\n\t\"\\"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]},
        {"type": "number", "exclusiveMinimum": 0, "anyOf": [{"maximum": 0.5}, {"minimum": 7}]},
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.5},
        {"$ref": "#/some/x", "some": {"x": {"exclusiveMinimum": 0, "maximum": 0.5}}},
        {"$ref": "#/$defs/x", "maximum": 0.5, "$defs": {"x": {"exclusiveMinimum": 0}}},
    ],
)
def test_bounds_that_meet_elsewhere_are_not_reached(
    compiler: Compiler,  # noqa: F811
    schema: dict[str, Any],
) -> None:
    grammar = compiler.json_schema(schema)
    assert not fits(grammar, "0")
    assert not fits(grammar, "0.0")
    assert fits(grammar, "0.1")


def test_bounds_of_large_numbers_are_not_reached(compiler: Compiler) -> None:  # noqa: F811
    for sign, low, high in (
        ("", "exclusiveMinimum", "maximum"),
        ("-", "exclusiveMaximum", "minimum"),
    ):
        bounds = {low: float(f"{sign}90000000"), high: float(f"{sign}90000000.5")}
        grammar = compiler.json_schema({"type": "number", **bounds})
        assert not fits(grammar, f"{sign}90000000")
        assert fits(grammar, f"{sign}90000000.1")


def test_bounds_move_where_they_may_meet_alone() -> None:
    assert mended({"exclusiveMinimum": 0}) == {"exclusiveMinimum": 0}
    both = mended({"allOf": [{"exclusiveMinimum": 0}, {"exclusiveMinimum": 2**20}]})["allOf"]
    assert [each["exclusiveMinimum"] for each in both] == [CLOSE, 2**20 + CLOSE]
    far = mended({"allOf": [{"exclusiveMinimum": 2**40}, {"exclusiveMinimum": 2**52}]})["allOf"]
    assert [each["exclusiveMinimum"] for each in far] == [2**40 + math.ulp(2.0**40), 2**52]
    assert mended({"exclusiveMaximum": False, "maximum": 3}) == {"maximum": 3}
    assert mended({"exclusiveMaximum": True}) == {}
    once = mended({"exclusiveMinimum": 0, "maximum": 0.5})
    assert mended(once) == once


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "allOf": [{"multipleOf": 50_000}, {"multipleOf": 100_000}]},
        {"allOf": [STEP, STEP]},
        {"$ref": "#/$defs/x", "multipleOf": 100_000, "$defs": {"x": STEP}},
        {"allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}], "$defs": {"x": STEP}},
        {"anyOf": [{"type": "number", "multipleOf": step} for step in (99_991, 11)]},
    ],
)
def test_steps_that_meet_in_too_large_a_one_are_refused(
    compiler: Compiler,  # noqa: F811
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="too large a common multiple"):
        compiler.json_schema(schema)
    assert "100000" not in str(mended(schema, lenient=True))


def test_steps_that_meet_in_a_small_one_are_kept(compiler: Compiler) -> None:  # noqa: F811
    steps = [{"multipleOf": step} for step in (0.01, 0.5, 15)]
    grammar = compiler.json_schema({"type": "number", "allOf": steps})
    assert fits(grammar, "30")
    assert not fits(grammar, "20")
    hours = {"anyOf": [{"type": "integer", "multipleOf": 3_600_000}, {"type": "null"}]}
    grammar = compiler.json_schema({"type": "array", "prefixItems": [hours, hours]})
    assert fits(grammar, "[3600000, 7200000]")
