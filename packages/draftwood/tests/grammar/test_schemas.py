"""Schemas that are mended, so that the compiler keeps what they ask."""

import json
import re
import time
from typing import Any

import pytest
from test_tools import TOKENIZER, compiler, fits  # noqa: F401  (a fixture)

import draftwood
from draftwood.grammar import Compiler, Tool, ToolChoice
from draftwood.grammar.compiler import _reason
from draftwood.grammar.schemas import mended

OPEN, CLOSE = '<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"


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


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ({"properties": {"foo": {"type": "integer"}}}, '{"foo": 1}', r'{"\u0066oo": "bar"}'),
        ({"properties": {"foo": False}}, '{"fo": 1}', r'{"\u0066oo": 1}'),
        ({"patternProperties": {"^f": False}}, '{"of": 1}', r'{"\u0066oo": 1}'),
    ],
)
def test_names_of_properties_have_one_spelling(
    compiler: Compiler,  # noqa: F811
    rule: dict[str, Any],
    right: str,
    wrong: str,
) -> None:
    schema = {"type": "object", **rule}
    grammar = compiler.json_schema(schema)
    assert (fits(grammar, right), fits(grammar, wrong)) == (True, False)
    of_tool = compiler.tools([Tool("f", "", schema)], ToolChoice("required"))
    assert of_tool is not None
    for arguments, fitting in ((right, True), (wrong, False)):
        assert fits(of_tool, f"{OPEN}{arguments}{CLOSE}") == fitting
    lark = compiler.lark(f"start: %json {json.dumps(schema)}")
    assert (fits(lark, right), fits(lark, wrong)) == (True, False)


LISTS = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        (LISTS, True),
        ({**LISTS, "additionalProperties": True}, False),
        ({**LISTS, "additionalProperties": {"type": "string"}}, False),
        ({**LISTS, "patternProperties": {"^b": {"type": "string"}}}, False),
        ({"properties": LISTS["properties"], "required": ["a", "b"]}, False),
        ({**LISTS, "minProperties": 2}, False),
        ({**LISTS, "properties": {**LISTS["properties"], "c": False}}, False),
        ({"type": "object"}, False),
        ({**LISTS, "unevaluatedProperties": False}, True),
        ({**LISTS, "unevaluatedProperties": {"type": "string"}}, False),
        ({"allOf": [{"$ref": "#/$defs/own"}], "title": "One", "$defs": {"own": LISTS}}, True),
        ({"anyOf": [{"$ref": "#/$defs/own"}, {"type": "null"}], "$defs": {"own": LISTS}}, True),
        ({"type": "object", "$ref": "#/$defs/own", "$defs": {"own": LISTS}}, True),
        ({"type": "object", "anyOf": [LISTS, {"required": ["c"], "properties": {"c": {}}}]}, True),
        ({"allOf": [LISTS, {"properties": {"b": {"type": "string"}}}]}, False),
        ({**LISTS, "anyOf": [{"properties": {"b": {"type": "string"}}}]}, False),
    ],
)
def test_objects_that_list_properties_and_speak_of_no_others_have_none(
    compiler: Compiler,  # noqa: F811
    schema: dict[str, Any],
    is_closed: bool,
) -> None:
    grammar = compiler.json_schema(schema)
    assert fits(grammar, '{"a": 1}') or not is_closed
    assert fits(grammar, '{"a": 1, "b": "x"}') != is_closed


STEP = {"type": "number", "multipleOf": 1_000_003}


def test_schemas_are_mended_wherever_references_lead(compiler: Compiler) -> None:  # noqa: F811
    for schema in (
        {"$ref": "#/components/x", "components": {"x": STEP}},
        {"$ref": "#/x/0", "x": [STEP]},
        {"$ref": "#/properties/default", "properties": {"default": STEP}},
    ):
        with pytest.raises(ValueError, match="too large a step"):
            compiler.json_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/default", "default": STEP},
        {"$ref": "#/$defs/x/const", "$defs": {"x": {"const": STEP}}},
        {"$ref": "#/%64efault", "default": STEP},
        {"$ref": "#/properties", "properties": STEP},
        {
            "properties": {
                "properties": {"properties": STEP},
                "a": {"$ref": "#" + "/properties" * 3},
            }
        },
    ],
)
def test_references_to_what_is_no_schema_are_refused(
    compiler: Compiler,  # noqa: F811
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match="leads to no schema"):
        compiler.json_schema(schema)


def test_schemas_in_lark_are_mended(compiler: Compiler) -> None:  # noqa: F811
    rules = 'start: "%json {" a b\na: %json {"const": "%json 3"}\n'
    grammar = compiler.lark(
        rules + 'b: %json\n{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}'
    )
    assert fits(grammar, '%json {"%json 3"0.1')
    assert not fits(grammar, '%json {"%json 3"0')
    with pytest.raises(ValueError, match="too large a step"):
        compiler.lark(f"start: %json {json.dumps(STEP)}")
    with pytest.raises(ValueError, match="the Lark grammar cannot be followed"):
        compiler.lark('start: %json {"type": ')


