"""Two processes that hold a model in parts write what one writes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import draftwood
from checkout import PYTHONPATH, ROOT
from command import refused, run
from draftwood.cli import processes
from draftwood.loading import hub
from draftwood_serve.draining import TELL_SECONDS
from draftwood_serve.run import bind
from draftwood_serve.settings import DRAIN_SECONDS
from draftwood_torch.loading.parallel import require_split
from draftwood_torch.models.parallel import join


def texts(lm: draftwood.LanguageModel) -> dict[str, Any]:
    """Texts of a model by several methods, alone and together."""
    prompts = ["one two three one two", "a b a b a", "what is it"]
    found: dict[str, Any] = {}
    for method in ("plain", "lookup", "recycling", "auto"):
        chosen = lm.with_method(method)
        for temperature in (0.0, 1.0):
            options = {"max_new_tokens": 24, "temperature": temperature, "seed": 5, "raw": True}
            each = chosen.generate(prompts, ignore_eos=True, **options)
            found[f"{method} at {temperature}"] = [answer.token_ids for answer in each]
        forked = chosen.generate(
            prompts[0], n=3, temperature=1.0, seed=7, max_new_tokens=8, raw=True
        )
        found[f"{method}, three answers"] = [answer.token_ids for answer in forked.answers]
    return found


def test_heads_that_do_not_split_are_refused_with_what_would(roomy) -> None:
    with pytest.raises(ValueError, match=r"3 processes cannot .* 4 num_attention_heads.*--tp 2"):
        require_split(roomy, 3)
    with pytest.raises(ValueError, match="--dtype bfloat16"):
        require_split(roomy, 2, "int8")
    assert require_split(roomy, 2) == Path(roomy)


def test_fewer_gpus_than_processes_are_counted(roomy, monkeypatch) -> None:
    monkeypatch.setattr(hub, "device_of", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="there are 1; take --tp 1, or --device cpu"):
        require_split(roomy, 2, device="cuda")


def test_the_command_refuses_in_one_line(roomy) -> None:
    assert "--tp 2" in refused("generate", "x", "--model", roomy, "--tp", "3")
    assert "--tp 2" in refused("serve", roomy, "--tp", "3")


def test_without_torchrun_the_cure_is_named() -> None:
    with pytest.raises(ValueError, match="torchrun --nproc-per-node=2"):
        join(2, torch.device("cpu"))


@pytest.mark.proof
def test_two_processes_write_what_one_writes(roomy) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", __file__, roomy]
    shared = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(ROOT / "tests")])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=shared
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two = json.loads(done.stdout)
    one = texts(draftwood.load(roomy, dtype="float32"))
    assert two == one
    # the comparison can fail: other seeds write other texts
    assert one["plain at 1.0"][0] != one["plain at 0.0"][0]


@pytest.mark.proof
def test_a_server_over_two_processes_writes_the_same_and_ends_when_told(roomy) -> None:
    command = [sys.executable, "-m", "draftwood.cli.main", "serve", roomy, "--dtype", "float32"]
    started = subprocess.Popen(
        [*command, "--tp", "2", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    facts = json.loads(started.stdout.readline())

    def ask(temperature: float) -> str:
        asked = {"model": roomy, "prompt": "one two", "max_tokens": 16, "seed": 3}
        body = json.dumps({**asked, "temperature": temperature}).encode()
        request = urllib.request.Request(
            f"{facts['api']}/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["text"]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, (0.0, 1.0, 0.5)))
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=60) == 0
    started.stdout.close()
    lm = draftwood.load(roomy, dtype="float32")
    options = {"raw": True, "max_new_tokens": 16, "seed": 3}
    assert answers == [
        lm.generate("one two", temperature=each, **options).text for each in (0.0, 1.0, 0.5)
    ]


@pytest.mark.proof
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_a_command_that_is_hung_up_or_killed_frees_its_port(roomy, sent: int, code: int) -> None:
    command = [sys.executable, "-m", "draftwood.cli.main", "serve", roomy, "--dtype", "float32"]
    started = subprocess.Popen(
        [*command, "--tp", "2", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
    )
    assert started.stdout is not None
    try:
        facts = json.loads(started.stdout.readline())
        second = second_of(started.pid)
        started.send_signal(sent)
        assert started.wait(timeout=120) == code  # on a busy machine
    finally:
        started.kill()
        started.communicate()
    host, port = facts["address"].removeprefix("http://").split(":")
    end = time.monotonic() + 20
    while Path(f"/proc/{second}").exists() or not can_bind(host, int(port)):
        assert time.monotonic() < end
        time.sleep(0.1)


def can_bind(host: str, port: int) -> bool:
    try:
        bind(host, port).close()
    except OSError:
        return False
    return True


def test_torchrun_lets_a_server_drain_and_tell_its_clients(monkeypatch) -> None:
    given: dict[str, Any] = {}

    def popen(command: list[str], **options: Any) -> None:
        given.update(options)
        raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(InterruptedError):
        processes._launch(2, ["serve"])
    seconds = int(given["env"]["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert seconds > DRAIN_SECONDS + TELL_SECONDS + 5


@pytest.mark.proof
def test_a_process_that_dies_is_told_in_one_line(roomy) -> None:
    command = [sys.executable, "-m", "draftwood.cli.main", "generate", "one two", "--model", roomy]
    command += ["--tp", "2", "--max-new-tokens", "4000", "--raw", "--dtype", "float32"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert started.stdout is not None
    assert started.stdout.read(1)
    os.kill(second_of(started.pid), signal.SIGKILL)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 2
    assert errors.count("draftwood: error: ") == 1, errors
    assert "start again" in errors
    assert "Traceback" not in errors


def parent_of(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def second_of(ancestor: int) -> int:
    """The process with rank 1 below this one."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                environment = (place / "environ").read_bytes().split(b"\0")
                above = parent_of(parent_of(int(place.name)))
            except (OSError, IndexError):
                continue
            if b"RANK=1" in environment and above == ancestor:
                return int(place.name)
        time.sleep(0.1)
    raise AssertionError("no second process")


if __name__ == "__main__":
    print(json.dumps(texts(draftwood.load(sys.argv[1], dtype="float32", tp=2))))


def test_numbers_of_other_programs_processes_are_passed_over(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    asked = ("generate", "-", "--model", target, "--max-new-tokens", "3", "--raw", "--seed", "1")
    alone = run(*asked, given="hi")
    assert alone.exit_code == 0, alone.output
    monkeypatch.setenv("RANK", "")
    assert run(*asked, given="hi").stdout == alone.stdout
