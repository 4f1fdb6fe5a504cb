"""Replicas that Ray starts: none without room, and texts that outlive one of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import draftwood
from draftwood import cluster
from draftwood.cli.main import main
from draftwood.costs.calibration import Calibration
from draftwood.optional import install_command
from draftwood_serve import replica, replicas
from draftwood_serve.access_log import ServerLog
from draftwood_serve.affinity import ReplicaLoad
from draftwood_serve.replica import ReplicaFacts
from draftwood_serve.replicas import ReplicaSet
from draftwood_serve.router import RunningReplica
from draftwood_serve.settings import ServeSettings
from local_server import wait_for
from test_serve_command import start

REQUESTS = 200
AT_ONCE = 12
GONE = "replica_lost"


class FakeRay(SimpleNamespace):
    """A cluster of nodes with these resources, which starts nothing."""

    def __init__(self, *nodes: dict[str, float], **acts: Any) -> None:
        self.ended = False
        there = [{"Alive": True, "Resources": node} for node in nodes]
        super().__init__(**{"init": lambda **_: None, "nodes": lambda: there, **acts})

    def shutdown(self) -> None:
        self.ended = True


def placed(
    monkeypatch: pytest.MonkeyPatch,
    ray: FakeRay,
    count: int,
    address: str | None = None,
    **more: Any,
) -> ReplicaSet:
    monkeypatch.setattr(cluster, "_ray_for", lambda who, otherwise: ray)
    monkeypatch.setattr(cluster, "cores", lambda: 8)
    return ReplicaSet(ServeSettings(**more), count, address, lambda line, level: None)


@pytest.mark.parametrize(("count", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1)])
def test_replicas_share_the_cpus(monkeypatch: pytest.MonkeyPatch, count: int, threads: int) -> None:
    found = placed(monkeypatch, FakeRay({"CPU": count * threads}), count)
    assert found.needs == {"CPU": threads, "GPU": 0}
    assert found.settings.threads == threads
    assert found.settings.replicas == count
    assert found.settings.replicas_per_node == count  # they share the memory too
    assert found.settings.names == ("smollm2-135m",)
    chosen = placed(monkeypatch, FakeRay({"CPU": 3 * count}), count, threads=3)
    assert chosen.settings.threads == 3


def test_replicas_of_a_cluster_take_what_all_of_them_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = FakeRay({"CPU": 5.0}, {"CPU": 3.0})
    for count, threads, per_node in ((2, 3, 1), (3, 2, 2)):
        found = placed(monkeypatch, nodes, count, address="auto")
        assert found.needs["CPU"] == threads
        assert found.settings.replicas == count
        assert found.settings.replicas_per_node == per_node  # memory is shared by these alone


def test_each_replica_has_a_gpu_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    found = placed(monkeypatch, FakeRay({"CPU": 8, "GPU": 2}), 2)
    assert found.needs["GPU"] == 1
    assert found.settings.device == "cuda"
    on_cpu = placed(monkeypatch, FakeRay({"CPU": 8, "GPU": 2}), 2, device="cpu")
    assert on_cpu.needs["GPU"] == 0
    assert on_cpu.settings.device == "cpu"


def test_fewer_gpus_than_replicas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = r"3 replicas .* a GPU each do not fit this machine, which has 8 CPUs and 1 GPUs; ask"
    with pytest.raises(ValueError, match=words) as caught:
        placed(monkeypatch, ray := FakeRay({"CPU": 8, "GPU": 1}), 3)
    assert "--replicas" in str(caught.value)
    assert "--device cpu" in str(caught.value)
    assert ray.ended
    with pytest.raises(ValueError, match=r"cuda:1 cannot be for all; say --device cuda"):
        placed(monkeypatch, ray, 2, device="cuda:1")


def test_clients_without_keys_do_not_reach_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (placed(monkeypatch, FakeRay({"CPU": 8}), 2) for _ in range(2))
    assert own.settings.api_keys == (own.key,)
    assert own.key != other.key
    assert len(own.key) > 30
    told = placed(monkeypatch, FakeRay({"CPU": 8}), 2, api_keys=("a", "b"))
    assert told.settings.api_keys == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--replicas", "2", "--ray-address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1"),
        (["--ray-address", "127.0.0.1:1"], "--replicas N"),
        (["--replicas", "2", "--host", "0.0.0.0"], "--api-key"),
    ],
)
def test_what_cannot_be_started_is_said_in_a_line(arguments: list[str], what: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--port", "0", *arguments])
    assert result.exit_code == 2
    assert what in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_ray_the_cure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(main, ["serve", "--port", "0", "--replicas", "2"])
    assert result.exit_code == 2
    assert install_command("draftwood[ray]") in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--method", "nothing"], "there is no method 'nothing'"),
        (["--method", "rsd-s"], "--draft-model"),
        (["./nothing"], "there is no folder"),
    ],
)
def test_what_no_replica_would_take_is_refused_before_any_starts(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], what: str
) -> None:
    monkeypatch.setattr(cluster, "_ray_for", lambda *_: pytest.fail("nothing needs Ray"))
    result = CliRunner().invoke(main, ["serve", "--port", "0", "--replicas", "2", *arguments])
    assert result.exit_code == 2
    assert what in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_machine_that_starts_too_slowly_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    with pytest.raises(OSError, match="cannot start replicas at this machine: The current node"):
        placed(monkeypatch, FakeRay({"CPU": 8}, init=slowly), 2)


def test_sigterm_ends_a_start(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    ray = FakeRay({"CPU": 8}, wait=lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(cluster, "_ray_for", lambda who, otherwise: ray)
    monkeypatch.setattr(ReplicaSet, "_begin", lambda self, slot: None)
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(main, ["serve", tiny, "--port", "0", "--replicas", "2"])
    assert result.exit_code == 0
    assert ray.ended
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_cluster_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        found = placed(monkeypatch, FakeRay({"CPU": 8}), 1, address)
        assert found._look(now=True)
    monkeypatch.setattr(replicas, "LOST_SECONDS", 0.0)
    assert not found._look(now=True)
    assert str(found.lost).startswith(f"the Ray cluster at {address} has ended")
    told: list[str] = []
    found.when_lost = lambda: told.append("server")
    found._watch()  # comes back
    assert told == ["server"]


def test_replicas_are_stopped_before_ray_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Actor:
        """Replica that counts its stops."""

        stop = SimpleNamespace(remote=lambda: told.append("stop"))

    ray = FakeRay({"CPU": 8}, wait=lambda waited, **_: told.append(f"wait {len(waited)}"))
    found = placed(monkeypatch, ray, 3)
    for number, slot in enumerate(found._slots[:2]):  # the third one has not started
        facts = ReplicaFacts("http://127.0.0.1:1", 1, 512, None)
        slot.actor = Actor()
        slot.running = RunningReplica(facts.address, facts, ReplicaLoad(number))
    found.close()
    assert told == ["stop", "stop", "wait 2"]
    assert ray.ended


def test_a_replica_that_stops_keeps_what_its_passes_taught(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(Calibration, "keep", lambda self, command: kept.append(command))
    monkeypatch.setattr(replica, "prepare_process", lambda settings: None)
    own = replica.Replica(ServeSettings(tiny, method="plain"), everywhere=False)
    own.start()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(own.run)
        own.stop()
        assert kept == ["draftwood serve"]
        with pytest.raises(RuntimeError, match="the server of this replica has ended"):
            running.result(10)
    own.server.should_exit = True
    own.thread.join(10)


@pytest.mark.parametrize("has_token", [True, False])
def test_the_token_of_this_machine_goes_to_a_cluster_on_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_token: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    if has_token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").touch()
    placed(monkeypatch, FakeRay({"CPU": 8}), 1)
    for other in ("ray.invalid:6379", "ray://ray.invalid", "ray.invalid", "192.0.2.1:6379"):
        cluster._bring_token(other)
        assert "RAY_AUTH_MODE" not in os.environ
    placed(monkeypatch, FakeRay({"CPU": 8}), 1, address="auto")
    assert os.environ.get("RAY_AUTH_MODE") == ("token" if has_token else None)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    placed(monkeypatch, FakeRay({"CPU": 8}), 1, address="auto")
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


@pytest.mark.parametrize("is_running", [True, False])
def test_a_replica_that_ends_is_told_at_every_level(
    monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    def get(waited: Any) -> None:
        raise RuntimeError("killed")

    lines: list[str] = []
    found = placed(monkeypatch, FakeRay({"CPU": 8}, get=get, kill=lambda actor: None), 1)
    found.say = ServerLog("error", as_json=True, write=lines.append).note
    (slot,) = found._slots
    facts = ReplicaFacts("http://127.0.0.1:1", 1, 512, None)
    slot.running = RunningReplica(facts.address, facts, ReplicaLoad(0)) if is_running else None
    found._hear(slot)
    (line,) = map(json.loads, lines)
    assert line["level"] == "error"
    assert line["message"].startswith("a replica ended (killed)")
    assert found.restarts == is_running


def processes_of(parent: int) -> dict[int, bytes]:
    """A process's descendants and their command lines."""
    above: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            above[int(folder.name)] = int(fields[1])
    found = {}
    for process in above:
        ancestor = process
        while ancestor in above and ancestor != parent:
            ancestor = above[ancestor]
        if ancestor == parent and process != parent:
            try:
                found[process] = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                continue
    return found