def test_a_schema_has_no_options_for_the_compiler(compiler: Compiler) -> None:  # noqa: F811
    with pytest.raises(ValueError, match="uniqueItems"):
        compiler.json_schema({"uniqueItems": True, "x-guidance": {"lenient": True}})


@pytest.mark.parametrize("pattern", ["^[[a]]$", "[+--]", "[a&&b]", "[a~~b]", "[[:alpha:]]"])
def test_patterns_with_sets_of_characters_are_refused(
    compiler: Compiler,  # noqa: F811
    pattern: str,
) -> None:
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(ValueError, match="in a class of characters"):
            compiler.json_schema(schema)
    assert call_of(compiler, {"properties": {"a": {"pattern": pattern}}})({"a": "x"})


CLASSES = (
    *(r'[^"]', r"[^\\]", r'[^"\\]', r'[^<>:"/\\|?*]', r'[^"\n]', r"[^\x22]", r"[^!-/]", r'[^"a-z]'),
    *(r'[^"\\\x00-\x1f]', r'[^"\x00-\x09\x0b-\x1f]', r"[^\x00-\x22]", r'[^\S\n"]', r'[^]"a]'),
    *(r"[\x00-\x21\x23-\x7f]", "[\0-!#-~]", r"[\x00-\x1f]", r"[\x00-\x1f\\]", r'[\W"]', r"[\s\S]"),
    *(r"[]a]", r"[\n!#]", r"[a-z]", r'[a-z"]', r"[ -~]", r"[^a]", r"[^\n]", r'[^-"]', r'[^"-]'),
    *(r".", r"\W", r"\D", r"\S", r"\s", r"\w", r"\[", r"\x41", r'"', r"\\"),
    *(r'(a|[^"])', r"(\x00|[\x01-\x1f])", "(\0|[\x01-\x1f])", r"([\x00-\x0f]|[\x10-\x1f])"),
)
"""Classes of characters: most exclude the quote or the backslash, some have all control characters.
"""


@pytest.mark.parametrize("signs", CLASSES)
def test_classes_hold_what_they_say(compiler: Compiler, signs: str) -> None:  # noqa: F811
    pattern = f"^{signs}$"
    text = {"type": "string", "pattern": pattern}
    names = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    written = [each for each in map(chr, range(127)) if "u00" not in json.dumps(each)]
    wanted = [each for each in written if re.search(pattern, each)]
    lark = f"start: %json {json.dumps(text)}"
    of_tool = compiler.tools(
        [Tool("f", "", {"properties": {"a": text}, "required": ["a"]}, strict=True)],
        ToolChoice("required"),
    )
    for grammar, before, behind in (
        (compiler.json_schema(text), "", ""),
        (compiler.json_schema({**text, "maxLength": 3}), "", ""),
        (compiler.lark(lark), "", ""),
        (compiler.json_schema(names), "{", ": 1}"),
        (of_tool, f'{OPEN}{{"a": ', f"}}{CLOSE}"),
    ):
        assert grammar is not None
        held = [each for each in written if fits(grammar, f"{before}{json.dumps(each)}{behind}")]
        assert held == wanted


def test_classes_of_properties_of_characters_exclude_the_quote(compiler: Compiler) -> None:  # noqa: F811
    for pattern in (r"^\p{Cc}$", r"^\P{P}$", r"^\PP$"):
        grammar = compiler.json_schema({"type": "string", "pattern": pattern})
        assert (fits(grammar, r'"\n"'), fits(grammar, r'"\""')) == (True, False)


@pytest.mark.parametrize("signs", ["[", r"\p{"])
def test_classes_that_nothing_closes_are_refused_at_once(
    compiler: Compiler,  # noqa: F811
    signs: str,
) -> None:
    since = time.perf_counter()
    with pytest.raises(ValueError, match="the JSON schema cannot be followed"):
        compiler.json_schema({"type": "string", "pattern": signs * 16_000})
    assert time.perf_counter() - since < 2


def test_patterns_with_escaped_signs_are_kept(compiler: Compiler) -> None:  # noqa: F811
    grammar = compiler.json_schema({"type": "string", "pattern": r"^[\[a]\[[~-]--&&$"})
    assert fits(grammar, '"[[~--&&"')


