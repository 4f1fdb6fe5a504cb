"""Chats in templates like those of real models, beside what Transformers writes."""

import dataclasses
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import Environment, TemplateError
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from small_tokenizers import byte_level
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from draftwood.sources import stored_prior
from draftwood.text.prompts import ChatTemplateError, encode_chat
from draftwood.tokenizer import Tokenizer
from draftwood.tokenizer.chat_template import plain, render

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
Message = Mapping[str, Any]

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{% endif %}
"""

LLAMA2 = """{%- if messages[0]['role'] == 'system' -%}
    {%- set system = '<<SYS>>\n' + messages[0]['content'] | trim + '\n<</SYS>>\n\n' -%}
    {%- set messages = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + (system if loop.index0 == 0 else '') }}
        {{- message['content'] | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' -%}
        {{ ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- else -%}
        {{ raise_exception('Only user and assistant roles are supported, got ' ~ message['role']) }}
    {%- endif -%}
{%- endfor -%}
"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- 'You have access to the following functions. ' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{%- continue %}{%- endif %}
    {%- generation %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.reasoning_content is defined %}
        {{- '<think>' + message.reasoning_content + message.thinking + '</think>\n' }}
    {%- endif %}
    {{- (message.content or '') ~ loop.index0 ~ ns.last_query_index }}
    {%- endgeneration %}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.name ~ dict(call.function.arguments) | tojson(sort_keys=true) }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

TEMPLATES = {
    **{"chatml": CHATML, "llama-2": LLAMA2, "llama-3": LLAMA3, "gemma": GEMMA, "qwen-3": QWEN3},
    "several": {"default": CHATML, "tool_use": LLAMA3},
}
USER, ANSWER = {"role": "user", "content": " What <s> is 'é' & \"<b>\"?\n"}, "It is 😀.\n"
CALL = {"type": "function", "function": {"name": "look", "arguments": {"b": "<é>", "a": [1, 2.5]}}}
CHATS: dict[str, list[Message]] = {
    "one turn": [USER],
    "system": [{"role": "system", "content": "Be brief. "}, USER],
    "several turns": [USER, {"role": "assistant", "content": ANSWER}, USER],
    "tool": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": {"seen": "<é>"}, "name": "look"},
    ],
    "out of order": [USER, USER],
    "unknown role": [USER, {"role": "critic", "content": "no"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "hi "}]}],
    "reasoning": [USER, {"role": "assistant", "content": ANSWER, "reasoning": "because"}, USER],
    "thinking": [USER, {"role": "assistant", "content": ANSWER, "thinking": "as"}, USER],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks <here> & 'there'",
        "parameters": {"type": "object", "properties": {"a": {"type": "array"}}},
    },
}


def both(template: Any) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    usual = PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(byte_level()), **NAMED)
    usual.chat_template = template
    return Tokenizer(Backend.from_str(byte_level()), NAMED, (), template), usual


