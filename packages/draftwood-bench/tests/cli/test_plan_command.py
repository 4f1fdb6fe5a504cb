import json
import shutil
from pathlib import Path

import pytest

import draftwood
from command import run
from draftwood.costs import calibration
from draftwood.costs.curve import Curve
from draftwood.loading import hub
from draftwood_bench.sizes import size_of

NINE_RANKS = "head=0.5" + 8 * ",0.01"
FAST = ("--max-draft-tokens", "16", "--max-depth", "4")


def planned(*arguments: str) -> dict:
    result = run("plan", *arguments, *FAST, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


HEAD_TWICE = ("--source", "head", "--source", "head=0.6")
FOR_NO_DRAFT_MODEL = ("--hardware", "h100", "--source", "head", "--draft-parameters", "1B")


def test_the_table_ends_with_what_to_do() -> None:
    result = run("plan", "--parameters", "7B", "--hardware", "a100-80g", *FAST)
    assert result.exit_code == 0, result.output
    assert "7 billion parameters of 16 bits in 32 layers on a100-80g" in result.stdout
    for name in ("none", "copying", "head", "model"):
        assert f"\n{name} " in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Draft by ")


def test_json_says_the_same_in_numbers() -> None:
    found = planned("--parameters", "7B", "--bandwidth", "800", "--compute", "100", "--texts", "2")
    best = found["plans"][0]
    assert best["speed_up"] == max(each["speed_up"] for each in found["plans"])
    assert f"{best['speed_up']:.2f} times" in found["recommendation"]
    (plain,) = [each for each in found["plans"] if each["source"] is None]
    assert plain["speed_up"] == 1
    assert found["machine"]["bytes_per_second"] == 8e11


def test_no_draft_is_recommended_where_none_pays() -> None:
    found = planned("--parameters", "7B", "--hardware", "t4", "--source", "head=0.01")
    assert found["recommendation"] == "Decode plainly: no draft pays here."


def test_sources_are_given_by_ranks_and_by_tokens() -> None:
    given = ("--parameters", "1B", "--hardware", "l40")
    by_tokens = planned(*given, "--source", "copying=2@16")
    by_ranks = planned(*given, "--source", "copying=0.5,0.2")
    assert {each["source"] for each in by_tokens["plans"]} == {None, "copying"}
    assert by_ranks["plans"][0]["block_efficiency"] > 1


def test_the_context_counts_where_the_size_is_given_too() -> None:
    given = ("--parameters", "7B", "--hardware", "h100", "--texts", "16", "--source", "head")

    def seconds(*context: str) -> float:
        plans = planned(*given, *context)["plans"]
        (plain,) = [each for each in plans if each["source"] is None]
        return plain["seconds_per_step"]

    bare, behind = seconds("--context", "0"), seconds("--context", "32768")
    assert bare == pytest.approx(14e9 / (0.8 * 3350e9) + 100e-6 + 32 * 15e-6, rel=0.001)
    # keys and values of 32 layers, 4096 wide, of two bytes each
    reading = 16 * 32768 * 32 * 2 * 2 * 4096 / (0.8 * 3350e9)
    assert behind - bare == pytest.approx(reading, rel=0.05)


def test_the_size_is_read_from_a_model_and_the_machine_from_its_curve(target) -> None:
    read = planned("--model", target, "--hardware", "epyc-2-cores")
    measured = planned("--measure", target)
    assert read["model"]["layers"] == measured["model"]["layers"]
    assert read["model"]["parameters"] == measured["model"]["parameters"] > 0
    assert "measured here" in measured["machine"]["name"]


def test_a_disturbed_curve_is_measured_again_and_told_where_that_is_disturbed_too(
    target, tmp_path, monkeypatch
) -> None:
    model = str(shutil.copytree(target, tmp_path / "model"))
    key = draftwood.load(model, method="plain").calibration.key
    assert key is not None
    slow = Curve((1, 2, 4), (100.0, 100.0, 100.0))

    def told(busy: bool) -> dict:
        calibration.store(key, slow, "test", busy=True)
        again = calibration.MeasuredCurve(Curve((1, 2, 4), (0.01, 0.01, 0.01)), busy)
        monkeypatch.setattr(calibration, "watched", lambda model, make: again)
        return planned("--measure", model)

    calm, disturbed = told(busy=False), told(busy=True)
    assert calm["machine"]["name"] == f"measured here with {model}"
    assert disturbed["machine"]["name"] == f"measured here with {model}, beside other programs"
    (fast,), (slow_pass,) = (
        [each["seconds_per_step"] for each in found["plans"] if each["source"] is None]
        for found in (calm, disturbed)
    )
    assert fast < 1 < slow_pass


def test_a_configuration_without_weights_says_how_large_its_model_is(target, tmp_path) -> None:
    shutil.copy(Path(target, "config.json"), tmp_path)
    bare = planned("--model", str(tmp_path), "--hardware", "h100")
    assert bare["model"] == planned("--model", target, "--hardware", "h100")["model"]


@pytest.mark.model
def test_the_size_of_a_quantised_file_needs_no_floats(monkeypatch) -> None:
    monkeypatch.setattr(hub, "folder_of", None)
    assert size_of("smollm2-135m").parameters == pytest.approx(134.5e6, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        ((), "--hardware NAME"),
        (("--hardware", "h100"), "--parameters 7B"),
        (("--hardware", "h100", "--measure"), "in one way"),
        (("--bandwidth", "800", "--parameters", "7B"), "--compute TFLOP/s"),
        (("--hardware", "abacus", "--parameters", "7B"), "a100-80g"),
        (("--bandwidth", "inf", "--compute", "inf", "--parameters", "7B"), "finite and above 0"),
        (("--hardware", "h100", "--parameters", "many"), "7B or 135M"),
        (("--hardware", "h100", "--parameters", "7B", "--model", "x"), "not both"),
        (("--hardware", "h100", "--parameters", "7B", "--source", "head=x"), "head=0.6"),
        (("--hardware", "h100", "--parameters", "7B", "--source", "copying="), "head=0.6"),
        (("--hardware", "h100", "--parameters", "7B", "--source", NINE_RANKS), "8 count"),
        (("--hardware", "h100", "--parameters", "7B", "--source", "oracle=1"), "copying, head"),
        (("--hardware", "h100", "--parameters", "7B", "--source", "head=0.6,nan"), "at most 1"),
        (("--hardware", "h100", "--parameters", "7B", "--engine", "steam"), "graphs"),
        (("--parameters", "7B", *FOR_NO_DRAFT_MODEL), "add --source model"),
        (("--hardware", "h100", "--parameters", "7B", *HEAD_TWICE), "head more than once"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, cure) -> None:
    result = run("plan", *arguments)
    assert result.exit_code == 2
    assert cure in result.stderr
    assert result.stderr.count("\n") == 1
