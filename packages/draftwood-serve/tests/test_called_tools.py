"""Texts with tools by a tiny model: how calls end, and what is told beside the text."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from draftwood.stats import TokenLogprob
from draftwood_serve.formats.chat import ChatChunks
from draftwood_serve.formats.responses import ResponseFormatter
from draftwood_serve.mapping import of_responses
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.responses import ResponsesBody
from draftwood_serve.texts import TextUpdate, ToldToken
from draftwood_serve.thoughts import AnswerReader
from draftwood_serve.token_texts import TokenTexts
from draftwood_serve.tool_calls import read_calls
from letters import LETTERS, letters
from local_server import RunningServer, running, save_tiny

CITY = {"city": {"type": "string", "enum": ["rome"]}}
PARAMETERS = {"type": "object", "properties": CITY, "required": ["city"]}
WEATHER = {"name": "weather", "parameters": PARAMETERS}
SIGNS = 'Ċ<>/{}":,.Z'
"""Beside the space and small letters, what calls are written with, and an end."""


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model can write calls."""
    tokens = [*LETTERS[:27], "_", *SIGNS]
    made = letters([*tokens, *(f"{each}{each}" for each in LETTERS[1:26])])
    folder = tmp_path_factory.mktemp("served") / "caller"
    with running(save_tiny(folder, context=2048, end="Z", tokenizer=made)) as found:
        yield found


@pytest.mark.parametrize(
    ("stop", "reason", "arguments"),
    [("city", "stop", '{"'), ("nowhere", "tool_calls", '{"city":"rome"}')],
)
def test_a_call_counts_where_it_is_whole(
    caller: RunningServer, stop: str, reason: str, arguments: str
) -> None:
    sent: dict[str, Any] = {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": WEATHER}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": [stop],
        "temperature": 0,
    }
    (whole,) = caller.post("/v1/chat/completions", **sent)["choices"]
    (call,) = whole["message"]["tool_calls"]
    assert "".join(call["function"]["arguments"].split()) == arguments
    assert whole["finish_reason"] == reason
    choices = [each["choices"][0] for each in caller.stream("/v1/chat/completions", **sent)]
    assert called([each["delta"] for each in choices]) == [
        ("weather", call["function"]["arguments"])
    ]
    assert [each["delta"]["content"] for each in choices if "content" in each["delta"]] == [None]
    assert [each["finish_reason"] for each in choices] == [None] * (len(choices) - 1) + [reason]


