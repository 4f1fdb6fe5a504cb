"""`draftwood collaborate` with two models, and with a leader behind an address."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import draftwood
from command import refused, run
from draftwood import SamplingParams
from draftwood_choices.collaboration import address
from draftwood_choices.collaboration.address import RemoteWriter
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.collaboration.rules import Foreal, parse_rule
from draftwood_choices.collaboration.rules.step_router import FEATURES, StepWeights
from draftwood_choices.collaboration.texts import collaborate
from draftwood_choices.collaboration.writer import WriterLostError
from local_server import running

PROMPT = "one. two. one. two."
SHORT = ("--max-new-tokens", "30", "--raw", "--inexact")


@pytest.fixture(scope="module")
def served(target: str) -> Iterator[str]:
    with running(target) as server:
        yield server.address


def told(*arguments: str) -> dict:
    done = run("collaborate", PROMPT, *SHORT, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_command_writes_what_the_library_does(target: str, draft: str) -> None:
    found = told("--leader", target, "--model", draft, "--rule", "foreal,n=4")
    large, small = draftwood.load(target), draftwood.load(draft)
    result = collaborate(
        PROMPT, large, small, Foreal(4), max_new_tokens=30, raw=True, exact=False
    ).run()
    assert found["text"] == result.text
    assert found["leader_share"] == round(result.leader_share, 4)
    assert found["promise"] == "trades quality"
    assert {"caught_up", "passes", "seconds", "tokens"} <= set(found["writers"][LEADER])


def test_without_json_the_text_and_what_each_did(target: str, draft: str) -> None:
    asked = ("--leader", target, "--model", draft, "--rule", "foreal,n=4")
    done = run("collaborate", PROMPT, *SHORT, *asked)
    assert done.exit_code == 0, done.output
    assert done.stdout == told(*asked)["text"] + "\n"
    first, leader, follower = done.stderr.splitlines()
    assert first.startswith("foreal: 30 tokens, the leader's share ")
    assert leader.startswith("leader: ")
    assert follower.startswith("follower: ")
    assert "to catch up" in leader


def test_an_address_leads_as_the_same_model_here_does(served: str, target: str, draft: str) -> None:
    read = len(PROMPT)
    for rule in ("foreal,n=4", "step-router,tau=0", "first-n,n=1000"):
        here = told("--leader", target, "--model", draft, "--rule", rule)
        there = told("--leader", served, "--model", draft, "--rule", rule)
        assert there["text"] == here["text"], rule
        counts = [each["writers"][LEADER]["tokens"] for each in (here, there)]
        assert counts[0] == counts[1] > 0, rule
        assert there["lost"] == {}
        assert there["writers"][LEADER]["prompt_tokens"] == read, rule
        read = 1  # the server knows the others


class Scripted(BaseHTTPRequestHandler):
    """A server whose completions break off, or fail."""

    behaviour: Callable[["Scripted"], None]
    listed: tuple[int, object] = (200, {"data": [{"id": "some"}]})

    def do_GET(self) -> None:
        self._answer(*self.listed)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).behaviour(self)

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *said: object) -> None:
        pass


@contextmanager
def scripted(behaviour: Callable[[Scripted], None], **more: object) -> Iterator[str]:
    """Address of a server that behaves so."""
    handler = type("Handler", (Scripted,), {"behaviour": staticmethod(behaviour), **more})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def fails(handler: Scripted) -> None:
    handler._answer(500, {"error": {"message": "no memory"}})


def breaks_off(handler: Scripted) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    for piece in ("hel", "lo"):
        chunk = {"choices": [{"text": piece, "finish_reason": None}]}
        handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def babbles(handler: Scripted) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"data: <html>\n\n")


def sends(*pieces: bytes) -> Callable[[Scripted], None]:
    def behaviour(handler: Scripted) -> None:
        breaks_off(handler)
        handler.wfile.write(b"".join(b"data: " + each + b"\n\n" for each in pieces))

    return behaviour


def fails_in_lines(handler: Scripted) -> None:
    handler._answer(500, {"error": {"message": "no\nmemory"}})


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (breaks_off, "stopped half-way"),
        (sends(b"null"), "it sent what is no completion"),
        (sends(b"[1]"), "it sent what is no completion"),
        (sends(b'{"choices": null}'), "stopped half-way"),
        (sends(b'{"choices": [3]}'), "it sent what is no completion"),
        (sends(b'{"error": {"message": "too\\nmany"}}'), ": too many"),
    ],
)
def test_where_an_address_fails_half_way_the_follower_goes_on(
    behaviour: Callable[[Scripted], None], said: str, draft: str
) -> None:
    with scripted(behaviour) as address:
        found = told("--leader", address, "--model", draft, "--rule", "foreal,n=8")
        lines = run(
            *("collaborate", PROMPT, *SHORT, "--leader", address, "--model", draft)
        ).stderr.splitlines()
    assert said in found["lost"][LEADER]
    assert found["writers"][LEADER]["tokens"] == 2
    assert sum(each["tokens"] for each in found["writers"].values()) == 30
    small = draftwood.load(draft)
    rest = small.generate(PROMPT + "hello", max_new_tokens=28, raw=True).text
    assert found["text"] == "hello" + rest
    assert [line for line in lines if "lost" in line] == [lines[-1]]
    assert lines[-1].startswith("the leader was lost: ")
    assert lines[-1].endswith("; the follower went on")


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (fails, "status 500, no memory"),
        (fails_in_lines, "status 500, no memory"),
        (babbles, "Expecting value"),
    ],
)
def test_a_leader_that_never_wrote_a_token_is_an_error(
    behaviour: Callable[[Scripted], None], said: str, draft: str
) -> None:
    with scripted(behaviour) as address:
        line = refused("collaborate", PROMPT, *SHORT, "--leader", address, "--model", draft)
    assert f"the leader is lost before its first token: {address}: {said}" in line


def test_a_leader_s_name_must_be_one_that_the_server_lists() -> None:
    def model(name: str | None, status: int, listed: object) -> str:
        with scripted(fails, listed=(status, listed)) as address:
            return RemoteWriter(address, "x", SamplingParams(), name).model

    two = {"data": [{"id": "some"}, {"id": "tagged:latest"}]}
    assert model(None, 200, two) == "some"
    for name in ("some", "tagged:latest", "tagged"):
        assert model(name, 200, two) == name
    with pytest.raises(ValueError, match=r"no model 'other' at .* lists: some, tagged:latest$"):
        model("other", 200, two)
    for status, listed in ((404, {}), (200, {"data": []}), (200, [1]), (200, {"data": None})):
        assert model("other", status, listed) == "other"
        with pytest.raises(ValueError, match="no model answers at"):
            model(None, status, listed)
    with pytest.raises(ValueError, match=r"no model answers at http://127\.0\.0\.1:1 "):
        RemoteWriter("http://127.0.0.1:1", "x", SamplingParams(), "some")


def test_signs_of_life_alone_are_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "PATIENCE", 0.2)

    def pings(handler: Scripted) -> None:
        breaks_off(handler)
        for _ in range(100):
            handler.wfile.write(b": ping\n\n")
            time.sleep(0.02)

    with scripted(pings) as place:
        writer = RemoteWriter(place, "x", SamplingParams())
        with pytest.raises(WriterLostError, match="signs of life"):
            list(writer.write([], 8, 1, False))
    assert writer.cost.seconds < 1.5


def test_an_end_token_behind_an_address_ends_the_text() -> None:
    def ends(handler: Scripted) -> None:
        handler.send_response(200)
        handler.end_headers()
        usage = {"prompt_tokens": 9, "completion_tokens": 3}
        usage["prompt_tokens_details"] = {"cached_tokens": 4}  # type: ignore[assignment]
        chunk = {"choices": [{"text": "hello", "finish_reason": "stop"}], "usage": usage}
        handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")

    with scripted(ends) as place:
        writer = RemoteWriter(f"{place}/v1/", "x", SamplingParams(), key="k")
        (token,) = writer.write([], 8, 1, False)
    assert (token.text, token.count, token.is_end) == ("hello", 3, True)
    assert writer.cost.prompt == 5


@pytest.mark.parametrize(("text", "billed"), [("", 1), ("b ", 0)])
def test_part_of_a_character_and_a_count_of_nothing_are_a_token(text: str, billed: int) -> None:
    def sends_one(handler: Scripted) -> None:
        handler.send_response(200)
        handler.end_headers()
        usage = {"prompt_tokens": 3, "completion_tokens": billed}
        chunk = {"choices": [{"text": text, "finish_reason": "length"}], "usage": usage}
        handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")

    with scripted(sends_one) as place:
        (token,) = RemoteWriter(place, "x", SamplingParams()).write([], 1, 1, False)
    assert (token.text, token.count, token.is_end) == (text, 1, False)


def test_bad_input_is_refused_in_one_line(
    target: str, stranger: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*arguments: str) -> str:
        return refused("collaborate", "Hi", "--leader", target, "--model", target, *arguments)

    assert "--inexact allows that" in no()
    assert "there is no rule 'ead'" in no("--rule", "ead", "--inexact")
    assert "foreal's n must be a whole number" in no("--rule", "foreal,n=x", "--inexact")
    assert "--leader names a model" in no("--leader-model", "x", "--inexact")
    assert "there is no method 'fastest'" in no("--leader-method", "fastest", "--inexact")
    strange = ("--leader", stranger, "--rule", "entropy-switch", "--inexact")
    assert "must be models of one vocabulary" in no(*strange)
    assert "no model answers at http://127.0.0.1:1 " in no(
        "--leader", "http://127.0.0.1:1", "--inexact"
    )
    for wrong in ("http://", "http://127.0.0.1:99999", "http://127.0.0.1:port"):
        assert f"{wrong!r} is no address" in no("--leader", wrong, "--inexact")
    assert "is given twice" in no("--rule", "foreal,n=3,n=4", "--inexact")
    away = ("--leader", "http://127.0.0.1:1", "--inexact", "--rule")
    for flag, value in (("--leader-dtype", "int8"), ("--leader-method", "lookup")):
        assert f"{flag} belongs to a model; --leader names an address" in no(
            *away, "foreal", flag, value
        )
    assert "needs a leader that is loaded here" in no(*away, "oracle")
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert "the environment has no NO_SUCH_KEY" in no(
        *away, "foreal", "--leader-key", "NO_SUCH_KEY"
    )
    monkeypatch.setenv("TWO_LINES", "a-secret\nof-two-lines")
    told_of_key = no(*away, "foreal", "--leader-key", "TWO_LINES")
    assert "give it in one line" in told_of_key
    assert "secret" not in told_of_key
    file = tmp_path / "router.json"
    file.write_text("{}")
    assert "is no router of this version" in no(
        "--rule", "step-router", "--router", str(file), "--inexact"
    )
    assert "--router is for step-router" in no("--router", str(file), "--inexact")


def test_a_router_s_file_is_used(target: str, draft: str, tmp_path) -> None:
    file = tmp_path / "router.json"
    asked = ("--leader", target, "--model", draft, "--rule", "step-router", "--router", str(file))
    for bias, writer in ((-90.0, FOLLOWER), (90.0, LEADER)):
        StepWeights((0.0,) * len(FEATURES), bias).save(file)
        assert StepWeights.load(file).bias == bias
        assert told(*asked)["writers"][writer]["tokens"] == 30


def test_rules_are_listed_with_their_promise_and_source() -> None:
    rows = json.loads(run("methods", "--package", "choices", "--json").stdout)
    found = {each["name"]: each for each in rows}
    assert found["foreal"]["promise"] == "trades quality"
    assert found["foreal"]["source"].endswith("arXiv:2506.06998")
    assert found["foreal"]["option"] == "draftwood collaborate --rule foreal,n=15,p=1 --inexact"
    for name in ("foreal", "entropy-switch", "step-router"):
        assert parse_rule(name).name in run("methods", "--package", "choices").stdout
