"""`draftwood serve` as a process, as a user starts and stops it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from openai import OpenAI

from checkout import PYTHONPATH
from draftwood.cli.main import main
from draftwood_serve import command, run
from draftwood_serve.access_log import ServerLog
from draftwood_serve.settings import ServeSettings

TWO = ["--model", "smollm2-135m", "--model", "stories-15m"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["nosuchmodel"], "no model is named 'nosuchmodel'"),
        (["--method", "nosuch"], "there is no method 'nosuch'"),
        (["--method", "rsd-s"], "--draft-model"),
        (["--served-model-name", ""], "a name must not be empty"),
        (["--speculative-config", "{"], "not JSON"),
        (["--speculative-config", "{}", "--method", "plain"], "one or the other"),
        (["--host", "no.such.host.invalid", "--api-key", "k"], "there is no address"),
        (["--model", "nosuchmodel"], "no model is named 'nosuchmodel'"),
        (["smollm2-135m", "--model", "nosuchmodel"], "no model is named 'nosuchmodel'"),
        (["smollm2-135m", "--model", "emoji"], "is a model of pictures"),
        ([*TWO, "--replicas", "2"], "are for a server of one model"),
        ([*TWO, "--learn"], "are for a server of one model"),
        ([*TWO, "--draft-model", "third=x"], "no model is named 'third=x'"),
        ([*TWO, "--draft-model", "smollm2-135m-eagle", "--method", "rsd-s"], "--draft-model"),
        ([*TWO, "--served-model-name", "stories-15m"], "two models have one name"),
        ([*TWO, "--method", "stories-15m=nosuch"], "stories-15m: there is no method 'nosuch'"),
        ([*TWO, "--method", "third=plain"], "there is no method 'third=plain'"),
        ([*TWO, "--method", "plain", "--method", "auto"], "says plain and auto for all models"),
        ([*TWO, "--method", "stories-15m=suffix", "--tree", "4x3"], "take NAME=VALUE"),
        (
            [*TWO, "--speculative-config", "{}", "--method", "stories-15m=plain"],
            "one or the other",
        ),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(arguments: list[str], what: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--port", "0", *arguments])
    assert result.exit_code == 2
    assert what in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the configuration file."""

    def write(text: str) -> None:
        path = tmp_path / "config.toml"
        path.write_text(text)
        monkeypatch.setenv("DRAFTWOOD_CONFIG", str(path))

    return write


