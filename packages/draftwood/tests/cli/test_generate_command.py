import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from transformers import AutoTokenizer

import draftwood
from command import hear_ctrl_c, refused, run, with_library
from draftwood.costs.following import Following
from draftwood.native import library
from draftwood.stats import Step

SAW = Following.saw  # before tests turn it off
KEYS = {"text", "token_ids", "finish_reason", "model", "method", "stats"}


def written(*arguments: str, given: str | None = None) -> dict:
    result = run("generate", *arguments, "--json", given=given)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_text_goes_to_stdout_alone(target):
    result = run("generate", "hello", "--model", target, "--max-new-tokens", "12")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert (
        result.stdout
        == written("hello", "--model", target, "--max-new-tokens", "12")["text"] + "\n"
    )


def test_json_holds_the_documented_fields(target):
    made = written("hello", "--model", target, "--max-new-tokens", "12")
    assert set(made) == KEYS
    assert len(made["token_ids"]) == made["stats"]["tokens"] == 12
    assert (made["finish_reason"], made["model"], made["method"]) == ("length", target, "auto")
    assert set(made["stats"]["seconds"]) >= {"draft", "target", "verify", "total"}


@pytest.mark.parametrize("method", ["plain", "recycling", "layer-skip"])
def test_methods_write_the_same_text(target, method):
    options = ("hello", "--model", target, "--dtype", "float32", "--max-new-tokens", "24")
    assert written(*options, "--method", method)["text"] == written(*options)["text"]


def test_draft_model(target, draft):
    options = ("hello", "--model", target, "--max-new-tokens", "24")
    made = written(*options, "--method", "rsd-s", "--draft-model", draft)
    assert made["text"] == written(*options)["text"]
    assert made["stats"]["drafted"] > 0


def test_seed_reproduces_and_sampling_options_arrive(target):
    options = ("hello", "--model", target, "--max-new-tokens", "16", "--temperature", "1", "--seed")
    first, again, other = (written(*options, seed)["text"] for seed in ("1", "1", "2"))
    assert first == again != other
    narrow = written(*options, "1", "--top-k", "1")["text"]
    assert narrow == written("hello", "--model", target, "--max-new-tokens", "16")["text"]


def test_a_prediction_drafts_the_same_text(target, tmp_path):
    options = ("hello", "--model", target, "--max-new-tokens", "40")
    wanted, file = written(*options), tmp_path / "expected.txt"
    file.write_text(wanted["text"])
    made = written(*options, "--prediction", str(file))
    assert made["text"] == wanted["text"]
    assert made["stats"]["sources"]["prediction"]["accepted"] > 20
    asked = ("generate", *options, "--prediction")
    assert "cannot read" in refused(*asked, str(tmp_path / "missing"))
    told = refused(*asked, str(file), "--method", "plain")
    assert "does not draft along a prediction" in told


def test_stop_ends_the_text(target):
    text = written("hello", "--model", target, "--max-new-tokens", "12")["text"]
    made = written("hello", "--model", target, "--max-new-tokens", "12", "--stop", text[3:5])
    assert made["text"] == text[: text.index(text[3:5])]
    assert made["finish_reason"] == "stop"


def test_stdin_is_the_prompt(target):
    options = ("--model", target, "--max-new-tokens", "8")
    assert written("-", *options, given="hello\n")["text"] == written("hello", *options)["text"]


def test_raw_leaves_the_template_out(target):
    options = ("hello", "--model", target, "--max-new-tokens", "8")
    assert written(*options, "--raw")["text"] != written(*options)["text"]


def test_stats_and_tree_go_to_stderr(target):
    result = run(
        "generate",
        "abcabcabc",
        "--model",
        target,
        "--max-new-tokens",
        "40",
        "--method",
        "recycling",
        "--stats",
        "--show-tree",
    )
    assert result.exit_code == 0
    assert "newest token" in result.stderr
    assert "tokens per forward pass, recycling" in result.stderr
    assert "newest token" not in result.stdout
    assert "a step: model " in result.stderr
    assert "times plain decoding" in result.stderr or "whether drafts pay" in result.stderr
    if library.available():
        assert f"matrix products: {library.instructions(False) or 'plain loops'}\n" in result.stderr


