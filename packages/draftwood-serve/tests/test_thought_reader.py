"""Thoughts before answers, read as the text comes."""

import pytest

from draftwood.text.builder import TextBuilder
from draftwood_serve.thoughts import (
    AnswerReader,
    Delta,
    ThoughtCounter,
    ThoughtDelta,
    read_answer,
)
from draftwood_serve.tool_calls import CallDelta, ContentDelta
from letters import LETTERS, letters

TAGS = ("<think>", "</think>")
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXTS: dict[tuple[str, bool], tuple[str, str, int]] = {
    ("<think>\nI see. </think>\n\nYes.", False): ("I see.", "Yes.", 0),
    ("I see. </think>\n\nYes.", True): ("I see.", "Yes.", 0),
    (" \n<think>a\n b</think>c", False): ("a\n b", "c", 0),
    ("<think></think>c", False): ("", "c", 0),
    ("</think>\n c ", True): ("", "c ", 0),
    ("Yes. <think>a</think>", False): ("", "Yes. <think>a</think>", 0),
    (" <thin", False): ("", " <thin", 0),
    ("  ", False): ("", "  ", 0),
    ("", True): ("", "", 0),
    ("a </thi", True): ("a </thi", "", 0),
    ("a < b </b> </think>c</think>", True): ("a < b </b>", "c</think>", 0),
    (f"a {CALL}</think>\n{CALL}", True): (f"a {CALL}", "", 1),
    (f"<think>a</think>\nSo:\n{CALL}", False): ("a", "So:", 1),
}


def told(deltas: list[Delta]) -> tuple[str, str, int]:
    thought = "".join(each.text for each in deltas if isinstance(each, ThoughtDelta))
    content = "".join(each.text for each in deltas if isinstance(each, ContentDelta))
    return thought, content, len({each.index for each in deltas if isinstance(each, CallDelta)})


@pytest.mark.parametrize(("text", "is_open"), TEXTS)
@pytest.mark.parametrize("calls", [True, False])
def test_thoughts_are_read_whole_and_in_any_pieces(text: str, is_open: bool, calls: bool) -> None:
    wanted = TEXTS[text, is_open]
    if not calls and CALL in text:
        pytest.skip("a text with a call")
    thought, content, called = read_answer(AnswerReader(calls, (*TAGS, is_open, "")), text)
    assert (thought, content, len(called)) == wanted
    for size in (1, 2, 3, 7, 50):
        reader, deltas = AnswerReader(calls, (*TAGS, is_open, "")), list[Delta]()
        for place in range(0, len(text), size):
            deltas += reader.feed(text[place : place + size])
        deltas += reader.feed("", is_last=True)
        assert told(deltas) == wanted
        kinds = [type(each) for each in deltas]
        assert ThoughtDelta not in kinds[kinds.count(ThoughtDelta) :]  # all of it comes first


CHANNELS = (
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    False,
    "<|channel|>final<|message|>",
)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "thought", "content"),
    [
        (f"{CHANNELS[0]}so{CHANNELS[1]}yes", "so", "yes"),
        (f"{CHANNELS[3]}yes", "", "yes"),
        ("yes", "", "yes"),
        (f"{CHANNELS[0]}so<|end|><|start|>assistant", "so<|end|><|start|>assistant", ""),
        ("<|channel|>", "", "<|channel|>"),
    ],
)
def test_answers_may_begin_with_tags_of_their_own(
    text: str, thought: str, content: str, size: int
) -> None:
    reader, deltas = AnswerReader(False, CHANNELS), list[Delta]()
    for place in range(0, len(text), size):
        deltas += reader.feed(text[place : place + size])
    assert told([*deltas, *reader.feed("", is_last=True)]) == (thought, content, 0)


def test_a_thought_comes_while_it_is_written() -> None:
    reader = AnswerReader(False, (*TAGS, True, ""))
    assert reader.feed("\nI think </") == [ThoughtDelta("I think")]
    assert reader.feed("b") == [ThoughtDelta(" </b")]
    assert reader.is_thinking
    assert reader.feed("</think>\nYes") == [ContentDelta("Yes")]
    assert not reader.is_thinking


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("text", "is_open", "count"),
    [
        ("abc</think>de", True, 3),
        ("<think>ab</think>c", False, 2),
        ("abc", True, 3),
        ("abc", False, 0),
    ],
)
def test_tokens_of_a_thought_are_counted_however_they_come(
    text: str, is_open: bool, count: int, size: int
) -> None:
    tokenizer = letters([*LETTERS[:27], *"<>/"])
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    counter = ThoughtCounter(TextBuilder(tokenizer), (*TAGS, is_open, ""))
    for end in range(size, len(tokens) + size, size):
        counter.count(tokens[:end])
    assert counter.tokens == count


@pytest.mark.parametrize("size", [1, 3, 100])
def test_content_begins_at_a_place_of_the_text(size: int) -> None:
    text = " <think>a</think> \n<tool_cal no"
    reader = AnswerReader(True, (*TAGS, False, ""))
    for place in range(0, len(text), size):
        reader.feed(text[place : place + size])
    assert reader.content_from == text.index("<tool_cal")
    assert AnswerReader(True).content_from == 0


def test_models_without_thoughts_say_all_they_write() -> None:
    text = "<think>a</think>b"
    assert read_answer(AnswerReader(False), text) == ("", text, [])
    assert AnswerReader(True).feed(text) == [ContentDelta(text)]
