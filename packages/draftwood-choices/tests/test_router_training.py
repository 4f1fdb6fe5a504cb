"""Routers learn what can be learnt, and say on texts held out whether they did."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from command import refused, run
from draftwood import SamplingParams
from draftwood_bench.plan.prompt import Prompt
from draftwood_choices.collaboration.rules.step_router import FEATURES, StepWeights
from draftwood_choices.collaboration.teaching import trained
from draftwood_choices.frontier import router_course
from draftwood_choices.frontier.router_course import RouterCourse, TaughtText

Texts = list[list[tuple[list[float], float]]]


def texts_of(weights: np.ndarray, seed: int = 0, count: int = 100) -> Texts:
    """Steps of random features whose advantage is a weighted sum of them, and noise."""
    rng = np.random.default_rng(seed)
    found: Texts = []
    for _ in range(count):
        rows = rng.normal(3.0, 2.0, (5, len(FEATURES)))
        found.append([(row.tolist(), float((row - 3.0) @ weights + rng.normal())) for row in rows])
    return found


def test_a_router_learns_which_features_matter() -> None:
    weights = np.array([2.0, 0.0, -1.0, 0.0, 0.0, 0.5])
    router = trained(texts_of(weights))
    assert router.about["AUC held out"] > 0.9
    assert np.corrcoef(router.weights, weights)[0, 1] > 0.95
    assert 0.35 < router.probability([3.0] * len(FEATURES)) < 0.65


def test_of_noise_nothing_is_learnt() -> None:
    """Control: the figure that is told comes from texts that were not learnt from."""
    router = trained(texts_of(np.zeros(len(FEATURES))))
    assert 0.35 < router.about["AUC held out"] < 0.65


def test_rare_outcomes_weigh_as_much_as_others() -> None:
    found = trained(texts_of(np.array([2.0, 0, 0, 0, 0, 0])), tau=5.0)
    assert found.about["leader better"] < 0.2
    assert found.about["AUC held out"] > 0.9
    row = [3.0] * len(FEATURES)
    assert found.probability([9.0, *row[1:]]) > 0.5 > found.probability(row)


def test_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 20 steps of which some"):
        trained(texts_of(np.ones(len(FEATURES)), count=3))
    always = [[(values, 1.0) for values, _ in text] for text in texts_of(np.ones(len(FEATURES)))]
    with pytest.raises(ValueError, match="400 of 400 are"):
        trained(always)


def test_the_command_writes_a_router_that_the_rule_reads(
    target: str, draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwood_choices.collaboration.rules import steps

    monkeypatch.setattr(steps, "LONGEST", 6)  # these models write no blank lines
    file = tmp_path / "router.json"
    asked = ("--leader", target, "--model", draft, "--max-new-tokens", "60")
    more = ("--limit", "6", "--temperature", "1", "--tau", "0.5")
    done = run("train", "router", str(file), *asked, *more)
    assert done.exit_code == 0, done.output
    assert "AUC held out" in done.stderr or "steps held out" in done.stderr
    router = StepWeights.load(file)
    assert len(router.weights) == len(FEATURES)
    rule = ("--rule", "step-router", "--router", str(file), "--inexact")
    assert run("collaborate", "Hi", *asked, *rule).exit_code == 0
    line = refused("train", "router", str(tmp_path / "no" / "x.json"), *asked)
    assert "make it first" in line


def test_a_course_that_was_stopped_goes_on(
    target: str, draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwood_choices.collaboration.rules import steps

    monkeypatch.setattr(steps, "LONGEST", 6)
    asked = ("--leader", target, "--model", draft, "--max-new-tokens", "60", "--limit", "6")
    asked += ("--temperature", "1", "--together", "1", "--tau", "0.5")
    whole, file = tmp_path / "whole.json", tmp_path / "router.json"
    assert run("train", "router", str(whole), *asked).exit_code == 0
    written, text = list[str](), RouterCourse._text

    def until_three_are_written(course: RouterCourse, prompt: Prompt) -> TaughtText:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(prompt.id)
        return text(course, prompt)

    monkeypatch.setattr(RouterCourse, "_text", until_three_are_written)
    assert run("train", "router", str(file), *asked).exit_code != 0
    assert not file.exists()
    assert "of other settings; delete" in refused(
        *("train", "router", str(file), *asked, "--tau", "1")
    )
    written.clear()
    assert "at least 20 steps" in refused("train", "router", str(file), *asked, "--limit", "1")
    assert run("train", "router", str(file), *asked).exit_code == 0
    assert len(written) == 3
    assert file.read_text() == whole.read_text()
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == []


def test_passages_are_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read, seeds = list[tuple[Any, bool]](), list[int]()

    def told(asked: Any, *more: Any) -> Any:
        read.append((asked, more[-1].raw))
        seeds.append(more[-1].seed)
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(router_course, "collaborate", told)
    lm: Any = SimpleNamespace(tokenizer=SimpleNamespace(chat_template="{{ messages }}"))
    cloze = Prompt("cloze", "last word", ("one two",), next_word="three")
    prompts = (cloze, Prompt("sum", "math", ("What is 2 + 2?",), answer="4"))
    course = RouterCourse(lm, lm, prompts, SamplingParams(seed=3))
    for each in prompts:
        course._text(each)
    assert seeds == [3, 4]
    assert read[0] == ("one two", True)
    assert read[1] == ([{"role": "user", "content": "What is 2 + 2?"}], False)


def test_train_lists_the_router() -> None:
    assert "router" in run("train", "--help").stdout
