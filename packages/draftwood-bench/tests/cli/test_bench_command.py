"""`draftwood bench`: whole runs on tiny models, stopped and continued, and everything that may be
wrong.
"""

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch

from command import refused, run, with_library
from draftwood.loading.origin import weights_digest
from draftwood.optional import install_command
from draftwood_bench.peers import lineup
from draftwood_bench.peers.systems import System
from draftwood_bench.plan.configurations import PAPER_BUDGETS, RSD_METHODS
from draftwood_bench.records.files import Record, read_records, read_run, write_run
from draftwood_bench.run import describe

FAKE = Path(__file__).parents[1] / "fake_adapter.py"


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "READ_BYTES", 1 << 20)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    lines = [
        {"id": "a", "category": "first", "turns": ["hello", "again"]},
        {"id": "b", "category": "second", "prompt": "abcabcabc"},
        {"id": "c", "category": "second", "prompt": "number", "answer": "4"},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def options(target: str, prompts: str, output: Path | str) -> tuple[str, ...]:
    return (*untested(target, prompts, output), "--law-samples", "8")


def untested(target: str, prompts: str, output: Path | str) -> tuple[str, ...]:
    """Options of runs that test no distribution."""
    shared = (
        "--model",
        target,
        "--dtype",
        "float32",
        "--max-new-tokens",
        "12",
        "--prompts",
        prompts,
    )
    return (*shared, "--output", str(output))


def test_spec_bench(target: str, prompts: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ("bench", "spec-bench", "--methods", "auto,recycling,stand", "--temperature", "0,1")
    result = run(*arguments, *options(target, prompts, output), "--rounds", "2", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {each["method"] for each in told["summaries"]} == {"plain", "auto", "recycling", "stand"}
    greedy = [each for each in told["summaries"] if each["temperature"] == 0]
    assert all((each["same"], each["answers"], each["prompts"]) == (8, 8, 3) for each in greedy)
    assert all(each["speed_up"]["prompts"] == 3 for each in greedy if each["method"] != "plain")
    records = read_records(output)
    assert len(records) == 4 * 2 * 2 * 4  # cells, temperatures, rounds, turns of all prompts
    assert all(len(record.token_ids or []) == 12 for record in records)
    drawn = [record for record in records if record.law]
    assert {record.method for record in drawn} == {"stand"}  # texts of auto are compared instead
    compared = {
        each["method"]: (each["same"], each["compared"])
        for each in told["summaries"]
        if each["temperature"]
    }
    assert compared == {"plain": (None, 0), "auto": (8, 8), "recycling": (8, 8), "stand": (None, 0)}
    # the first two prompts, where something is drafted
    assert "a" in {record.prompt for record in drawn} <= {"a", "b"}
    assert {record.quality["name"] for record in records if record.quality} == {
        *("right number", "log-likelihood per token"),
    }
    assert any("root_acceptance_bound" in record.stats for record in records)
    known = read_run(output)
    assert known.prompts["count"] == 3
    assert known.bandwidth
    assert known.weight_bytes
    assert known.curve is not None
    assert known.command.startswith("draftwood")
    tree = json.loads((output / "tree.json").read_text())["recycling"][0]
    assert len(tree["tokens"]) == len(tree["parents"])
    assert len(tree["path"]) >= 1
    shown = run("bench", "show", str(output))
    assert "T = 0, by category" in shown.stdout
    assert "3 prompts" in shown.stdout
    assert re.search(r", (1 thread|[2-9]\d* threads)$", shown.stdout.splitlines()[0])


def test_second_turns_follow_what_plain_decoding_said(
    target: str, prompts: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    assert (
        run(
            "bench", "spec-bench", "--temperature", "1", *options(target, prompts, output)
        ).exit_code
        == 0
    )
    second = [record for record in read_records(output) if record.turn == 1]
    assert {record.method for record in second} == {"plain", "auto"}
    assert len({record.prompt_tokens for record in second}) == 1
    first = next(
        record for record in read_records(output) if record.turn == 0 and record.method == "plain"
    )
    assert second[0].prompt_tokens > first.prompt_tokens + len("again")


@pytest.mark.usefixtures("unchecked")
def test_rsd_and_what_it_costs_less(target: str, draft: str, prompts: str, tmp_path: Path) -> None:
    whole, thrifty = tmp_path / "whole", tmp_path / "thrifty"
    chosen = (
        "--draft-model",
        draft,
        "--methods",
        "rsd-s,rsd-c + traversal",
        "--lengths",
        "2",
        "--budgets",
        "6",
    )
    result = run("bench", "rsd", *chosen, *options(target, prompts, whole))
    assert result.exit_code == 0, result.output
    assert "MBSU" in result.stdout
    assert "tokens per second" in result.stdout
    result = run(
        "bench",
        "rsd",
        *chosen,
        *untested(target, prompts, thrifty),
        "--thrifty",
        "--temperature",
        "1,0",
    )
    assert result.exit_code == 0, result.output
    assert "MBSU" in result.stdout
    assert "tokens per second" not in result.stdout
    here = {record.key: record for record in read_records(whole)}
    first_turns = [record for record in here.values() if record.turn == 0]
    assert len(read_records(thrifty)) == 2 * len(first_turns)
    for record in read_records(thrifty):
        if record.temperature:
            assert record.token_ids == here[record.key].token_ids
            assert record.stats["target_runs"] == here[record.key].stats["target_runs"]
        else:
            assert record.identical_to_plain is True
    more = (*chosen, *untested(target, prompts, thrifty), "--thrifty", "--temperature", "1,0")
    before = len(read_records(thrifty))
    grown = [word.replace("rsd-s,", "rsd-s,spectr,") for word in more]
    result = run("bench", "rsd", *grown)
    assert result.exit_code == 0, result.output
    added = read_records(thrifty)[before:]
    assert {record.method for record in added} == {"spectr"}  # a thrifty run may grow


@pytest.mark.usefixtures("unchecked")
def test_what_is_best_is_timed_on_other_prompts(
    target: str, draft: str, prompts: str, tmp_path: Path
) -> None:
    grid, timed = tmp_path / "grid", tmp_path / "timed"
    sizes = ("--lengths", "2,3", "--budgets", "6")
    chosen = ("--draft-model", draft, "--methods", "rsd-s,speculative", *sizes)
    two = ("--category", "second")
    result = run("bench", "rsd", *chosen, *untested(target, prompts, grid), *two, "--thrifty")
    assert result.exit_code == 0, result.output
    result = run(
        *("bench", "rsd", *chosen, *options(target, prompts, timed)),
        *("--timed-from", str(grid), "--bound-prompts", "0"),
    )
    assert result.exit_code == 0, result.output
    records = read_records(timed)
    assert {record.prompt for record in records} == {"a"}  # the others chose
    kept = {(record.method, record.at.split()[0], record.cell) for record in records}
    assert len(kept) == 5  # plain, and of both methods one length and one shape
    assert all(record.stats["tokens_per_second"] for record in records)
    other = tmp_path / "other.jsonl"
    lines = [{"id": "b", "prompt": "another"}, {"id": "d", "prompt": "abcabcabc"}]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run(
        *("bench", "rsd", *chosen, *options(target, str(other), tmp_path / "other")),
        *("--timed-from", str(grid), "--bound-prompts", "0"),
    )
    assert result.exit_code == 0, result.output
    # its b is another text than the b that chose, and its d the same
    assert {record.prompt for record in read_records(tmp_path / "other")} == {"b"}
    for wrong, words in (
        ((*chosen, "--thrifty"), "--thrifty times nothing"),
        (("--draft-model", target, "--methods", "rsd-s"), "holds records of .*, not of"),
        ((*chosen, "--temperature", "0.5"), "has no records of these methods"),
    ):
        given = ("--timed-from", str(grid), *untested(target, prompts, tmp_path / "no"))
        assert re.search(words, refused("bench", "rsd", *wrong, *given))


def test_tests_that_a_run_does_not_make_are_refused(
    target: str, draft: str, prompts: str, tmp_path: Path
) -> None:
    given = untested(target, prompts, tmp_path / "out")
    thrifty = ("rsd", "--draft-model", draft, "--thrifty", *given)
    for command in (("load", *given), thrifty):
        for name in ("--law-prompts", "--law-samples", "--bound-prompts", "--bound-tokens"):
            assert f"leave {name} out" in refused("bench", *command, name, "2")


def test_a_bound_of_arrivals_without_arrivals_is_refused(
    target: str, prompts: str, tmp_path: Path
) -> None:
    given = untested(target, prompts, tmp_path / "out")
    assert "it needs --rates" in refused("bench", "load", *given, "--most", "2")


def test_proofs_count_the_prompts_that_fit_and_share_no_seed(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def noted(*arguments: Any, **named: Any) -> None:
        seeds.append((arguments[-1], arguments[-2]))

    monkeypatch.setattr("draftwood_bench.run.measure.distribution_test", noted)
    lines = [{"id": "long", "prompt": "abc" * 30}, {"id": "a", "prompt": "hello"}]
    lines += [{"id": "b", "prompt": "abcabcabc"}, {"id": "c", "prompt": "number"}]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "out"
    given = ("--methods", "auto,recycling,stand", "--temperature", "0,1")
    given += ("--max-prompt-tokens", "40", "--bound-prompts", "2", "--bound-tokens", "20")
    tested = ("--law-samples", "2000", "--law-prompts", "2")
    shared = untested(target, str(prompts), output)
    assert run("bench", "spec-bench", *given, *shared, *tested).exit_code == 0
    (first, samples), (second, _) = seeds  # of two prompts
    assert samples == 2000
    assert second - first >= 2000
    bound = {each.prompt for each in read_records(output) if "bounded_runs" in each.stats}
    assert bound
    assert bound <= {"a", "b"}


def test_axes_and_load(target: str, draft: str, prompts: str, tmp_path: Path) -> None:
    chosen = ("--draft-model", draft, "--methods", "rsd-s", "--vary", "verifier")
    result = run("bench", "axes", *chosen, *options(target, prompts, tmp_path / "axes"))
    assert result.exit_code == 0, result.output
    assert "rsd-s + traversal" in result.stdout
    assert "T = 1: speed" in result.stdout  # where verifiers differ
    chosen = ("--methods", "lookup", "--batches", "2", "--rates", "1000")
    result = run("bench", "load", *chosen, *untested(target, prompts, tmp_path / "load"), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["summaries"]
    shown = run("bench", "show", str(tmp_path / "load")).stdout
    assert "T = 0: under load" in shown
    assert "over plain" in shown
    page, tables = tmp_path / "load.html", tmp_path / "load.md"
    assert (
        run(
            "report", str(tmp_path / "load"), "--output", str(page), "--markdown", str(tables)
        ).exit_code
        == 0
    )
    assert tables.read_text().count("## T = 0") == 1
    assert (
        "times the tokens per second of plain decoding, all together, with the same text in 3 of 3"
        in page.read_text()
    )
    assert {(each["method"], each["at"], each["same"]) for each in told} == {
        *(
            ("plain", "batch 2", 3),
            ("lookup", "batch 2", 3),
            ("plain", "rate 1000", 3),
            ("lookup", "rate 1000", 3),
        ),
    }


@pytest.mark.usefixtures("wrong")
def test_no_speed_up_is_told_of_a_text_that_differs(
    target: str, prompts: str, tmp_path: Path
) -> None:
    chosen = (
        "bench",
        "spec-bench",
        "--methods",
        "recycling,lookup",
        *options(target, prompts, tmp_path / "out"),
    )
    result = run(*chosen)
    assert result.exit_code == 1
    rows = [line for line in result.stdout.splitlines() if line.startswith("recycling ")]
    assert "texts differ" in rows[0]
    assert "x" not in rows[0].replace("texts differ", "")
    assert re.search(
        r"recycling, default, T = 0: \d texts differ, no speed-up is told; the first on prompt a",
        result.stdout,
    )
    assert "top logits" in result.stdout
    lookup = next(line for line in result.stdout.splitlines() if line.startswith("lookup "))
    assert "texts differ" not in lookup


@pytest.mark.usefixtures("wrong")
def test_a_drawn_text_that_differs_fails_the_run(target: str, prompts: str, tmp_path: Path) -> None:
    given = options(target, prompts, tmp_path / "out")
    result = run(
        "bench", "spec-bench", "--methods", "recycling,lookup", "--temperature", "1", *given
    )
    assert result.exit_code == 1
    assert re.search(
        r"recycling, default, T = 1: \d texts differ, no speed-up is told", result.stdout
    )
    assert "lookup, default, T = 1" not in result.stdout


def test_a_stopped_run_goes_on(target: str, prompts: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arguments = ("bench", "spec-bench", "--methods", "lookup", "--temperature", "0,1")
    assert run(*arguments, *options(target, prompts, whole)).exit_code == 0
    assert run(*arguments, *options(target, prompts, cut)).exit_code == 0
    lines = (cut / "records.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "records.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:30])
    assert run(*arguments, *options(target, prompts, cut)).exit_code == 0
    assert (cut / "records.jsonl").read_bytes().startswith(b"".join(lines[:4]))
    one, other = (
        {record.key: record for record in read_records(folder)} for folder in (whole, cut)
    )
    assert one.keys() == other.keys()
    assert all(one[key].token_ids == other[key].token_ids for key in one)
    assert len(read_run(cut).resumed) == 1
    before = (cut / "records.jsonl").read_bytes()
    assert run(*arguments, *options(target, prompts, cut)).exit_code == 0  # nothing is left to do
    assert (cut / "records.jsonl").read_bytes() == before


@pytest.mark.proof
def test_a_killed_run_goes_on(target: str, prompts: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = [
        "bench",
        "spec-bench",
        "--methods",
        "lookup",
        "--rounds",
        "30",
        "--threads",
        "1",
        *options(target, prompts, output),
    ]
    command = [sys.executable, "-m", "draftwood.cli.main", *arguments]
    environment = with_library(tmp_path / "home")
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        end = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < end:
            if (output / "records.jsonl").exists() and len(read_records(output)) >= 8:
                break
            time.sleep(0.02)
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        process.send_signal(signal.SIGKILL)
    kept = read_records(output)
    assert 8 <= len(kept) < 240
    assert run(*arguments).exit_code == 0
    assert read_records(output)[: len(kept)] == kept
    assert len(read_records(output)) == 240


def spread_over(
    order: tuple[str, ...], serial: Path, output: Path, *more: str, **environment: str
) -> set[str]:
    """The workers that made the records of a serial run once more, started from another
    directory."""
    output.mkdir()
    shutil.copy(serial / "run.json", output)  # both choose trees by one curve
    command = [sys.executable, "-m", "draftwood.cli.main", *order, "--output", str(output), *more]
    where = {"cwd": output, "env": {**os.environ, **environment}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **where)
    assert done.returncode == 0, done.stderr
    one, other = (
        {record.key: record for record in read_records(folder)} for folder in (serial, output)
    )
    assert one.keys() == other.keys()
    for key in one:
        assert one[key].token_ids == other[key].token_ids
        assert one[key].law == other[key].law
    return {record.worker for record in other.values()}


@pytest.mark.proof
def test_workers_write_what_a_serial_run_writes(target: str, prompts: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    arguments = (
        "bench",
        "spec-bench",
        "--methods",
        "auto",
        "--temperature",
        "0,1",
        "--threads",
        "1",
    )
    order = (*arguments, *options(target, prompts, tmp_path / "serial"))
    assert run(*order).exit_code == 0
    assert spread_over(order, tmp_path / "serial", tmp_path / "spread", "--workers", "2") == {
        "ray-0",
        "ray-1",
    }


OPEN = {"RAY_AUTH_MODE": "disabled"}  # the tests look for no token


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a Ray cluster that was started elsewhere, where another draftwood is
    installed.
    """
    pytest.importorskip("ray")
    # not in tmp_path: names of sockets must be short
    port, folder = free_port(), tempfile.mkdtemp(prefix="ray")
    command = [
        "ray",
        "start",
        "--head",
        "--block",
        "--num-cpus",
        "2",
        "--port",
        str(port),
        "--temp-dir",
        folder,
    ]
    command[0] = str(Path(sys.executable).with_name("ray"))
    more = [
        "--node-ip-address",
        "127.0.0.1",
        "--include-dashboard",
        "false",
        "--disable-usage-stats",
    ]
    (tmp_path / "other" / "draftwood").mkdir(parents=True)
    (tmp_path / "other" / "draftwood" / "__init__.py").write_text(
        "raise ImportError('this is another draftwood')"
    )
    environment = {**os.environ, **OPEN, "PYTHONPATH": str(tmp_path / "other")}
    where: dict[str, Any] = {"cwd": tmp_path, "env": environment, "start_new_session": True}
    log = tmp_path / "ray.log"
    with log.open("wb") as file:
        process = subprocess.Popen([*command, *more], stdout=file, stderr=file, **where)
    try:
        end = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        # it ends what it started; `ray stop` would end the clusters of others too
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.proof
def test_workers_of_a_cluster(target: str, prompts: str, tmp_path: Path, cluster: str) -> None:
    model = shutil.copytree(target, tmp_path / "model")
    arguments = (
        "bench",
        "spec-bench",
        "--methods",
        "auto",
        "--temperature",
        "0,1",
        "--threads",
        "1",
        "--limit",
        "2",
    )
    order = (*arguments, *options(str(model), prompts, tmp_path / "serial"))
    assert run(*order).exit_code == 0
    known = tmp_path / "serial" / "run.json"
    known.write_text(known.read_text().replace(json.dumps(str(model)), json.dumps("../model")))
    # from where the command is started
    order = tuple(word.replace(str(model), "../model") for word in order)
    address = ("--ray-address", cluster)
    assert spread_over(order, tmp_path / "serial", tmp_path / "one", *address, **OPEN) == {"ray-0"}
    two = spread_over(
        order, tmp_path / "serial", tmp_path / "two", *address, "--workers", "2", **OPEN
    )
    assert two == {"ray-0", "ray-1"}
    with pytest.raises(
        AssertionError,
        match="3 workers with 1 threads each do not fit the cluster, which has 2 CPUs",
    ):
        spread_over(
            order, tmp_path / "serial", tmp_path / "three", *address, "--workers", "3", **OPEN
        )


def test_a_cluster_that_is_not_there(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # it is not asked
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")
    for address in (f"127.0.0.1:{free_port()}", f"ray://localhost:{free_port()}", "[::1]:99999"):
        given = (*options(target, prompts, tmp_path / "out"), "--ray-address", address)
        assert f"there is no Ray cluster at {address} (" in refused("bench", "spec-bench", *given)
    assert not (tmp_path / "out").exists()


def test_workers_without_ray(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refused(
        "bench", "spec-bench", *options(target, prompts, tmp_path / "out"), "--workers", "2"
    )
    assert install_command("draftwood[ray]") in line
    assert not (tmp_path / "out").exists()


def fake(name: str, misbehave: str = "", *more: str) -> System:
    command = [
        sys.executable,
        str(FAKE),
        "--weights",
        "x",
        "--threads",
        "1",
        "--misbehave",
        misbehave,
        *more,
    ]
    return System(name, {"plain": "plain"}, lambda: command)


def among(monkeypatch: pytest.MonkeyPatch, *peers: System) -> None:
    """These are the peers from now on."""
    known = {peer.name: peer for peer in peers}
    monkeypatch.setattr(
        "draftwood_bench.run.peers.systems", lambda names, target: [known[name] for name in names]
    )


def test_peers_and_one_that_crashes(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    known = {
        "transformers": fake("transformers"),
        "openvino": fake("openvino", "load"),
        "vllm": fake("vllm"),
    }
    among(monkeypatch, *known.values())
    answer = lineup.Peer.answer

    def dies_on_the_second_prompt(self: lineup.Peer, tokens, key):
        if self.system.name == "vllm" and len(tokens) == len("u:abcabcabc;a:"):
            self.adapter.process.kill()
            self.adapter.process.wait()
            self.failed("vllm", "it died", key)
            return {}
        return answer(self, tokens, key)

    monkeypatch.setattr(lineup.Peer, "answer", dies_on_the_second_prompt)
    output = tmp_path / "out"
    chosen = ("--methods", "lookup", "--peers", "transformers,openvino,vllm")
    result = run("bench", "spec-bench", *chosen, *options(target, prompts, output))
    assert result.exit_code == 0, result.output
    assert "openvino is left out: OSError: these weights cannot be read" in result.stderr
    counts = {name: sum(r.method == f"peer:{name}" for r in read_records(output)) for name in known}
    assert counts == {"transformers": 4, "openvino": 0, "vllm": 2}
    assert "openvino is absent" in result.stdout
    assert "vllm is absent: at prompt b, it died" in result.stdout
    assert len([record for record in read_records(output) if not record.is_peer]) == 8
    assert read_run(output).peers["transformers"]["weight_bytes"] == 1_000_000
    other = ("--methods", "lookup", "--peers", "transformers")
    assert "peers" in refused("bench", "spec-bench", *other, *options(target, prompts, output))


def test_a_peer_is_asked_again_for_what_it_missed(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    output, asked = tmp_path / "out", tmp_path / "asked"
    chosen = (
        "bench",
        "spec-bench",
        "--methods",
        "lookup",
        "--temperature",
        "0,1",
        "--peers",
        "openvino,vllm",
    )
    order = (*chosen, *options(target, prompts, output))

    def go_on(*peers: System) -> tuple[list[Record], str]:
        """The records that a start adds, and what it says."""
        before = (output / "records.jsonl").read_bytes() if output.exists() else b""
        asked.unlink(missing_ok=True)
        among(monkeypatch, *peers)
        result = run(*order)
        assert result.exit_code == 0, result.output
        assert (output / "records.jsonl").read_bytes().startswith(before)
        known = len(before.splitlines())
        return [*read_records(output)][known:], result.stdout + result.stderr

    def requests() -> list[int]:
        return (
            [int(line.split()[1]) for line in asked.read_text().splitlines()]
            if asked.exists()
            else []
        )

    def never() -> list[str]:
        raise AssertionError("it has answered everything")

    # the warm-up, the first turn of the first prompt, its second turn
    dying = fake("vllm", "", "--dies-at", "3")
    first, told = go_on(fake("openvino"), dying)
    assert sum(record.method == "peer:openvino" for record in first) == 4
    assert [(r.prompt, r.turn, r.beside) for r in first if r.method == "peer:vllm"] == [
        ("a", 0, None)
    ]
    assert "vllm is absent" in told

    whole = System("openvino", {"plain": "plain"}, never)
    again, _ = go_on(whole, fake("vllm", "", "--asked", str(asked), "--dies-at", "3"))
    assert [(record.method, record.prompt, record.turn) for record in again] == [
        ("peer:vllm", "a", 1)
    ]
    last, told = go_on(whole, fake("vllm", "", "--asked", str(asked)))
    assert [(record.method, record.prompt, record.turn) for record in last] == [
        *(("peer:vllm", "b", 0), ("peer:vllm", "c", 0)),
    ]
    by_prompt = {
        (r.prompt, r.turn): r.prompt_tokens
        for r in first
        if r.method == "plain" and r.temperature == 0
    }
    assert requests()[1:] == [by_prompt["b", 0], by_prompt["c", 0]]  # the first warms it up
    assert "vllm: 3 answers are of a later start" in told
    assert "absent" not in told
    # the second turn of what plain decoding said
    assert again[0].prompt_tokens == by_prompt["a", 1]
    plain = {(r.prompt, r.turn): r for r in first if r.method == "plain" and r.temperature == 0}
    for record in (*again, *last):
        old = plain[record.prompt, record.turn]
        assert record.beside is not None
        assert record.beside["stats"]["tokens"] == old.stats["tokens"]
        assert record.beside["stats"]["seconds"] != old.stats["seconds"]
    assert read_run(output).peers.keys() == {"openvino", "vllm"}
    assert all(known["weight_bytes"] == 1_000_000 for known in read_run(output).peers.values())
    assert go_on(whole, System("vllm", {"plain": "plain"}, never))[0] == []


def test_a_peer_that_always_fails_at_a_prompt_is_asked_for_those_behind_it(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    among(monkeypatch, fake("vllm", "", "--dies-of-length", str(len("u:abcabcabc;a:"))))
    output = tmp_path / "out"
    order = (
        "bench",
        "spec-bench",
        "--methods",
        "lookup",
        "--peers",
        "vllm",
        *options(target, prompts, output),
    )

    def start() -> tuple[list[tuple[str, int]], str]:
        """Start once more; return what the peer has answered so far, and the output."""
        result = run(*order)
        assert result.exit_code == 0, result.output
        found = [record for record in read_records(output) if record.is_peer]
        return sorted((record.prompt, record.turn) for record in found), result.stdout

    before, told = start()
    assert before == [("a", 0), ("a", 1)]
    assert "vllm is absent: at prompt b, plain: ended with status 3" in told
    assert start()[0] == before  # at the same prompt, for the last time
    last, told = start()
    assert last == [*before, ("c", 0)]
    assert (
        "vllm failed 2 times and is not asked again at prompt b: plain: ended with status 3" in told
    )
    assert "absent" not in told
    assert read_run(output).peers["vllm"]["weight_bytes"] == 1_000_000
    among(
        monkeypatch,
        System("vllm", {"plain": "plain"}, lambda: pytest.fail("nothing is left to ask")),
    )
    assert start()[0] == last


def test_a_peer_that_fails_at_its_last_prompt_is_not_waited_for(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    among(monkeypatch, fake("vllm", "", "--dies-of-length", str(len("u:number;a:"))))
    order = ("bench", "spec-bench", "--methods", "lookup", "--peers", "vllm")
    given = options(target, prompts, tmp_path / "out")
    assert "vllm is absent: at prompt c" in run(*order, *given).stdout
    told = run(*order, *given).stdout
    assert "not asked again at prompt c" in told
    assert "absent" not in told


def test_a_unit_of_which_a_part_was_written_is_measured_whole(
    target: str, prompts: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    order = ("bench", "spec-bench", "--methods", "lookup", *options(target, prompts, output))
    assert run(*order).exit_code == 0
    lines = (output / "records.jsonl").read_bytes().splitlines(keepends=True)
    # plain decoding of b, without lookup
    (output / "records.jsonl").write_bytes(b"".join(lines[:5]))
    assert run(*order).exit_code == 0
    assert (output / "records.jsonl").read_bytes().count(b"\n") == 5 + 4
    found = [record for record in read_records(output) if record.prompt == "b"]
    assert {record.method for record in found} == {"plain", "lookup"}
    assert len(read_records(output)) == 8
    old = json.loads(lines[4])
    assert (
        next(r for r in found if r.method == "plain").seconds_end_to_end
        != old["seconds_end_to_end"]
    )


def test_later_turns_of_a_unit_that_was_cut_are_measured(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    output, peer = tmp_path / "out", ("--peers", "vllm")
    order = ("bench", "spec-bench", "--methods", "lookup", *options(target, prompts, output))
    among(monkeypatch, fake("vllm"))
    assert run(*order, *peer, "--category", "first").exit_code == 0
    lines = (output / "records.jsonl").read_bytes().splitlines(keepends=True)
    whole = {record.key for record in read_records(output)}
    assert len(lines) == 6
    for kept in (2, 3, 5):
        (output / "records.jsonl").write_bytes(b"".join(lines[:kept]))
        assert run(*order, *peer, "--category", "first").exit_code == 0
        assert {record.key for record in read_records(output)} == whole


def test_a_start_that_measured_nothing_binds_nobody(
    target: str, prompts: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    given = ("bench", "spec-bench", "--methods", "lookup", *options(target, prompts, output))
    assert run(*given, "--rounds", "2").exit_code == 0
    (output / "records.jsonl").unlink()
    assert run(*given).exit_code == 0
    assert read_run(output).options["settings"]["rounds"] == 1
    assert "rounds 1, this one has 2" in refused(*given, "--rounds", "2")


def test_a_full_disk_loses_nothing(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = os.write, 0

    def fills_up(file: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(
        "draftwood_bench.records.files._write_all", lambda file, data: fills_up(file, data)
    )
    output = tmp_path / "out"
    arguments = ("bench", "spec-bench", "--methods", "lookup", *options(target, prompts, output))
    assert "the disk is full" in refused(*arguments)
    assert len(read_records(output)) == 4  # two cells, two turns of the first prompt
    assert (
        "the run is not finished: it has 2 of 6 records of first turns"
        in run("bench", "show", str(output)).stdout
    )
    monkeypatch.undo()
    monkeypatch.setattr(describe, "READ_BYTES", 1 << 20)
    assert run(*arguments).exit_code == 0
    assert len(read_records(output)) == 8
    assert "not finished" not in run("bench", "show", str(output)).stdout


def test_a_run_that_has_come_to_all_prompts_may_still_be_unfinished(
    target: str, prompts: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    order = ("bench", "spec-bench", "--methods", "lookup", "--rounds", "2", "--temperature", "0,1")
    given = (*options(target, prompts, output), "--law-prompts", "0", "--bound-prompts", "0")
    told = json.loads(run(*order, *given, "--json").stdout)
    assert (told["finished"], told["expected"]) == (24, 24)
    assert "not finished" not in run("bench", "show", str(output)).stdout
    file = output / "records.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]))
    told = json.loads(run("bench", "show", str(output), "--json").stdout)
    assert (told["finished"], told["expected"]) == (22, 24)
    left = "the run is not finished: it has 22 of 24 records of first turns"
    assert left in run("bench", "show", str(output)).stdout
    page = tmp_path / "page.html"
    assert run("report", str(output), "--output", str(page)).exit_code == 0
    assert page.read_text().count(left) == 2  # among the facts, and below the table
    known = read_run(output)  # as an earlier version would have written it
    write_run(output, replace(known, options={**known.options, "mood": 1}))
    told = json.loads(run("bench", "show", str(output), "--json").stdout)
    assert (told["finished"], told["expected"]) == (22, None)
    assert "not finished" not in run("bench", "show", str(output)).stdout


def test_what_is_left_out_whole_is_an_object_too(target: str, prompts: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    given = ("bench", "spec-bench", "--methods", "lookup", *options(target, prompts, output))
    assert run(*given).exit_code == 0
    write_run(output, replace(read_run(output), commit=None))
    told = run("bench", "show", str(output), "--json", "--clean")
    assert "(left out: 8 records without a clean commit)" in told.stderr
    found = json.loads(told.stdout)
    assert (found["summaries"], found["finished"], found["expected"]) == ([], 0, 6)


def test_a_batch_that_the_prompts_cannot_fill_is_refused(
    target: str, prompts: str, tmp_path: Path
) -> None:
    given = untested(target, prompts, tmp_path / "out")
    line = refused("bench", "load", "--methods", "lookup", "--batches", "2,4", *given)
    assert "a batch of 4 needs as many prompts, and there are 3; leave it out of --batches" in line
    assert not (tmp_path / "out" / "run.json").exists()


def test_another_run_in_the_same_folder_is_refused(
    target: str, prompts: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    given = options(target, prompts, output)
    assert run("bench", "spec-bench", "--methods", "lookup", *given).exit_code == 0
    before = (output / "records.jsonl").read_bytes()
    assert "methods lookup, this one has suffix" in refused(
        "bench", "spec-bench", "--methods", "suffix", *given
    )
    longer = [word if word != "12" else "13" for word in given]
    assert "max_new_tokens 12" in refused("bench", "spec-bench", "--methods", "lookup", *longer)
    Path(prompts).write_text('{"prompt": "other"}\n')
    assert "other prompts" in refused("bench", "spec-bench", "--methods", "lookup", *given)
    assert (output / "records.jsonl").read_bytes() == before


def test_long_prompts_are_left_out_by_the_rule(target: str, prompts: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(
        "bench", "spec-bench", *options(target, prompts, output), "--max-prompt-tokens", "12"
    )
    assert result.exit_code == 0
    assert "left out, with more than 12 tokens: b" in result.stderr
    assert {(record.prompt, record.turn) for record in read_records(output)} == {("a", 0), ("c", 0)}
    assert "left out: b" in read_run(output).prompts["rule"]
    assert read_run(output).prompts["turns_left_out"] == ["turn 2 of a"]
    assert "left out, with more than 12 tokens: turn 2 of a" in result.stderr
    assert "left out by this rule: turn 2 of a" in run("bench", "show", str(output)).stdout
    nothing = ("--max-prompt-tokens", "2")
    line = refused("bench", "spec-bench", *options(target, prompts, tmp_path / "none"), *nothing)
    assert "more than 2 tokens" in line
    longer = [
        word if word != "12" else "300" for word in options(target, prompts, tmp_path / "longer")
    ]
    assert "reads 256 tokens, so 300 new ones leave no room" in refused(
        "bench", "spec-bench", *longer
    )


@pytest.mark.usefixtures("unchecked")
def test_every_shape_with_every_verifier_writes_what_plain_decoding_writes(
    target: str, prompts: str, tmp_path: Path
) -> None:
    chosen = ("--methods", "layer-skip", "--vary", "pair", "--budget", "6", "--temperature", "0")
    shared = options(target, prompts, tmp_path / "out")
    result = run("bench", "axes", *chosen, *shared, "--limit", "1", "--bound-prompts", "0")
    assert result.exit_code == 0, result.output
    records = read_records(tmp_path / "out")
    pairs = {(record.shape, record.verifier) for record in records if record.method != "plain"}
    assert len(pairs) == 51
    assert all(record.identical_to_plain for record in records)


def test_help_names_all_that_can_be_asked_for() -> None:
    told = {name: " ".join(run("bench", name, "--help").stdout.split()) for name in ("rsd", "axes")}
    assert all(name in told["rsd"] for name in RSD_METHODS)
    budgets = ",".join(map(str, PAPER_BUDGETS))
    assert f"Drafted tokens, of these and 4. [default: {budgets}]" in told["rsd"]
    assert f"of 4,{budgets}. [default: 14]" in told["axes"]


def test_bad_input(
    target: str, draft: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(target, prompts, tmp_path / "out")
    assert "--output" in refused("bench", "spec-bench")
    assert "did you mean lookup" in refused("bench", "spec-bench", "--methods", "lokup", *given)
    assert "--draft-model" in refused("bench", "spec-bench", "--methods", "rsd-s", *given)
    assert "--draft-model" in refused("bench", "rsd", *given)
    assert "no draft model" in refused("bench", "spec-bench", "--draft-model", draft, *given)
    assert "--inexact" in refused(
        "bench", "spec-bench", "--methods", "typical", "--draft-model", draft, *given
    )
    assert "no device 'toaster'" in refused("bench", "spec-bench", "--device", "toaster", *given)
    assert "needs numbers such as 0,0.7" in refused(
        "bench", "spec-bench", "--temperature", "warm", *given
    )
    assert "got 7" in refused("bench", "rsd", "--budgets", "7", "--draft-model", draft, *given)
    assert "no prompts of category 'third'" in refused(
        "bench", "spec-bench", "--category", "third", *given
    )
    assert "--workers 1" in refused(
        "bench", "spec-bench", "--peers", "vllm", "--workers", "2", *given
    )
    assert "greedily" in refused(
        "bench", "spec-bench", "--peers", "vllm", "--temperature", "1", *given
    )
    assert "no peer 'slow'" in refused("bench", "spec-bench", "--peers", "slow", *given)
    assert "no run.json" in refused("bench", "show", str(tmp_path))
    monkeypatch.delenv("DRAFTWOOD_DATA", raising=False)
    line = refused("bench", "spec-bench", *(word.replace(prompts, "spec-bench") for word in given))
    assert "set $DRAFTWOOD_DATA" in line
    Path(prompts).write_text('{"prompt": "fine"}\n{"prompt": \n')
    assert "prompts.jsonl:2" in refused("bench", "spec-bench", *given)


def test_a_run_keeps_to_its_threads_and_its_machine(
    target: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    order = ("bench", "spec-bench", "--methods", "lookup", *options(target, prompts, output))
    one = ("--threads", "1")
    before = torch.get_num_threads()
    try:
        assert run(*order, *one).exit_code == 0
        line = refused(*order, "--threads", "2")
        assert "with threads 1, this one has 2; choose another --output, or go on" in line
        assert run(*order, *one).exit_code == 0
        monkeypatch.setattr("draftwood_bench.run.resume.device_name", lambda device: "a GPU")
        assert re.search("with device .*, this one has a GPU; choose", refused(*order, *one))
        monkeypatch.undo()
        monkeypatch.setattr(describe, "READ_BYTES", 1 << 20)
        known = json.loads((output / "run.json").read_text())
        known["hardware"]["processor"] = "an abacus"
        (output / "run.json").write_text(json.dumps(known))
        assert "with processor an abacus, this one has" in refused(*order, *one)
        known["hardware"]["processor"] = None
        (output / "run.json").write_text(json.dumps(known))
        known["versions"]["numpy"] = "1.0"
        (output / "run.json").write_text(json.dumps(known))
        kept = (output / "records.jsonl").read_bytes().splitlines(keepends=True)[:-1]
        (output / "records.jsonl").write_bytes(b"".join(kept))
        told = run(*order, *one)
        assert told.exit_code == 0  # earlier versions may not have told the processor
        assert read_run(output).resumed[-1]["versions"]["numpy"] != "1.0"
        assert "numpy: 1.0, then" in told.stdout
    finally:
        torch.set_num_threads(before)


def test_a_run_keeps_to_its_datastore(target: str, prompts: str, tmp_path: Path) -> None:
    output, store, text = tmp_path / "out", tmp_path / "texts.store", tmp_path / "text"
    build = ("datastore", "build", str(text), "--output", str(store), "--model", target)
    order = ("bench", "spec-bench", "--methods", "suffix", "--datastore", str(store))
    order = (*order, *options(target, prompts, output))
    text.write_text("hello again " * 9)
    assert run(*build).exit_code == 0
    assert run(*order).exit_code == 0
    assert run(*build).exit_code == 0
    assert run(*order).exit_code == 0  # the same texts
    text.write_text("number again " * 9)
    assert run(*build).exit_code == 0
    line = refused(*order)
    assert "holds a run on other file of the same name (datastore_file" in line
    told = json.loads((output / "run.json").read_text())  # as earlier versions wrote it
    (output / "run.json").write_text(
        json.dumps({name: told[name] for name in told if name != "datastore_file"})
    )
    assert run(*order).exit_code == 0


def test_a_run_keeps_to_its_weights(target: str, prompts: str, tmp_path: Path) -> None:
    output, model = tmp_path / "out", tmp_path / "model"
    shutil.copytree(target, model)
    arguments = (
        "bench",
        "spec-bench",
        "--methods",
        "lookup",
        *options(str(model), prompts, output),
    )
    assert run(*arguments).exit_code == 0
    assert read_run(output).weights == weights_digest(model)
    assert run(*arguments).exit_code == 0

    weights = safetensors.torch.load_file(model / "model.safetensors")
    weights["model.norm.weight"] += 1
    safetensors.torch.save_file(weights, model / "model.safetensors", {"format": "pt"})
    assert "on other weights of the same name (weights" in refused(*arguments)

    told = json.loads((output / "run.json").read_text())  # as earlier versions wrote it
    (output / "run.json").write_text(
        json.dumps({name: told[name] for name in told if "weights" not in name})
    )
    assert run(*arguments).exit_code == 0