def test_a_text_that_is_held_back_at_first_is_timed_from_its_first_token(target, monkeypatch):
    """A slow prompt is no part of the steps, though nothing is shown after its pass."""
    options = ("hello there", "--model", target, "--max-new-tokens", "8", "--method", "plain")
    text = written(*options)["text"]
    keep = Step.without_probs

    def slowly(step: Step) -> Step:
        if step.is_prefill:
            time.sleep(0.4)
            step.seconds["target"] += 0.4
        return keep(step)

    monkeypatch.setattr(Step, "without_probs", slowly)
    told = run("generate", *options, "--stats", "--stop", f"{text[:4]}!!").stderr
    assert float(re.search(r"the rest ([0-9.]+) ms", told)[1]) < 30


def test_answers_that_share_passes_say_nothing_of_their_price(target):
    options = ("--model", target, "--max-new-tokens", "20", "--method", "recycling", "--stats")
    told = run("generate", "abcabc", *options, "--answers", "3", "--temperature", "1").stderr
    assert "a step: model " in told
    assert "the rest" not in told
    assert "times plain decoding" not in told


def test_answers_that_end_otherwise_are_told_with_their_counts(target):
    options = ("abcabc", "--model", target, "--max-new-tokens", "20", "--answers", "3")
    options += ("--temperature", "1", "--seed", "1")
    assert run("generate", *options, "--stats").stderr.count("ended by length\n") == 1
    first, second, _ = (each["text"] for each in written(*options)["answers"])
    stop = next(letter for letter in second if letter not in first)
    ends = [each["finish_reason"] for each in written(*options, "--stop", stop)["answers"]]
    assert ends[:2] == ["length", "stop"]
    told = run("generate", *options, "--stop", stop, "--stats").stderr
    counts = f"length ({ends.count('length')}), stop ({ends.count('stop')})"
    assert f"ended by {counts}\n" in told


def test_a_text_without_guesses_has_no_tree(target):
    options = ("--model", target, "--max-new-tokens", "4", "--method", "plain", "--show-tree")
    assert "no draft tree" in run("generate", "hello", *options).stderr


def test_unknown_names_get_suggestions(target):
    assert "did you mean smollm2-135m" in refused("generate", "hi", "--model", "smollm-135m")
    assert "did you mean lookup" in refused(
        "generate", "hi", "--model", target, "--method", "lokup"
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--max-new-tokens", "0"),
        ("--max-new-tokens", "-3"),
        ("--max-new-tokens", "many"),
        ("--temperature", "-0.1"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-k", "-1"),
        ("--min-p", "2"),
        ("--repetition-penalty", "0"),
        ("--dtype", "float3"),
        ("--device", "toaster"),
        ("--stop", ""),
    ],
)
def test_options_out_of_range(target, options):
    assert options[0].strip("-").split("-")[0] in refused(
        "generate", "hi", "--model", target, *options
    )


def test_empty_prompts(target):
    for prompt in ("", "  "):
        assert "the prompt is empty" in refused("generate", prompt, "--model", target)
    assert "the prompt is empty" in refused("generate", "-", "--model", target, given="\n")
    assert "not UTF-8" in refused("generate", "-", "--model", target, given=b"\xff\xfe")


def test_draft_models_that_are_missing_not_used_or_of_another_vocabulary(target, draft, stranger):
    assert "--draft-model" in refused("generate", "hi", "--model", target, "--method", "rsd-s")
    assert "uses no draft model" in refused(
        *("generate", "hi", "--model", target, "--method", "auto", "--draft-model", draft)
    )
    made = run("generate", "hi", "--model", target, "--draft-model", draft, "--json")
    assert json.loads(made.stdout)["stats"]["drafted"] > 0
    options = ("--model", target, "--method", "rsd-s", "--draft-model", stranger)
    line = refused("generate", "hi", *options)
    assert "another vocabulary" in line
    assert "0: 'Ġ' against" in line


