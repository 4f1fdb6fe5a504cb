"""`draftwood bench overhead`, `cost`, `quality` and `gguf`: whole runs on tiny models, stopped and
gone on with, shown, and everything that may be wrong.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from command import refused, run, with_library
from draftwood_bench.records.files import read_records, read_run, write_run
from draftwood_bench.run import overhead
from gguf_writing import TOKENS, write_gguf

OVERHEAD = (
    *("bench", "overhead", "--parts", "prepared", "--vocab", "1024", "--steps", "2"),
    *("--wide", "0"),
)


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    return str(file)


def cost(target: str, output: Path, *more: str) -> tuple[str, ...]:
    asked = ("--paths", "transformers,int8", "--nodes", "1,4,6", "--contexts", "40,8")
    shared = ("--rounds", "1", "--model", target, "--output", str(output))
    return ("bench", "cost", *asked, *shared, *more)


def quality(target: str, text: str, output: Path, *more: str) -> tuple[str, ...]:
    asked = ("--text", text, "--window", "16", "--windows", "3", "--model", target)
    return ("bench", "quality", *asked, "--output", str(output), *more)


def test_overhead(tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(*OVERHEAD, "--output", str(output), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["run"]["protocol"] == "overhead"
    assert len(told["figures"]) == 8
    assert all(each["milliseconds"] > 0 for each in told["figures"])
    assert {each["nodes"] for each in told["figures"] if each["method"] != "lookup"} == {64}
    shown = run("bench", "show", str(output))
    assert shown.exit_code == 0
    assert "rsd-s: beams 8x8" in shown.stdout
    assert "not finished" not in shown.stdout


def test_overhead_of_eight_nodes_on_two_vocabularies(tmp_path: Path) -> None:
    output = tmp_path / "out"
    asked = (*OVERHEAD[:-1], "2048", "--output", str(output), "--json")
    told = json.loads(run(*asked).stdout)["figures"]
    small = [each for each in told if each["at"] != "default"]
    assert {each["at"] for each in small} == {"1024 tokens", "2048 tokens"}
    assert {each["nodes"] for each in small} == {8}
    assert len(small) == 2 * 7
    shown = run("bench", "show", str(output)).stdout
    assert "rsd-s of 8: beams 2x4, 2048 tokens" in shown


def test_overhead_of_whole_native_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "LAYERS", 2)
    output = tmp_path / "out"
    asked = ["native" if each == "prepared" else each for each in OVERHEAD[:-1]]
    told = json.loads(run(*asked, "2048", "--output", str(output), "--json").stdout)["figures"]
    assert {each["at"] for each in told} == {"native, 1024 tokens", "native, 2048 tokens"}
    assert {each["nodes"] for each in told} == {0, 8}
    assert all(each["milliseconds"] > 0 for each in told)
    assert all((each["drafter"] > 0) == (each["nodes"] > 0) for each in told)
    shown = run("bench", "show", str(output)).stdout
    assert "rsd-s of 8: beams 2x4, native, 2048 tokens" in shown
    assert "not finished" not in shown


def test_cost(target: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    result = run(*cost(target, output, "--json"))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    figures = {(e["method"], e["prompt_tokens"], e["nodes"]): e for e in told["figures"]}
    assert len(figures) == 2 * 2 * 3
    assert told["figures"][0]["prompt_tokens"] == 8  # short contexts first
    assert all(each["milliseconds"] > 0 for each in figures.values())
    assert figures["int8", 8, 1]["weight_bytes"] > 0
    assert figures["int8", 40, 1]["cache_bytes"] >= figures["int8", 8, 1]["cache_bytes"] > 0
    assert told["run"]["weights"]
    shown = run("bench", "show", str(output), "--markdown").stdout
    assert "behind 40 tokens, by nodes" in shown
    assert "by context" in shown
    assert "| int8: transformers / this |" in shown


def test_quality_takes_more_formats_and_several_models(
    target: str, draft: str, text: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    result = run(*quality(target, text, output, "--formats", "int8", "--json"))
    assert result.exit_code == 0, result.output
    exact, rounded = json.loads(result.stdout)["figures"]
    assert (exact["method"], exact["divergence"], exact["tokens"]) == ("float32", 0.0, 45)
    assert rounded["method"] == "int8"
    assert 0 < rounded["divergence"] < 1
    kept = (output / "records.jsonl").read_bytes()
    more = json.loads(run(*quality(target, text, output, "--formats", "float16", "--json")).stdout)
    assert [each["method"] for each in more["figures"]] == ["float32", "int8", "float16"]
    assert more["figures"][:2] == [exact, rounded]
    assert more["run"]["options"]["formats"] == ["int8", "float16"]
    assert (output / "records.jsonl").read_bytes().startswith(kept)

    both = tmp_path / "both"
    result = run(*quality(target, text, both, "--model", draft, "--formats", "int8"))
    assert result.exit_code == 0, result.output
    assert f"{target}, int8" in result.stdout
    assert f"{draft}, float32" in result.stdout


def test_a_measurement_that_was_cut_short_goes_on(target: str, text: str, tmp_path: Path) -> None:
    for name, command in (
        ("overhead", lambda output: (*OVERHEAD, "--output", str(output))),
        ("cost", lambda output: cost(target, output)),
        ("quality", lambda output: quality(target, text, output, "--formats", "int8")),
    ):
        output = tmp_path / name
        assert run(*command(output)).exit_code == 0
        file = output / "records.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        half = len(lines) // 2
        file.write_bytes(b"".join(lines[:half]) + lines[half][:20])  # its writer was killed
        assert "not finished" in run("bench", "show", str(output)).stdout
        result = run(*command(output))
        assert result.exit_code == 0, result.output
        assert "not finished" not in result.stdout
        assert file.read_bytes().startswith(b"".join(lines[:half]))
        assert len(read_records(output)) == len(lines)
        assert len(read_run(output).resumed) == 1
        before, starts = file.read_bytes(), read_run(output).resumed
        assert run(*command(output)).exit_code == 0  # nothing is left to do
        assert file.read_bytes() == before
        assert read_run(output).resumed == starts


@pytest.mark.proof
def test_a_killed_measurement_goes_on(target: str, text: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = [*quality(target, text, output), "--windows", "100", "--threads", "1"]
    command = [sys.executable, "-m", "draftwood.cli.main", *arguments]
    environment = with_library(tmp_path / "home")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        end = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < end:
            if (output / "records.jsonl").exists() and len(read_records(output)) >= 6:
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    kept = read_records(output)
    assert len(kept) >= 6
    assert run(*arguments).exit_code == 0
    assert read_records(output)[: len(kept)] == kept
    assert len(read_records(output)) == 300


def test_what_cannot_be_measured_leaves_no_trace(
    target: str, draft: str, text: str, tmp_path: Path
) -> None:
    output, bad = tmp_path / "out", str(tmp_path / "bad")
    assert run(*quality(target, text, output, "--formats", "int8")).exit_code == 0
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    assert "not 'int9'" in refused(*quality(target, text, output, "--formats", "int9"))
    assert "windows 3, this one has 2" in refused(*quality(target, text, output, "--windows", "2"))
    assert f"model {target}, this" in refused(*quality(draft, text, output))
    threads = torch.get_num_threads()
    try:
        other = ("--threads", str(threads + 1), "--formats", "float16")
        line = refused(*quality(target, text, output, *other))
        assert f"with threads {threads}, this one has {threads + 1}; choose" in line
    finally:
        torch.set_num_threads(threads)
    Path(text).write_text("Another text. " * 40)
    assert "on other prompts" in refused(*quality(target, text, output))
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    assert "holds a run with protocol quality" in refused(*cost(target, output))

    def wrong(*arguments: str) -> str:
        return refused(*arguments, "--output", bad)

    assert "no room for 9000 of context and 64 nodes" in wrong(
        "bench", "cost", "--model", target, "--contexts", "9000"
    )
    assert "nodes must be at least 1" in wrong("bench", "cost", "--nodes", "0")
    assert "needs numbers such as" in wrong("bench", "cost", "--nodes", "many")
    assert "at least one of paths" in wrong("bench", "cost", "--paths", ",")
    assert "there is no device 'toaster'" in wrong("bench", "cost", "--device", "toaster")
    assert "fewer than a window of 300" in wrong(
        "bench", "quality", "--model", target, "--text", text, "--window", "300"
    )
    many = ("--window", "16", "--windows", "999")
    assert "too few for 999 windows" in wrong(
        "bench", "quality", "--model", target, "--text", text, *many
    )
    assert "there is no file" in wrong("bench", "quality", "--model", target, "--text", bad)
    assert "--vocab" in wrong("bench", "overhead", "--vocab", "3")
    assert "there is no part 'all'" in wrong("bench", "overhead", "--parts", "all")
    assert "--output" in refused("bench", "overhead")
    assert not (tmp_path / "bad" / "run.json").exists()


def test_show_prints_one_kind_of_output(target: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run(*OVERHEAD, "--output", str(output)).exit_code == 0
    assert "| method | T |" in run("bench", "show", str(output), "--markdown").stdout
    assert "a run of overhead" in refused("bench", "show", str(output), "--orderings")
    line = refused("bench", "show", str(output), "--json", "--markdown")
    assert "leave --markdown and --orderings out" in line


def test_show_leaves_out_what_no_clean_commit_measured(target: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run(*OVERHEAD, "--output", str(output)).exit_code == 0
    count = len(read_records(output))
    for commit, clean in (("abc", True), ("abc-dirty", False), (None, False)):
        write_run(output, replace(read_run(output), commit=commit))
        shown = run("bench", "show", str(output), "--markdown", "--clean").stdout
        assert ("| method | T |" in shown) == clean
        assert (f"(left out: {count} records without a clean commit)" in shown) != clean
        assert "| method | T |" in run("bench", "show", str(output), "--markdown").stdout


def test_a_report_of_measurements(target: str, text: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("overhead", "cost", "quality")]
    commands = (
        (*OVERHEAD, "--output", str(folders[0])),
        cost(target, folders[1]),
        quality(target, text, folders[2], "--formats", "int8"),
    )
    assert all(run(*command).exit_code == 0 for command in commands)
    page, markdown = tmp_path / "report.html", tmp_path / "report.md"
    written = ("--output", str(page), "--markdown", str(markdown))
    result = run("report", *map(str, folders), *written)
    assert result.exit_code == 0, result.output
    shown = page.read_text()
    assert "a step outside forward passes takes" in shown
    assert "keeps the likeliest token at" in shown
    assert shown.count("<section") == shown.count("</section>") == 3
    assert "| int8: transformers / this |" in markdown.read_text()


@pytest.mark.proof
def test_systems_on_the_same_file(tmp_path: Path) -> None:
    file, output = tmp_path / "m.gguf", tmp_path / "run"
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = LlamaConfig(vocab_size=len(TOKENS), **sizes, **heads)
    model = LlamaForCausalLM(config)
    write_gguf(file, model, kind=gguf.GGMLQuantizationType.Q8_0)
    asked = ("--systems", "draftwood", "--rounds", "1", "--max-new-tokens", "4")
    given = ("bench", "gguf", *asked, "--prompt-tokens", "20", "--model", str(file))
    result = run(*given, "--output", str(output), "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["figures"]
    assert [(row["method"], row["at"]) for row in rows] == [
        ("draftwood", "plain"),
        ("draftwood", "speculation"),
    ]
    for row in rows:
        assert row["same_texts"] == row["texts"] > 5
        assert row["weights"] == "the GGUF's own blocks"
        assert row["tokens_per_second"] > 0 < row["prompt_tokens_per_second"]
        assert 0.5 < row["first_token_seconds"] < 60
        assert row["memory_bytes"] > 5e7


def test_what_is_no_gguf_file_is_refused_before_anything_is_written(
    target: str, tmp_path: Path
) -> None:
    given = ("bench", "gguf", "--systems", "draftwood", "--model", target)
    words = refused(*given, "--output", str(tmp_path / "run"))
    assert "is no single GGUF file" in words
    assert "--device" in refused(*given, "--output", str(tmp_path / "run"), "--device", "cpu")
    assert not (tmp_path / "run" / "run.json").exists()
