"""`draftwood bench frontier`: records, controls at equal share, paired differences."""

import json
from pathlib import Path

import pytest

from command import refused, run
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.collaboration.rules import FirstTokens, RandomTurns
from draftwood_choices.frontier.points import AnswerRecord, controls_of, swept
from draftwood_choices.frontier.run import PROTOCOL
from draftwood_choices.frontier.table import compared


def record(point: str, prompt: str, quality: float, led: int = 0) -> AnswerRecord:
    return AnswerRecord(point, prompt, "right number", quality, 20, led, 1, 5, 6, 7, 0.5, "text")


def test_controls_have_the_share_that_was_measured() -> None:
    records = [record("a", "1", 0.0, 5), record("a", "2", 0.0, 7)]
    controls = controls_of("a", records)
    assert list(controls.values()) == [RandomTurns(0.3), FirstTokens(6)]
    assert controls_of("a", [record("a", "1", 0.0, 20)]) == {}


def test_a_knob_is_swept() -> None:
    assert [each.n for each in swept("foreal", "n", (5.0, 15.0)).values()] == [5, 15]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has no knob 'tau'"):
        swept("foreal", "tau", (1.0,))


def test_differences_are_paired_by_prompt() -> None:
    hard = {str(number): float(number % 2) for number in range(40)}
    records = [record("leader alone", prompt, value) for prompt, value in hard.items()]
    records += [record("rule", prompt, value - 0.25) for prompt, value in hard.items()]
    mean, over = compared(records)["rule"]
    assert (over.value, over.low, over.high) == (0.25, 0.25, 0.25)  # though prompts differ widely
    assert mean.low < mean.value < mean.high
    assert compared(records)["leader alone"][1].value == 0.0


def test_the_protocol_runs_goes_on_and_tells_all_points(
    target: str, draft: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    asked = ("bench", "frontier", "--leader", target, "--model", draft, "--values", "0,4")
    asked += ("--limit", "2", "--max-new-tokens", "12", "--output", str(folder))
    done = run(*asked)
    assert done.exit_code == 0, done.output
    found = RecordFolder(folder, PROTOCOL, AnswerRecord)
    records = found.read()
    points = list(dict.fromkeys(each.point for each in records))
    assert points[:4] == ["leader alone", "follower alone", "foreal,n=0", "foreal,n=4"]
    assert set(points[4:]) == {
        "random at foreal,n=4's share",
        "first-n at foreal,n=4's share",
    }
    by_key = {each.key: each for each in records}
    for prompt in {each.prompt for each in records}:
        small = by_key["follower alone", prompt]
        assert by_key["foreal,n=0", prompt].text == small.text
        assert small.leader_passes == small.leader_tokens == 0
    for each in records:
        assert "".join(text for _, text in each.passages) == each.text
        assert {writer for writer, _ in each.passages} <= {"leader", "follower"}
    mixed = [each for each in records if each.point == "foreal,n=4"]
    assert all(each.passages[0][0] == "leader" for each in mixed)
    assert all(point.split("'")[0][:20] in done.stdout for point in points[:4])
    file = found.file
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:20])  # stopped while it wrote
    assert run(*asked).exit_code == 0
    again = {each.key: each for each in found.read()}
    assert {key: each.text for key, each in again.items()} == {
        key: each.text for key, each in by_key.items()
    }
    assert "other settings" in refused(*asked, "--seed", "1")
    assert "other settings" in refused(*asked, "--limit", "3")  # controls have a share of two
    assert json.loads((folder / "frontier.json").read_text())["knob"] == "n"


def test_answers_written_at_once_are_those_written_in_turn(
    target: str, draft: str, tmp_path: Path
) -> None:
    texts = []
    for together in ("1", "3"):
        folder = tmp_path / together
        asked = ("bench", "frontier", "--leader", target, "--model", draft, "--values", "4")
        asked += ("--limit", "4", "--skip", "1", "--max-new-tokens", "12")
        done = run(*asked, "--together", together, "--output", str(folder))
        assert done.exit_code == 0, done.output
        found = RecordFolder(folder, PROTOCOL, AnswerRecord).read()
        texts.append({each.key: (each.text, each.leader_tokens, each.caught_up) for each in found})
    assert texts[0] == texts[1]
    assert len(texts[0]) == 4 * 5


def test_bad_input_is_refused(target: str, tmp_path: Path) -> None:
    asked = ("bench", "frontier", "--leader", target, "--model", target, "--output", str(tmp_path))
    assert "there is no rule 'ead'" in refused(*asked, "--rule", "ead")
    for command in (asked, ("train", "router", str(tmp_path / "r.json"), "--model", target)):
        assert "an address sends texts alone" in refused(*command, "--leader", "http://localhost")
    assert "leaves none of" in refused(*asked, "--skip", "900")
    assert "needs numbers such as 0,5,15, got '1,a'" in refused(*asked, "--values", "1,a")
    assert "no value of 'n'" in refused(*asked, "--values", ",")
    assert "foreal's n must be from 0" in refused(*asked, "--values", "-1")


def test_bench_lists_the_protocol() -> None:
    assert "frontier" in run("bench", "--help").stdout
