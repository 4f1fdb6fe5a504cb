"""Refusals, help and arithmetic come before PyTorch; Ctrl-C is heard from the first moment on."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from command import hear_ctrl_c, with_library
from draftwood.cli.main import main as commands
from draftwood.loading.names import BUILTIN_NAMES
from draftwood.loading.packages import builtins
from thinning import thinned

START = "from draftwood.cli.start import main; main()"
ALONE = click.Context(commands)

HEAVY = ("torch", "transformers", "gguf", "jaxtyping", "safetensors.torch", "fastapi", "uvicorn")

FORBIDDEN = f"""
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name in {HEAVY!r}:
            raise AssertionError(f"{{name}} was imported")

sys.meta_path.insert(0, Forbidden())
"""

REFUSALS = {
    "model": ("generate hi --model smolm2-135m", "did you mean smollm2-135m"),
    "folder": ("generate hi --model ./nowhere", "there is no folder and no file ./nowhere"),
    "repository": ("generate hi --model no/where", "not in the local Hugging Face cache"),
    "draft model": ("generate hi --method rsd-s --draft-model nowhere", "no model is named"),
    "method": ("generate hi --method recyclin", "did you mean recycling"),
    "need": ("generate hi --method rsd-s", "--draft-model"),
    "head": ("generate hi --draft-model smollm2-135m-ct", "did you mean smollm2-135m-ctc"),
    "two heads": (
        "generate hi --draft-model smollm2-135m-ctc --draft-model smollm2-135m-lm",
        "two trained heads are given",
    ),
    "unused head": (
        "generate hi --draft-model smollm2-135m-ctc --method lookup",
        "uses no trained head",
    ),
    "another kind of head": (
        "generate hi --draft-model smollm2-135m-ctc --method auto",
        "is for method 'ctc'; choose that method",
    ),
    "no overlap": ("generate hi --draft-model smollm2-135m-ctc --overlap", "leave overlap out"),
    "config": (
        ("serve", "--speculative-config", '{"drafter": "nowhere"}'),
        "no model is named 'nowhere'",
    ),
    "lossy": ("generate hi --method typical --draft-model stories-15m", "--inexact"),
    "overlap": ("generate hi --method lookup --overlap", "leave overlap out"),
    "datastore": ("generate hi --datastore nowhere", "there is no datastore nowhere"),
    "dtype": ("generate hi --dtype int3", "dtype is one of int8"),
    "cache": ("generate hi --cache int3", "cache is int8"),
    "device": ("generate hi --device gpu", "there is no device 'gpu'"),
    "temperature": ("generate hi --temperature nan", "temperature must be"),
    "top-p": ("generate hi --top-p 1.5", "not in the range"),
    "penalty": ("generate hi --presence-penalty inf", "'--presence-penalty': inf is not in the"),
    "prompt": (("generate", " "), "the prompt is empty"),
    "stop": (("generate", "hi", "--stop", ""), "a stop string must not be empty"),
    "schema": ("generate hi --json-schema broken.json", "the JSON schema is no JSON"),
    "no schema": ("generate hi --json-schema nowhere.json", "cannot read nowhere.json"),
    "both": ("generate hi --json-schema object.json --grammar object.json", "not both"),
    "no prompt": ("generate", "Missing argument 'PROMPT'"),
    "two prompts": ("generate hi --file object.json", "leave PROMPT out"),
    "prompt's file": ("generate @nowhere.txt", "there is no file nowhere.txt"),
    "system file": ("chat --system @nowhere.txt", "there is no file nowhere.txt"),
    "raw system": ("generate hi --raw --system hi", "leave --raw out"),
    "context": ("generate hi --context 1", "not in the range"),
    "threads": ("chat --threads 0", "not in the range"),
    "chat's name": ("chat --save a/b", "a chat's name has"),
    "no chat": ("chat --resume fox", "no chat is named 'fox'"),
    "another model's chat": ("chat --resume ours", "go on with --model stories-15m"),
    "config key": ("config set generate.sede 1", "did you mean seed?"),
    "shell": ("completion csh", "is not one of"),
    "pull": ("models pull smolm2-135m", "did you mean smollm2-135m"),
    "remove": ("models remove smolm2-135m --yes", "did you mean smollm2-135m"),
    "chat": ("chat --method recyclin", "did you mean recycling"),
    "chat model": ("chat --model smolm2-135m", "did you mean smollm2-135m"),
    "chat options": ("chat --temperature nan", "temperature must be"),
    "embed": ("embed hi --model smolm2-135m", "did you mean smollm2-135m"),
    "no text": (("embed", "hi", " "), "text 1 is empty"),
    "compare": ("compare hi --methods auto,recyclin", "did you mean recycling"),
    "compare model": ("compare hi --methods auto --model smolm2-135m", "did you mean smollm2"),
    "check": ("check --methods recyclin", "did you mean recycling"),
    "check model": ("check --model smolm2-135m", "did you mean smollm2-135m"),
    "tune": ("tune --method recyclin", "did you mean recycling"),
    "tune model": ("tune --model smolm2-135m --phases", "did you mean smollm2-135m"),
    "demo": ("demo --model smolm2-135m", "did you mean smollm2-135m"),
    "fetch": ("fetch smolm2-135m", "did you mean smollm2-135m"),
    "serve": ("serve smolm2-135m", "did you mean smollm2-135m"),
    "serve method": ("serve --method recyclin", "did you mean recycling"),
    "bench": ("bench spec-bench --methods recyclin --output out", "did you mean recycling"),
    "bench prompts": ("bench load --prompts nowhere --output out", "there is no file nowhere"),
    "bench model": ("bench cost --model smolm2-135m --output out", "did you mean smollm2-135m"),
    "data set": ("train data out --sets nowhere", "prompts are not taken from 'nowhere'"),
    "data model": ("train data out --model smolm2-135m", "did you mean smollm2-135m"),
    "texts": ("datastore build broken.json --output out --model smolm2-135m", "smollm2-135m"),
    "hardware": ("plan --parameters 7B --hardware abacus", "hardware 'abacus' is not known"),
    "plan's model": ("plan --model smolm2-135m --hardware t4", "did you mean smollm2-135m"),
}

ANSWERS = {
    "methods": ("methods", "auto"),
    "methods in JSON": ("methods --json", '"needs_draft_model"'),
    "models": ("models --json", '"licence"'),
    "disk": ("models disk --json", '"bytes"'),
    "config": ("config show --json", "{}"),
    "config's file": ("config path", os.devnull),
    "completion": ("completion bash", "_DRAFTWOOD_COMPLETE"),
    "plan": ("plan --parameters 7B --hardware a100-80g", "Draft by "),
    "plan by tokens": ("plan --parameters 7B --hardware h100 --source head=3.6@60", "Draft by "),
}


def words(command: str | Sequence[str]) -> list[str]:
    return command.split() if isinstance(command, str) else list(command)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "broken.json").write_text('{"type": ')
    (tmp_path / "object.json").write_text('{"type": "object"}')
    (tmp_path / "home" / "chats").mkdir(parents=True)
    saved = tmp_path / "home" / "chats" / "ours.json"
    saved.write_text('{"form": 1, "model": "stories-15m", "messages": [], "system": null}')
    return tmp_path


def run(place: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(place / "hub")}
    environment["DRAFTWOOD_HOME"] = str(place / "home")
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        **{"cwd": place, "env": environment, "stdin": subprocess.DEVNULL},
        **{"capture_output": True, "text": True, "timeout": 120},
    )


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_come_before_pytorch_is_imported(name: str, place: Path) -> None:
    command, said = REFUSALS[name]
    done = run(place, FORBIDDEN + START, *words(command))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("draftwood: error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.parametrize("name", ANSWERS)
def test_lists_and_arithmetic_do_without_pytorch(name: str, place: Path) -> None:
    command, said = ANSWERS[name]
    done = run(place, FORBIDDEN + START, *words(command))
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_every_help_does_without_pytorch(place: Path) -> None:
    """But those of ``train``'s recipes, whose options are the recipes' own fields."""
    groups = ("bench", "train", "datastore", "models", "config")
    plain = [name for name in commands.list_commands(ALONE) if name not in groups]
    inner = [f"{group} {name}" for group in groups if group != "train" for name in _inside(group)]
    code = "from draftwood.cli.main import main\nimport sys\nfrom click.testing import CliRunner\n"
    code += (
        "for line in sys.argv[1:]:\n    done = CliRunner().invoke(main, [*line.split(), '-h'])\n"
    )
    code += "    assert done.exit_code == 0 and 'Usage' in done.stdout, (line, done.output)\n"
    done = run(place, FORBIDDEN + code, *plain, *inner, "train data", "bench", "train")
    assert done.returncode == 0, done.stderr


def _inside(group: str) -> list[str]:
    return list(commands.get_command(ALONE, group).commands)  # type: ignore[union-attr]


def test_what_needs_a_model_is_caught_importing_pytorch(place: Path) -> None:
    done = run(place, FORBIDDEN + START, "generate", "hi")
    assert done.returncode == 1
    assert re.search("AssertionError: .* was imported", done.stderr)


def cpu_seconds(place: Path, arguments: Sequence[str]) -> float:
    """CPU seconds of a command, the least of three."""
    found = []
    for _ in range(3):
        before = os.times()
        run(place, START, *arguments)
        after = os.times()
        found.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return min(found)


@pytest.mark.parametrize("name", thinned(["model", "method", "dtype", "schema"], 4))
def test_a_refusal_takes_next_to_no_time(name: str, place: Path) -> None:
    """0.15 s alone; with PyTorch and Transformers it would be 3 s and more."""
    assert cpu_seconds(place, words(REFUSALS[name][0])) < 0.45


def test_a_plan_takes_less_than_a_second(place: Path) -> None:
    assert cpu_seconds(place, words(ANSWERS["plan"][0])) < 1


def test_names_are_told_without_what_they_name() -> None:
    assert tuple(builtins()) == BUILTIN_NAMES


BEGUN = "print('begun', flush=True)"

# by the first that main() calls: before it, Ctrl-C is Python's own
IN_MAIN = f"""
import atexit