def called(deltas: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Names and arguments of the calls of a stream, as clients join them: one piece of a chunk."""
    found: list[tuple[str, str]] = []
    for delta in deltas:
        if "tool_calls" in delta:
            (piece,) = delta["tool_calls"]
            if piece["index"] == len(found):
                assert piece["id"]
                found.append((piece["function"]["name"], ""))
            name, arguments = found.pop()
            assert piece["index"] == len(found)
            found.append((name, arguments + piece["function"]["arguments"]))
    return found


ROME, OSLO = (f'{{"city": "{each}", "of": {{"a": [1]}}}}' for each in ("rome", "oslo"))
TWO = "".join(
    f'<tool_call>{{"name": "weather", "arguments": {each}}}</tool_call>' for each in (ROME, OSLO)
)


@pytest.mark.parametrize("length", [1, 7, 30, 60, 1000])
def test_each_chunk_holds_one_piece_of_one_call(length: int) -> None:
    text = f"I look. {TWO}"
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    updates = [update(each) for each in pieces] + [TextUpdate(0, "", (), 9, "stop")]

    async def chunks(first: list[TextUpdate], *others: Any) -> AsyncIterator[Any]:
        for choice in (choice for each in first for choice in others[-1](each)):
            yield choice

    answer: Any = SimpleNamespace(
        **{"wholes": [None], "chunks": chunks, "step": lambda _: {}},
        token_texts=TokenTexts(letters()),
        reader=lambda _, calls: AnswerReader(calls),
    )
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "go"}]})
    body.logprobs = True

    async def heard() -> list[Any]:
        return [each async for each in ChatChunks(answer, body, True).events(updates)]

    choices = asyncio.run(heard())
    deltas = [each["delta"] for each in choices]
    content, calls = read_calls(text)
    assert called(deltas) == [(each.name, each.arguments) for each in calls]
    assert [each.arguments for each in calls] == [ROME, OSLO]
    assert "".join(each.get("content") or "" for each in deltas) == content == "I look."
    assert not any(each.get("content") and "tool_calls" in each for each in deltas)
    assert [each.get("role") for each in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert choices[-1]["finish_reason"] == "tool_calls"
    told = [token for each in choices if each["logprobs"] for token in each["logprobs"]["content"]]
    assert len(told) == sum(len(each.told) for each in updates), "each token is told once"


def test_a_response_tells_the_logprobs_of_its_text_with_tools_too(caller: RunningServer) -> None:
    options = {"temperature": 1, "seed": 1, "top_logprobs": 2}
    chat = caller.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "go"}],
        tools=[{"type": "function", "function": WEATHER}],
        logprobs=True,
        **options,
    )["choices"][0]
    sent = {"input": "go", "tools": [{"type": "function", **WEATHER}], **options}
    (item,) = caller.post("/v1/responses", **sent)["output"]
    (part,) = item["content"]
    assert len(part["text"].split()) > 1, "blanks wait for what comes behind them"
    assert part["text"] == chat["message"]["content"]
    assert part["logprobs"] == chat["logprobs"]["content"]
    assert said(part) == part["text"] + "Z"
    events = caller.stream("/v1/responses", **sent)
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    assert "".join(map(said, deltas)) == part["text"]
    for each in events:
        if each["type"] == "response.output_text.done":
            assert each["logprobs"] == part["logprobs"]
    assert events[-1]["response"]["output"][0]["content"] == [part]


def test_a_response_tells_logprobs_that_it_should_include(caller: RunningServer) -> None:
    sent = {"input": "go", "temperature": 0, "max_output_tokens": 9}
    wanted = caller.post("/v1/responses", top_logprobs=0, **sent)["output"][0]["content"]
    sent["include"] = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    found = caller.post("/v1/responses", **sent)["output"][0]["content"]
    assert found == wanted
    assert found[0]["logprobs"]
    (part,) = caller.post("/v1/responses", top_logprobs=2, **sent)["output"][0]["content"]
    assert all(len(each["top_logprobs"]) == 2 for each in part["logprobs"])
    sent["include"] = ["reasoning.encrypted_content"]
    (part,) = caller.post("/v1/responses", **sent)["output"][0]["content"]
    assert part["logprobs"] == []


def test_a_response_repeats_its_metadata_and_tools(caller: RunningServer) -> None:
    search = {"type": "web_search", "filters": {"allowed_domains": ["a.org"]}}
    sent = {
        "input": "go",
        "max_output_tokens": 2,
        "tools": [search, {"type": "function", **WEATHER}],
    }
    found = caller.post("/v1/responses", metadata={"a": "b"}, **sent)
    assert found["metadata"] == {"a": "b"}
    function = {"type": "function", **WEATHER, "description": None, "strict": False}
    assert found["tools"] == [search, function]
    assert caller.post("/v1/responses", **sent)["metadata"] == {}


def item_of(number: int) -> dict[str, Any]:
    """A call among the items of an input."""
    call = {"call_id": f"call_{number}", "name": "weather", "arguments": "{}"}
    return {"type": "function_call", **call}


def test_calls_of_an_input_are_one_message_with_the_text_before_them() -> None:
    output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    items = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "I look."},
        *(item_of(0), item_of(1), output, item_of(2)),
    ]
    (messages,) = of_responses(ResponsesBody.model_validate({"input": items})).prompts
    told: Any = messages
    roles = ["user", "assistant", "tool", "assistant"]
    assert [each["role"] for each in told] == roles
    assert [each["content"] for each in told] == ["go", "I look.", "sunny", None]
    calls = [[call["id"] for call in each.get("tool_calls", ())] for each in told]
    assert calls == [[], ["call_0", "call_1"], [], ["call_2"]]


def said(told: dict[str, Any]) -> str:
    return "".join(each["token"] for each in told["logprobs"])


def test_messages_around_a_call_tell_their_own_tokens_and_the_blanks_before_it() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parts = (call[:5], call[5:30], call[30:-3], call[-3:])
    written = [update("go"), update(" "), *(update(part, "x y") for part in parts), update("done")]
    updates = [[each] for each in written] + [[TextUpdate(0, "", (), 9, "stop")], []]

    async def heard() -> list[TextUpdate]:
        return updates.pop(0)

    answer: Any = SimpleNamespace(
        name="resp-1",
        created=0,
        model="tiny",
        token_texts=TokenTexts(letters()),
        wholes=[SimpleNamespace(finish_reason="stop")],
        reader=lambda _, calls: AnswerReader(calls),
        thought_tokens=0,
        updates=heard,
        usage=lambda: (
            {"prompt_tokens": 1, "prompt_tokens_details": {}, "completion_tokens": 9}
            | {"total_tokens": 10}
        ),
        metrics=dict,
    )
    formatter = ResponseFormatter(answer, ResponsesBody(input="go", top_logprobs=0), calls=True)
    message, called, after = asyncio.run(formatter.whole())["output"]
    assert message["content"][0]["text"] == "go"
    assert said(message["content"][0]) == "go "
    assert called["name"] == "now"
    assert said(after["content"][0]) == after["content"][0]["text"] == "done"


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("content", ["cd", "<tool d"])
def test_a_message_behind_a_thought_tells_its_own_tokens(content: str, size: int) -> None:
    made, text = letters([*LETTERS[:27], "_", *"<>/"]), f"ab</think> {content}"
    tokens = made.encode(text)
    told = [ToldToken(TokenLogprob(token, -1.0, {}), n) for n, token in enumerate(tokens)]
    places = range(0, len(text), size)
    updates = [
        [TextUpdate(0, text[at : at + size], tuple(told[at : at + size]), at)] for at in places
    ]
    updates += [[TextUpdate(0, "", (), len(text), "stop")], []]

    async def heard() -> list[TextUpdate]:
        return updates.pop(0)

    answer: Any = SimpleNamespace(
        **{"name": "resp-1", "created": 0, "model": "tiny", "updates": heard, "metrics": dict},
        token_texts=TokenTexts(made),
        wholes=[SimpleNamespace(finish_reason="stop")],
        reader=lambda _, calls: AnswerReader(calls, ("<think>", "</think>", True, "")),
        thought_tokens=2,
        usage=lambda: (
            {"prompt_tokens": 1, "prompt_tokens_details": {}, "completion_tokens": 9}
            | {"total_tokens": 10}
        ),
    )
    formatter = ResponseFormatter(answer, ResponsesBody(input="go", top_logprobs=0), calls=True)
    thought, message = asyncio.run(formatter.whole())["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "ab"}]
    assert said(message["content"][0]) == message["content"][0]["text"] == content


def update(text: str, spelled: str = "") -> TextUpdate:
    """A text, and its tokens, which may be spelled otherwise."""
    tokens = letters().encode(spelled or text)
    told = [ToldToken(TokenLogprob(token, -1.0, {}), 0) for token in tokens]
    return TextUpdate(0, text, tuple(told), 1)
