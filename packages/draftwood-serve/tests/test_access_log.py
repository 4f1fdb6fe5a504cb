"""The server's log: who asked for what, what it took, and never what was said."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from draftwood_serve.access_log import COLOURS, Logged, ServerLog
from draftwood_serve.formats.answers import DONE, ended_by_errors
from local_server import NAME, RunningServer, running, wait_for

SECRET = "hush"
SAID = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 20, "seed": 1}


@contextmanager
def logged(model: str, lines: list[str], **how: Any) -> Iterator[RunningServer]:
    own = {name: how.pop(name) for name in ("level", "as_json", "colour") if name in how}
    with running(model, log=ServerLog(**own, write=lines.append), **how) as server:
        yield server


def objects(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_a_line_tells_a_request(tiny: str) -> None:
    lines: list[str] = []
    with logged(tiny, lines) as server:
        whole = server.post("/v1/chat/completions", **SAID)
        server.stream("/v1/chat/completions", **SAID)
        server.client.get("/v1/models")
        server.refused("/v1/completions", 400, prompt=SECRET, temperature=-1)
    passes = whole["metrics"]["speculative_decoding"]["num_spec_steps"]
    usage = whole["usage"]
    told = rf"{NAME} {usage['prompt_tokens']}\+20 tokens, {passes} passes, \d\.\d\d a pass"
    for line in lines[:2]:
        assert re.match(
            rf"\d\d:\d\d:\d\d 127\.0\.0\.1 POST /v1/chat/completions 200 {told}.*,"
            r" first after \d\.\d\d s, \d\.\d\d s in all$",
            line,
        )
    assert re.match(r".{8} 127\.0\.0\.1 GET /v1/models 200 \d\.\d\d s$", lines[2])
    assert " POST /v1/completions 400 invalid_value, " in lines[3]
    assert len(lines) == 4


def test_a_text_of_one_pass_is_told_so(tiny: str) -> None:
    lines: list[str] = []
    with logged(tiny, lines) as server:
        for length in (2, 3):
            server.text("go", max_tokens=length, speculative=False)
    assert [re.findall(r"\d pass(?:es)?", line) for line in lines] == [["1 pass"], ["2 passes"]]


@pytest.mark.parametrize("as_json", [False, True])
def test_neither_prompts_nor_texts_nor_keys_are_logged(tiny: str, as_json: bool) -> None:
    lines: list[str] = []
    key = "sesame-123"
    with logged(tiny, lines, level="debug", as_json=as_json, api_keys=(key,)) as server:
        server.client.headers["authorization"] = f"Bearer {key}"
        answer = server.post("/v1/chat/completions", **SAID)["choices"][0]["message"]["content"]
        server.client.get(f"/v1/models?key={key}&prompt={SECRET}")
        server.refused("/v1/chat/completions", 400, messages=[{"role": SECRET}])
        server.refused("/v1/chat/completions", 404, model=SECRET, **SAID)
        server.client.post("/v1/completions", content=f"{{{SECRET}")
        server.client.headers["authorization"] = "Bearer wrong-456"
        server.client.get("/v1/models")
    assert len(lines) >= 6
    for hidden in (SECRET, key, "wrong-456", answer):
        assert not [line for line in lines if hidden in line]


def test_json_lines_hold_numbers_and_where_time_went(tiny: str) -> None:
    lines: list[str] = []
    with logged(tiny, lines, level="debug", as_json=True) as server:
        whole = server.post("/v1/completions", prompt="abab" * 8, max_tokens=30)
        server.client.get("/health")
    first, health = objects(lines)
    metrics = whole["metrics"]
    assert first["model"] == NAME
    assert first["status"] == 200
    assert (first["prompt_tokens"], first["tokens"]) == (32, 30)
    assert first["passes"] == metrics["speculative_decoding"]["num_spec_steps"]
    assert first["ended"] == "finished"
    assert 0 < first["first_token_s"] <= first["seconds"]
    assert first["step_ms"] == metrics["step_ms"]
    assert first["drafts"] == metrics["drafts"]
    assert set(first["step_ms"]) == {"draft", "target", "verify", "rest"}
    assert (health["level"], health["path"], health["model"]) == ("debug", "/health", None)


def test_debug_says_where_time_went_in_words(tiny: str) -> None:
    lines: list[str] = []
    with logged(tiny, lines, level="debug") as server:
        server.post("/v1/completions", prompt="abab" * 8, max_tokens=30)
    assert lines[1].startswith("  a step: model ")


@pytest.mark.parametrize(
    ("level", "statuses"),
    [("error", []), ("warning", [404]), ("info", [200, 404]), ("debug", [200, 200, 404])],
)
def test_the_level_chooses_the_lines(tiny: str, level: str, statuses: list[int]) -> None:
    lines: list[str] = []
    with logged(tiny, lines, level=level, as_json=True) as server:
        for path in ("/health", "/v1/models", "/nosuch"):
            server.client.get(path)
    assert sorted(each["status"] for each in objects(lines)) == statuses


def test_a_client_that_leaves_and_a_failure_are_told(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with logged(endless, lines, as_json=True, method="plain") as server:
        body = {"prompt": "a", "max_tokens": 100_000, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        wait_for(lambda: bool(lines))
        monkeypatch.setattr(server.service, "_require_place", lambda model: 1 / 0)
        server.client.post("/v1/completions", json={"prompt": "a"})
        wait_for(lambda: len(lines) > 2)
    left, failed, bug = objects(lines)
    assert (left["ended"], left["level"], left["status"]) == ("cancelled", "info", 200)
    assert left["tokens"] > 0
    assert (failed["status"], failed["level"], failed["error"]) == (500, "error", "internal_error")
    assert bug["level"] == "error"
    assert "ZeroDivisionError" in bug["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_takes_too_long_is_a_failure(
    endless: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the model's thread, amid a pass, ends it after its line is written."""
    lines: list[str] = []
    body = {"prompt": "a", "max_tokens": 500_000, "stream": stream}
    with logged(endless, lines, as_json=True, method="plain", request_timeout=0.5) as server:
        running = server.service.models.first.running
        cancel, late = running.cancel, list[Any]()
        monkeypatch.setattr(running, "cancel", lambda *asked: late.append(asked))
        answer = server.client.post("/v1/completions", json=body)
        assert '"code":"timeout"' in answer.text
        wait_for(lambda: bool(lines))
        for asked in late:
            cancel(*asked)
        wait_for(server.idle)
        assert server.ends() == {"failed": 1.0}
    (line,) = objects(lines)
    assert (line["status"], line["level"]) == (200 if stream else 504, "error")
    assert (line["ended"], line["error"]) == ("failed", "timeout")