def register(act, known=atexit.register):
    atexit.register = known
    {BEGUN}
    return known(act)

atexit.register = register
from draftwood.cli.start import main
main()
"""

WHEN_NUMPY_IS_ASKED_FOR = f"""
import sys

class Watch:
    asked = False

    def find_spec(self, name, path=None, target=None):
        if name == "numpy" and not self.asked:
            self.asked = True
            {BEGUN}

sys.meta_path.insert(0, Watch())
"""


def interrupted(
    code: str,
    after: float,
    *arguments: str,
    environment: dict[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> tuple[int, str, float]:
    """The exit code of a command after Ctrl-C, what it said, and how long it went on.

    Args:
        after: seconds after its first output.
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        **{"env": environment, "stdin": stdin, "preexec_fn": hear_ctrl_c},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.read(1)
            time.sleep(after)
            process.send_signal(signal.SIGINT)
            began = time.perf_counter()
            code_left = process.wait(60)
            took = time.perf_counter() - began
            return code_left, process.stderr.read().decode(), took
        finally:
            process.kill()


@pytest.mark.parametrize("after", thinned([0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15], 3))
def test_ctrl_c_is_one_line_in_the_first_moments(after: float, target: str) -> None:
    status, said, _ = interrupted(IN_MAIN, after, "generate", "hi", "--model", target)
    assert (status, said.lstrip("\n")) == (130, "draftwood: stopped\n")


