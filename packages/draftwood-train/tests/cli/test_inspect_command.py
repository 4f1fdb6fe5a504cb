"""`draftwood inspect`: a table, JSON, and one line for input it cannot take."""

import json
from pathlib import Path

import pytest

from command import refused, run

QUICK = ("--tokens", "1500", "--layers", "1,3", "--threads", "1")


@pytest.fixture(scope="module")
def own_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("texts") / "own.txt"
    lines = [f"line {number} says {number * 7 % 11} and {number * 5 % 13}" for number in range(400)]
    file.write_text("\n\n".join(lines))
    return str(file)


def test_bits_and_acceptance_of_a_users_text_are_told(deep: str, own_text: str) -> None:
    result = run("inspect", deep, "--text", own_text, *QUICK, "--tokens", "4000", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["layers"] == [1, 3]
    assert [each["ahead"] for each in told["bits"]] == [2, 3, 4]
    for each in told["bits"]:
        assert 0 < each["newest"] < 7
        for name in ("by_next", "by_states", "beyond_next", "by_untrained"):
            assert each[name]["low"] <= each[name]["mean"] <= each[name]["high"]
    alone, states = told["foretold"]
    assert 1 <= alone["tokens_per_pass"] <= 4
    assert len(states["depths"]) == len(states["overlap"]) == 3
    assert told["measured"] is None


def test_the_table_names_the_control(deep: str, own_text: str) -> None:
    result = run("inspect", deep, "--text", own_text, *QUICK, "--tokens", "4000")
    assert result.exit_code == 0, result.output
    assert "untrained: control" in result.stdout
    assert "probes on states" in result.stdout


def test_bad_input_is_one_line(deep: str, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too little")
    assert "too little text" in refused("inspect", deep, "--text", str(short))
    assert "0 to 5" in refused("inspect", deep, "--layers", "2,40")
    assert "no model is named" in refused("inspect", "nonsense")
    written = "draftwood_train.inspection.documents.written"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(written, lambda *given: pytest.fail("texts are written before a refusal"))
        told = refused("inspect", deep, "--draft-model", "smollm2-135m-ctc")
        assert "inspect reads EAGLE heads, not the kind 'ctc'" in told
        assert "was trained for" in refused("inspect", deep, "--draft-model", "smollm2-135m-eagle")
    assert "An EAGLE head to measure; none" in " ".join(run("inspect", "--help").stdout.split())
    two = ("--draft-model", "none", "--draft-model", deep)
    assert "give --draft-model once" in refused("inspect", deep, *two)
    address = refused("inspect", "http://localhost:1/v1")
    assert "hidden states" in address
