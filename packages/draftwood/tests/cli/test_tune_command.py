import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import draftwood
from command import hear_ctrl_c, refused, run, with_library
from draftwood import methods
from draftwood.cli import costs
from draftwood.cli.curve_view import HEIGHT, WIDTH, draw_curve
from draftwood.costs import calibration, curve, disturbance, peaks
from draftwood.costs.curve import FULL, Curve
from draftwood.costs.following import Following
from draftwood.loading import names
from draftwood.native import library
from draftwood.stats import Step
from draftwood.storage import weights
from draftwood.storage.home import home
from draftwood.tree import DraftTree

TRAINING_FREE = [
    recipe.name
    for recipe in methods.known().values()
    if recipe.lossless and methods.lacking(recipe, ()) is None and recipe.name != "plain"
    if recipe.drafter.name != "mtp"  # which needs a layer that most models have not
]

SAW = Following.saw  # other tests follow nothing


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch) -> Path:
    """An empty DRAFTWOOD_HOME that curves are really stored in, and short texts."""
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration, "home", home)
    monkeypatch.setattr(costs, "TOKENS", 12)
    return tmp_path / "home"


def tuned(*arguments: str) -> dict:
    result = run("tune", *arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [("--seconds", "nan", "nan is no number"), ("--threads", "100000", "1<=x<=1024")],
)
def test_numbers_that_no_machine_can_take_are_refused(option: str, value: str, why: str) -> None:
    assert why in refused("tune", option, value)


