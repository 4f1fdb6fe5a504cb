import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from command import hear_ctrl_c, refused, run
from draftwood.cli.chat import _lines
from draftwood.cli.conversation import Conversation


def talk(target: str, given: str, *options: str):
    result = run("chat", "--model", target, "--max-new-tokens", "8", *options, given=given)
    assert result.exit_code == 0, result.output
    return result


def test_each_line_is_a_turn_and_the_conversation_is_remembered(target):
    result = talk(target, "hello\n\nhello\n")
    both = result.stdout
    once = talk(target, "hello\n").stdout
    assert both.startswith(once)
    assert both != once + once
    assert "> " not in result.stderr  # nobody is there to be prompted


def test_a_turn_reads_only_what_is_new(target, monkeypatch):
    conversations = []

    class Watched(Conversation):
        def __init__(self, *given):
            super().__init__(*given)
            conversations.append(self)

        def _answer(self, text):
            before = self.stream
            super()._answer(text)
            reused.append(self.stream.sequence.prefill.reused)
            asked.append(len(self.stream.sequence.prompt))
            assert self.stream is not before

    reused, asked = [], []
    monkeypatch.setattr("draftwood.cli.chat.Conversation", Watched)
    talk(target, "hello\nhello\n/clear\nbye\n")
    assert reused[0] == 0
    assert asked[0] <= reused[1] < asked[1]
    assert reused[2] == 0  # forgotten, and its memory free
    assert len(conversations) == 1


def test_clear_forgets(target):
    once = talk(target, "hello\n").stdout
    assert talk(target, "hello\n/clear\nhello\n").stdout == once + once


def test_sums_of_several_methods_name_them_all(target):
    said = talk(target, "/stats\nhello\n/method recycling\n/stats\nhello\n/stats\n").stderr
    named = [line.partition(" per forward pass, ")[2] for line in said.splitlines()]
    assert [each for each in named if each] == ["auto", "auto", "auto, recycling"]


def test_commands(target):
    said = talk(
        target, "/help\nhello\n/stats\n/method recycling\nhello\n/stats\n/exit\nnever\n"
    ).stderr
    assert "/clear" in said
    assert "8 tokens" in said
    assert "16 tokens" in said
    assert "method: recycling" in said