def test_prompt_longer_than_the_context(target):
    assert "context is 256" in refused("generate", "a" * 300, "--model", target)


def test_lossy_methods_must_be_allowed(target, draft):
    options = (
        "hi",
        "--model",
        target,
        "--draft-model",
        draft,
        "--method",
        "typical",
        "--max-new-tokens",
        "8",
    )
    assert "--inexact" in refused("generate", *options)
    assert run("generate", *options, "--inexact").exit_code == 0


def test_broken_files(tmp_path, target):
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00" + b"nonsense" * 20)
    assert "cannot be read as a GGUF model" in refused("generate", "hi", "--model", str(broken))
    broken.write_bytes(b"no such thing")
    assert "is not a GGUF file" in refused("generate", "hi", "--model", str(broken))
    assert "there is no folder and no file" in refused(
        "generate", "hi", "--model", str(tmp_path / "gone.gguf")
    )
    assert "without config.json" in refused("generate", "hi", "--model", str(tmp_path))


def test_ctrl_c_keeps_what_was_written(endless):
    process = subprocess.Popen(
        [sys.executable, "-m", "draftwood.cli.main", "generate", "hello", "--model", endless]
        + ["--max-new-tokens", "900000", "--method", "plain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=hear_ctrl_c,
    )
    assert process.stdout is not None
    first = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(first + rest) >= 5
    assert said.decode().strip() == "draftwood: stopped"


@pytest.mark.model
def test_the_built_in_model():
    options = ("Name three planets.", "--max-new-tokens", "16", "--dtype", "float32")
    plain, drafted = (written(*options, "--method", method) for method in ("plain", "recycling"))
    assert plain["text"] == drafted["text"]
    assert drafted["stats"]["target_runs"] < plain["stats"]["target_runs"]


def test_several_answers(target):
    options = ("--model", target, "--max-new-tokens", "8", "--temperature", "1")
    made = written("hello", *options, "--seed", "4", "--answers", "3")
    alone = [written("hello", *options, "--seed", str(4 + number)) for number in range(3)]
    assert [each["text"] for each in made["answers"]] == [each["text"] for each in alone]
    assert made["text"] == alone[0]["text"]
    assert set(made) == KEYS | {"answers"}
    result = run("generate", "hello", *options, "--seed", "4", "--answers", "3")
    assert result.stdout == "".join(each["text"] + "\n" for each in alone)
    for number in range(3):
        assert f"answer {number + 1}, seed {4 + number}" in result.stderr
    assert "--answers" in refused("generate", "hello", *options, "--answers", "0")
    line = refused("generate", "hello", *options, "--answers", "2", "--show-tree")
    assert "leave --answers out" in line


def test_nothing_is_measured_for_a_text(target, tmp_path, monkeypatch):
    from draftwood.costs import calibration
    from draftwood.sources import stored_prior
    from draftwood.storage import weights

    def measure(*given, **options):
        raise AssertionError("a text waits for this")

    monkeypatch.setattr(calibration, "home", lambda: tmp_path)
    monkeypatch.setattr(weights, "home", lambda: tmp_path)
    options = ("hello", "--model", target, "--dtype", "float32", "--max-new-tokens", "24")
    with monkeypatch.context() as patch:
        patch.setattr(calibration, "measure", measure)
        patch.setattr(stored_prior.BigramPrior, "of", measure)
        first = written(*options)
        assert written(*options, "--answers", "2")["text"] == first["text"]
    draftwood.load(target, dtype="float32")  # with both
    assert written(*options)["text"] == first["text"]
    assert written(*options, "--method", "plain")["text"] == first["text"]


def test_passes_of_one_text_serve_the_next_process(target, tmp_path, monkeypatch):
    from draftwood.costs import calibration

    monkeypatch.setattr(calibration, "home", lambda: tmp_path)
    monkeypatch.setattr(Following, "saw", SAW)
    options = ("hello", "--model", target, "--max-new-tokens", "64")
    first = written(*options)
    (stored,) = tmp_path.glob("curves/*.json")
    record = json.loads(stored.read_text())
    assert record["measured_by"] == "draftwood generate"
    assert record["passes"] >= calibration.LEAST_PASSES
    assert record["seconds_by_nodes"]["1"] < 0.02  # what was guessed
    assert written(*options)["text"] == first["text"]


ENDING = """
import atexit, sys, time
from draftwood.text.stream import Stream
from draftwood.cli.main import main

ended = []
atexit.register(lambda: print(f"CPU {time.process_time() - ended[-1]:.3f}", file=sys.stderr))
step = Stream.__next__

def next_piece(stream):
    try:
        return step(stream)
    finally:
        ended.append(time.process_time())

Stream.__next__ = next_piece
main(sys.argv[1:])
"""


def test_the_process_ends_when_the_text_ends(target, tmp_path):
    """In a home where nothing is measured yet."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING, "generate", "hello", "--model", target],
        env=with_library(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=True,
    )
    *_, last = done.stderr.splitlines()
    assert last.startswith("CPU ")
    assert float(last.removeprefix("CPU ")) <= 0.3


@pytest.fixture
def ending(target, tmp_path):
    """The model, whose text a tilde ends."""
    folder = shutil.copytree(target, tmp_path / "ending")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = "~"
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_schemas_and_grammars_come_from_files(ending, tmp_path):
    schema, lark = tmp_path / "schema.json", tmp_path / "two.lark"
    schema.write_text('{"type": "array", "items": {"enum": [1, "two"]}, "maxItems": 3}')
    lark.write_text('start: "one" | "two"')
    options = ("hello", "--model", ending, "--temperature", "1", "--seed", "3")
    made = written(*options, "--json-schema", str(schema))
    assert set(json.loads(made["text"])) <= {1, "two"}
    assert made["finish_reason"] == "stop"
    assert written(*options, "--grammar", str(lark))["text"] in ("one", "two")
    several = written(*options, "--grammar", str(lark), "--answers", "3")["answers"]
    assert {each["text"] for each in several} <= {"one", "two"}


def test_schemas_that_do_not_do_are_refused(target, ending, tmp_path):
    schema = tmp_path / "schema.json"
    options = ("generate", "hello", "--json-schema", str(schema), "--model")
    assert "cannot read" in refused(*options, ending)
    schema.write_bytes(b"\xff")
    assert "UTF-8" in refused(*options, ending)
    schema.write_text('{"type": "nonsense"}')
    assert "Invalid type" in refused(*options, ending)
    assert "token that ends a text" in refused(*options, target)


def test_overlap_changes_no_text_and_says_what_it_hid(target, draft, monkeypatch):
    monkeypatch.setattr("draftwood.drafters.overlap.cpus", lambda: 2)
    monkeypatch.setattr("draftwood.drafters.overlap.of_quota", lambda: 2)
    options = ("hello", "--model", target, "--max-new-tokens", "24")
    drafted = ("--method", "rsd-c", "--draft-model", draft, "--temperature", "1", "--seed", "3")
    made = written(*options, *drafted, "--overlap")
    assert made["token_ids"] == written(*options, *drafted)["token_ids"]
    assert made["stats"]["drafting"]["ahead"] > 0
    told = run("generate", *options, *drafted, "--overlap", "--stats").stderr
    assert "of it while the model ran; drafted ahead in" in told
    reason = refused("generate", *options, "--overlap")
    assert "method 'auto' has drafts that cost next to nothing" in reason
