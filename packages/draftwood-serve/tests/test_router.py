"""Requests through a router, over servers in this process and over played ones that break off."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from draftwood_serve.access_log import MARK, OUTCOME, ServerLog
from draftwood_serve.run import address_of
from front import KEY, Front, chunked, front, played
from local_server import RunningServer, running, wait_for

Two = tuple[Front, RunningServer, RunningServer]
LONG = "tell me more about it " * 12


@pytest.fixture(scope="module")
def two(tiny: str) -> Iterator[Two]:
    with running(tiny, api_keys=(KEY,)) as one, running(tiny, api_keys=(KEY,)) as other:
        for server in (one, other):
            server.client.headers["authorization"] = f"Bearer {KEY}"
        with front(one.address, other.address, served_names=("tiny",)) as found:
            yield found, one, other


def completion(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_texts_are_those_of_one_server(two: Two) -> None:
    found, one, _ = two
    wanted = [
        {"prompt": "abcde"[: 1 + n % 5] * 3, "seed": n, "max_tokens": 12, "temperature": 0.9}
        for n in range(24)
    ]
    alone = [one.text(**body) for body in wanted]
    assert len(set(alone)) > 20
    before = found.served
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda body: completion(found.client, **body), wanted)) == alone
    got = [now - then for now, then in zip(found.served, before, strict=True)]
    assert sum(got) == 24
    assert min(got) >= 6
    wait_for(lambda: not found.router.open)
    assert [each.load.open for each in found.replicas.living] == [0, 0]


def test_streams_come_as_they_are_written(two: Two) -> None:
    found, one, _ = two
    body = {"prompt": "go", "seed": 3, "max_tokens": 90}
    with found.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in answer.iter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert len(chunks) > 3
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == one.text(**body)


def test_requests_that_begin_alike_go_to_one_replica(two: Two) -> None:
    found, _, _ = two
    for start in ("a", "b", "c"):
        before, told = found.served, []
        for turn in range(4):
            prompt = start + LONG + "more " * 8 * turn
            answer = found.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
            told.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        got = sorted(now - then for now, then in zip(found.served, before, strict=True))
        assert got == [0, 4]
        assert told[0] < 64 <= min(told[1:])


def test_who_leaves_is_forgotten_by_the_replica_too(endless: str) -> None:
    with (
        running(endless, api_keys=(KEY,), method="plain") as one,
        front(one.address, served_names=("tiny",)) as found,
    ):
        body: dict[str, Any] = {"prompt": "go", "max_tokens": 500_000, "stream": True}
        with found.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # while it lives, the connection does
            line = next(lines)
            assert '"choices"' in line, line
            wait_for(lambda: one.running_texts == 1, 5)
        wait_for(one.idle, 10)
        wait_for(lambda: not found.router.open)
        body["stream"] = False
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{found.address}/v1/completions", json=body, timeout=0.5)
        wait_for(one.idle, 10)


def test_refusals_are_the_replicas_own(two: Two) -> None:
    found, _, _ = two
    for path, status, body in (
        ("/v1/completions", 400, {"prompt": "a", "top_p": 3}),
        ("/v1/completions", 404, {"prompt": "a", "model": "other"}),
        ("/nowhere", 404, {}),
    ):
        answer = found.client.post(path, json=body)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert found.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert found.client.get("/v1/models/tiny?x=%20").json()["id"] == "tiny"
    assert found.client.get("/health").json() == {"status": "ok", "replicas": 2}


SAID = [{"role": "user", "content": "why"}]
ASKED = {"max_tokens": 12, "seed": 1}
OLLAMA = {"model": "tiny", "prompt": "why", "options": {"num_predict": 12, "seed": 1}}
REQUESTS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/completions", {"prompt": "why", **ASKED}, 200),
    ("/v1/completions", {"prompt": "why", "stream": True, **ASKED}, 200),
    ("/v1/chat/completions", {"messages": SAID, "stream": True, **ASKED}, 200),
    ("/v1/responses", {"input": "why", "stream": True, "max_output_tokens": 12, "seed": 1}, 200),
    ("/api/generate", OLLAMA, 200),
    ("/api/generate", {**OLLAMA, "stream": False}, 200),
    ("/v1/embeddings", {"input": "why"}, 200),
    ("/v1/completions", {"prompt": "a", "top_p": 3}, 400),
    ("/api/generate", {"model": "other"}, 404),
]
OF_TIME = ("time", "seconds", "first_token_s", "step_ms", "drafts")


@pytest.mark.parametrize("level", ["info", "debug"])
def test_lines_of_the_log_are_those_of_one_server(tiny: str, level: str) -> None:
    one, through = list[str](), list[str]()
    how = {"level": level, "as_json": True}
    with (
        running(tiny, method="plain", api_keys=(KEY,), log=ServerLog(**how, write=one.append)) as r,
        front(
            r.address, served_names=("tiny",), log=ServerLog(**how, write=through.append)
        ) as found,
    ):
        r.client.headers["authorization"] = f"Bearer {KEY}"
        for client in (r.client, found.client):
            for path, body, status in REQUESTS:
                answer = client.post(path, json=body)
                assert answer.status_code == status
                assert "outcome" not in str(answer.headers)
                assert b"\0" not in answer.content
        wait_for(lambda: len(through) == len(REQUESTS) and len(one) == 2 * len(REQUESTS))
    for alone, told in zip(one, through, strict=False):
        wanted, line = json.loads(alone), json.loads(told)
        assert list(wanted) == list(line)
        for name in wanted:
            assert name in OF_TIME or wanted[name] == line[name], name
    assert ["step_ms" in json.loads(line) for line in through[:2]] == [level == "debug"] * 2
    told = [json.loads(line) for line in through]
    assert [each.get("tokens") for each in told] == [12] * 6 + [None] * 3
    assert [each["error"] for each in told[-2:]] == ["invalid_value", "model_not_found"]
    assert 0 < told[0]["first_token_s"] <= told[0]["seconds"]


def test_an_answer_tells_its_outcome_to_those_alone_who_ask(two: Two) -> None:
    _, one, _ = two
    body = {"prompt": "why", "max_tokens": 3}
    for stream in (False, True):
        answer = one.client.post("/v1/completions", json={**body, "stream": stream})
        assert OUTCOME.decode() not in answer.headers
        assert MARK not in answer.content
        asked = {OUTCOME.decode(): "1"}
        answer = one.client.post("/v1/completions", json={**body, "stream": stream}, headers=asked)
        outcome = answer.content.partition(MARK)[2] if stream else answer.headers[OUTCOME.decode()]
        assert json.loads(outcome)["counts"]["tokens"] == 3


def test_strangers_are_kept_out_at_the_router(two: Two) -> None:
    found, one, _ = two
    before = found.served
    for headers, status in (
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
    ):
        answer = found.client.post("/v1/completions", content=b"{}", headers=headers)
        assert answer.status_code == status
    assert found.served == before
    bare = httpx.get(f"{one.address}/v1/models")
    assert bare.status_code == 401  # nobody reaches a replica past the router


def test_keys_of_clients_are_asked_for_and_handed_on(tiny: str) -> None:
    keys = ("one", "two")
    with (
        running(tiny, api_keys=keys) as server,
        front(server.address, api_keys=keys, served_names=("tiny",)) as found,
    ):
        body = {"prompt": "a" * 100, "max_tokens": 2}
        assert found.client.post("/v1/completions", json=body).status_code == 401
        told = []
        for key in ("one", "two", "two"):
            headers = {"authorization": f"Bearer {key}"}
            answer = found.client.post("/v1/completions", json=body, headers=headers)
            told.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        assert told == [False, False, True]


def test_headers_need_not_be_ascii(two: Two) -> None:
    found, one, _ = two
    headers = {"accept": "ü".encode("latin-1"), "x-more": "ü".encode()}
    for client in (one.client, found.client):
        answer = client.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        assert answer.status_code == 200


def test_metrics_are_summed(two: Two) -> None:
    found, one, other = two
    completion(found.client, prompt="a", max_tokens=3)
    lines = found.client.get("/metrics").text.splitlines()
    (summed,) = [
        line
        for line in lines
        if line.startswith('draftwood:generation_tokens_total{model="tiny"} ')
    ]
    assert float(summed.split()[1]) == sum(
        server.metric("generation_tokens_total") for server in (one, other)
    )
    assert "draftwood:replicas 2.0" in lines


EVENT = b'data: {"choices": []}\n\n'
HALF = b'data: {"choi'


@pytest.mark.parametrize(
    ("path", "last"),
    [("/v1/chat/completions", "data: [DONE]"), ("/v1/completions", "data: [DONE]")]
    + [("/infill", None)],
)
def test_a_stream_whose_replica_ends_is_told_so(path: str, last: str | None) -> None:
    logged: list[str] = []
    log = ServerLog("error", as_json=True, write=logged.append)
    with played(*chunked(EVENT, HALF)) as address, front(address, log=log) as found:
        with found.client.stream("POST", path, json={}) as answer:
            lines = [line for line in answer.iter_lines() if line]
        wait_for(lambda: bool(logged))
    (line,) = map(json.loads, logged)
    assert (line["status"], line["level"], line["error"]) == (200, "error", "replica_lost")
    assert line["model"] == found.router.settings.names[0]  # no replica told it
    if last is not None:
        assert lines.pop() == last
    first, error = lines
    assert first == EVENT.decode().strip()  # and nothing of the event that broke off
    told = json.loads(error.removeprefix("data: "))["error"]
    assert told["code"] == "replica_lost"
    assert "again" in told["message"]


def test_a_stream_that_was_whole_when_its_replica_ended_stays_so() -> None:
    done = b"data: [DONE]\n\n"
    with (
        played(*chunked(EVENT, done, HALF)) as address,
        front(address) as found,
        found.client.stream("POST", "/v1/completions", json={}) as answer,
    ):
        assert [line for line in answer.iter_lines() if line] == [
            'data: {"choices": []}',
            "data: [DONE]",
        ]


def test_a_response_whose_replica_ends_is_told_so_as_its_api_has_it() -> None:
    with (
        played(*chunked(EVENT + EVENT, HALF)) as address,
        front(address) as found,
        found.client.stream("POST", "/v1/responses", json={}) as answer,
    ):
        *_, name, data = [line for line in answer.iter_lines() if line]
    assert name == "event: error"
    told = json.loads(data.removeprefix("data: "))
    assert (told["type"], told["code"], told["sequence_number"]) == ("error", "replica_lost", 2)


def test_who_does_not_read_is_let_go() -> None:
    with (
        played(*chunked(*[EVENT * 40_000] * 40)) as address,  # more than sockets hold
        front(address) as found,
        socket.create_connection(found.client.base_url.netloc.decode().split(":")) as client,
    ):
        found.router.most_seconds = 1.0
        asked = b"POST /infill HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(asked + b"content-length: 2\r\n\r\n{}")
        wait_for(lambda: bool(found.router.open))
        wait_for(lambda: not found.router.open)
        got = 0
        while part := client.recv(2**20):
            got += len(part)
        assert got < 20 * 40_000 * len(EVENT)  # what sockets held, not the rest


def test_lines_of_ollama_come_as_they_are_written_and_tell_errors() -> None:
    parts = chunked(b'{"done": false}\n', b'{"do', kind="application/x-ndjson")
    with played(*parts) as address, front(address) as found:
        with found.client.stream("POST", "/api/chat", json={}) as answer:
            first, error = [json.loads(line) for line in answer.iter_lines()]
        assert first == {"done": False}
        assert "the replica that wrote this text has ended" in error["error"]
        found.replicas.living = []
        answer = found.client.post("/api/chat", json={})
        assert answer.status_code == 503
        assert "no replica" in answer.json()["error"]


def test_what_has_not_begun_goes_to_another_replica(two: Two) -> None:
    _, one, _ = two
    half = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    for parts in (b"", half):
        with played(parts) as address, front(address, one.address) as found:
            body = {"prompt": "go", "seed": 3, "max_tokens": 5}
            for _ in range(2):
                assert completion(found.client, **body) == one.text(**body)
            assert found.served[0] >= 1
            assert [each.load.open for each in found.replicas.living] == [0, 0]


def test_a_request_that_ends_replica_after_replica_is_not_asked_of_all() -> None:
    with played(b"") as one, played(b"") as two, played(b"") as three, front(one, two, three) as f:
        answer = f.client.post("/v1/completions", json={})
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "replica_lost"
        assert answer.headers["x-should-retry"] == "false"
        assert sum(f.served) == 2


def test_replicas_that_are_gone_do_not_count_as_ended_by_the_request(two: Two) -> None:
    _, one, _ = two
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = address_of(free)
    with front(gone, gone, gone, one.address) as found:
        assert completion(found.client, prompt="go", seed=3, max_tokens=5) == one.text(
            "go", seed=3, max_tokens=5
        )
        assert found.served == [1, 1, 1, 1]


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable"])
def test_a_replica_without_room_hands_over_to_one_that_has_some(two: Two, status: bytes) -> None:
    _, one, _ = two
    full = b"HTTP/1.1 %b\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n{}" % status
    with played(full) as busy, front(busy, one.address) as found:
        body = {"prompt": "go", "seed": 3, "max_tokens": 5}
        for _ in range(2):
            assert completion(found.client, **body) == one.text(**body)
        assert found.served[0] >= 1
    with played(full) as busy, played(full) as other, front(busy, other) as found:
        answer = found.client.post("/v1/completions", json={})
        assert answer.status_code == int(status[:3])
        assert answer.headers["retry-after"] == "7"
        assert found.served == [1, 1]
        assert found.router.handovers == 1
        for _ in range(3):  # a replica that refused has read nothing
            found.client.post("/v1/completions", json={"prompt": "x" * 600})
            assert set(found.router.affinity.known.values()) == {0}
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = address_of(free)
    for other in (gone, None):  # it is gone, or ends amid the request
        with played(full) as busy, played(b"") as ends, front(busy, other or ends) as found:
            answer = found.client.post("/v1/completions", json={})
            assert answer.status_code == int(status[:3])
            assert answer.headers["retry-after"] == "7"


def test_one_request_of_many_texts_keeps_others_away(endless: str, two: Two) -> None:
    _, one, _ = two
    with (
        running(endless, api_keys=(KEY,), method="plain") as busy,
        front(busy.address, one.address, served_names=("tiny",)) as found,
    ):
        body: dict[str, Any] = {"prompt": ["a"] * 8, "n": 2, "max_tokens": 500_000, "stream": True}
        with found.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert [each.load.open for each in found.replicas.living] == [16, 0]
            for _ in range(3):
                completion(found.client, prompt="b", max_tokens=2)
            assert found.served == [1, 3]
        wait_for(busy.idle, 10)


def test_without_a_replica_the_client_is_told_to_come_back() -> None:
    logged: list[str] = []
    log = ServerLog("error", as_json=True, write=logged.append)
    with played() as address, front(address, log=log) as found:
        answer = found.client.post("/v1/completions", json={})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_replica"
        assert int(answer.headers["retry-after"]) > 0
        found.replicas.living = []
        assert found.client.get("/health").status_code == 503
        assert "draftwood:replicas 0.0" in found.client.get("/metrics").text
        assert [json.loads(line)["error"] for line in logged] == ["no_replica"] * 2


@pytest.mark.parametrize(("signals", "seconds"), [(1, 0.3), (2, 60.0)])
def test_a_stop_lets_what_runs_end_and_then_cuts_it(
    endless: str, signals: int, seconds: float
) -> None:
    with (
        running(endless, api_keys=(KEY,), method="plain") as one,
        front(one.address, served_names=("tiny",), drain_seconds=seconds) as found,
    ):
        body = {"prompt": "go", "max_tokens": 500_000, "stream": True}
        with found.client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            for _ in range(signals):
                found.drain()
            wait_for(lambda: found.router.stopping)
            told = [line for line in lines if line]
        assert told[-1] == "data: [DONE]"
        assert json.loads(told[-2].removeprefix("data: "))["error"]["code"] == "stopping"
        wait_for(one.idle, 10)