def test_the_curve_is_shown_and_stored_and_every_method_without_a_second_model_measured(
    target, own_home
):
    result = run("tune", "--model", target, "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "\x1b[" not in result.stdout
    shown = result.stdout
    (stored,) = own_home.glob("curves/*.json")
    assert f"stored in {stored}" in shown
    assert f"{target}, float32, " in shown
    assert ", 1 thread\n" in shown
    if library.available():
        assert f", {library.instructions(False) or 'plain loops'}, 1 thread\n" in shown
    for nodes in FULL:
        assert f"\n{nodes:5d} " in shown
    assert "⠤" in shown or "⣀" in shown or "⠒" in shown
    for name in TRAINING_FREE:
        assert f"\n{name} " in shown
    assert "\nrsd-s" not in shown
    assert "\nmtp" not in shown


def test_json(target, own_home):
    found = tuned("--model", target, "--method", "lookup", "--method", "recycling,lookup")
    assert (found["model"], found["dtype"], found["threads"]) == (target, "float32", 1)
    assert found["nodes"] == list(FULL)
    assert found["seconds"] == sorted(found["seconds"])
    assert found["busy"] is False
    expected = (library.instructions(False) or "plain loops") if library.available() else None
    assert found["instructions"] == expected
    assert list(found["methods"]) == ["lookup", "recycling"]
    assert set(found["methods"]["lookup"]) == {
        "draft_seconds_per_run",
        "nodes_per_run",
        "block_efficiency",
        "expected_speed_up",
        "seen_speed_up",
    }
    record = json.loads(Path(found["stored"]).read_text())
    assert list(record["seconds_by_nodes"].values()) == found["seconds"]
    assert record["seconds_per_node_and_token"] == found["seconds_per_node_and_token"] >= 0
    assert record["measured_by"] == f"draftwood tune --model {target}"
    assert set(record["draft_seconds_per_step"]) == {"lookup", "recycling"}


def test_what_follows_each_token_is_known_then(target, own_home, monkeypatch):
    monkeypatch.setattr(weights, "home", home)
    assert tuned("--model", target, "--method", "plain")["tokens_with_successors"] == 96
    assert len(list(own_home.glob("priors/*.safetensors"))) == 1
    shown = run("tune", "--model", target, "--method", "plain").stdout
    assert "\nWhat follows each of 96 tokens is known." in shown


def test_plain_alone_measures_the_curve_alone(target):
    assert tuned("--model", target, "--method", "plain")["methods"] == {}


def test_draft_models(target, draft):
    found = tuned("--model", target, "--draft-model", draft, "--method", "rsd-s,lookup")
    assert list(found["methods"]) == ["rsd-s", "lookup"]
    assert found["methods"]["rsd-s"]["nodes_per_run"] > 1
    assert found["methods"]["rsd-s"]["draft_seconds_per_run"] > 0


def test_methods_that_do_not_fit_the_model_are_left_out_unless_asked_for(mute):
    found = tuned("--model", mute)
    assert "layers" in found["skipped"]["layer-skip"]
    assert "layer-skip" not in found["methods"]
    shown = run("tune", "--model", mute).stdout
    assert "not run: layer-skip (layer-skip needs a model of at least 4 layers" in shown
    assert "4 layers" in refused(
        "tune", "--model", mute, "--method", "layer-skip", "--seconds", "1"
    )


def test_each_number_of_threads_and_dtype_has_its_own_file(target, own_home):
    before = torch.get_num_threads()
    for options in ([], ["--threads", "2"], ["--dtype", "bfloat16"], []):
        found = tuned("--model", target, "--method", "plain", "--seconds", "1", *options)
        assert found["threads"] == (2 if "--threads" in options else 1)
    assert torch.get_num_threads() == before
    assert len(list(own_home.glob("curves/*.json"))) == 3


def test_little_time_is_kept_and_said(target):
    found = tuned("--model", target, "--seconds", "0.001")
    assert found["nodes"][0] == 1
    assert found["nodes"] != list(FULL)
    result = run("tune", "--model", target, "--seconds", "0.001")
    assert "no time for: " in result.stdout
    assert "--seconds allows more" in result.stdout


def test_a_home_that_cannot_be_written(target, own_home):
    own_home.write_text("a file in the way")
    result = run("tune", "--model", target, "--method", "lookup", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["stored"] is None
    assert result.stderr.startswith("not stored: cannot write ")
    assert "set DRAFTWOOD_HOME" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_busy_machine_is_said(target, own_home, monkeypatch):
    monkeypatch.setattr(disturbance, "LEAST_SHARE", 1e9)
    result = run("tune", "--model", target, "--method", "plain")
    assert "Other programs kept the CPU busy" in result.stdout
    assert "stored in" in result.stdout
    (stored,) = own_home.glob("curves/*.json")
    assert json.loads(stored.read_text())["busy"] is True


def test_a_disturbed_curve_replaces_no_other_and_is_replaced(target, own_home, monkeypatch):
    arguments = ("tune", "--model", target, "--method", "plain")
    with monkeypatch.context() as busy:
        busy.setattr(disturbance, "LEAST_SHARE", 1e9)
        assert run(*arguments).exit_code == 0
    assert run(*arguments).exit_code == 0
    (stored,) = own_home.glob("curves/*.json")
    undisturbed = stored.read_text()
    assert "busy" not in json.loads(undisturbed)
    monkeypatch.setattr(disturbance, "LEAST_SHARE", 1e9)
    result = run(*arguments)
    assert result.exit_code == 0
    assert result.stderr.startswith("not stored: other programs kept the CPU busy, and ")
    assert len(result.stderr.splitlines()) == 1
    assert stored.read_text() == undisturbed


def test_bad_input(target, draft):
    assert "did you mean lookup" in refused("tune", "--model", target, "--method", "lokup")
    assert "at least one method" in refused("tune", "--model", target, "--method", ",")
    assert "--draft-model" in refused("tune", "--model", target, "--method", "rsd-s")
    assert "no draft model" in refused(
        "tune", "--model", target, "--method", "lookup", "--draft-model", draft
    )
    assert "changes what the model would say" in refused(
        "tune", "--model", target, "--method", "typical"
    )
    assert "dtype is one of" in refused("tune", "--model", target, "--dtype", "float3")
    assert "no device 'toaster'" in refused("tune", "--model", target, "--device", "toaster")
    assert "did you mean smollm2-135m" in refused("tune", "--model", "smollm-135m")
    assert "no folder and no file" in refused("tune", "--model", "/nowhere/at/all")
    assert "--threads" in refused("tune", "--threads", "0")
    assert "--seconds" in refused("tune", "--seconds", "0")


def test_a_model_that_fills_masks_is_refused_before_it_is_measured(
    target, own_home, monkeypatch
) -> None:
    monkeypatch.setattr(names, "other_way", lambda folder: ("it fills masks; name a rule", "rule"))
    monkeypatch.setattr(curve, "measure", None)
    told = refused("tune", "--model", target, "--method", "plain")
    assert "does not write token by token: it fills masks; name a rule" in told
    assert not list(own_home.rglob("*.json"))


def test_a_short_context(forgetful):
    found = tuned("--model", forgetful, "--method", "recycling")
    assert found["methods"]["recycling"]["block_efficiency"] >= 1


def test_ctrl_c_leaves_nothing(endless, own_home):
    process = subprocess.Popen(
        [sys.executable, "-c", SAY_WHEN_MEASURING, "tune", "--model", endless, "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=with_library(own_home),
        preexec_fn=hear_ctrl_c,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() == "draftwood: stopped"
    left = {path.name for path in own_home.iterdir()} if own_home.exists() else set()
    assert left <= {"kernels", "priors"}  # what came before it: the library, and a whole table
    assert not list(own_home.rglob("*.partial"))


SAY_WHEN_MEASURING = """if True:
    import time
    import draftwood.costs.curve as curve
    from draftwood.cli.main import main
    curve.measure = lambda *given, **options: (print("measuring", flush=True), time.sleep(60))
    main()
"""


def test_phases_are_shown_thread_by_thread_and_nothing_is_stored(target, own_home):
    found = tuned("--model", target, "--phases", "1,8", "--threads", "2")
    assert found["parts"] == ["products", "attention", "norms", "waiting"]
    assert list(found["seconds_by_nodes"]) == ["1", "8"]
    for threads in found["seconds_by_nodes"].values():
        first, second = map(sum, threads)
        assert first == pytest.approx(second)
        assert 0 <= min(map(min, threads)) < first
    shown = run("tune", "--model", target, "--phases").stdout
    assert f"Where the time of a forward pass goes (ms): {target}" in shown
    table, _, shares = shown.partition("Products reach, of ")
    assert [line.split()[0] for line in table.splitlines()[3:]] == ["1", "8"]
    assert "GB/s of memory" in shares
    assert [line.split()[:2] for line in shares.splitlines()[1:]] == [
        ["1", "node:"],
        ["8", "nodes:"],
    ]
    assert found["peaks"]["bytes_per_second"] > 1e8
    assert set(found["shares_by_nodes"]["8"]) == {"memory", "products"}
    assert not list(own_home.glob("curves/*.json"))


@pytest.mark.parametrize(("rate", "is_told"), [(1.0, True), (1e18, False)])
def test_more_than_memory_gives_is_told_with_its_reason(
    rate: float, is_told: bool, target, monkeypatch
) -> None:
    monkeypatch.setattr(peaks, "measure_peaks", lambda: peaks.Peaks(rate, 0.0, ""))
    told = run("tune", "--model", target, "--phases", "1").stdout
    assert ("of memory; weights that lie in the CPU's caches come faster" in told) is is_told


def test_phases_refuse_what_they_do_not_measure(target):
    assert "numbers of nodes" in refused("tune", "--model", target, "--phases", "0")
    assert "numbers of nodes" in refused("tune", "--model", target, "--phases", "one")
    assert "from 1 to 512" in refused("tune", "--model", target, "--phases", "1,1000000")
    assert "leave --method" in refused(
        "tune", "--model", target, "--phases", "1", "--method", "lookup"
    )


# ---- what other commands make of it


def written(target: str):
    return run("generate", "hello", "--model", target, "--method", "auto", "--max-new-tokens", "8")


def test_other_commands_use_the_stored_curve(target, own_home):
    draftwood.load(target)
    (stored,) = own_home.glob("curves/*.json")
    assert json.loads(stored.read_text())["measured_by"] == "draftwood.load"
    assert tuned("--model", target, "--method", "plain", "--seconds", "1")["stored"] == str(stored)
    text = stored.read_text()
    assert "draftwood tune" in text
    assert written(target).stderr == ""
    assert stored.read_text() == text


@pytest.mark.filterwarnings("default")
def test_a_curve_of_other_hardware_is_said_once_and_replaced(target, own_home):
    first = written(target)
    draftwood.load(target)
    (stored,) = own_home.glob("curves/*.json")
    stored.write_text(stored.read_text().replace('"device": "', '"device": "Another '))
    result = written(target)
    assert result.stdout == first.stdout
    assert result.stderr.startswith(
        f"draftwood: warning: the curve in {stored} was measured for device 'Another "
    )
    assert result.stderr.endswith("; passes of texts replace it\n")
    assert len(result.stderr.splitlines()) == 1
    with pytest.warns(UserWarning, match="it is measured again"):
        draftwood.load(target)
    assert written(target).stderr == ""


@pytest.mark.filterwarnings("default")
def test_a_home_that_cannot_be_written_stops_no_text(target, own_home, monkeypatch):
    monkeypatch.setattr(calibration, "LEAST_PASSES", 0)
    own_home.write_text("a file in the way")
    result = written(target)
    assert result.exit_code == 0
    assert result.stderr == ""


def test_warnings_of_draftwood_are_one_line():
    code = """if True:
        import warnings
        from draftwood.cli import main
        from draftwood.cli.chat import chat
        from draftwood.costs.calibration import CalibrationWarning
        chat.callback = lambda **options: warnings.warn("a\\nb", CalibrationWarning)
        main.main(["chat"])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "draftwood: warning: a b\n"


# ---- the drawing


def drawn(curve: Curve, encoding: str = "utf-8") -> list[str]:
    return draw_curve(curve, encoding).plain.splitlines()


def test_a_curve_rises_from_left_to_right():
    lines = drawn(Curve((1, 8, 64), (0.01, 0.01, 0.04)))
    assert len(lines) == HEIGHT + 2
    assert lines[0].startswith("40 ms │")
    assert lines[7].startswith("10 ms │⠒")
    tops = [
        min(row for row in range(HEIGHT) if line_has(lines[row], column)) for column in range(WIDTH)
    ]
    assert tops == sorted(tops, reverse=True)
    assert lines[-1].split() == ["1", "2", "4", "8", "16", "32", "64", "nodes"]


def line_has(line: str, column: int) -> bool:
    inner = line[7:]
    return column < len(inner) and inner[column] not in " ⠀"


def test_marks_stand_below_their_nodes():
    (*_, line, marks) = drawn(Curve((1, 8), (0.01, 0.02)))
    start = line.index("└") + 1
    assert [marks.index(mark) - start for mark in "1248"] == [0, 20, 39, 59]


def test_a_lone_size_and_terminals_without_braille():
    assert "10 ms │" in drawn(Curve((1,), (0.01,)))[0]
    plain = "\n".join(drawn(Curve((1, 64), (0.01, 2.0)), encoding="ascii"))
    assert plain.isascii()
    assert "*" in plain
    assert "2 s" in plain or "2000 ms" in plain


def steps_of(nodes: int, tokens: int, seconds: float) -> costs.Cost:
    spent = {"draft": 1e-4, "target": seconds, "verify": 1e-5}
    step = Step([1] * tokens, nodes - 1, tokens - 1, spent, DraftTree.chain([1] * nodes))
    return costs.Cost([step] * 40)


def test_expected_speed_ups_are_those_of_passes_as_texts_make_them(monkeypatch):
    """Passes over one node are faster in a row, those that sources learn of are slower."""
    monkeypatch.setattr(Following, "saw", SAW)
    curve = Curve((1, 4, 16), (3.14e-3, 3.5e-3, 6e-3))
    plain, drafted = steps_of(1, 1, 2.67e-3), steps_of(4, 2, 3.47e-3)
    found = drafted.as_json(costs.corrected(curve, (plain, drafted)), plain.stats)
    assert found["expected_speed_up"] == pytest.approx(found["seen_speed_up"], rel=0.01)
    measured = drafted.as_json(curve, plain.stats)
    assert measured["expected_speed_up"] > 1.1 * measured["seen_speed_up"]
