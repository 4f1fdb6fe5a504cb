"""Clients that leave, requests that wait too long, and the server's end."""

import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from draftwood_serve import jobs
from draftwood_serve.access_log import ServerLog
from draftwood_serve.jobs import TextRequest
from draftwood_serve.metrics import MetricFamilies, Metrics
from local_server import RunningServer, running, wait_for

LONG = {"prompt": "go", "max_tokens": 500_000, "temperature": 0.5, "seed": 1}


@pytest.fixture(scope="module")
def slow(endless: str) -> Iterator[RunningServer]:
    """A server with room for two texts and one that waits."""
    with running(endless, method="plain", max_batch=2, max_queue=1) as found:
        yield found


def send(server: RunningServer, most: int | None = None, **body: Any) -> socket.socket:
    """A request over a bare connection, with so many bytes of its body at most."""
    content = json.dumps(body).encode()
    host, port = server.address.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)))
    found.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(content) + content[:most]
    )
    return found


def kill(connection: socket.socket) -> None:
    """End a connection as the system does for a client that was killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_who_leaves_gives_the_place_back_within_two_steps(
    slow: RunningServer, stream: bool, killed: bool
) -> None:
    connections = [send(slow, **LONG, stream=stream) for _ in range(2)]
    wait_for(lambda: slow.running_texts == 2)
    for connection in connections:
        kill(connection) if killed else connection.close()
    wait_for(slow.idle, 5)
    before = slow.metric("steps_total")
    assert len(slow.text("go", max_tokens=8)) == 8
    assert slow.metric("steps_total") - before <= 8 + 2


def test_who_leaves_while_waiting_is_never_run(slow: RunningServer) -> None:
    connections = [send(slow, **LONG) for _ in range(2)]
    wait_for(lambda: slow.running_texts == 2)
    third = send(slow, **LONG)
    wait_for(lambda: len(slow.service.open) == 3)
    kill(third)
    wait_for(lambda: len(slow.service.open) == 2)
    for connection in connections:
        connection.close()
    wait_for(slow.idle)


def test_too_many_are_sent_away_and_told_when_to_come_back(slow: RunningServer) -> None:
    for _ in range(3):
        slow.text("go", max_tokens=4)
    connections = [send(slow, **LONG) for _ in range(3)]
    wait_for(lambda: len(slow.service.open) == 3 and slow.running_texts == 2)
    response = slow.client.post("/v1/completions", json=LONG)
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert response.json()["error"]["message"].startswith("1 request waits already; try again in")
    assert 0 < int(response.headers["retry-after"]) <= 120
    assert 0 < int(response.headers["retry-after-ms"]) <= 120_000
    for connection in connections:
        connection.close()
    wait_for(slow.idle)
    assert len(slow.text("go", max_tokens=4)) == 4


def test_without_a_queue_the_places_are_said_to_be_taken(slow: RunningServer) -> None:
    connections = [send(slow, **LONG) for _ in range(2)]
    wait_for(lambda: slow.running_texts == 2)
    slow.service.settings.__dict__["max_queue"] = 0
    error = slow.refused("/v1/completions", 429, **LONG)
    slow.service.settings.__dict__["max_queue"] = 1
    assert error["message"].startswith("all places are taken, and none waits here; try again in")
    for connection in connections:
        connection.close()
    wait_for(slow.idle)


def test_a_place_is_foretold_by_requests_that_end_while_some_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, now = Metrics(MetricFamilies(), "m"), [0.0]
    monkeypatch.setattr("draftwood_serve.metrics.perf_counter", lambda: now[0])

    def end(started: float, ended: float) -> None:
        own = {"arrived": started, "started": started, "first_token": 0.0, "ended": ended}
        now[0] = ended
        metrics.ended(SimpleNamespace(**own, prompt_tokens=1), "finished")  # type: ignore[arg-type]

    assert metrics.seconds_to_place() is None
    for second in (3.0, 5.0, 7.0):
        end(1.0, second)
    assert metrics.seconds_to_place() == 2.0
    metrics.load(0, 0)  # however long that lasts
    metrics.load(2, 0)
    assert metrics.seconds_to_place() == 2.0, "two run, and requests ran for 4 s"
    end(100.0, 109.0)
    end(100.0, 110.0)
    assert metrics.seconds_to_place() == 1.0
    now[0] = 130.0  # the other one goes on
    assert metrics.seconds_to_place() == 21.0


def test_texts_that_wait_are_counted_each(slow: RunningServer) -> None:
    blockers = [send(slow, **LONG) for _ in range(2)]
    wait_for(lambda: slow.running_texts == 2)
    several = send(slow, **LONG, n=2)
    wait_for(lambda: slow.metric("texts_waiting") == 2)
    for connection in (several, *blockers):
        connection.close()
    wait_for(slow.idle)


def test_many_texts_of_a_request_take_turns_with_those_that_come_later(
    slow: RunningServer,
) -> None:
    many = send(slow, **{**LONG, "prompt": ["go"] * 8, "max_tokens": 300})
    wait_for(lambda: slow.metric("texts_waiting") == 6)
    slow.text("go", max_tokens=1)
    assert slow.metric("texts_waiting") >= 3
    many.close()
    wait_for(slow.idle)


def test_calls_that_follow_one_another_hold_up_no_text(slow: RunningServer) -> None:
    running, over = slow.service.models.first.running, threading.Event()

    def again(_: object) -> None:
        if not over.is_set():
            running.call(again)

    running.call(again)
    try:
        since = perf_counter()
        slow.text("go", max_tokens=1)
        assert perf_counter() - since < 10
    finally:
        over.set()
    wait_for(slow.idle)


def test_nobody_waits_for_the_grammars_of_others(
    slow: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, begun = threading.Event(), threading.Semaphore(0)

    def compiled(*_: object) -> None:
        begun.release()
        over.wait(20)

    def grammar(lm: object, wanted: TextRequest) -> None:
        return compiled() if wanted.json_schema is not None else None

    monkeypatch.setattr(jobs, "_grammar", grammar)
    monkeypatch.setitem(slow.service.settings.__dict__, "max_queue", 3)
    schema = {"json": {"type": "object"}}
    waiting = [send(slow, **{**LONG, "structured_outputs": schema}) for _ in range(2)]
    try:
        assert all(begun.acquire(timeout=10) for _ in waiting)
        since = perf_counter()
        slow.text("go", max_tokens=1)
        assert perf_counter() - since < 10
    finally:
        over.set()
        for connection in waiting:
            connection.close()
    wait_for(slow.idle)


def test_first_come_is_first_served(slow: RunningServer) -> None:
    order: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        blockers = [send(slow, **LONG) for _ in range(2)]
        wait_for(lambda: slow.running_texts == 2)

        def ask(number: int) -> None:
            slow.text("go", max_tokens=800)
            order.append(number)

        slow.service.settings.__dict__["max_queue"] = 3
        for number in range(3):
            pool.submit(ask, number)
            wait_for(lambda wanted=1 + number: slow.metric("texts_waiting") == wanted)
        kill(blockers[0])
    kill(blockers[1])
    slow.service.settings.__dict__["max_queue"] = 1
    assert order == [0, 1, 2]
    wait_for(slow.idle)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_ends_alone(endless: str, stream: bool) -> None:
    with running(endless, method="plain", request_timeout=0.5) as server:
        response = server.client.post("/v1/completions", json={**LONG, "stream": stream})
        wait_for(server.idle)
        if stream:
            assert response.status_code == 200
            *_, last, done = (line for line in response.text.splitlines() if line)
            assert done == "data: [DONE]"
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert response.status_code == 504
            assert response.headers["x-should-retry"] == "false"
            error = response.json()["error"]
        assert error["code"] == "timeout"
        ends = server.client.get("/metrics").text
        assert 'requests_total{end="failed",model="tiny"} 1.0' in ends
        assert 'end="cancelled"' not in ends
        assert len(server.text("go", max_tokens=4)) == 4


def test_a_response_that_takes_too_long_ends_with_an_event_of_its_api(endless: str) -> None:
    with running(endless, method="plain", request_timeout=0.5) as server:
        asked = {"input": "go", "max_output_tokens": 500_000, "stream": True}
        response = server.client.post("/v1/responses", json=asked)
    *_, before, kind, last = (line for line in response.text.splitlines() if line)
    assert kind == "event: error"
    assert json.loads(last.removeprefix("data: ")) == {
        "type": "error",
        "sequence_number": json.loads(before.removeprefix("data: "))["sequence_number"] + 1,
        "code": "timeout",
        "message": "the answer was not written within 0.5 s",
        "param": None,
    }


def test_a_server_that_stops_ends_what_runs_with_an_error_and_takes_nothing_new(
    endless: str,
) -> None:
    with running(endless, method="plain", drain_seconds=1.0) as server:
        lines: list[str] = []

        def read() -> None:
            with httpx.stream(
                "POST", f"{server.address}/v1/completions", json={**LONG, "stream": True}
            ) as told:
                lines.extend(line for line in told.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: len(lines) > 3)
        server.server.handle_exit(15, None)
        wait_for(lambda: server.service.stopping)
        for path in ("/v1/completions", "/v1/chat/completions"):
            body = {"prompt": "go"} if path == "/v1/completions" else {"messages": [MESSAGE]}
            assert server.refused(path, 503, **body)["code"] == "stopping"
        assert server.client.get("/health").status_code == 503
        reader.join(20)
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "stopping"
        wait_for(lambda: server.server.should_exit)


def test_a_second_signal_tells_all_clients_and_leaves_no_traceback(
    endless: str, capfd: pytest.CaptureFixture[str]
) -> None:
    how: dict[str, Any] = {"method": "plain", "max_batch": 2, "drain_seconds": 60.0}
    with running(endless, **how) as server, ThreadPoolExecutor(6) as pool:

        def ask(stream: bool) -> httpx.Response:
            url = f"{server.address}/v1/completions"
            return httpx.post(url, json={**LONG, "stream": stream}, timeout=60)

        asked = [pool.submit(ask, stream) for stream in (True, False) * 3]  # four of them wait
        wait_for(lambda: len(server.service.open) == 6 and server.running_texts == 2)
        for _ in range(2):
            server.server.handle_exit(15, None)
        for each in asked:
            answer = each.result(20)
            assert '"code":"stopping"' in answer.text
            assert "data:" in answer.text or answer.status_code == 503
        wait_for(lambda: server.server.should_exit, 5)
    assert "Traceback" not in capfd.readouterr().err


MESSAGE = {"role": "user", "content": "go"}


@pytest.mark.parametrize("signals", [1, 2])
def test_half_a_body_holds_no_end_up_and_is_told_of_it(
    endless: str, signals: int, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    log = ServerLog(as_json=True, write=lines.append)
    with running(endless, method="plain", drain_seconds=60.0, log=log) as server:
        going = send(server, **LONG) if signals > 1 else None
        wait_for(lambda: going is None or server.running_texts == 1)
        half = send(server, 9, **LONG)
        wait_for(lambda: len(server.server.guard._bodies) > 0)
        since = perf_counter()
        for _ in range(signals):
            server.server.handle_exit(15, None)
        with half:
            told = b"".join(iter(lambda: half.recv(4096), b""))
        if going is not None:
            with going:
                assert b'"code":"stopping"' in b"".join(iter(lambda: going.recv(4096), b""))
        head, _, body = told.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert json.loads(body)["error"]["code"] == "stopping"
        wait_for(lambda: not server.server.server_state.connections, 5)
        assert perf_counter() - since < 2.0
    assert capfd.readouterr().err == ""
    assert all(json.loads(line) for line in lines)
    (line,) = (
        each
        for each in map(json.loads, lines)
        if each.get("error") == "stopping" and "tokens" not in each
    )
    assert (line["status"], line["error"]) == (503, "stopping")


def test_what_uvicorn_tells_is_a_line_of_the_log(
    tiny: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    with running(tiny, log=ServerLog(as_json=True, write=lines.append)):
        try:
            raise RuntimeError("a planted fault")
        except RuntimeError:
            logging.getLogger("uvicorn.error").exception("it failed")
    told = json.loads(lines[0])
    assert told["level"] == "error"
    assert told["message"].startswith("it failed\nTraceback")
    logging.getLogger("uvicorn.error").error("another server's")
    assert len(lines) == 1
    assert "planted" not in capfd.readouterr().err


def test_faults_in_a_server_whose_log_goes_nowhere_stay_with_python(tiny: str) -> None:
    """A replica's, whose router writes the log of requests: Python tells them on standard error."""
    logger = logging.getLogger("uvicorn")
    before = [*logger.handlers]
    with running(tiny, log=ServerLog()):
        assert logger.handlers == before
    with running(tiny, log=ServerLog(write=print)):
        assert len(logger.handlers) == len(before) + 1


def test_a_server_that_stops_lets_short_requests_end(tiny: str) -> None:
    with running(tiny, drain_seconds=20.0) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.text, "go", max_tokens=400)
        wait_for(lambda: server.running_texts == 1)
        server.server.handle_exit(15, None)
        assert len(asked.result(20)) == 400
        wait_for(lambda: server.server.should_exit, 5)


def test_a_request_whose_step_fails_ends_alone(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood_serve.texts import Choice

    take = Choice.take

    def failing(self: Choice, step: Any, is_last: bool) -> Any:
        if self.sequence.options.seed == 666 and self.stats.tokens > 3:
            raise RuntimeError("a planted fault")
        return take(self, step, is_last)

    with running(tiny) as server, ThreadPoolExecutor(2) as pool:
        wanted = server.text("go", seed=5, max_tokens=60)
        monkeypatch.setattr(Choice, "take", failing)
        healthy = pool.submit(server.text, "go", seed=5, max_tokens=60)
        error = server.refused("/v1/completions", 500, prompt="go", seed=666, max_tokens=60)
        assert "a planted fault" in error["message"]
        assert healthy.result(20) == wanted
        wait_for(server.idle)
