"""Shells complete commands, options, methods, models and chats, at once and without PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_starts import FORBIDDEN, START

from command import refused, run
from draftwood.loading.names import BUILTIN_NAMES


def completed(line: str, home: Path, shell: str = "bash") -> list[str]:
    """The words for the end of a line, with their kinds, as the shell's script gets them."""
    told = {
        "_DRAFTWOOD_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "DRAFTWOOD_HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN + START],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("draftwood comp", ["plain,compare", "plain,completion"]),
        ("draftwood generate --syst", ["plain,--system"]),
        ("draftwood generate --model smol", ["plain,smollm2-135m"]),
        ("draftwood generate --model ./", ["file,./"]),
        ("draftwood generate --model emo", ["file,emo"]),
        ("draftwood draw --model ", ["plain,emoji"]),
        ("draftwood bench pictures --model emo", ["plain,emoji"]),
        ("draftwood draw --model ./", ["file,./"]),
        ("draftwood generate --dtype int", ["plain,int8", "plain,int4"]),
        ("draftwood generate --file ", ["file,"]),
        ("draftwood chat --method recyc", ["plain,recycling"]),
        ("draftwood compare --methods auto,recyc", ["plain,auto,recycling"]),
        ("draftwood chat --draft-model non", ["plain,none"]),
        ("draftwood chat --resume fo", ["plain,fox"]),
        ("draftwood fetch ", [f"plain,{name}" for name in BUILTIN_NAMES]),
        ("draftwood models remove gem", ["plain,gemma3-270m"]),
        ("draftwood serve stories-1", ["plain,stories-15m"]),
        ("draftwood config un", ["plain,unset"]),
        ("draftwood nosuch ", ["plain,"]),
    ],
)
def test_words_of_a_line(line: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "fox.json").write_text("")
    found = completed(line, tmp_path)
    if line == "draftwood nosuch ":  # the commands again
        assert "plain,generate" in found
    else:
        assert found == words


def test_methods_come_with_what_they_are(tmp_path: Path) -> None:
    found = completed("draftwood generate --method lookup", tmp_path, "zsh")
    assert found[:2] == ["plain", "lookup"]
    assert len(found[2]) > 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command(shell: str) -> None:
    made = run("completion", shell)
    assert made.exit_code == 0
    assert f"_DRAFTWOOD_COMPLETE={shell}_complete" in made.stdout
    assert "draftwood" in made.stdout.splitlines()[-2] + made.stdout


def test_another_shell_is_refused() -> None:
    assert "is not one of 'bash', 'zsh', 'fish'" in refused("completion", "csh")
    assert "Missing argument" in refused("completion")