def test_a_bug_amid_a_stream_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[str]:
        yield "a"
        raise ZeroDivisionError

    job: Any = SimpleNamespace(error=None)

    async def heard() -> list[str]:
        return [each async for each in ended_by_errors(events(), job, DONE)]

    first, last = asyncio.run(heard())
    assert first == "a"
    assert '"code":"internal_error"' in last
    assert last.endswith(DONE)
    assert job.error == "internal_error"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def ask(app: Any, path: str) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.get(path)

    asyncio.run(run())


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("colour", [False, True])
def test_colour_is_shown_where_it_is_wanted(colour: bool) -> None:
    lines: list[str] = []
    ask(Logged(nothing, ServerLog(colour=colour, write=lines.append)), "/x")
    assert (f"\x1b[{COLOURS['info']}m204\x1b[0m" in lines[0]) is colour
    assert ("\x1b" in lines[0]) is colour


def test_a_path_is_one_line_without_its_query() -> None:
    lines: list[str] = []
    scope = {"type": "http", "method": "GET", "path": "", "raw_path": b"/a\x1b[31m\n\xff?b=c"}
    logged_app = Logged(nothing, ServerLog(write=lines.append))

    async def send(message: Any) -> None: ...

    asyncio.run(logged_app(scope, lambda: None, send))  # type: ignore[arg-type]
    assert lines[0].split()[3] == "/a?[31m??"


def test_a_connection_keeps_nothing_of_a_request_behind_it() -> None:
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "state": {}}

    async def told(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["model"] = "tiny"
        await nothing(scope, receive, send)

    async def send(message: Any) -> None: ...

    lines: list[str] = []
    app = Logged(told, ServerLog(write=lines.append))
    asyncio.run(app(scope, lambda: None, send))  # type: ignore[arg-type]
    assert "tiny" in lines[0]
    assert not scope["state"]  # a job there would hold its model in memory


def test_notes_are_lines_too() -> None:
    lines: list[str] = []
    take: Callable[[str], None] = lines.append
    ServerLog(write=take).note("all is well")
    ServerLog(write=take, as_json=True).note("all is well")
    ServerLog("warning", write=take).note("all is well")
    assert lines[0].endswith(" all is well")
    assert json.loads(lines[1])["message"] == "all is well"
    assert len(lines) == 2
