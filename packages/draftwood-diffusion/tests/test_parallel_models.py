"""`bench parallel` on a model: right answers, a judge's nats, records that go on."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftwood
from command import refused, run
from draftwood.sampling_params import SamplingParams
from draftwood_bench.run.quality import log_likelihood, read_behind
from draftwood_diffusion.lists.tasks import exercises
from draftwood_diffusion.parallel.measured import (
    Asked,
    Measured,
    TextRecord,
    in_words,
    is_right,
    of_tasks,
    rows_of,
)
from draftwood_diffusion.rules.learned import FILTER, Filter
from masked_copies import masked_copy

target = import_module("command_models").target  # a fixture of tests that run commands
BENCH = ("bench", "parallel", "--methods", "one-by-one;top-k,k=4")


@pytest.fixture(scope="module")
def filling(target: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return masked_copy(target, tmp_path_factory.mktemp("parallel"))


def measured(*more: str) -> list[dict[str, Any]]:
    found = run(*BENCH, *more, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_right_answer_counts_and_a_wrong_one_does_not() -> None:
    for task in ("reverse", "shuffle", "words-easy", "latin-square", "sudoku"):
        (exercise,) = exercises(task, 4, 1, 0)
        (asked,) = of_tasks([task], 4, 1, 0)
        assert asked.text.startswith(exercise.question)
        for answer in exercise.answers:
            assert is_right(in_words(answer), asked.answers)
            assert is_right(f"{in_words(answer)} and more", asked.answers)
            assert not is_right(in_words(answer[:-2]), asked.answers)
    (reverse,) = of_tasks(["reverse"], 4, 1, 0)
    assert not is_right(" ".join(reversed(in_words(reverse.answers[0]).split())), reverse.answers)


def test_figures_stand_beside_the_first_method_prompt_by_prompt() -> None:
    records = [
        TextRecord(method, str(n), 8, passes + n % 2, score, "")
        for n in range(20)
        for method, passes, score in (("slow", 8, n / 10), ("fast", 4, n / 10 - 1))
    ]
    records.append(TextRecord("fast", "0", 8, 4, None, ""))
    slow, fast = rows_of(records)
    assert (slow.more_tokens.value, slow.more_tokens.low, slow.more_tokens.high) == (0, 0, 0)
    assert fast.tokens_per_pass.value == pytest.approx((8 / 4 + 8 / 5) / 2)
    assert fast.score is not None
    assert fast.more_score is not None
    assert fast.score.prompts == fast.more_score.prompts == 19  # one has no tokens to judge
    # the same text is judged twice, so prompts' own differences do not widen the interval
    assert fast.more_score.high - fast.more_score.low < 1e-9 < fast.score.high - fast.score.low


def test_a_text_is_judged_by_the_tokens_that_go_on_with_its_prompt() -> None:
    lm = draftwood.load("stories-diffusion", method="plain")
    prompt, text = "One day a girl", " saw a fox"
    before, whole = lm.encode(prompt, True), lm.encode(f"{prompt}{text}", True)
    alone = lm.tokenizer(", and", add_special_tokens=False)["input_ids"]
    assert read_behind(lm, prompt, text, True) == (before, whole[len(before) :])
    assert read_behind(lm, prompt, ", and", True)[1] != alone  # which begins with a space
    assert read_behind(lm, prompt, "", True) == (before, [])
    params = SamplingParams(max_new_tokens=8)
    measured = Measured(lm, lm, [], [], params, {}, None)
    wanted = log_likelihood(lm.model, before, read_behind(lm, prompt, ", and", True)[1])
    assert measured._score(Asked("line 1", prompt), ", and") == pytest.approx(wanted, abs=1e-4)
    assert measured._score(Asked("line 1", prompt), "") is None
    asked = Asked("copy 0", "fox\n", (("fox",), ("fox", "fox")))
    assert measured._length(asked) == len(lm.encode("fox\nfox fox", True)) - len(
        lm.encode("fox\n", True)
    )


def test_tasks_and_judged_texts_on_a_model(filling: str, target: str, tmp_path: Path) -> None:
    tasks = ("--tasks", "copy,latin-square", "--items", "3", "--exercises", "2")
    one, other = measured("--model", filling, *tasks)
    assert (one["method"], one["tokens_per_pass"]["value"]) == ("one-by-one", 1.0)
    assert one["tokens_per_pass"]["prompts"] == 4
    assert 2 < other["tokens_per_pass"]["value"] <= 4
    assert 0 <= other["score"]["value"] <= 1
    assert other["more_tokens"]["value"] == pytest.approx(other["tokens_per_pass"]["value"] - 1)
    lines = tmp_path / "lines.txt"
    lines.write_text("hello\n\nwell now\n")
    judged = ("--prompts", str(lines), "--judge", target, "--max-new-tokens", "8")
    asked = ("--model", filling, *judged, "--output", str(tmp_path / "run"))
    first = measured(*asked)
    assert first[1]["score"]["value"] < 0
    file = tmp_path / "run" / "parallel.jsonl"
    whole = file.read_text()
    assert whole.count("\n") == 4
    file.write_text("".join(whole.splitlines(keepends=True)[:2]) + '{"method": "to')  # killed
    assert measured(*asked) == first
    assert file.read_text() == whole
    told = refused(*BENCH, *asked, "--temperature", "1")
    assert "holds a run of other settings; give another --output" in told
    file.write_text("{}\n")
    assert "parallel.jsonl:1 is no record" in refused(*BENCH, *asked)


def test_texts_of_a_rule_are_written_again_once_its_file_is_another(
    filling: str, tmp_path: Path
) -> None:
    folder, (draw, shapes) = Path(filling), (np.random.default_rng(0), ((4, 2), (2,), (2, 4), (4,)))
    arrays = [draw.normal(size=shape) for shape in shapes]
    tasks = ("--tasks", "copy", "--items", "3", "--exercises", "2", "--output", str(tmp_path))
    asked = ("--model", filling, *tasks, "--methods", "one-by-one;learned")
    passes = []
    for bias in (-99.0, 99.0, 99.0, -99.0):  # nothing stays, then everything does
        Filter(*[*arrays[:3], arrays[3] + bias]).save(folder / FILTER)
        passes.append(measured(*asked)[1]["tokens_per_pass"]["value"])
    assert passes[0] == passes[3] == 1.0 < passes[1] == passes[2]
    assert (tmp_path / "parallel.jsonl").read_text().count("\n") == 2 + 2 * 2


@pytest.mark.parametrize("option", ["temperature", "max-new-tokens", "threads"])
def test_options_of_models_are_refused_beside_lists(option: str) -> None:
    told = refused(*BENCH, f"--{option}", "1")
    assert f"--{option} is for a trained model; name one with --model" in told


@pytest.mark.parametrize("option", ["items", "exercises"])
def test_options_of_tasks_are_refused_beside_prompts(
    filling: str, target: str, tmp_path: Path, option: str
) -> None:
    (tmp_path / "lines.txt").write_text("hello\n")
    prompts = ("--prompts", str(tmp_path / "lines.txt"), "--judge", target)
    told = refused(*BENCH, "--model", filling, *prompts, f"--{option}", "5")
    assert f"--prompts stand in the place of tasks; leave --{option} out" in told
    told = refused(*BENCH, "--model", filling, "--tasks", "copy", "--max-new-tokens", "64")
    assert "as long as the longest right one; leave --max-new-tokens out" in told


def test_what_does_not_go_together_is_refused(filling: str, target: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("hello\n")
    prompts = ("--prompts", str(lines))
    assert "--judge is for a trained model" in refused(*BENCH, "--judge", target)
    assert "have no right answer" in refused(*BENCH, "--model", filling, *prompts)
    assert "have no right answer" in refused(*BENCH, "--model", filling, "--judge", target)
    both = (*prompts, "--judge", target, "--tasks", "copy")
    assert "leave --tasks out" in refused(*BENCH, "--model", filling, *both)
    lines.write_text("\n")
    assert "got none" in refused(*BENCH, "--model", filling, *prompts, "--judge", target)
    assert "there is no task 'x'" in refused(*BENCH, "--model", filling, "--tasks", "x")
    assert "writes from left to right" in refused(*BENCH, "--model", target, "--tasks", "copy")
    wrong = ("bench", "parallel", "--model", filling, "--methods", "nosuch")
    assert "there is no rule of unmasking 'nosuch'" in refused(*wrong)