def said(tokenizer: Any, chat: Sequence[Message], **options: Any) -> Any:
    """Write a chat in a template, or tell how that refuses it."""
    try:
        return tokenizer.apply_chat_template(chat, **options)
    except (TemplateError, TypeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("tools", [None, [TOOL], [TOOL, TOOL]], ids=["no tools", "a tool", "two"])
def test_chats_are_written_as_transformers_writes_them(
    template: str, chat: str, tools: list[dict[str, Any]] | None
) -> None:
    ours, usual = both(TEMPLATES[template])
    for begun in (False, True):
        options: dict[str, Any] = {"tools": tools, "add_generation_prompt": begun}
        for more in ({"tokenize": False}, {"return_dict": False}, {"enable_thinking": False}):
            wanted = said(usual, CHATS[chat], **options, **more)
            found = said(ours, CHATS[chat], **options, **more)
            assert found == (dict(wanted) if isinstance(found, dict) else wanted)


def test_the_chats_reach_every_answer() -> None:
    """Negative control: some of them are refused, and templates differ."""
    ours = {name: both(template)[0] for name, template in TEMPLATES.items()}
    told = {
        (name, chat): said(ours[name], CHATS[chat], tokenize=False)
        for name in TEMPLATES
        for chat in CHATS
    }
    refused = {key for key, each in told.items() if isinstance(each, tuple)}
    assert ("llama-2", "out of order") in refused
    assert told["llama-2", "out of order"][1].startswith("Conversation roles must alternate")
    assert ("chatml", "out of order") not in refused
    assert len(set(map(str, told.values()))) > len(told) / 2


def test_a_planted_fault_is_found() -> None:
    """Negative control: Jinja's own filter writes HTML, and its own options other line breaks."""
    wanted = render(LLAMA3, [USER], [TOOL], NAMED)
    usual = Environment().from_string(LLAMA3)
    usual.globals["strftime_now"] = lambda form: "today"
    assert "Looks <here>" in wanted
    assert "Looks \\u003chere" in usual.render(messages=[USER], tools=[TOOL], **NAMED)
    assert Environment().from_string(CHATML).render(messages=[USER]) != render(
        CHATML, [USER], None, {}
    )


def test_a_template_by_name_or_of_the_caller() -> None:
    ours, usual = both(TEMPLATES["several"])
    for template in ("tool_use", "default", "{{ messages[0].role }}"):
        options: dict[str, Any] = {"chat_template": template, "tokenize": False}
        assert said(ours, [USER], **options) == said(usual, [USER], **options)
    ours.chat_template = {"one": CHATML}
    with pytest.raises(ValueError, match="no default chat template but one"):
        ours.apply_chat_template([USER])
    ours.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        ours.apply_chat_template([USER])
    with pytest.raises(ValueError, match="at least one message"):
        ours.apply_chat_template([])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__init__ }}",
        "{{ namespace(_a=1) }}",
        "{% set n = namespace() %}{% set n._a = 1 %}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (messages | map(attribute='__class__') | list) }}",
    ],
)
def test_templates_stay_in_their_sandbox(template: str) -> None:
    """They are refused, or see nothing."""
    ours, usual = both(template)
    found = said(ours, [USER], tokenize=False)
    assert found in ("", "[Undefined]") or found[0] is SecurityError
    wanted = said(usual, [USER], tokenize=False)
    assert type(found) is type(wanted)
    assert found == wanted or found[0] is wanted[0]


def test_a_template_that_is_no_jinja_is_refused() -> None:
    with pytest.raises(TemplateSyntaxError):
        render("{% for %}", [USER], None, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ 'a' * 10 ** 17 }}",
        "{% for a in messages %}" * 25 + "{% endfor %}" * 25,
        "{{ 1 // 0 }}",
    ],
)
def test_templates_that_ask_for_too_much_refuse_the_chat(template: str) -> None:
    """The reason takes one line; texts go without the template."""
    ours = Tokenizer(Backend.from_str(byte_level()), NAMED, (), template)
    with pytest.raises(ChatTemplateError, match=r"refuses these messages: \S.*a raw prompt"):
        encode_chat(ours, [USER])
    answer = ours.encode(stored_prior.ANSWER, False)
    assert stored_prior.usual_text(ours) == [1, *answer]


def test_templates_see_plain_data_alone() -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    class Model:
        def model_dump(self) -> dict[str, int]:
            return {"y": 1}

    class Text(str):
        def write(self) -> str:
            return "danger"

    given = {"p": Point(1), "m": Model(), "t": (Text("a"), np.bool_(False)), "o": object(), 1: None}
    assert plain(given) == {
        "p": {"x": 1},
        "m": {"y": 1},
        "t": ("a", False),
        "o": "<object>",
        1: None,
    }
    assert type(plain(Text("a"))) is str
    assert type(plain(np.float64(1))) is float
    ours, usual = both("{{ messages }}")
    chat: list[Message] = [{"role": "user", "content": [given], "of": Text("a")}]
    assert said(ours, chat, tokenize=False) == said(usual, chat, tokenize=False)


def test_jinja_is_imported_with_the_first_chat(tmp_path: Path) -> None:
    code = """
import sys
from draftwood.tokenizer.chat_template import render
assert "jinja2" not in sys.modules
assert render("{{ messages[0].a }}", [{"a": 1}], None, {}) == "1"
assert not {"torch", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
