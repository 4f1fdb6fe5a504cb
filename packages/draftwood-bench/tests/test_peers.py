"""Peers: what is said between draftwood and an adapter, failures, and records, without any real
peer.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood.loading import packages
from draftwood.loading.origin import weights_digest
from draftwood.storage.atomic import sha256
from draftwood.testing import tiny_llama
from draftwood_bench.peers import environments, weights
from draftwood_bench.peers.lineup import Peers, started, stats_of
from draftwood_bench.peers.process import Adapter, AdapterError
from draftwood_bench.peers.protocol import PeerRequest, Reply
from draftwood_bench.peers.systems import System, Target, systems
from draftwood_bench.records.notes import notes
from making import record, run_info

FAKE = Path(__file__).with_name("fake_adapter.py")
MODES = {"plain": "plain", "speculation": "lookup"}


def command(misbehave: str = "") -> list[str]:
    return [sys.executable, str(FAKE), "--weights", "x", "--threads", "1", "--misbehave", misbehave]


def system(name: str, misbehave: str = "", modes: dict[str, str] | None = None) -> System:
    return System(name, modes or MODES, lambda: command(misbehave), "pinned")


def answers(
    folder: Path, *chosen: System, prompts: tuple[int, ...] = (12, 13, 14)
) -> tuple[list[dict], Peers]:
    """Ask every peer every prompt; return the answers and the peers."""
    found = []
    with started(chosen, [1], (9, False), 1, folder / "logs", lambda line: None) as peers:
        for prompt in prompts:
            found += [
                peer.answer([prompt, 7], (peer.key, 0.0, f"p{prompt}", 0, 0))
                for peer in peers.lineup
            ]
    return found, peers


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_adapter_describes_itself_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # else nothing could be lost in buffers
    with Adapter(command(), tmp_path / "log") as adapter:
        assert adapter.description == {
            "weights": "none",
            "weight_bytes": 1_000_000,
            "versions": {"fake": "1"},
        }
        assert adapter.ask(PeerRequest([3, 5], 4, "plain")) == Reply([5] * 4, 0.5, 0.04, 3, 1)
    assert "libraries print" in (tmp_path / "log").read_text()
    assert adapter.process.poll() is not None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to look into")
def test_an_idle_adapter_stands_still(tmp_path: Path) -> None:
    with Adapter(command(), tmp_path / "log") as adapter:
        for _ in range(2):
            state = ""
            for _ in range(100):  # the signal needs a moment to arrive
                state = (
                    Path(f"/proc/{adapter.process.pid}/stat")
                    .read_text()
                    .rpartition(")")[2]
                    .split()[0]
                )
                if state == "T":
                    break
                time.sleep(0.01)
            assert state == "T"
            before = processor_seconds(adapter.process.pid)
            time.sleep(0.05)
            assert processor_seconds(adapter.process.pid) == before
            adapter.ask(PeerRequest([3], 2, "plain"))


def test_bad_lines_get_an_error_and_the_adapter_goes_on() -> None:
    lines = ["no JSON", "{}", '{"prompt_ids": [], "max_new_tokens": 3, "mode": "plain"}']
    lines += ['{"prompt_ids": [1], "max_new_tokens": 0, "mode": "plain"}']
    lines += ['{"prompt_ids": [1], "max_new_tokens": 3, "mode": "fast"}']
    lines += ['{"prompt_ids": [1], "max_new_tokens": 3, "mode": "plain"}']
    done = subprocess.run(
        command(), input="\n".join(lines) + "\n", capture_output=True, text=True, check=True
    )
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
        Adapter(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            tmp_path / "log",
            start_seconds=0.2,
        )


def test_an_adapter_that_failed_is_ended(tmp_path: Path) -> None:
    with Adapter(command("raise"), tmp_path / "log") as adapter:
        with pytest.raises(AdapterError, match="bad luck"):
            adapter.ask(PeerRequest([13], 4, "plain"))
        assert adapter.process.poll() is not None


def test_answers_are_fields_of_records(tmp_path: Path) -> None:
    found, peers = answers(tmp_path, system("one"), prompts=(12,))
    plain, lookup = found
    assert (plain["cell"], plain["method"], plain["at"]) == (
        "peer:one | plain",
        "peer:one",
        "plain",
    )
    assert plain["token_ids"] == [7] * 9
    assert plain["stats"] == {
        **{"tokens": 9, "first_tokens": 1, "target_runs": 8, "block_efficiency": 1.0},
        **{"seconds": {"prefill": 0.5, "decode": 0.09}, "tokens_per_second": round(8 / 0.09, 3)},
    }
    assert plain["seconds_end_to_end"] == 0.59
    assert lookup["stats"]["block_efficiency"] == 2.0
    assert peers.known == {
        "one": {
            "weights": "none",
            "weight_bytes": 1_000_000,
            "versions": {"fake": "1"},
            "weights_sha256": "pinned",
        }
    }
    assert all(peer.adapter.process.poll() is not None for peer in peers.lineup)


def test_tokens_that_come_with_the_prompt_do_not_count_as_decoded() -> None:
    assert stats_of(Reply([4] * 11, 1.0, 2.0, None, first_tokens=5))["tokens_per_second"] == 3.0
    assert stats_of(Reply([4], 1.0, 0.0))["tokens_per_second"] is None


@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [
        ("die", "plain: ended with status 3: out of luck"),
        ("raise", "plain: RuntimeError: the prompt brings bad luck"),
        ("no-answer", "plain: answered with tokens or seconds that cannot be"),
        ("load", "these weights cannot be read"),
    ],
)
def test_a_failing_peer_is_left_out_with_its_reason(
    tmp_path: Path, misbehave: str, reason: str
) -> None:
    found, peers = answers(tmp_path, system("bad", misbehave), system("good"))
    assert len([fields for fields in found if fields.get("method") == "peer:good"]) == 6
    assert len([fields for fields in found if fields.get("method") == "peer:bad"]) == (
        0 if misbehave == "load" else 2
    )
    assert reason in peers.known["bad"]["absent"]
    if misbehave != "load":
        (failed,) = peers.known["bad"]["failed"]
        assert failed["key"] == ["peer:bad | plain", 0.0, "p13", 0, 0]
        assert reason in failed["reason"]
    assert "absent" not in peers.known["good"]


def test_a_peer_that_cannot_be_had_is_absent(tmp_path: Path) -> None:
    def fails() -> list[str]:
        raise OSError("`pip install fast` failed (no such package)")

    found, peers = answers(tmp_path, System("fast", MODES, fails), system("good"))
    assert peers.known["fast"] == {"absent": "`pip install fast` failed (no such package)"}
    assert len(found) == 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_vllm_is_absent_without_a_gpu(tmp_path: Path) -> None:
    _, peers = answers(tmp_path, *systems(["vllm"], Target("x", tmp_path, None, 1)))
    assert "vLLM runs on a GPU" in peers.known["vllm"]["absent"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_transformers_runs_where_the_model_does(tmp_path: Path, device: str) -> None:
    (peer,) = systems(["transformers"], Target("x", tmp_path, None, 1, device, "float32"))
    assert peer.command()[-4:] == ["--dtype", "float32", "--device", device]


def test_a_peer_in_another_type_of_weights_than_the_run_is_told() -> None:
    peers = {"transformers": {"weights": "bfloat16, the same folder"}, "openvino": {}}
    plain = [record("plain", prompt, runs=30) for prompt in "123"]
    told = notes(plain, run_info(dtype="int8+int8-cache", peers=peers))
    assert "transformers ran in bfloat16, the run in int8+int8-cache" in told
    same = notes(plain, run_info(dtype="bfloat16+int8-cache", peers=peers))
    assert not any("ran in" in note for note in same)


@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp-lookup", "openvino", "openvino-int8"])
def test_a_peer_that_would_run_other_weights_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A folder of the built-in name that holds another model, as the hub's snapshot was."""
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    folder = tmp_path / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"the weights on the hub")
    target = Target("smollm2-135m", folder, weights_digest(folder), 1)
    _, peers = answers(tmp_path, *systems([name], target))
    reason = peers.known[name]["absent"]
    assert (
        "it would run the pinned weights of smollm2-135m (b179c9523d0e) and draftwood runs others"
        in reason
    )
    assert f"delete {folder}" in reason