def test_one_of_many_optional_properties_is_refused(compiler: Compiler) -> None:  # noqa: F811
    names = [f"p{number}" for number in range(41)]
    whole: dict[str, Any] = {"properties": {name: {"type": "integer"} for name in names}}
    whole |= {"type": "object", "additionalProperties": False}
    with pytest.raises(ValueError, match="minProperties 1 with 41 optional properties"):
        compiler.json_schema({**whole, "minProperties": 1})
    with pytest.raises(ValueError, match="minProperties 2 with 41 optional properties"):
        compiler.json_schema({**whole, "required": ["b"], "minProperties": 2})
    del whole["properties"]["p40"]
    grammar = compiler.json_schema({**whole, "minProperties": 1})
    assert fits(grammar, '{"p39": 1}')
    assert not fits(grammar, "{}")
    assert call_of(compiler, {**whole, "minProperties": 1})({})


@pytest.mark.parametrize("after", [False, True])
def test_the_order_of_keywords_does_not_matter(compiler: Compiler, after: bool) -> None:  # noqa: F811
    def ordered(**schema: Any) -> Any:
        return compiler.json_schema(dict([*schema.items()][:: -1 if after else 1]))

    grammar = ordered(additionalProperties=False, anyOf=[{}], patternProperties={"^x": {}})
    assert (fits(grammar, '{"x": 1}'), fits(grammar, '{"y": 1}')) == (True, False)
    grammar = ordered(items=[{"type": "integer"}], anyOf=[{}], additionalItems=False)
    assert (fits(grammar, "[1]"), fits(grammar, "[1, 2]")) == (True, False)


def test_reasons_end_before_traces() -> None:
    assert _reason("panic: too\n many <backtrace>\n 0: <unknown>") == "panic: too many"


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
    schema["additionalProperties"] = True
    assert mended(schema) == schema
    assert mended({"items": {"uniqueItems": False}}) == {"items": {}}
    assert mended(True) is True


def call_of(compiler: Compiler, parameters: dict[str, Any], strict: bool = False) -> Any:  # noqa: F811
    found = compiler.tools([Tool("f", "", parameters, strict)], ToolChoice("named", "f"))
    assert found is not None
    return lambda arguments: fits(found, f"{OPEN}{json.dumps(arguments)}{CLOSE}")


def test_properties_that_a_condition_names_stay_possible(compiler: Compiler) -> None:  # noqa: F811
    kind = {"properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]}
    then = {"properties": {"number": {"type": "integer"}}, "required": ["number"]}
    for asked in (
        {"if": {"properties": {"kind": {"const": "b"}}}, "then": then},
        {"dependentSchemas": {"kind": then}},
    ):
        assert call_of(compiler, {**kind, **asked})({"kind": "b", "number": 1})


def test_counts_that_meet_very_many_names_are_refused_at_once(
    compiler: Compiler,  # noqa: F811
) -> None:
    names = {f"p{number}": {"type": "integer"} for number in range(201)}
    whole = {"type": "object", "properties": names, "additionalProperties": False}
    for schema in (
        {"allOf": [whole, {"minProperties": 1}]},
        {"$ref": "#/$defs/own", "minProperties": 1, "$defs": {"own": whole}},
    ):
        with pytest.raises(ValueError, match="more than 200 names of properties"):
            compiler.json_schema(schema)
        assert call_of(compiler, schema)({"p7": 1})


def test_counts_of_properties_are_left_out_of_tools(compiler: Compiler) -> None:  # noqa: F811
    text = {"type": "string"}
    fitting = call_of(compiler, {"properties": {"a": text}, "minProperties": 1})
    assert fitting({"a": "x"})
    fitting = call_of(compiler, {"properties": {"a": text, "b": text}, "maxProperties": 1})
    assert fitting({"a": "x"})
    with pytest.raises(ValueError, match="tool f cannot be followed: min/maxProperties"):
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


def test_a_tool_that_asks_for_more_properties_than_it_lists_may_have_others(
    compiler: Compiler,  # noqa: F811
) -> None:
    fitting = call_of(compiler, {"properties": {"a": {"type": "string"}}, "minProperties": 2})
    assert fitting({"a": "x", "b": 1})
    fitting = call_of(compiler, {"properties": {"a": {"type": "string"}}})
    assert not fitting({"a": "x", "b": 1})


def test_a_class_that_knows_its_schema_is_taken_for_it(compiler: Compiler) -> None:  # noqa: F811
    class Place:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return LISTS

    params = draftwood.SamplingParams(json_schema=Place)
    grammar = compiler.json_schema(Place)
    assert params.json_schema is Place
    assert fits(grammar, '{"a": 1}')
    assert not fits(grammar, '{"a": "x"}')

    class Odd:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            raise AttributeError("no\nfields")

    with pytest.raises(ValueError, match=r"^the class Odd has no JSON schema: no fields$"):
        compiler.json_schema(Odd)
    with pytest.raises(TypeError, match="a class of Pydantic, got type"):
        draftwood.SamplingParams(json_schema=int)  # type: ignore[arg-type]