def replicas_of(parent: int) -> list[int]:
    return [process for process, told in processes_of(parent).items() if b"Replica" in told]


@pytest.fixture(scope="module")
def served(
    endless: str,
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
    """Two replicas with a thread each."""
    pytest.importorskip("ray")
    process, facts = start(endless, "--replicas", "2", "--threads", "1", "--method", "suffix")
    with process:
        try:
            yield process, facts
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()


def wanted() -> list[dict[str, Any]]:
    return [
        {
            "prompt": "abcde"[: 1 + number % 5] * (1 + number % 7),
            "seed": number,
            "temperature": 0.9,
            "max_tokens": 8 + number % 24,
            "stream": number % 2 == 0,
        }
        for number in range(REQUESTS)
    ]


def ask(client: httpx.Client, body: dict[str, Any]) -> str | None:
    """A text; None where its stream ended with the error that a replica was lost."""
    if not body["stream"]:
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    if "error" in chunks[-1]:
        assert chunks[-1]["error"]["code"] == GONE
        return None
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


class LongStream(threading.Thread):
    """A stream without end; remembers its events until it is told to leave."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address, self.lines, self.leaves = address, list[str](), False
        self.start()

    def run(self) -> None:
        body = {"prompt": "go", "max_tokens": 900_000, "stream": True}
        url = f"{self.address}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                self.lines += [line] if line else []
                if self.leaves:
                    return


@pytest.mark.proof
@pytest.mark.usefixtures("unchecked")
def test_nothing_is_lost_or_mixed_when_a_replica_is_killed(
    served: tuple["subprocess.Popen[str]", dict[str, Any]], endless: str
) -> None:
    process, facts = served
    assert facts["replicas"] == 2
    assert facts["threads"] == 1
    first = replicas_of(process.pid)
    assert len(first) == 2
    lm = draftwood.load(endless, method="plain")
    bodies = wanted()
    texts = [
        lm.generate(
            body["prompt"],
            raw=True,
            seed=body["seed"],
            temperature=body["temperature"],
            max_new_tokens=body["max_tokens"],
        ).text
        for body in bodies
    ]
    assert len(set(texts)) > 0.9 * REQUESTS
    with httpx.Client(base_url=facts["address"], timeout=60) as client:
        streams = [LongStream(facts["address"]) for _ in range(2)]  # one to each replica
        wait_for(lambda: all(len(stream.lines) > 3 for stream in streams))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            asked = [pool.submit(ask, client, body) for body in bodies]
            wait_for(lambda: sum(each.done() for each in asked) > 30, 120)
            os.kill(first[0], signal.SIGKILL)
            told = [each.result(60) for each in asked]
        lost = [number for number, text in enumerate(told) if text is None]
        assert len(lost) <= AT_ONCE
        assert [t for t in told if t is not None] == [
            text for number, text in enumerate(texts) if number not in lost
        ]
        assert [ask(client, bodies[number]) for number in lost] == [texts[n] for n in lost]
        (dead,) = [stream for stream in streams if not stream.is_alive()]
        (alive,) = [stream for stream in streams if stream.is_alive()]
        assert dead.lines[-1] == "data: [DONE]"
        assert json.loads(dead.lines[-2].removeprefix("data: "))["error"]["code"] == GONE
        heard = len(alive.lines)
        wait_for(lambda: client.get("/health").json().get("replicas") == 2, 150)
        wait_for(lambda: len(alive.lines) > heard)
        alive.leaves = True
        alive.join(20)
        assert not alive.is_alive()
        second = replicas_of(process.pid)
        assert len(second) == 2
        assert first[0] not in second
        again = [ask(client, body) for body in bodies[:20]]  # both answer
        assert again == texts[:20]
        counted = metrics(client)
        assert counted["draftwood:replica_restarts_total"] == 1
        assert counted["draftwood:replicas"] == 2
        wait_for(lambda: texts_running(client) == [0.0], 10)  # it left


def texts_running(client: httpx.Client) -> list[float]:
    """Texts that each model writes."""
    told = metrics(client).items()
    return [value for name, value in told if name.startswith("draftwood:texts_running{")]


def metrics(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.proof
def test_a_signal_ends_replicas_too(
    served: tuple["subprocess.Popen[str]", dict[str, Any]],
) -> None:
    process, facts = served
    there = processes_of(process.pid)
    assert there
    body = {"prompt": "go", "max_tokens": 400, "stream": True}
    with httpx.stream("POST", f"{facts['api']}/completions", json=body, timeout=60) as told:
        lines = told.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert process.wait(60) == 0
    until = time.perf_counter() + 20
    while left := [each for each in there if Path(f"/proc/{each}").exists()]:
        assert time.perf_counter() < until, left
        time.sleep(0.1)