def test_a_peer_on_the_same_weights_gets_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")

    def fetch(folder: Path) -> Path:
        return Path(shutil.copy(file, folder))

    builtin = packages.builtins()["smollm2-135m"]
    pinned = replace(builtin, weights=sha256(file), file=file.name, fetch=fetch)
    monkeypatch.setattr(packages, "builtins", lambda: {"smollm2-135m": pinned})
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    for _ in range(2):
        found = weights.gguf_file("smollm2-135m", sha256(file))
        assert found == tmp_path / "home" / "peers" / "weights" / "smollm2-135m" / "model.gguf"
        assert found.read_bytes() == b"weights"


def test_bad_options_name_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no peer 'slow'; peers are transformers, llama\.cpp"):
        systems(["slow"], Target("smollm2-135m", tmp_path, None, 2))
    with pytest.raises(
        ValueError, match=r"weights of .*tinyllama-1\.1b or gemma3-270m or qwen.*, not of 'gpt2'"
    ):
        weights.gguf_file("gpt2", None)


def test_an_environment_that_fails_tells_the_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    monkeypatch.setitem(
        environments.RECIPES, "openvino", environments.EnvironmentRecipe(("/no/such/package",))
    )
    monkeypatch.setattr("venv.create", lambda place, with_pip: None)
    place = environments.folder("openvino") / "bin"
    place.mkdir(parents=True)
    (place / "python").write_text("#!/bin/sh\necho 'ERROR: no such package'\nexit 1\n")
    (place / "python").chmod(0o755)
    with pytest.raises(
        OSError, match=r"pip install .* failed \(ERROR: no such package\); the whole log is"
    ):
        environments.prepare("openvino")


