"""Answers that fit a schema or call functions, by the built-in model."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from local_server import NAME, RunningServer, running

pytestmark = [pytest.mark.model, pytest.mark.proof, pytest.mark.usefixtures("unchecked")]

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "Of a city.", "parameters": CITY}
ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with (
        running("smollm2-135m") as server,
        OpenAI(
            base_url=f"{server.address}/v1",
            api_key="none",
            max_retries=0,
            _strict_response_validation=True,
        ) as found,
    ):
        yield found


@pytest.mark.parametrize("speculative", [True, False])
def test_an_answer_fits_its_schema(client: OpenAI, speculative: bool) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=ASKED,
        max_tokens=60,
        seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
        extra_body={"speculative": speculative},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert set(json.loads(answer.choices[0].message.content or "")) == {"city"}


def test_an_answer_is_an_object(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=ASKED,
        max_tokens=100,
        temperature=0,
        response_format={"type": "json_object"},
    )
    text = answer.choices[0].message.content or ""
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_function_is_called(client: OpenAI) -> None:
    sent: dict[str, Any] = {
        "model": NAME,
        "messages": ASKED,
        "max_tokens": 80,
        "seed": 2,
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    answer = client.chat.completions.create(**sent)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == {"city"}
    chunks = list(client.chat.completions.create(**sent, stream=True))
    deltas = [each for c in chunks for each in c.choices[0].delta.tool_calls or []]
    assert [each.id is not None for each in deltas] == [True] + [False] * (len(deltas) - 1)
    arguments = [each.function.arguments or "" for each in deltas if each.function]
    assert "".join(arguments) == call.function.arguments
    assert len(arguments) > 2
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    told = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    message = choice.message.model_dump(exclude_none=True)
    after = client.chat.completions.create(
        model=NAME, messages=[*ASKED, message, told], max_tokens=8
    )
    assert after.choices[0].message.content


def test_a_response_calls_a_function(client: OpenAI) -> None:
    sent: dict[str, Any] = {
        "model": NAME,
        "input": "What is the weather in Rome?",
        "max_output_tokens": 80,
        "tools": [{"type": "function", "strict": True, **TOOL}, {"type": "web_search"}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "extra_body": {"seed": 2},
    }
    answer = client.responses.create(**sent)
    (item,) = answer.output
    assert item.type == "function_call"
    assert set(json.loads(item.arguments)) == {"city"}
    told = list(client.responses.create(**sent, stream=True))
    deltas = [e.delta for e in told if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == item.arguments
    last = told[-1]
    assert last.type == "response.completed"
    (same,) = last.response.output
    assert same.type == "function_call"
    assert same.arguments == item.arguments
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    call = item.model_dump(exclude_none=True)
    after = client.responses.create(
        model=NAME,
        input=[{"role": "user", "content": "weather?"}, call, output],
        max_output_tokens=8,
    )
    assert after.output_text


def test_a_schema_that_cannot_be_followed_is_refused(client: OpenAI, server: RunningServer) -> None:
    import openai

    bad = {"name": "bad", "schema": {"type": "object", "properties": {"a": {"type": "nothing"}}}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=NAME,
            messages=ASKED,
            response_format={"type": "json_schema", "json_schema": bad},  # type: ignore[typeddict-item]
        )
    # the tiny model has no token that ends a text
    body = {"messages": ASKED, "response_format": {"type": "json_object"}}
    assert "ends a text" in server.refused("/v1/chat/completions", 400, **body)["message"]
