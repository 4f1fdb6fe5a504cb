"""Who may ask at all: host, origin, key, and how long and large a request may be."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from draftwood_serve.guard import Guard
from draftwood_serve.settings import BODY_BYTES, HEADER_BYTES, ServeSettings, speculative_config


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with its owner and the length of the body."""
    message = await receive()
    told = f"{scope['state']['owner']}:{len(message['body'])}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": told})


def ask(guard: Guard, method: str = "GET", path: str = "/v1/models", **sent: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=guard)  # type: ignore[arg-type]
        base = sent.pop("base", "http://localhost:8000")
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **sent)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:8000", 200),
        ("127.1.2.3", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.0.7:8000", 403),
        ("", 403),
        ("[::1", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    guard = Guard(echo, ServeSettings())
    assert ask(guard, headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://localhost:9000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_pages_of_other_sites_are_refused(origin: str, status: int) -> None:
    guard = Guard(echo, ServeSettings())
    response = ask(guard, headers={"origin": origin})
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_a_key_is_asked_for_and_tells_owners_apart() -> None:
    guard = Guard(echo, ServeSettings(host="0.0.0.0", api_keys=("one", "two")))
    for sent, status in (
        ({}, 401),
        ({"authorization": "Bearer three"}, 401),
        ({"authorization": "Basic one"}, 401),
        ({"authorization": b"Bearer \xff"}, 401),
    ):
        response = ask(guard, headers=sent)
        assert response.status_code == status
        assert response.json()["error"]["code"] == "invalid_api_key"
    for number, key in enumerate(("one", "two")):
        response = ask(guard, headers={"authorization": f"Bearer {key}"}, base="http://far.example")
        assert response.text == f"{number}:0"
    assert ask(guard, path="/health").status_code == 200


def test_other_addresses_need_a_key() -> None:
    with pytest.raises(ValueError, match="--api-key"):
        ServeSettings(host="0.0.0.0")
    for key in ("", "clé", " key", "key ", "a\nb"):  # no header says them
        with pytest.raises(ValueError, match="printable ASCII"):
            ServeSettings(api_keys=("good", key))
    assert ServeSettings(api_keys=("a key",)).api_keys == ("a key",)
    assert ServeSettings(host="::1").host == "::1"


def test_bodies_are_json_and_not_too_large() -> None:
    guard = Guard(echo, ServeSettings())
    kind = {"content-type": "application/json"}
    full = b"x" * BODY_BYTES
    assert ask(guard, "POST", headers=kind, content=full).text == f":{BODY_BYTES}"
    assert ask(guard, "POST", headers=kind, content=full + b"x").status_code == 413

    async def pieces() -> Any:
        for _ in range(33):
            yield b"x" * 65536

    assert ask(guard, "POST", headers=kind, content=pieces()).status_code == 413
    assert ask(guard, "POST", content=b"{}").status_code == 415
    plain = {"content-type": "text/plain"}
    assert ask(guard, "POST", headers=plain, content=b"{}").status_code == 415
    long = {"x-long": "y" * HEADER_BYTES}
    assert ask(guard, headers=long).status_code == 431


CURL = {"content-type": "application/x-www-form-urlencoded", "user-agent": "curl/8.5.0"}


@pytest.mark.parametrize("kind", [CURL["content-type"], "text/plain", ""])
def test_ollamas_paths_take_what_curl_sends(kind: str) -> None:
    guard = Guard(echo, ServeSettings())
    headers = {**CURL, "content-type": kind}
    assert ask(guard, "POST", "/api/chat", headers=headers, content=b"{}").text == ":2"
    assert ask(guard, "POST", "/v1/chat/completions", headers=headers, content=b"{}").is_error


@pytest.mark.parametrize(
    "trace",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8000"},  # the page itself sends JSON
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-mode": "no-cors"},
        {"sec-ch-ua": '"Chromium"'},
        {"referer": "https://evil.example/"},
        {"cookie": "a=b"},
        {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/60.0"},
    ],
)
def test_a_page_cannot_send_what_curl_may(trace: dict[str, str]) -> None:
    guard = Guard(echo, ServeSettings())
    for path in ("/api/chat", "/api/generate"):
        response = ask(guard, "POST", path, headers={**CURL, **trace}, content=b"{}")
        assert response.status_code in (403, 415)


def test_the_body_of_curl_is_told_as_json() -> None:
    kinds: list[Any] = []

    async def heard(scope: Any, receive: Any, send: Any) -> None:
        kinds.extend(value for name, value in scope["headers"] if name == b"content-type")
        await echo(scope, receive, send)

    ask(Guard(heard, ServeSettings()), "POST", "/api/chat", headers=CURL, content=b"{}")
    assert kinds == [b"application/json"]


def run_with(guard: Guard, receive: Callable[[], Awaitable[Any]]) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    asyncio.run(guard(scope, receive, send))
    return sent


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def never() -> Any:
        await asyncio.sleep(60)

    started, _ = run_with(Guard(echo, ServeSettings(), body_seconds=0.05), never)
    assert started["status"] == 408


def test_a_body_that_is_not_whole_is_refused_where_the_server_stops() -> None:
    guard = Guard(echo, ServeSettings())

    async def half() -> Any:
        asyncio.get_running_loop().call_soon(guard.stop)
        await asyncio.sleep(60)

    for _ in ("while it is read", "behind the end"):
        started, told = run_with(guard, half)
        assert started["status"] == 503
        assert json.loads(told["body"])["error"]["code"] == "stopping"


def test_half_a_body_reaches_nobody() -> None:
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def half() -> Any:
        return next(messages, {"type": "http.disconnect"})

    assert run_with(Guard(echo, ServeSettings()), half) == []


def test_a_host_that_is_named_twice_is_refused() -> None:
    guard = Guard(echo, ServeSettings())
    headers = [("host", "localhost"), ("host", "evil.example")]
    assert ask(guard, headers=headers).status_code == 400


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"method": 3}', '{"num_speculative_tokens": 3}', "[" * 100_000]
)
def test_a_speculative_config_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="speculative-config"):
        speculative_config(text)


def test_a_speculative_config_may_name_the_draft_model_as_vllm_does() -> None:
    wanted = {"method": "rsd-s", "draft_model": ("x",)}
    assert speculative_config('{"method": "rsd-s", "model": "x"}') == wanted
    assert speculative_config('{"method": "rsd-s", "draft_model": "x"}') == wanted
    both = speculative_config('{"model": "x", "drafter": "smollm2-135m-ctc"}')
    drafts = ServeSettings(**both).drafts
    assert (drafts.model, drafts.head) == ("x", "smollm2-135m-ctc")


def test_the_first_method_follows_from_what_drafts() -> None:
    assert ServeSettings().first_method == "auto"
    head = ServeSettings(draft_model="smollm2-135m-ctc")  # type: ignore[arg-type]
    assert head.first_method == "ctc"
    assert replace(head, method="plain").first_method == "plain"
    with pytest.raises(ValueError, match="two language models are given"):
        ServeSettings(draft_model=("x", "y"))