def test_bytes_per_token_leave_out_an_embedding_of_its_own(tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": [10, 4],
        "lm_head.weight": [10, 4],
        "model.norm.weight": [4],
    }
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert weights.bytes_read_per_token(tmp_path, "bfloat16") == 88
    with pytest.raises(ValueError, match="'int4' is not known; known are float32"):
        weights.bytes_read_per_token(tmp_path, "int4")


def test_bytes_per_token_are_of_all_files_and_whatever_an_embedding_is_called(
    tmp_path: Path,
) -> None:
    parts = ("transformer.wte.weight", "lm_head.weight")
    for number, name in enumerate(parts, start=1):
        save_file({name: torch.zeros(4, 4)}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    assert weights.bytes_read_per_token(tmp_path, "bfloat16") == 2 * 2 * 16


def adapter_command(name: str, weights: Path | str, *more: str) -> list[str]:
    """The command line of a system's own adapter."""
    adapter = Path(environments.__file__).with_name(f"run_{name}.py")
    return [sys.executable, str(adapter), "--weights", str(weights), "--threads", "1", *more]


def test_transformers_takes_nothing_but_ends_from_a_models_folder(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    file, told = tmp_path / "generation_config.json", []
    settings = json.loads(file.read_text())
    for more in ({}, {"repetition_penalty": 50.0, "no_repeat_ngram_size": 1}):
        file.write_text(json.dumps({**settings, **more}))
        with Adapter(
            adapter_command("transformers", tmp_path, "--dtype", "float32"), tmp_path / "log"
        ) as peer:
            asked = PeerRequest([5, 6, 7], 12, "plain", ignore_eos=True)
            told.append(peer.ask(asked).token_ids)
    assert told[0] == told[1]
    assert len(set(told[0])) < 12  # a penalty would show


OPENVINO = {
    "openvino.py": "Tensor = list",
    "openvino_int8.py": "matrix_bytes = lambda graph: 1",
    "openvino_genai.py": """
from types import SimpleNamespace

__version__ = "1"


class SchedulerConfig(SimpleNamespace):
    pass


class GenerationConfig(SimpleNamespace):
    pass


class LLMPipeline:
    def __init__(self, folder, device, scheduler_config=None, **options):
        self.plan = scheduler_config

    def get_generation_config(self):
        return SimpleNamespace(eos_token_id=2)

    def generate(self, prompt, config):
        known = self.plan is None or self.plan.enable_prefix_caching
        raw = SimpleNamespace(
            m_times_to_first_token=[1e6], m_batch_sizes=[1, 1], generate_durations=[2e6]
        )
        metrics = SimpleNamespace(raw_metrics=raw)
        return SimpleNamespace(tokens=[[int(known), 0]], perf_metrics=metrics)
""",
}
"""Stand-ins of OpenVINO's packages by name of file.

The first token of a text tells whether prompts are remembered.
"""


@pytest.mark.parametrize("mode", ["plain", "speculation"])
def test_openvino_remembers_no_prompts(tmp_path: Path, mode: str) -> None:
    for name, text in OPENVINO.items():
        (tmp_path / name).write_text(text)
    adapter = Path(environments.__file__).parent
    for name in ("run_openvino.py", "protocol.py"):
        shutil.copy(adapter / name, tmp_path)
    (tmp_path / ".ready").touch()
    command = [sys.executable, str(tmp_path / "run_openvino.py"), "--weights", "x.gguf"]
    command += ["--threads", "1", "--folder", str(tmp_path)]
    with Adapter(command, tmp_path / "log") as peer:
        assert peer.ask(PeerRequest([3, 5], 2, mode)).token_ids == [0, 0]


LLAMA_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

seen = 0

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.tell({{}})

    def do_POST(self):
        global seen
        seen += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        times = {{"predicted_n": 2, "prompt_ms": 1.0, "predicted_ms": 1.0}}
        self.tell({{"tokens": [seen, "--spec-type" in sys.argv], "timings": times}})

    def tell(self, fields):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(fields).encode())

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_llama_cpp_speculates_on_what_it_has_not_answered_before(tmp_path: Path) -> None:
    """Its n-gram tables outlive requests; plain decoding keeps nothing, so its server stays."""
    server = tmp_path / "llama-server"
    server.write_text(LLAMA_SERVER.format(python=sys.executable))
    server.chmod(0o755)
    more = ("--server", str(server), "--speculation=--spec-type ngram-mod")
    more += ("--weight-bytes", "1", "--package", "none")
    with Adapter(adapter_command("llama_cpp", "x.gguf", *more), tmp_path / "log") as peer:
        modes = ["speculation", "speculation", "plain", "plain", "speculation"]
        told = [peer.ask(PeerRequest([1], 2, mode)).token_ids for mode in modes]
    assert [count for count, _ in told] == [1, 1, 1, 2, 1]
    assert [speculates for _, speculates in told] == [True, True, False, False, True]
