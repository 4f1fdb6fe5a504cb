import inspect
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from command import refused, run
from draftwood.cli import main as module
from draftwood.cli import options, terminal
from draftwood.cli.main import main
from draftwood.stats import Stats
from draftwood.version import __version__

OWN = (
    *("generate", "chat", "methods", "fetch", "compare", "check", "tune", "demo"),
    *("models", "config", "completion"),
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)


def test_bare_command_and_help_list_every_command():
    for result in (run(), run("--help"), run("-h")):
        assert result.exit_code == 0
        for name in OWN:
            assert name in result.stdout


@pytest.mark.parametrize("name", OWN)
def test_every_command_explains_itself_with_an_example(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"draftwood {name}" in result.stdout.split("Example")[1]


def test_version():
    assert run("--version").stdout == f"draftwood {__version__}\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys, draftwood.cli.main; print([m for m in ('torch', 'transformers', 'rich') if m"
        " in sys.modules])"
    )
    assert python("-c", code).stdout == "[]\n"


def test_lists_of_numbers_have_commas_between():
    read = options.numbers(int, "2,15")
    context, parameter = click.Context(main), click.Option(["--layers"])
    values = {None: None, "": (), "2, 15,": (2, 15), "3,3": (3, 3)}
    assert {value: read(context, parameter, value) for value in values} == values
    with pytest.raises(click.BadParameter, match="needs numbers such as 2,15, got '1,a'"):
        read(context, parameter, "1,a")


def test_defaults_are_the_library_s():
    from draftwood.cli.generate import generate as command
    from draftwood.text.language_model import load

    with command.make_context("generate", ["hi"]) as context:
        given = context.params
    for name, parameter in inspect.signature(load).parameters.items():
        if name in ("model", "method"):
            assert given[name] == parameter.default


def test_unknown_command_and_option():
    assert "nosuch" in refused("nosuch")
    assert "--nosuch" in refused("generate", "--nosuch", "hi")
    assert "PROMPT" in refused("generate")


def failing(error: BaseException) -> click.Group:
    """The command line with one more command, which fails like this."""
    group = module.ErrorPolicy("draftwood", params=[click.Option(["--debug"], is_flag=True)])

    @group.command()
    def fail() -> None:
        raise error

    return group


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ValueError("a\nb"), 2, "draftwood: error: a b\n"),
        (TypeError("wrong"), 2, "draftwood: error: wrong\n"),
        (FileNotFoundError("gone"), 2, "draftwood: error: gone\n"),
        (ImportError("pip install it"), 2, "draftwood: error: pip install it\n"),
        (ValueError(), 2, "draftwood: error: ValueError\n"),
        (MemoryError(), 2, "out of memory"),
        (KeyboardInterrupt(), 130, "draftwood: stopped\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (
            RuntimeError("odd"),
            1,
            "this is a bug in draftwood: RuntimeError: odd; 'draftwood --debug",
        ),
    ],
)
def test_each_error_is_one_line(error, code, words):
    result = CliRunner().invoke(failing(error), ["fail"])
    assert result.exit_code == code
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == (1 if words else 0)


def test_a_group_without_a_command_shows_its_help_as_it_is_laid_out():
    told = run("datastore")
    assert told.exit_code == 2
    assert told.stderr.splitlines()[0].endswith("datastore [OPTIONS] COMMAND [ARGS]...")
    assert "\n\nCommands:\n" in told.stderr
    assert not told.stdout


def test_a_text_that_was_cut_is_said_to_be(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for is_cut in (False, True):
        terminal.say_summary(Stats(tokens=3, prefills=1, target_runs=2), "plain", is_cut)
        told = " ".join(capsys.readouterr().err.split())
        assert ("cut, --max-new-tokens allows more" in told) == is_cut


@pytest.mark.parametrize(
    "asked",
    [
        ("generate", "hi", "--model", "~nouser/x"),
        ("generate", "--file", "~nouser/x"),
        ("generate", "hi", "--draft-model", "~nouser/x"),
        ("generate", "hi", "--adapter", "~nouser/x"),
        ("config", "set", "model", "~nouser/x"),
    ],
    ids=" ".join,
)
def test_a_home_that_nobody_has_is_a_path_that_is_not_there(asked):
    assert "~nouser/x" in refused(*asked)


def test_a_terminal_that_knows_no_width_shows_tables(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert terminal.output(90).width == 90
    assert terminal.progress().console.width > 0
    monkeypatch.setenv("COLUMNS", "33")
    assert terminal.output(90).width == 33


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), ("2>&-", 0)])
def test_a_closed_stream_is_an_empty_one(closed, code, target):
    asked = f"generate - --max-new-tokens 2 --model {target} --method plain"
    line = f"echo hello | {sys.executable} -m draftwood.cli.main {asked} {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    assert ("the prompt is empty" in done.stderr) == (code == 2)
    assert bool(done.stdout) == (code == 0)


def test_debug_shows_the_traceback():
    result = CliRunner().invoke(failing(RuntimeError("odd")), ["--debug", "fail"])
    assert isinstance(result.exception, RuntimeError)


def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "draftwood.cli.main", "methods", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert said == b""


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "draftwood", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == CliRunner().invoke(main, ["--version"]).stdout


def test_the_console_script_starts_main():
    assert main.name == "main"
    assert isinstance(main, click.Group)
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    assert 'draftwood = "draftwood.cli.start:main"' in project
