import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command import refused, run, with_library

SMALL = ("--max-answer", "16", "--max-prompt", "60", "--shard", "4", "--batch", "4")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"what is {one} and {one * 7}?"} for one in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(autouse=True)
def no_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTWOOD_DATA", raising=False)


@pytest.mark.filterwarnings("always:there is no spec_bench")
def test_data_are_made_and_grow(target, prompts, tmp_path):
    folder = str(tmp_path / "data")
    options = ("train", "data", folder, "--model", target, "--prompts", prompts, *SMALL)
    result = run(*options, "--tokens", "0.2k", "--licence", "CC0")
    assert result.exit_code == 0, result.output
    assert "held out" in result.stdout
    assert "200 tokens: about" in result.stderr
    assert re.search(r"about \d+ s at [\d,]+ tokens/s; kept whenever \d+ prompts", result.stderr)
    assert "not compared with those" in result.stderr
    result = run(*options, "--tokens", "600", "--licence", "CC0", "--json")
    told = json.loads(result.stdout)
    assert told["tokens"] >= 600
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["sources"][prompts]["licence"] == "CC0"
    assert manifest["counts"]["tokens"] == told["tokens"]
    assert len(list((tmp_path / "data").glob("shard-*"))) == told["shards"] > 1


@pytest.mark.filterwarnings("ignore:there is no spec_bench")
def test_without_sets_prompts_are_composed_and_written_by_the_target(target, tmp_path):
    folder = tmp_path / "data"
    options = ("train", "data", str(folder), "--model", target, *SMALL)
    result = run(*options, "--tokens", "1500", "--max-prompt", "200")
    assert result.exit_code == 0, result.output
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sorted(manifest["sources"]) == ["composed", "own"]
    assert manifest["counts"]["tokens"] >= 1500


@pytest.mark.filterwarnings("ignore:there is no spec_bench")
def test_what_is_wrong_is_said_in_one_line(target, prompts, tmp_path):
    folder = str(tmp_path / "data")
    for options, what in (
        (("--sets", "alpaca_eval"), "its licence forbids commercial use"),
        (("--sets", "spec_bench"), "what drafters are measured on"),
        (("--tokens", "many"), "needs a number such as 500k or 2m"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--layers", "a"), "needs numbers such as 2,15,27,30"),
        (("--model", target, "--sets", "mbpp", *SMALL), "set $DRAFTWOOD_DATA to one, leave mbpp"),
        (
            ("--model", target, "--prompts", "none.jsonl", *SMALL),
            "no file none.jsonl",
        ),
    ):
        assert what in refused("train", "data", folder, *options)
    assert not Path(folder).exists()


@pytest.mark.filterwarnings("ignore:there is no spec_bench")
def test_a_disk_without_room_is_refused_before_anything_is_written_by_the_target(
    target, prompts, tmp_path, monkeypatch
):
    full = shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr("shutil.disk_usage", lambda path: full)
    folder = tmp_path / "data"
    options = ("--model", target, "--prompts", prompts, *SMALL)
    assert "the data need" in refused("train", "data", str(folder), *options, "--tokens", "1m")
    assert not list(folder.glob("shard*"))


def test_no_prompts_at_all_is_refused_in_the_command_s_words_before_weights_are_loaded(tmp_path):
    command = ("train", "data", str(tmp_path / "data"), "--sets", "", "--model", "no-such-model")
    line = refused(*command)
    for cure in ("--prompts FILE", "--sets composed", "--self-written 1"):
        assert cure in line


def test_sets_that_may_not_be_used_are_refused_before_weights_are_loaded(tmp_path):
    line = refused("train", "data", str(tmp_path), "--sets", "ifeval", "--model", "no-such-model")
    assert "test set" in line


def test_all_sets_that_are_missing_are_named_before_weights_are_loaded(tmp_path):
    command = ("train", "data", str(tmp_path / "data"), "--mix", "everyday", "--without", "bronte")
    line = refused(*command, "--model", "no-such-model")
    assert "--without gsm8k --without svamp --without mbpp" in line
    assert "--without bronte" not in line


def test_only_held_out_prompts_are_of_packages(tmp_path):
    command = ("train", "data", str(tmp_path), "--only-held-out", "--model", "no-such-model")
    assert "--mix everyday or code" in refused(*command)
    own = refused(*command, "--mix", "everyday", "--self-written", "0.1")
    assert "leave out --self-written" in own


def test_help_has_an_example():
    assert "draftwood train data my-data" in run("train", "data", "--help").stdout
    listed = run("train", "--help").stdout
    assert "data" in listed
    assert "Train an eagle drafter." in listed
    assert "Train a medusa drafter." in listed


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:there is no spec_bench")
def test_a_killed_run_goes_on_to_the_same_bytes(target, prompts, tmp_path):
    def command(folder: Path) -> tuple[str, ...]:
        chosen = ("--model", target, "--prompts", prompts, *SMALL, "--tokens", "1500")
        return ("train", "data", str(folder), *chosen)

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", "draftwood.cli.main", *command(killed)],
        env=with_library(tmp_path),
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 120
    while not list(killed.glob("shard-*")) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = len(list(killed.glob("shard-*")))
    for folder in (killed, whole):
        assert run(*command(folder)).exit_code == 0
    files = sorted(path.name for path in whole.glob("[!.]*"))
    assert 1 <= before < len(files) - 1
    for name in files:
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert sorted(path.name for path in killed.glob("[!.]*")) == files