def test_the_list_of_commands_fits_the_terminal(target, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = talk(target, "/help\n").stderr.splitlines()
    assert len(said) > 10
    assert all(len(line.rstrip()) <= 80 for line in said)
    assert sum(line.startswith("/") for line in said) == 10


def test_commands_that_do_not_exist_and_methods_that_cannot_be(target):
    said = talk(target, "/hlep\n/method lokup\n/method rsd-s\n/method\n").stderr.splitlines()
    assert said[0] == "there is no command /hlep; did you mean /help?"
    assert "did you mean lookup" in said[1]
    assert "--draft-model" in said[2]
    assert said[3] == "method: auto"


def test_lossy_methods_want_the_option_and_the_chat_goes_on(target, draft):
    lines = "/method typical\n/method\nhello\n/stats\n"
    drafts = ("--draft-model", draft, "--method", "rsd-s")
    said = talk(target, lines, *drafts).stderr
    assert "--inexact allows that" in said
    assert "method: rsd-s" in said
    assert "8 tokens" in said
    assert "method: typical" in talk(target, lines, *drafts, "--inexact").stderr


def test_a_question_that_cannot_be_asked_does_not_end_the_chat(target, monkeypatch):
    monkeypatch.setattr("draftwood.cli.chat._lines", lambda *given: iter(["caf\udce9", "hello"]))
    result = talk(target, "")
    assert "surrogate" in result.stderr
    assert result.stdout.strip()


def test_method_with_a_draft_model(target, draft):
    said = talk(target, "/method rsd-s\nhello\n/stats\n", "--draft-model", draft).stderr
    assert "method: rsd-s" in said
    assert "tokens per forward pass, rsd-s" in said


def test_methods_that_can_draft_ahead_do_so(target, draft, monkeypatch):
    monkeypatch.setattr("draftwood.drafters.overlap.cpus", lambda: 2)
    monkeypatch.setattr("draftwood.drafters.overlap.of_quota", lambda: 2)
    typed = "hello\n/stats\n/method rsd-s\nhello\n/stats\n"
    options = ("--method", "auto", "--draft-model", draft, "--overlap")
    said = talk(target, typed, *options).stderr
    first, _, second = said.partition("method: rsd-s")
    assert "while the model ran" not in first
    assert "while the model ran" in second


def test_trees_of_the_newest_answer(target):
    said = talk(target, "/tree\nabcabc\n/tree\n/tree 1\n/tree 99\n/tree x\n").stderr
    assert "there is no answer yet" in said
    assert "newest token" in said
    assert "pass 1 of" in said
    assert "there is no number 99" in said
    assert "takes the number of a forward pass, got x" in said


def test_trees_after_each_answer(target):
    assert "newest token" not in talk(target, "abcabc\n").stderr
    assert talk(target, "abcabc\nabcabc\n", "--show-tree").stderr.count("newest token") == 2
    said = talk(target, "abcabc\n", "--show-tree", "--method", "plain").stderr
    assert "no draft tree to show" in said


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_race(target, temperature):
    given = "/race\nabcabc\n/race\n/race hello\n/stats\n/method plain\n/race\n"
    said = talk(target, given, "--temperature", temperature).stderr
    assert "there is no question yet" in said
    assert said.count("one by one") == said.count("with trees") == 2
    assert said.count("✓ the same 8 tokens") == 2
    # races are no part of the conversation
    assert any(line.startswith("8 tokens, ") for line in said.splitlines())
    assert "plain would race with itself" in said


def test_a_race_of_a_wrong_method_is_seen(target, wrong):
    longer = ("--method", "recycling", "--max-new-tokens", "48")
    assert "the texts part at" in talk(target, "/race abcabc\n", *longer).stderr


def test_paths_are_no_commands(target):
    assert talk(target, "/usr/bin is what?\n").stdout


def test_full_context_is_explained_and_the_chat_goes_on(target):
    result = talk(target, f"{'a' * 300}\nhello\n")
    assert "reads at most 256; /clear starts a new one" in result.stderr
    assert result.stdout == talk(target, "hello\n").stdout
    result = run("chat", "--model", target, "--max-new-tokens", "400", given="hello\n")
    assert "context of 256 tokens is full" in result.stderr


def test_cut_answers_say_so(target):
    assert "cut after 8 tokens" in talk(target, "hello\n").stderr


def test_bad_input(target, mute):
    assert "has no chat template" in refused("chat", "--model", mute)
    assert "did you mean lookup" in refused("chat", "--model", target, "--method", "lokup")
    assert "--draft-model" in refused("chat", "--model", target, "--method", "rsd-s")


class Terminal:
    """`draftwood chat` on a terminal of its own."""

    def __init__(self, *arguments: str, kind: str = "dumb") -> None:
        self.screen, inner = pty.openpty()
        command = [sys.executable, "-m", "draftwood.cli.main", "chat", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": kind},
            start_new_session=True,
            preexec_fn=hear_ctrl_c,
        )
        os.close(inner)
        self.seen = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)

    def wait_for(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            try:
                self.seen += os.read(self.screen, 4096).decode(errors="replace")
            except OSError:  # it has left
                assert text in self.seen, self.seen

    def enter(self, text: str) -> None:
        self.seen = ""
        os.write(self.screen, text.encode())


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(endless, kind):
    long = ("--max-new-tokens", "900000", "--method", "plain")
    with Terminal("--model", endless, *long, kind=kind) as terminal:
        terminal.wait_for("> ")
        terminal.enter("hello\n")
        terminal.wait_for("hello\r\n")
        time.sleep(0.5)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("stopped")
        terminal.wait_for("> ")
        terminal.enter("/stats\n")
        terminal.wait_for("tokens per forward pass")
        terminal.wait_for("> ")
        terminal.enter("\x04")
        assert terminal.process.wait(30) == 0
    assert "Traceback" not in terminal.seen


@pytest.mark.parametrize("after", [0.03, 0.2])
def test_ctrl_c_in_a_command_does_not_end_the_chat(target, after):
    with Terminal("--model", target) as terminal:
        terminal.wait_for("> ")
        terminal.enter("/method layer-skip\n")
        terminal.wait_for("layer-skip\r\n")
        time.sleep(after)
        terminal.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        terminal.enter("/system -\n")
        terminal.wait_for("system: none")
        terminal.seen = terminal.seen.partition("system: none")[2]
        terminal.wait_for("> ")
        terminal.enter("\x04")
        assert terminal.process.wait(30) == 0
    assert "Traceback" not in terminal.seen


def test_a_wait_for_a_line_is_time_to_measure(monkeypatch):
    heard = []

    class Calibration:
        def first_doubtful(self, draft):
            return draft

        @contextmanager
        def mending(self):
            heard.append("waits")
            yield
            heard.append("goes on")

    monkeypatch.setattr("builtins.input", lambda prompt: heard.append("input") or "hello")
    models = SimpleNamespace(calibration=Calibration(), draft_calibration=Calibration())
    lines = _lines(True, models)
    assert next(lines) == "hello"
    assert heard == ["waits", "input", "goes on"]
