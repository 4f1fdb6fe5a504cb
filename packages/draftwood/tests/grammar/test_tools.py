"""Tools: how they are given, told, asked for and read."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tokenizers import AddedToken

from draftwood.grammar import Compiler, Grammar, Tool, ToolChoice, with_tools
from draftwood.grammar.compiler import RECENT
from draftwood.grammar.tools import tools_note, with_read_arguments
from draftwood.text.prompts import encode_chat
from draftwood_serve.tool_calls import CallDelta, ContentDelta, ToolCall, ToolReader, read_calls
from draftwood_serve.tool_requests import read_tools
from small_models import bytes_and_pairs

TOKENIZER = bytes_and_pairs()
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Of a city.", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "name": "now"}]
AUTO = ToolChoice("auto")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome }\\" {"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(TOKENIZER, len(TOKENIZER), frozenset({TOKENIZER.eos_token_id}))


def fits(grammar: Grammar, text: str) -> bool:
    state: Any = grammar.start()
    for token in TOKENIZER(text)["input_ids"]:
        state = None if state is None else state.after(token)
    return state is not None and state.may_end


def test_tools_are_read_in_both_forms() -> None:
    tools, choice = read_tools(TOOLS)
    assert tools[0] == Tool("weather", "Of a city.", CITY)
    assert (tools[1].name, tools[1].parameters["properties"]) == ("now", {})
    assert choice == ToolChoice("auto")
    assert read_tools(None)[1].mode == "none"
    assert read_tools(TOOLS, "required", False)[1] == ToolChoice("required", parallel=False)
    for named in (
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "name": "now"},
    ):
        assert read_tools(TOOLS, named)[1] == ToolChoice("named", "now", parallel=False)


def test_what_was_asked_for_not_long_ago_is_not_compiled_again(compiler: Compiler) -> None:
    tools, choice = read_tools(TOOLS)
    first = compiler.tools(tools, choice, CITY)
    assert compiler.tools(list(tools), choice, dict(CITY)) is first
    others = [compiler.tools(tools, choice), compiler.tools(tools, ToolChoice("required"), CITY)]
    others.append(compiler.tools(tools[:1], choice, CITY))
    assert all(each is not first for each in others)
    schema = compiler.json_schema(CITY)
    assert compiler.json_schema(json.dumps(CITY)) is schema is compiler.json_schema(dict(CITY))
    for number in range(RECENT):
        compiler.json_schema({"const": number})
    assert compiler.json_schema(CITY) is not schema


@pytest.mark.parametrize(
    ("tools", "choice", "reason"),
    [
        ("weather", None, "list"),
        ([3], None, r"tools\[0\]"),
        ([{"type": "web_search"}], None, "'function'"),
        ([{"type": "function", "function": {}}], None, "needs a name"),
        ([{"type": "function", "name": "a b"}], None, "needs a name"),
        ([{"type": "function", "name": "a", "parameters": {"type": "string"}}], None, "object"),
        ([{"type": "function", "name": "a", "parameters": []}], None, "object"),
        ([{"type": "function", "name": "a", "description": 3}], None, "description"),
        ([TOOLS[1], TOOLS[1]], None, "different names"),
        ([TOOLS[1]] * 200, None, "at most"),
        (TOOLS, "sometimes", "tool_choice"),
        (TOOLS, {"type": "function", "name": "later"}, "none of the tools"),
        ([], "required", "needs tools"),
    ],
)
def test_what_is_no_tool_is_refused(tools: Any, choice: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_tools(tools, choice)


@pytest.mark.parametrize(
    ("choice", "allowed", "forbidden"),
    [
        (
            ToolChoice("auto"),
            ["", "Hi <b>", CALL, f"I look.\n{CALL}\n{NOW}", f"{CALL} done"],
            [CALL[:-1], CALL.replace("city", "town"), NOW.replace("now", "later")],
        ),
        (
            ToolChoice("auto", parallel=False),
            ["", "Hi", CALL, f"Well: {CALL}"],
            [
                *(CALL[:-3], CALL.replace('"Rome }\\" {"', "3")),
                *(f"{CALL}\n{NOW}", f"{CALL} And?", f"{CALL}\n{NOW.replace('now', 'later')}"),
            ],
        ),
        (ToolChoice("required"), [CALL, f"{CALL}\n{NOW}"], ["", "Hi", f"Hi {CALL}", f"{CALL} x"]),
        (ToolChoice("required", parallel=False), [CALL, NOW], ["Hi", f"{CALL}\n{NOW}"]),
        (ToolChoice("named", "now", parallel=False), [NOW], [CALL, "", f"{NOW}\n{NOW}"]),
    ],
)
def test_the_grammar_is_that_of_the_choice(
    compiler: Compiler, choice: ToolChoice, allowed: list[str], forbidden: list[str]
) -> None:
    tools = [Tool("weather", "", {**CITY, "additionalProperties": False}), Tool("now")]
    grammar = compiler.tools(tools, choice)
    assert grammar is not None
    assert [text for text in allowed if not fits(grammar, text)] == []
    assert [text for text in forbidden if fits(grammar, text)] == []


def with_tags(special: bool) -> Any:
    """The same tokenizer with a token for each tag."""
    made = bytes_and_pairs()
    tags = [AddedToken(tag, special=special) for tag in (Tool.opening, Tool.closing)]
    made.add_tokens(tags, special_tokens=special)
    return made


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tags_that_are_tokens_are_written_as_these(mode: Any) -> None:
    tokenizer = with_tags(special=False)
    opening, closing = tokenizer.convert_tokens_to_ids([Tool.opening, Tool.closing])
    compiler = Compiler(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))
    grammar = compiler.tools([Tool("now")], ToolChoice(mode))
    assert grammar is not None
    state: Any = grammar.start()
    assert state.allowed()[opening]
    assert (state.forced()[:1] == [opening]) == (mode == "required")
    tokens = tokenizer(NOW)["input_ids"]
    assert (tokens[0], tokens[-1]) == (opening, closing)
    spelled = [*tokens[:-1], *TOKENIZER(Tool.closing)["input_ids"]]
    for written in (tokens, spelled):
        state = grammar.start()
        for token in written:
            assert state.allowed()[token]
            state = state.after(token)
        assert state.may_end
    wrong = grammar.start().after(opening).after(tokens[1])  # type: ignore[union-attr]
    assert wrong is not None
    assert not wrong.allowed()[opening]


def test_text_in_brackets_that_is_a_token_may_be_asked_for() -> None:
    tokenizer = with_tags(special=False)
    compiler = Compiler(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))
    state: Any = compiler.regex("<tool_call>a").start()
    for token in TOKENIZER("<tool_call>a")["input_ids"]:
        assert state.forced()[0] == token
        state = state.after(token)
    assert state.must_end


def test_no_tools_no_grammar(compiler: Compiler) -> None:
    assert compiler.tools([], ToolChoice("auto")) is None
    assert compiler.tools([Tool("now")], ToolChoice("none")) is None


def test_strict_tools_refuse_what_others_leave_out(compiler: Compiler) -> None:
    unkept = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert compiler.tools([Tool("now", "", unkept)], ToolChoice("required")) is not None
    with pytest.raises(ValueError, match="uniqueItems"):
        compiler.tools([Tool("now", "", unkept, strict=True)], ToolChoice("required"))


def alone(value: dict[str, Any]) -> dict[str, Any]:
    """Parameters of one name, which has to be there."""
    return {"type": "object", "properties": {"a": value}, "required": ["a"]}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (alone({"type": "strin"}), "Invalid type: strin"),
        (alone({"$ref": "#/$defs/X"}), "'/\\$defs/X' does not exist"),
        (alone({"type": "integer", "minimum": 5, "maximum": 3}), "'a' is unsatisfiable"),
        (alone({"enum": []}), "'a' is unsatisfiable"),
        (
            {"properties": {}, "required": ["b"], "additionalProperties": False},
            "'b' is unsatisfiable",
        ),
    ],
)
def test_mistakes_in_parameters_are_told_of_every_tool(
    compiler: Compiler, parameters: dict[str, Any], reason: str, strict: bool
) -> None:
    tools = [Tool("now"), Tool("later", "", parameters, strict)]
    told = f"^the parameters of the tool later cannot be followed: [^|]*{reason}$"
    with pytest.raises(ValueError, match=told):
        compiler.tools(tools, ToolChoice("required"))


def test_alternatives_that_may_be_two_are_any_of_them_where_a_tool_is_not_strict(
    compiler: Compiler,
) -> None:
    either = alone({"oneOf": [{"type": "integer"}, {"type": "number"}]})
    grammar = compiler.tools([Tool("now", "", either)], ToolChoice("required"))
    assert grammar is not None
    called = [NOW.replace("{}", f'{{"a": {each}}}') for each in ("1.5", "true")]
    assert [fits(grammar, each) for each in called] == [True, False]


@pytest.mark.parametrize("parallel", [True, False])
def test_an_answer_is_calls_or_fits_its_schema(compiler: Compiler, parallel: bool) -> None:
    schema = {"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]}
    grammar = compiler.tools([Tool("now")], ToolChoice("auto", parallel=parallel), schema)
    assert grammar is not None
    assert grammar.begins_at_once
    assert fits(grammar, NOW)
    assert fits(grammar, f"{NOW}\n{NOW}") == parallel
    assert fits(grammar, '{"rain": true}')
    wrong = ["", "Hi", f"Hi {NOW}", '{"rain": 3}', f'{NOW}\n{{"rain": true}}', '{"rain": true}Hi']
    assert [each for each in wrong if fits(grammar, each)] == []
    required = compiler.tools([Tool("now")], ToolChoice("required"), schema)
    assert required is not None
    assert not fits(required, '{"rain": true}')


@pytest.mark.parametrize("arguments", ["{", "[" * 5000 + "]" * 5000])
def test_arguments_that_cannot_be_read_stay_a_text(arguments: str) -> None:
    call = {"function": {"name": "now", "arguments": arguments}}
    (told,) = with_read_arguments({"tool_calls": [call]})["tool_calls"]
    assert told["function"] == {"name": "now", "arguments": arguments}


def numbers() -> Any:
    return iter(f"call_{number}" for number in range(9)).__next__


TEXTS = {
    "plain <tool text": ("plain <tool text", []),
    f"I look.\n{CALL}\n{NOW}": (
        "I look.",
        [
            ToolCall("call_0", "weather", '{"city": "Rome }\\" {"}'),
            ToolCall("call_1", "now", "{}"),
        ],
    ),
    f"{CALL} And?": (" And?", [ToolCall("call_0", "weather", '{"city": "Rome }\\" {"}')]),
    "<tool_call>\nnonsense</tool_call>": ("<tool_call>\nnonsense</tool_call>", []),
    NOW.replace("now", "\\x"): (NOW.replace("now", "\\x"), []),
    NOW.replace("{}", "null"): (NOW.replace("{}", "null"), []),
    "so <tool_call>\n{": ("so", []),
    'so <tool_call>{"name" : "no': ("so", []),
    'so <tool_call>\n{"name": "now", "argu': ("so", []),
    f"{NOW}\n<tool_": ("", [ToolCall("call_0", "now", "{}")]),
    "so <tool": ("so ", []),
    "so <tool_call>\n[1": ("so <tool_call>\n[1", []),
    'so <tool_call>{"title": "': ('so <tool_call>{"title": "', []),
    "a\n <tool_call>b</tool_call>": ("a\n <tool_call>b</tool_call>", []),
    CALL[:60]: ("", [ToolCall("call_0", "weather", '{"city": "Rome ')]),
    "  \n": ("  \n", []),
}


@pytest.mark.parametrize("text", TEXTS)
def test_calls_are_read_whole_and_in_any_pieces(text: str) -> None:
    wanted = TEXTS[text]
    assert read_calls(text, numbers()) == wanted
    for size in (1, 2, 3, 7, 20):
        reader = ToolReader(numbers())
        deltas = [
            delta
            for place in range(0, len(text), size)
            for delta in reader.feed(text[place : place + size])
        ]
        deltas += reader.finish()
        content = "".join(each.text for each in deltas if isinstance(each, ContentDelta))
        calls = [each for each in deltas if isinstance(each, CallDelta)]
        assert content == wanted[0]
        for number, call in enumerate(wanted[1]):
            own = [each for each in calls if each.index == number]
            assert [(own[0].id, own[0].name)] == [(call.id, call.name)]
            assert all(each.id is None and each.name is None for each in own[1:])
            assert "".join(each.arguments for each in own) == call.arguments
        assert {each.index for each in calls} == set(range(len(wanted[1])))


def test_arguments_come_while_they_are_written() -> None:
    reader = ToolReader(numbers())
    assert reader.feed(CALL[:50]) == [
        CallDelta(0, "call_0", "weather"),
        CallDelta(0, arguments='{"cit'),
    ]


HISTORY = [
    {"role": "user", "content": "Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "rain"},
]


def test_tools_and_calls_are_told_in_messages() -> None:
    tools, choice = read_tools(TOOLS)
    told = with_tools(HISTORY, tools, choice)
    assert [each["role"] for each in told] == ["system", "user", "assistant", "user"]
    assert json.dumps(tools[0].as_json()) in told[0]["content"]
    assert read_calls(told[2]["content"])[1][0].arguments == '{"city": "Rome"}'
    assert "rain" in told[3]["content"]
    own = with_tools([{"role": "system", "content": "Be brief."}, *HISTORY], tools, choice)
    assert own[0]["content"].startswith("Be brief.\n\n# Tools")
    assert "now" not in with_tools(HISTORY, tools, ToolChoice("none"))[0]["content"]


SAID = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ '\\n' }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
LEFT_OUT = "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}"


@pytest.mark.parametrize(
    ("before", "asker"), [("", "system"), (NO_SYSTEM, "user"), (LEFT_OUT, "user")]
)
def test_templates_without_a_system_have_tools_in_the_first_question(
    before: str, asker: str
) -> None:
    tokenizer = bytes_and_pairs()
    tokenizer.chat_template = before + SAID
    tools, choice = read_tools(TOOLS)
    question = [{"role": "user", "content": "Rome?"}]
    text = tokenizer.decode(encode_chat(tokenizer, question, tools, choice))
    note = tools_note(tools, choice)
    if asker == "system":
        assert text == f"system: {note}\nuser: Rome?\n"
    else:
        assert text == f"user: {note}\n\nRome?\n"
    unasked = tokenizer.decode(encode_chat(tokenizer, question, tools, ToolChoice("none")))
    assert unasked == "user: Rome?\n"


def test_a_system_message_of_the_user_is_refused_as_before() -> None:
    tokenizer = bytes_and_pairs()
    tokenizer.chat_template = NO_SYSTEM + SAID
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rome?"}]
    with pytest.raises(ValueError, match="no system"):
        encode_chat(tokenizer, said, *read_tools(TOOLS))
    tokenizer.chat_template = LEFT_OUT + SAID
    text = tokenizer.decode(encode_chat(tokenizer, said, *read_tools(TOOLS)))
    assert text.startswith("user: # Tools")
    assert text.endswith("Rome?\n")


def test_results_and_what_the_user_says_then_are_one_message() -> None:
    tools, choice = read_tools(TOOLS)
    again = {"role": "tool", "tool_call_id": "call_1", "content": "at n\u00f6on"}
    asked = {"role": "user", "content": "And now?"}
    told = with_tools([*HISTORY, again, asked, asked], tools, choice)
    assert [each["role"] for each in told] == ["system", "user", "assistant", "user", "user"]
    results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nat n\u00f6on\n"
    assert told[3]["content"] == f"{results}</tool_response>\nAnd now?"
    assert HISTORY[-1]["content"] == "rain"


def test_letters_are_shown_as_they_are() -> None:
    tools = [Tool("f", "Z\u00fcrich")]
    call = {"name": "f", "arguments": {"a": "\u00e9"}}
    told = with_tools([{"role": "assistant", "content": None, "tool_calls": [call]}], tools, AUTO)
    assert "Z\u00fcrich" in told[0]["content"]
    assert '"\u00e9"' in told[1]["content"]


HALF = "\ud83d"
GREETING: Mapping[str, Any] = {"role": "user", "content": "hi"}
SHOWN = '<tool_call>{"name": "", "arguments": {}}'


@pytest.mark.parametrize("template", [SAID, "{{ tools | tojson }}{{ messages[0].role }}" + SHOWN])
@pytest.mark.parametrize(
    ("message", "tool"),
    [
        (GREETING, Tool("f", HALF)),
        (GREETING, Tool("f", "", {"type": "object", "title": HALF})),
        ({**GREETING, "role": HALF}, Tool("f")),
    ],
)
def test_half_a_character_is_told(template: str, message: Mapping[str, Any], tool: Tool) -> None:
    tokenizer = bytes_and_pairs()
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"the chat holds a lone surrogate, U\+D83D"):
        encode_chat(tokenizer, [message], [tool])


@pytest.mark.parametrize("arguments", ['{"a": "\\ud83d"}', '{"a": ["b", {"\\udc00": 1}]}'])
def test_a_call_with_half_a_character_holds_up_no_chat(arguments: str) -> None:
    """A model may write it; it stays as spelled."""
    tokenizer = bytes_and_pairs()
    tokenizer.chat_template = (
        SHOWN + "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    texts = []
    for told in (arguments, '{"a": "\\u00e9"}'):
        function = {"name": "f", "arguments": told}
        call = {"id": "1", "type": "function", "function": function}
        said = [GREETING, {"role": "assistant", "content": None, "tool_calls": [call]}]
        texts.append(tokenizer.decode(encode_chat(tokenizer, said)))
    assert texts == [f"{SHOWN}None{arguments}", f"{SHOWN}None{{'a': 'é'}}"]


def test_templates_that_know_tools_are_given_them() -> None:
    tokenizer = bytes_and_pairs()
    tokenizer.chat_template = (
        "{% if tools %}" + SHOWN + " {{ tools | length }} {% endif %}{% for m in messages %}"
        "{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments.city }}{% endfor %};{% endfor %}"
    )
    tools, _ = read_tools(TOOLS)

    def text(**options: Any) -> str:
        return tokenizer.decode(encode_chat(tokenizer, HISTORY, **options))

    assert text(tools=tools) == f"{SHOWN} 2 user:Rome?;assistant:Rome;tool:rain;"
    assert text(tools=tools, choice=ToolChoice("none")) == "user:Rome?;assistant:Rome;tool:rain;"
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    assert text(tools=tools).startswith("system:# Tools")
    assert "None" not in text()


@pytest.mark.parametrize("other", ["default", "rag"])
def test_the_template_for_tools_is_asked_where_there_are_any(other: str) -> None:
    """Tools are told by the template for them, of several by name."""
    tokenizer: Any = bytes_and_pairs()
    shown = "{% if tools %}" + SHOWN + "{% endif %}" + SAID
    tokenizer.chat_template = {other: f"{other} {SAID}", "tool_use": shown}
    tools, _ = read_tools(TOOLS)
    question = [{"role": "user", "content": "Rome?"}]
    assert tokenizer.decode(encode_chat(tokenizer, question, tools)) == f"{SHOWN}user: Rome?\n"
    tokenizer.chat_template = {"tool_use": f"other {SAID}", "default": shown}
    told = tokenizer.decode(encode_chat(tokenizer, question, tools))
    assert told.startswith("system: # Tools")  # without tools of its own it is the usual one
    if other == "default":
        tokenizer.chat_template = {"default": f"plain {SAID}", "tool_use": shown}
        assert tokenizer.decode(encode_chat(tokenizer, question)) == "plain user: Rome?\n"


OTHER_FORMS = (
    "<function=example_function_name>\n<parameter=a>\n1\n</parameter>\n</function>",
    "{function-name}\n<arg_key>{a}</arg_key>\n<arg_value>1</arg_value>",
    '{{ "name" }}<arg_key>{{ "arguments" }}</arg_key>',
    "name[ARGS]{}",
)


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_templates_with_calls_of_another_form_are_given_no_tools(form: str) -> None:
    tokenizer = bytes_and_pairs()
    called = "{% for c in m.tool_calls or [] %}XML{% endfor %}{% endfor %}"
    tokenizer.chat_template = (
        f"{{% if tools %}}# Own tools\n<tool_call>\n{form}\n</tool_call>\n{{% endif %}}"
        + SAID.replace("{% endfor %}", called)
    )
    tools, choice = read_tools(TOOLS)
    text = tokenizer.decode(encode_chat(tokenizer, HISTORY, tools, choice))
    assert text == "".join(
        f"{each['role']}: {each['content']}\n" for each in with_tools(HISTORY, tools, choice)
    )
    assert text.startswith(f"system: {tools_note(tools, choice)}\n")
    assert read_calls(text.rpartition("user: Rome?")[2])[1][0].name == "weather"


@pytest.mark.parametrize(
    "form",
    [
        '{{ \'<tool_call>\\n{"name": "\' }}{{ \'", "arguments": \' }}',
        '{{ "<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <object>}" }}',
        '<tool_call>\n{{ \'{\' }}"arguments": <object>, "name": <function-name>}',
    ],
)
def test_calls_in_json_are_known_in_every_spelling_of_a_template(form: str) -> None:
    tokenizer = bytes_and_pairs()
    tokenizer.chat_template = f"{{% if tools %}}Own tools {form}{{% endif %}}{SAID}"
    tools, choice = read_tools(TOOLS)
    text = tokenizer.decode(encode_chat(tokenizer, [GREETING], tools, choice))
    assert text.startswith("Own tools ")
    assert text.endswith("user: hi\n")
