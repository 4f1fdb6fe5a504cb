"""The race between draftwood and its peers: protocol, resuming, failures and the table, without any real peer."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_adapter.py")
sys.path.insert(0, str(ROOT / "benchmarks"))  # as when it runs as a script

from peers.process import Adapter, AdapterError  # noqa: E402
from peers.protocol import Answer, Request  # noqa: E402
from peers.race import Prompt, Race, Setting  # noqa: E402
from peers.systems import System, systems  # noqa: E402

from data import Question, read_records  # noqa: E402
from peers import environments, table, weights  # noqa: E402

MODES = {"plain": "plain", "speculation": "lookup"}
PROMPTS = [Prompt(Question(number, "writing", "?"), [number, 7]) for number in (12, 13, 14)]
SETTING = Setting("tiny", max_new_tokens=9, threads=1)


def command(misbehave: str = "") -> list[str]:
    return [sys.executable, str(FAKE), "--weights", "x", "--threads", "1", "--misbehave", misbehave]


def system(name: str, misbehave: str = "", modes: dict[str, str] | None = None) -> System:
    return System(name, modes or MODES, lambda: command(misbehave))


def race(path: Path, *entrants: System, prompts: list[Prompt] | None = None) -> list[dict]:
    machine = {"processor": "fake", "bandwidth_gb_per_s": 1.0}
    Race(path, SETTING, path.parent).run(entrants, PROMPTS if prompts is None else prompts, [1], lambda: machine)
    return read_records(path)


def peers_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers_script", ROOT / "benchmarks" / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_adapter_describes_itself_and_answers(tmp_path: Path) -> None:
    with Adapter(command(), tmp_path / "log") as adapter:
        assert adapter.description == {"weights": "none", "weight_bytes": 1_000_000, "versions": {"fake": "1"}}
        assert adapter.ask(Request([3, 5], 4, "plain")) == Answer([5] * 4, 0.5, 0.04, 3, 1)
    assert "libraries print" in (tmp_path / "log").read_text()
    assert adapter.process.poll() is not None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to look into")
def test_an_idle_adapter_stands_still(tmp_path: Path) -> None:
    with Adapter(command(), tmp_path / "log") as adapter:
        for _ in range(2):
            state = ""
            for _ in range(100):  # the signal needs a moment to arrive
                state = Path(f"/proc/{adapter.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "T":
                    break
                time.sleep(0.01)
            assert state == "T"
            before = processor_seconds(adapter.process.pid)
            time.sleep(0.05)
            assert processor_seconds(adapter.process.pid) == before
            adapter.ask(Request([3], 2, "plain"))


def test_bad_lines_get_an_error_and_the_adapter_goes_on() -> None:
    lines = ["no JSON", "{}", '{"prompt_ids": [], "max_new_tokens": 3, "mode": "plain"}']
    lines += ['{"prompt_ids": [1], "max_new_tokens": 0, "mode": "plain"}']
    lines += ['{"prompt_ids": [1], "max_new_tokens": 3, "mode": "fast"}']
    lines += ['{"prompt_ids": [1], "max_new_tokens": 3, "mode": "plain"}']
    done = subprocess.run(command(), input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    _, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = [
        "prompt_ids, max_new_tokens and mode",
        "max_new_tokens",
        "prompt_ids must be",
        "at least 1",
        "plain, spec",
    ]
    for answer, words in zip(answers, wanted, strict=False):
        assert words in answer["error"]
    assert answers[-1]["token_ids"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("misbehave", "words"),
    [("load", "OSError: these weights cannot be read"), ("no-json", "no description: 'Hello!'")],
)
def test_an_adapter_that_cannot_start_says_why(tmp_path: Path, misbehave: str, words: str) -> None:
    with pytest.raises(AdapterError, match=words):
        Adapter(command(misbehave), tmp_path / "log")
    with pytest.raises(AdapterError, match="cannot start /no/such/python"):
        Adapter(["/no/such/python"], tmp_path / "log")


def test_an_adapter_that_keeps_silent_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="gave no answer in 0 s"):
        Adapter([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", start_seconds=0.2)


def test_an_adapter_that_failed_is_ended(tmp_path: Path) -> None:
    with Adapter(command("raise"), tmp_path / "log") as adapter:
        with pytest.raises(AdapterError, match="bad luck"):
            adapter.ask(Request([13], 4, "plain"))
        assert adapter.process.poll() is not None


def test_systems_take_turns_and_records_say_everything(tmp_path: Path) -> None:
    records = race(tmp_path / "r.jsonl", system("one"), system("two", modes={"plain": "plain"}))
    turns = [(r["question"], r["system"], r["mode"]) for r in records]
    assert turns[:4] == [(12, "one", "plain"), (12, "one", "lookup"), (12, "two", "plain"), (13, "one", "plain")]
    assert len(turns) == 9
    wanted = {"model", "weights", "weight_bytes", "versions", "threads", "machine", "category", "prompt_tokens"}
    assert wanted <= set(records[0])
    assert records[0]["token_ids"] == [7] * 9


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = race(path, system("one"), prompts=PROMPTS[:2])
    path.write_text("".join(json.dumps(record) + "\n" for record in first[:3]))  # stopped amid question 13
    assert [(r["question"], r["mode"]) for r in race(path, system("one"))[3:]] == [
        (13, "lookup"),
        (14, "plain"),
        (14, "lookup"),
    ]
    complete = path.read_text()
    broken = System("one", MODES, lambda: pytest.fail("nothing is missing, so nothing is started"))
    race(path, broken)
    assert path.read_text() == complete


@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [
        ("die", "plain, question 13: ended with status 3: out of luck"),
        ("raise", "plain, question 13: RuntimeError: the prompt brings bad luck"),
        ("no-answer", "plain, question 13: answered with tokens or seconds that cannot be"),
        ("load", "these weights cannot be read"),
    ],
)
def test_a_failing_peer_is_left_out_with_its_reason(tmp_path: Path, misbehave: str, reason: str) -> None:
    records = race(tmp_path / "r.jsonl", system("bad", misbehave), system("good"))
    assert len([r for r in records if r["system"] == "good"]) == 6
    missing = table.absent(records)
    assert set(missing) == {("bad", "plain"), ("bad", "lookup")}
    assert reason in missing["bad", "plain"]
    assert len([r for r in records if r["system"] == "bad" and "absent" not in r]) == (0 if misbehave == "load" else 2)


def test_a_peer_that_cannot_be_had_is_left_out_until_it_can(tmp_path: Path) -> None:
    def fails() -> list[str]:
        raise OSError("`pip install fast` failed (no such package)")

    records = race(tmp_path / "r.jsonl", System("fast", MODES, fails), system("good"))
    assert "no such package" in table.absent(records)["fast", "lookup"]
    assert not table.absent(race(tmp_path / "r.jsonl", system("fast")))


def record(name: str, mode: str, question: int, seconds: float, tokens: int = 11, **more: object) -> dict:
    fields = {"system": name, "mode": mode, "question": question, "token_ids": [4] * tokens, "first_tokens": 1}
    fields |= {"decode_seconds": seconds, "target_runs": tokens - 1, "weights": "w", "weight_bytes": 10**8}
    fields |= {"machine": {"processor": "fake", "bandwidth_gb_per_s": 10.0}, "versions": {"v": "1"}}
    return fields | {"model": "tiny", "max_new_tokens": 11, "threads": 2, "ignore_eos": False} | more


def test_the_figures_of_the_table() -> None:
    records = [record("peer", "plain", n, 0.2) for n in (1, 2, 3)]
    records += [record("draftwood", "auto:int8", n, s, target_runs=5) for n, s in ((1, 0.1), (2, 0.05), (3, 0.1))]
    records += [record("peer", "plain", 4, 0.1, token_ids=[2])]  # ended at once: no speed
    peer, own = table.rows(records)
    assert (peer.median_speed, peer.total_speed, peer.block_efficiency) == pytest.approx((50, 50, 1))
    assert peer.of_roofline == pytest.approx(0.5)  # 100 readings of the weights per second are possible
    assert peer.ratios["auto:int8"] == pytest.approx((0.5, 0.25, 0.5))
    assert own.total_speed == pytest.approx(120)
    assert own.median_speed == pytest.approx(100)
    assert own.block_efficiency == pytest.approx(2)
    assert own.same_text == {"peer plain": 1.0}


def test_tokens_that_come_with_the_prompt_do_not_count_as_decoded() -> None:
    assert table.speed(record("peer", "lookup", 1, 2.0, first_tokens=5)) == 3.0


def test_the_report_ends_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record("peer", "plain", 1, 0.2), record("draftwood", "plain:bfloat16", 1, 0.1)]
    records += [record("peer", "plain", 1, 0.2, max_new_tokens=64)]
    records += [{**{k: records[0][k] for k in table.settings(records)[0]}, "system": "x", "mode": "y", "absent": "why"}]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    peers_script().report(Namespace(files=[str(path)]))
    printed = capsys.readouterr().out
    assert "| peer | plain | 50.0 | 50.0 | 1.00 | 50% | 0.50 [0.50, 0.50] | w |" in printed
    assert "| peer | plain | 100% | 100% |" in printed
    assert "Left out: x, y: why" in printed
    told = json.loads(printed.splitlines()[-1])
    assert [len(each["rows"]) for each in told["tables"]] == [2, 1]


def test_bad_options_name_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no peer 'vllm'; peers are transformers, llama\.cpp"):
        systems(["vllm"], [], "smollm2-135m", 2)
    with pytest.raises(ValueError, match=r"METHOD:DTYPE, for instance plain:bfloat16, not 'auto'"):
        systems([], ["auto"], "smollm2-135m", 2)
    with pytest.raises(ValueError, match=r"weights of smollm2-135m or tinyllama-1\.1b, not of 'gpt2'"):
        weights.gguf_file("gpt2")
    with pytest.raises(SystemExit, match="no records in"):
        peers_script().report(Namespace(files=[str(tmp_path / "none.jsonl")]))


def test_an_environment_that_fails_tells_the_last_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    monkeypatch.setitem(environments.RECIPES, "openvino", environments.Recipe(("/no/such/package",)))
    monkeypatch.setattr("venv.create", lambda place, with_pip: None)
    place = environments.folder("openvino") / "bin"
    place.mkdir(parents=True)
    (place / "python").write_text("#!/bin/sh\necho 'ERROR: no such package'\nexit 1\n")
    (place / "python").chmod(0o755)
    with pytest.raises(OSError, match=r"pip install .* failed \(ERROR: no such package\); the whole log is"):
        environments.prepare("openvino")


def test_bytes_per_token_leave_out_an_embedding_of_its_own(tmp_path: Path) -> None:
    shapes = {"model.embed_tokens.weight": [10, 4], "lm_head.weight": [10, 4], "model.norm.weight": [4]}
    header = json.dumps({name: {"shape": shape} for name, shape in shapes.items()} | {"__metadata__": {}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert weights.bytes_read_per_token(tmp_path, "bfloat16") == 88
    with pytest.raises(ValueError, match="'int4' is not known; known are float32"):
        weights.bytes_read_per_token(tmp_path, "int4")