@pytest.mark.parametrize(
    ("typed", "configured", "served"),
    [
        ([], None, ["smollm2-135m"]),
        (["a"], None, ["a"]),
        (["a", "--model", "b", "--model", "a"], None, ["a", "b"]),
        (["--model", "b", "--model", "c"], None, ["b", "c"]),
        ([], "x", ["x"]),
        (["a"], "x", ["a"]),  # what is typed wins
        (["--model", "b"], "x", ["b"]),
    ],
)
def test_models_are_the_positional_one_and_further_ones(
    typed: list[str],
    configured: str | None,
    served: list[str],
    configure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure("" if configured is None else f'model = "{configured}"\n')
    found: list[str] = []
    monkeypatch.setattr(command, "_check", lambda settings, several: found.append(settings.model))
    monkeypatch.setattr(run, "serve", lambda *given: None)
    result = CliRunner().invoke(main, ["serve", *typed])
    assert result.exit_code == 0, result.stderr
    assert found == served


@pytest.mark.parametrize(
    ("typed", "configured", "methods"),
    [
        ([], None, [None, None]),
        (["--method", "suffix"], None, ["suffix", "suffix"]),
        (["--method", "stories-15m=suffix"], None, [None, "suffix"]),
        (["--method", "plain", "--method", "stories-15m=suffix"], None, ["plain", "suffix"]),
        ([], '"suffix"', ["suffix", "suffix"]),
        ([], '["lookup", "stories-15m=suffix"]', ["lookup", "suffix"]),
        (["--method", "plain"], '"suffix"', ["plain", "plain"]),
        (["--speculative-config", '{"method": "lookup"}'], None, ["lookup", "lookup"]),
    ],
)
def test_each_model_has_its_method(
    typed: list[str],
    configured: str | None,
    methods: list[str | None],
    configure: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure("" if configured is None else f"[serve]\nmethod = {configured}\n")
    found: list[ServeSettings] = []
    monkeypatch.setattr(run, "serve", lambda every, *more: found.extend(every))
    result = CliRunner().invoke(main, ["serve", *TWO, *typed])
    assert result.exit_code == 0, result.stderr
    assert [each.method for each in found] == methods


def test_a_head_that_the_method_leaves_aside_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for head, is_left in (("smollm2-135m-ctc", True), ("smollm2-135m-eagle", False)):
        command._check(ServeSettings("smollm2-135m", draft_model=(head,), method="auto"))
        said = "auto does without --draft-model (a head for --method ctc)"
        assert (said in capsys.readouterr().err) is is_left


def test_a_port_in_use_is_said_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["serve", "--port", port])
    assert result.exit_code == 2
    assert f"port {port} at 127.0.0.1" in result.stderr
    assert "--port" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse the second socket")
def test_two_servers_at_one_port_are_told_apart_when_both_had_bound_it() -> None:
    """The system lets two sockets have a port until one of them listens."""
    one = run.bind("127.0.0.1", 0)
    port = one.getsockname()[1]
    other = run.bind("127.0.0.1", port)
    with one, other:
        one.listen()
        server = run.server_of(nothing, NoRequests(), ServeSettings(), ServerLog())
        with pytest.raises(OSError, match=f"port {port} at 127.0.0.1 .* another one with --port"):
            server.run(sockets=[other])


def test_small_answers_go_out_at_once() -> None:
    """Else the system holds the second part of an answer back until the client tells of the first,
    0.04 s; asyncio turns that off where the socket names its protocol.
    """
    with run.bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """Application that answers nothing."""


class NoRequests:
    """Server without requests, which stops at once."""

    open = ()

    async def stop(self, seconds: float) -> None: ...


def start(*arguments: str) -> tuple["subprocess.Popen[str]", dict[str, str]]:
    command = [sys.executable, "-m", "draftwood.cli.main", "serve", "--port", "0", "--json"]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.proof
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_lets_what_runs_end(tiny: str, sent: int, code: int) -> None:
    process, facts = start(tiny, "--method", "plain", "--served-model-name", "small")
    with process:
        try:
            assert facts["models"] == ["small"]
            body = {"model": "small", "prompt": "go", "max_tokens": 400, "stream": True}
            with httpx.stream("POST", f"{facts['api']}/completions", json=body) as told:
                lines = told.iter_lines()
                next(lines)
                process.send_signal(sent)
                assert list(lines)[-2] == "data: [DONE]"
            assert process.wait(30) == code
        finally:
            process.kill()


@pytest.mark.proof
def test_a_server_that_was_killed_starts_again_at_the_same_port(tiny: str) -> None:
    texts = []
    port = "0"
    for _ in range(2):
        process, facts = start(tiny, "--port", port)
        with process:
            body = {"prompt": "go", "seed": 1, "max_tokens": 20}
            answer = httpx.post(f"{facts['api']}/completions", json=body).json()
            texts.append(answer["choices"][0]["text"])
            port = facts["address"].rpartition(":")[2]
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    assert texts[0] == texts[1]


@pytest.mark.model
@pytest.mark.proof
def test_the_built_in_model_is_served() -> None:
    process, facts = start("smollm2-135m")
    with process:
        try:
            with OpenAI(
                base_url=facts["api"], api_key="x", _strict_response_validation=True
            ) as client:
                months = "Name the first month of the year. Answer with one word."
                answer = client.chat.completions.create(
                    model="smollm2-135m",
                    messages=[{"role": "user", "content": months}],
                    temperature=0,
                    max_tokens=32,
                )
                assert "January" in (answer.choices[0].message.content or "")
                assert answer.choices[0].finish_reason == "stop"
                with client.responses.stream(
                    model="smollm2-135m", input=months, extra_body={"seed": 1}
                ) as stream:
                    final = stream.get_final_response()
                assert final.status == "completed"
                assert final.output_text
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)
            process.kill()
