"""Answers that must begin at once are no thoughts, though the chat template opens one."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from draftwood import methods
from draftwood.grammar import Tool, ToolChoice
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama
from draftwood.text.builder import TextBuilder
from draftwood.text.language_model import LanguageModel
from draftwood.text.thoughts import OTHERS, Tags
from draftwood.tokenizer.chat_template import _open_names
from small_models import bytes_and_pairs

ASKED = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
SCHEMA["additionalProperties"] = False


def thinking(opening: str, special: Sequence[str] = ()) -> LanguageModel:
    """A model whose chat template ends with these signs, and which has these special tokens."""
    tokenizer = bytes_and_pairs()
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    tokenizer.chat_template = ASKED + opening
    target = NativeModel(tiny_llama(0, vocab=len(tokenizer), context=512))
    return LanguageModel(target, tokenizer, methods.build("plain", target), "tiny")


def prompt_of(lm: LanguageModel, prompt: Any, **options: Any) -> str:
    stream = lm.stream(prompt, max_new_tokens=20, **options)
    list(stream)
    return lm.tokenizer.decode(stream.sequence.prompt)


@pytest.mark.parametrize(
    ("opening", "closed"),
    [
        ("<think>{{ '\\n' }}", "<think>\n\n</think>\n\n"),
        ("<seed:think>", "<seed:think>\n</seed:think>\n\n"),
        ("<think></think>", "<think></think>"),
        ("assistant:", "assistant:"),
    ],
)
def test_a_schema_closes_a_thought_that_is_open(opening: str, closed: str) -> None:
    lm = thinking(opening)
    assert prompt_of(lm, "x", json_schema=SCHEMA) == f"user: x;{closed}"
    assert prompt_of(lm, lm.encode("x"), grammar=lm.grammars.json_schema(SCHEMA)).endswith(closed)
    several = lm.generate(["x", "y"], n=2, json_schema=SCHEMA, max_new_tokens=40, temperature=1)
    alone = lm.generate(f"user: x;{closed}", raw=True, json_schema=SCHEMA, max_new_tokens=40)
    assert lm.generate("x", json_schema=SCHEMA, max_new_tokens=40).token_ids == alone.token_ids
    assert {each.text.replace("\n", "").replace(" ", "").replace("\t", "") for each in several} == {
        '{"a":1}'
    }


def test_answers_that_may_hold_a_thought_go_on_with_it() -> None:
    lm, tools = thinking("<think>"), [Tool("f")]
    grammars, free = lm.grammars, "user: x;<think>"
    assert prompt_of(lm, "x") == free
    assert prompt_of(lm, "x", grammar='start: /.*/ "</think>"') == free
    assert prompt_of(lm, "x", grammar=grammars.tools(tools, ToolChoice("auto"))) == free
    for choice in (ToolChoice("required"), ToolChoice("named", "f")):
        told = prompt_of(lm, "x", grammar=grammars.tools(tools, choice))
        assert told == f"{free}\n</think>\n\n"
    assert prompt_of(lm, "x<think>", json_schema=SCHEMA, raw=True) == "x<think>"


@pytest.mark.parametrize(
    ("ending", "found"),
    [
        ("<think>{{ '\\n' }}", ("<think>", "</think>", True, "")),
        ("<seed:think>", ("<seed:think>", "</seed:think>", True, "")),
        ("{{ messages[0].content.split('</think>')[0] }}:", ("<think>", "</think>", False, "")),
        ("<think></think>", ("<think>", "</think>", False, "")),
        ("assistant:", None),
    ],
)
def test_templates_tell_whether_a_model_thinks(
    ending: str, found: tuple[str, str, bool, str] | None
) -> None:
    lm = thinking(ending)
    assert lm.thought(lm.encode("x")) == found
    lm.tokenizer.chat_template = None
    assert lm.thought(lm.encode("x")) is None


CHANNELS = OTHERS[0]
"""Tags of gpt-oss: an answer without a thought begins with some too."""


def with_tags(tags: Tags) -> LanguageModel:
    """A model whose chat template names tags of special tokens."""
    return thinking("assistant:{#" + tags.opening + "#}", special_in(tags))


def special_in(tags: Tags) -> list[str]:
    return re.findall(r"<\|?\w+\|?>|\[/?\w+\]", "".join(tags))


@pytest.mark.parametrize("tags", OTHERS)
def test_tags_of_special_tokens_are_part_of_the_text(tags: Tags) -> None:
    lm = with_tags(tags)
    assert {*lm.shown_tokens.values()} == {*special_in(tags)}
    thought = lm.thought(lm.encode("x"))
    assert thought == (tags.opening, tags.closing, False, tags.answer)
    opened = lm.encode(f"x{tags.opening}", raw=True)
    assert lm.thought(opened) == (tags.opening, tags.closing, True, tags.answer)
    for written, said in (
        (f"{tags.opening}so{tags.closing}yes", "yes"),
        (f"{tags.answer}yes", "yes"),
        (f"{tags.opening}so", ""),
    ):
        tokens = lm.tokenizer(written, add_special_tokens=False)["input_ids"]
        builder = TextBuilder(lm.tokenizer, behind=lm.encode("x"), shown=lm.shown_tokens)
        for token in tokens:
            builder.add([token])
        builder.finish()
        assert builder.text == written
        assert thought.said(builder.text) == said
        hidden = re.sub("|".join(map(re.escape, special_in(tags))), "", written)
        assert TextBuilder.whole(lm.tokenizer, tokens) == hidden


def test_answers_show_tags_and_raw_texts_none() -> None:
    lm = with_tags(CHANNELS)
    written = lm.tokenizer("".join(CHANNELS), add_special_tokens=False)["input_ids"]
    for raw, text in ((False, "".join(CHANNELS)), (True, "analysisassistantfinalfinal")):
        stream = lm.stream("x", raw=raw)
        (builder,) = stream.sequence.stops
        builder.add(written)
        assert builder.text == text


def test_a_grammar_begins_behind_the_tags_that_it_cannot_write() -> None:
    lm = with_tags(CHANNELS)
    free = "user: x;assistant:"
    for grammar in (
        lm.grammars.json_schema(SCHEMA),
        lm.grammars.tools([Tool("f")], ToolChoice("auto")),
    ):
        stream = lm.stream("x", grammar=grammar, max_new_tokens=1)
        found = lm.tokenizer.decode(stream.sequence.prompt, skip_special_tokens=False)
        assert found == free + CHANNELS.answer
    found = lm.generate("x", json_schema=SCHEMA, max_new_tokens=40, n=3, temperature=1)
    assert [json.loads(each.text) for each in found.answers] == [{"a": 1}] * 3


def test_a_stop_string_may_stand_beside_a_tag_that_is_shown() -> None:
    lm = with_tags(CHANNELS)
    stop = f"so{CHANNELS.closing}"
    stream = lm.stream("x", stop=[stop])
    (builder,) = stream.sequence.stops
    builder.add(lm.tokenizer(f"and {stop}yes", add_special_tokens=False)["input_ids"])
    assert (builder.text, builder.stopped_by) == ("and ", stop)
    with pytest.raises(ValueError, match="holds the special token"):
        lm.stream("x", stop=[stop], raw=True)


def test_tokens_that_decode_to_nothing_anyhow_are_no_tags() -> None:
    lm = with_tags(OTHERS[2])
    shown, decode = lm.shown_tokens, lm.tokenizer.decode
    assert {*shown.values()} == {*special_in(OTHERS[2])}
    silent = next(iter(shown))
    lm.tokenizer.decode = lambda tokens, **more: (
        "" if tokens == [silent] else decode(tokens, **more)
    )
    assert silent not in lm.shown_tokens


def test_names_that_a_template_asks_for_are_given_to_it() -> None:
    asks = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    lm = thinking(asks + "{{ bos_token }}{% set own = 1 %}{{ range(own)|length }}{{ effort }}")
    told = lm.encode("x", names={"enable_thinking": False, "effort": "low"})
    assert lm.tokenizer.decode(told).startswith("user: x;<think></think>")
    assert lm.tokenizer.decode(told).endswith("1low")
    for name in ("enable_thnking", "messages", "tokenize", "chat_template", "bos_token", "own"):
        with pytest.raises(ValueError, match=f"not ask for '{name}'; it asks for effort, enable_"):
            lm.encode("x", names={name: False})
    parsed = _open_names.cache_info().misses
    assert lm.template_names == {"effort", "enable_thinking"}
    assert _open_names.cache_info().misses == parsed
    with pytest.raises(ValueError, match="'effort'; it asks for none"):
        thinking("<think>").encode("x", names={"effort": 1})
