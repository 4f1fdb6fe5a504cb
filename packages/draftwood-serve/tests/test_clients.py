"""OpenAI's own client reads every answer, its types checked; the program `llm` prints it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from local_server import NAME, RunningServer


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{server.address}/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    ) as found:
        yield found


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "go"}],
        max_tokens=9,
        n=2,
        seed=1,
        logprobs=True,
        top_logprobs=3,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 18
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    said = "".join(bytes(each.bytes or []).decode() for each in logprobs.content)
    assert said == answer.choices[0].message.content


def test_chat_in_chunks(client: OpenAI) -> None:
    wanted = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "go"}], max_tokens=9, seed=1
    )
    chunks = list(
        client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": "go"}],
            max_tokens=9,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == wanted.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9
    assert len({chunk.id for chunk in chunks}) == 1


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt=["go", "on"], max_tokens=5, logprobs=2)
    assert [len(choice.text) for choice in answer.choices] == [5, 5]
    answer = client.completions.create(model=NAME, prompt="go", max_tokens=5, echo=True)
    assert answer.choices[0].text[:2] == "go"
    # the client's own type does not allow what OpenAI sends: chunks without a finish reason
    with OpenAI(base_url=client.base_url, api_key="none") as lenient:
        chunks = list(
            lenient.completions.create(model=NAME, prompt="go", max_tokens=5, stream=True)
        )
    assert len("".join(chunk.choices[0].text for chunk in chunks)) == 5


def test_responses(client: OpenAI) -> None:
    answer = client.responses.create(
        model=NAME,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"role": "assistant", "content": "there"},
            {"role": "user", "content": "on"},
        ],
        instructions="be",
        max_output_tokens=7,
        extra_body={"seed": 3},
    )
    assert answer.status == "incomplete"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 7
    assert len(answer.output_text) == 7


def test_responses_as_events(client: OpenAI) -> None:
    sent = {"model": NAME, "input": "go", "max_output_tokens": 7, "extra_body": {"seed": 3}}
    wanted = client.responses.create(**sent)
    told = list(client.responses.create(**sent, stream=True))
    kinds = [each.type.removeprefix("response.") for each in told]
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert [each.sequence_number for each in told] == list(range(len(told)))
    deltas = [each.delta for each in told if each.type == "response.output_text.delta"]
    assert "".join(deltas) == wanted.output_text
    last = told[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == wanted.output_text


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt="a" * 600)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    assert [model.id for model in client.models.list()] == [NAME]


EXTRA_MODELS = """
- model_id: draftwood
  model_name: tiny
  api_base: "{address}/v1"
- model_id: draftwood-raw
  model_name: tiny
  api_base: "{address}/v1"
  completion: true
"""
"""extra-openai-models.yaml, as docs/serving.md says."""


@pytest.mark.skipif(find_spec("llm") is None, reason="the client llm is not installed")
def test_the_program_llm_prints_the_text_whole_and_in_pieces(
    server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(EXTRA_MODELS.format(address=server.address))
    told = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def llm(*words: str) -> str:
        command = [sys.executable, "-m", "llm", *words]
        done = subprocess.run(command, env=told, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = ("-o", "seed", "3", "-o", "temperature", "0.8", "-o", "max_tokens", "40")
    sent = {"seed": 3, "temperature": 0.8, "max_tokens": 40}
    asked = [{"role": "system", "content": "be"}, {"role": "user", "content": "go"}]
    wanted = server.post("/v1/chat/completions", messages=asked, **sent)
    text = wanted["choices"][0]["message"]["content"]
    for stream in ((), ("--no-stream",)):
        found = llm("-m", "draftwood", "-s", "be", "go", *options, *stream)
        assert found == f"{text}\n"
    assert llm("-m", "draftwood-raw", "go", *options) == f"{server.text('go', **sent)}\n"
    (logged,) = json.loads(llm("logs", "--json", "-n", "1", "-m", "draftwood"))
    assert logged["response"] == text
    assert logged["output_tokens"] == 40
    refused = [sys.executable, "-m", "llm", "-m", "draftwood", "a" * 600]
    error = subprocess.run(refused, env=told, capture_output=True, text=True, timeout=60).stderr
    assert "context" in error