IN_A_FINALISER = f"""
from draftwood.cli import main, start
import time

class Ends:
    def __del__(self):
        {BEGUN}
        time.sleep(5)

def command():
    Ends()
    for _ in range(50):
        time.sleep(0.1)

main.main = command
start.main()
"""


def test_ctrl_c_is_heard_once_more_where_a_finaliser_took_it() -> None:
    status, said, took = interrupted(IN_A_FINALISER, 0.1)
    assert (status, said) == (130, "draftwood: stopped\n")
    assert took < 4


@pytest.mark.parametrize(("awaits", "raised"), [(True, True), (False, False)])
def test_a_ctrl_c_of_imports_is_not_left_to_what_comes_next(awaits, raised, tmp_path) -> None:
    late = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "late_module.py").write_text(late)
    code = f"""
import signal
from draftwood.cli.start import await_ctrl_c, hear_ctrl_c

signal.signal(signal.SIGINT, signal.default_int_handler)
hear_ctrl_c(ends_imports=False)
try:
    import late_module
    {"await_ctrl_c()" if awaits else ""}
except KeyboardInterrupt:
    print("raised", end="", flush=True)
import os
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout == "raised") == raised, done.stderr
    assert not done.stderr


@pytest.mark.parametrize("after", thinned([0.05, 0.5, 1.0], 3, 1))
def test_ctrl_c_is_one_line_while_libraries_are_imported(after: float, endless: str) -> None:
    code = WHEN_NUMPY_IS_ASKED_FOR + START
    told = ("generate", "hi", "--model", endless, "--max-new-tokens", "900000")
    status, said, _ = interrupted(code, after, *told)
    assert (status, said.strip()) == (130, "draftwood: stopped")


def test_the_first_moments_import_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import draftwood.cli.start;"
    code += " print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    allowed = {"atexit", "gc", "draftwood", "draftwood.cli", "draftwood.cli.start"}  # gc: no file
    assert set(done.stdout.split()) <= allowed | {
        "draftwood.lazy",
        "draftwood.moved",
        "draftwood.version",
    }


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_ctrl_c_ends_a_text_and_the_process(command: str, endless: str, tmp_path: Path) -> None:
    options = ("--model", endless, "--max-new-tokens", "900000")
    ends = os.pipe()
    os.write(ends[1], b"hi\n")
    prompt = ("hi",) if command == "generate" else ()
    where = with_library(tmp_path)
    try:
        status, said, took = interrupted(
            START, 0.2, command, *prompt, *options, environment=where, stdin=ends[0]
        )
    finally:
        os.close(ends[0])
        os.close(ends[1])
    assert status == 130
    assert said.endswith("draftwood: stopped\n")
    assert "Traceback" not in said
    assert took < 5  # 0.1 s where nothing else runs


def test_a_thread_does_not_keep_a_stopped_command() -> None:
    ends = os.pipe()
    busy = "import threading, time; threading.Thread(target=time.sleep, args=(50,)).start();"
    begin = f"import sys; {BEGUN};"
    try:
        status, said, took = interrupted(busy + begin + START, 2, "generate", "-", stdin=ends[0])
    finally:
        os.close(ends[0])
        os.close(ends[1])
    assert (status, said.strip()) == (130, "draftwood: stopped")
    assert took < 10


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [("raise SystemExit(3)", 3, ""), ("raise ValueError('no')", 1, "ValueError: no"), ("", 0, "")],
)
def test_the_exit_code_is_that_of_the_command(code: str, status: int, said: str) -> None:
    fake = "import sys, types\nfake = types.ModuleType('draftwood.cli.main')\n"
    fake += f"def run():\n    print('out')\n    {code or 'pass'}\n"
    fake += "fake.main = run\nsys.modules['draftwood.cli.main'] = fake\n"
    done = subprocess.run(
        [sys.executable, "-c", fake + START], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (status, "out\n")
    assert said in done.stderr
