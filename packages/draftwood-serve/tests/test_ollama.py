"""Ollama's endpoints, by requests of its documentation and by its own client where it is there."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import draftwood
from draftwood.text.language_model import LanguageModel
from draftwood_serve.errors import as_json
from draftwood_serve.formats.answers import WholeText
from draftwood_serve.formats.ollama import OllamaAnswer, Say, as_message, as_response
from draftwood_serve.ollama import of_chat, of_generate
from draftwood_serve.schemas.ollama import OllamaChatBody, OllamaGenerateBody, OllamaOptions
from draftwood_serve.texts import TextUpdate
from draftwood_serve.thoughts import AnswerReader
from local_server import NAME, RunningServer, running, save_tiny, wait_for
from test_leaving import send

MESSAGES = [{"role": "user", "content": "why is the sky blue"}]
GREEDY = {"temperature": 0, "num_predict": 30}
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
COUNTS = {"prompt_eval_count", "eval_count"}


@pytest.fixture(scope="module")
def lm(tiny: str) -> LanguageModel:
    return draftwood.load(tiny, method="plain")


def lines(server: RunningServer, path: str, **body: Any) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def refused(server: RunningServer, path: str, status: int, **body: Any) -> str:
    response = server.client.post(path, json=body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    told = response.json()["error"]
    assert isinstance(told, str)
    assert "\n" not in told
    return told


def test_a_chat_is_streamed_unless_it_says_otherwise(
    server: RunningServer, lm: LanguageModel
) -> None:
    wanted = lm.generate(MESSAGES, max_new_tokens=30).text
    told = lines(server, "/api/chat", model=NAME, messages=MESSAGES, options=GREEDY)
    assert "".join(each["message"]["content"] for each in told) == wanted
    assert all(each["message"]["role"] == "assistant" for each in told)
    assert [each["done"] for each in told] == [False] * (len(told) - 1) + [True]
    last = told[-1]
    assert last["done_reason"] == "length"
    assert last["eval_count"] == 30
    assert last["prompt_eval_count"] == len(lm.encode(MESSAGES))
    assert set(last) >= DURATIONS | COUNTS
    assert all(isinstance(last[name], int) and last[name] >= 0 for name in DURATIONS | COUNTS)
    assert last["total_duration"] >= last["eval_duration"] > 0
    whole = server.post(
        "/api/chat", model=NAME, messages=MESSAGES, options=GREEDY, stream=False, keep_alive="5m"
    )
    assert whole["message"] == {"role": "assistant", "content": wanted}
    assert whole["done"] is True
    assert whole["model"] == NAME


def test_a_prompt_takes_the_template_unless_it_is_raw(
    server: RunningServer, lm: LanguageModel
) -> None:
    wanted = lm.generate("why", max_new_tokens=30).text
    told = lines(server, "/api/generate", model=NAME, prompt="why", options=GREEDY)
    assert "".join(each["response"] for each in told) == wanted
    ask: dict[str, Any] = {"model": NAME, "prompt": "why", "options": GREEDY, "stream": False}
    raw = server.post("/api/generate", raw=True, **ask)
    assert raw["response"] == lm.generate("why", raw=True, max_new_tokens=30).text
    with_system = server.post("/api/generate", system="be brief", **ask)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why"}]
    assert with_system["response"] == lm.generate(messages, max_new_tokens=30).text


def test_every_option_of_its_documentation_is_taken(server: RunningServer) -> None:
    options = {
        **{"num_keep": 5, "seed": 42, "num_predict": 20, "top_k": 20, "top_p": 0.9, "min_p": 0.0},
        **{"typical_p": 1.0, "repeat_last_n": 33, "temperature": 0.8, "repeat_penalty": 1.2},
        **{"presence_penalty": 1.5, "frequency_penalty": 1.0, "mirostat": 0, "mirostat_tau": 0.8},
        **{"mirostat_eta": 0.6, "penalize_newline": True, "stop": ["\n", "user:"], "numa": False},
        **{"num_ctx": 1024, "num_batch": 2, "num_gpu": 1, "main_gpu": 0, "low_vram": False},
        **{"vocab_only": False, "use_mmap": True, "use_mlock": False, "num_thread": 8},
        **{"f16_kv": True, "logits_all": False, "embedding_only": False, "tfs_z": 1},
    }
    ask = {"model": NAME, "prompt": "why", "stream": False}
    first, again = (server.post("/api/generate", options=options, **ask) for _ in range(2))
    assert first["response"] == again["response"]
    other = server.post("/api/generate", options={**options, "seed": 43}, **ask)
    assert other["response"] != first["response"]
    given = {**options, "seed": -1}
    drawn = (server.post("/api/generate", options=given, **ask) for _ in range(3))
    assert len({each["response"] for each in drawn}) > 1
    stopped = server.post(
        "/api/generate", options={**options, "stop": first["response"][5:7]}, **ask
    )
    assert first["response"].startswith(stopped["response"])
    assert stopped["done_reason"] == "stop"


def test_whole_numbers_may_be_written_as_floats() -> None:
    given = {"top_k": 20.0, "seed": -3.0, "num_predict": 7.0, "repeat_last_n": 0.0}
    found = OllamaOptions.model_validate(given)
    assert found == OllamaOptions(top_k=20, seed=-3, num_predict=7, repeat_last_n=0)
    assert type(found.top_k) is int


def test_penalties_that_look_at_no_token_are_off() -> None:
    given = {"repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5}
    names = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
    whole = OllamaOptions.model_validate({**given, "repeat_last_n": 64}).as_text_options()
    assert {name: whole[name] for name in names} == dict(
        zip(sorted(names), (0.5, 1.0, 1.5), strict=True)
    )
    none = OllamaOptions.model_validate({**given, "repeat_last_n": 0}).as_text_options()
    assert not names & none.keys()


def test_a_schema_binds_the_answer(tmp_path: Path) -> None:
    with running(save_tiny(tmp_path / "tiny", end="_")) as server:
        ask = {"model": NAME, "messages": MESSAGES, "stream": False, "options": GREEDY}
        found = server.post("/api/chat", format={"type": "integer"}, **ask)
        assert found["message"]["content"].strip("_").isdigit()
        found = server.post("/api/generate", prompt="a", format={"type": "integer"}, **ask_of(ask))
        assert found["response"].strip("_").isdigit()
    body = OllamaChatBody(model=NAME, messages=[], format="json")
    assert of_chat(body).json_schema == {"type": "object"}
    fill = OllamaGenerateBody(model=NAME, prompt="a", suffix="b", format="json")
    wanted = of_generate(fill)
    assert (wanted.json_schema, wanted.format_field) == ({"type": "object"}, "format")


def ask_of(ask: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in ask.items() if name != "messages"}


CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "time", "parameters": {"type": "object"}},
}


class Written:
    """An answer whose text is known.

    Attributes:
        thought: tags of a thought that it may begin with.
    """

    thought: tuple[str, str, bool, str] | None = None

    def __init__(self, *pieces: str) -> None:
        text = "".join(pieces)
        self.model, self.wholes = NAME, [WholeText(text, tokens=9, finish_reason="stop")]
        self.left = [[TextUpdate(0, piece, (), 1)] for piece in pieces]
        times = ("arrived", "load_seconds", "started", "first_token", "ended")
        self.job: Any = SimpleNamespace(**dict.fromkeys(times, 1.0), prompt_tokens=3)

    @property
    def ended(self) -> bool:
        return not self.left

    async def updates(self) -> list[TextUpdate]:
        return self.left.pop(0)

    async def finish(self) -> None:
        """Nothing is left to be written."""

    def reader(self, choice: int, calls: bool) -> AnswerReader:
        return AnswerReader(calls, self.thought)


@pytest.mark.parametrize("say", [as_message, as_response])
def test_thoughts_are_told_apart(say: Say) -> None:
    answer: Any = Written("I th", "ink.</thi", "nk>\n\nYes", "!")
    answer.thought = ("<think>", "</think>", True, "")
    (field,) = say("", "", [])
    text = "content" if field == "message" else "response"

    def parts(told: dict[str, Any]) -> tuple[str, str]:
        found = told["message"] if field == "message" else told
        return found[text], found.get("thinking", "")

    assert parts(asyncio.run(OllamaAnswer(answer, say, False).whole())) == ("Yes!", "I think.")

    async def streamed() -> list[Any]:
        told = OllamaAnswer(answer, say, False).lines(await answer.updates())
        return [json.loads(each) async for each in told]

    said = [*map(parts, asyncio.run(streamed()))]
    assert said == [("", "I th"), ("", "ink."), ("Yes", ""), ("!", ""), ("", "")]


def test_calls_of_tools_are_objects() -> None:
    answer: Any = Written("Let me see. ", CALL[:30], CALL[30:], CALL)
    whole = asyncio.run(OllamaAnswer(answer, as_message, True).whole())
    wanted = {"function": {"name": "now", "arguments": {"zone": "UTC"}}}
    assert whole["message"]["content"] == "Let me see."
    assert whole["message"]["tool_calls"] == [wanted, wanted]

    async def streamed() -> list[Any]:
        told = OllamaAnswer(answer, as_message, True).lines(await answer.updates())
        return [json.loads(each) async for each in told]

    found = [each["message"] for each in asyncio.run(streamed())]
    assert "".join(each["content"] for each in found) == "Let me see."
    assert [call for each in found for call in each.get("tool_calls", ())] == [wanted, wanted]


@pytest.mark.parametrize("cut", [20, 40])
def test_a_call_that_the_end_cuts_is_none(cut: int) -> None:
    answer: Any = Written("Let me see. ", CALL, CALL[:cut])
    whole = asyncio.run(OllamaAnswer(answer, as_message, True).whole())
    wanted = {"function": {"name": "now", "arguments": {"zone": "UTC"}}}
    assert whole["message"]["tool_calls"] == [wanted]


def test_numbers_beyond_floats_are_told_as_the_largest() -> None:
    answer: Any = Written(CALL.replace('"UTC"', "-1e999"))
    whole = json.loads(as_json(asyncio.run(OllamaAnswer(answer, as_message, True).whole())))
    found = whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert found == {"zone": -sys.float_info.max}


def test_tools_and_their_answers_are_read() -> None:
    call = {"function": {"name": "now", "arguments": {"zone": "UTC"}}}
    body = OllamaChatBody.model_validate(
        {
            "model": NAME,
            "tools": [TOOL],
            "messages": [
                *MESSAGES,
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "now", "content": "noon"},
            ],
        }
    )
    wanted = of_chat(body)
    assert wanted.calls
    (messages,) = wanted.prompts
    told: Any = messages[1]
    assert told["tool_calls"][0]["function"] == {"name": "now", "arguments": '{"zone": "UTC"}'}
    assert messages[2] == {"role": "tool", "content": "noon"}


def test_a_model_is_loaded_by_an_empty_request(server: RunningServer) -> None:
    for path, field in (("/api/chat", "message"), ("/api/generate", "response")):
        found = server.post(path, model=NAME)
        assert (found["done"], found["done_reason"]) == (True, "load")
        assert field in found


def test_loading_takes_what_the_model_took_and_no_time_in_the_queue(
    tmp_path: Path, endless: str
) -> None:
    body = {"prompt": "a", "stream": False, "options": {"num_predict": 2}}
    small = save_tiny(tmp_path / "small")
    how: Any = {"method": "plain", "max_batch": 1, "others": [small]}
    with running(endless, **how) as server, ThreadPoolExecutor(1) as pool:
        first, again = (server.post("/api/generate", model="small", **body) for _ in range(2))
        assert first["load_duration"] > 10 * again["load_duration"]
        assert first["total_duration"] > first["load_duration"]
        embedded = server.post("/api/embed", model="small", input="a")
        assert embedded["load_duration"] < 0.05e9
        with send(server, prompt="go", max_tokens=500_000):
            wait_for(lambda: server.running_texts == 1)
            waiting = pool.submit(server.post, "/api/generate", model=NAME, **body)
            wait_for(lambda: len(server.service.open) == 2)
            time.sleep(0.3)
        told = waiting.result(20)
        assert told["total_duration"] > 0.3e9
        assert told["load_duration"] < 0.05e9


def test_lists_and_descriptions(server: RunningServer, lm: LanguageModel) -> None:
    (found,) = server.client.get("/api/tags").json()["models"]
    assert found["name"] == f"{NAME}:latest"
    assert found["size"] > 0
    assert len(found["digest"]) == 64
    (running,) = server.client.get("/api/ps").json()["models"]
    assert running["context_length"] == 512
    shown = server.post("/api/show", model=f"{NAME}:latest")
    assert shown["template"] == lm.tokenizer.chat_template
    assert shown["capabilities"] == ["completion", "tools"]
    assert shown["model_info"]["draftwood.context_length"] == 512
    assert server.client.get("/api/version").json() == {"version": draftwood.__version__}


def test_a_tag_may_be_left_out(server: RunningServer) -> None:
    ask = {"prompt": "why", "stream": False, "options": GREEDY}
    texts = {
        server.post("/api/generate", model=each, **ask)["response"]
        for each in (NAME, f"{NAME}:latest")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"model": "llama3"}, "model 'llama3' not found; there is: tiny"),
        ({"options": {"temprature": 1}}, "invalid option temprature; did you mean temperature?"),
        ({"options": {"zzz": 1}}, "invalid option zzz; leave it out"),
        ({"options": {"mirostat": 2}}, "mirostat is not supported"),
        ({"options": {"temperature": "warm"}}, "options.temperature"),
        ({"options": {"top_p": 0}}, "options.top_p"),
        ({"nonsense": 1}, "there is no field nonsense"),
        ({"images": ["aGk="]}, "does not support images"),
        ({"think": True}, "leave think out"),
        ({"think": "low"}, "leave think out"),
        ({"options": {"top_k": 1.5}}, "options.top_k: Input should be a valid integer"),
        ({"options": {"top_k": -2.0}}, "options.top_k"),
        ({"format": "xml"}, "format"),
    ],
)
def test_bad_requests_are_told_in_one_line(
    server: RunningServer, more: dict[str, Any], told: str
) -> None:
    status = 404 if "model" in more else 400
    for path, body in (("/api/generate", {"prompt": "a"}), ("/api/chat", {"messages": MESSAGES})):
        assert told in refused(server, path, status, **{"model": NAME, **body, **more})


def test_other_faults_are_told_in_one_line(server: RunningServer) -> None:
    assert "model" in refused(server, "/api/chat", 400, messages=MESSAGES)
    ask: dict[str, Any] = {"model": NAME, "prompt": "a"}
    assert "template" in refused(server, "/api/generate", 400, template="x", **ask)
    assert "context" in refused(server, "/api/generate", 400, context=[1, 2], **ask)
    assert "fill" in refused(server, "/api/generate", 400, suffix="b", **ask)
    told = refused(server, "/api/generate", 400, raw=True, system="be brief", **ask)
    assert told == "raw mode does not support template, system, or context"
    told = refused(server, "/api/generate", 400, suffix="b", system="be brief", **ask)
    assert "suffix goes without system" in told
    assert "there is no POST /api/push" in refused(server, "/api/push", 404)
    response = server.client.post("/api/chat", content=b"model=a")
    assert response.status_code == 400
    assert "no JSON object" in response.json()["error"]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    if find_spec("ollama") is None:
        pytest.skip("Ollama's client is not installed")
    import ollama

    with ollama.Client(host=server.address) as client:
        yield client


def test_its_own_client(client: Any, lm: LanguageModel) -> None:
    wanted = lm.generate(MESSAGES, max_new_tokens=30).text
    found = client.chat(model=NAME, messages=MESSAGES, options=GREEDY)
    assert found.message.content == wanted
    assert found.eval_count == 30
    pieces = client.chat(model=NAME, messages=MESSAGES, options=GREEDY, stream=True)
    assert "".join(each.message.content for each in pieces) == wanted
    assert client.generate(model=NAME, prompt="why", options=GREEDY).response
    assert [each.model for each in client.list().models] == [f"{NAME}:latest"]
    assert client.ps().models[0].model == f"{NAME}:latest"
    assert client.show(NAME).capabilities
    with pytest.raises(Exception, match="not found"):
        client.chat(model="llama3", messages=MESSAGES)
