"""Value heads learn what states tell, nothing of shuffled outcomes, and serve one model."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import draftwood
from command import refused, run
from draftwood.arrays import as_floats
from draftwood_choices.search import breadth_first
from draftwood_choices.search.lite_search import LiteSearch
from draftwood_choices.search.methods import SearchOptions
from draftwood_choices.search.proposals import Proposal, Proposer
from draftwood_choices.search.value_head import (
    FILE,
    ValueHead,
    of_text,
    read_layers,
    states_behind,
)
from draftwood_choices.search.value_training import Example, examples, trained, write_answers

PROMPTS = 200


@pytest.fixture(scope="module")
def lm(target: str) -> draftwood.LanguageModel:
    return draftwood.load(target, method="plain")


@pytest.fixture(scope="module")
def seen(lm: draftwood.LanguageModel, tmp_path_factory: Any) -> list[list[Example]]:
    """Answers that are right where they end with a digit, as states can tell."""
    proposer = Proposer(lm, None, {"temperature": 1.0, "max_new_tokens": 2, "seed": 0})
    asked = {str(number): f"{number} is" for number in range(PROMPTS)}
    made = write_answers(proposer, asked, 6, _ends_with_digit, tmp_path_factory.mktemp("v"))
    layers = read_layers(lm.model)
    return [examples(lm, each, layers, proposer.prefixes) for each in made]


def _ends_with_digit(_: str, text: str) -> float:
    return float(text[-1:].isdigit())


def test_states_are_those_of_a_pass_over_the_whole_text(lm: draftwood.LanguageModel) -> None:
    texts = [lm.encode(text, True) for text in ("hello there you", "hello there", "x" * 90)]
    layers = read_layers(lm.model)
    proposer = Proposer(lm)
    for prefixes in (None, proposer.prefixes, proposer.prefixes):  # the second time it knows them
        found, passes = states_behind(lm.model, texts, [3, 1, 40], layers, prefixes)
        assert passes == 1
        for text, states, count in zip(texts, found, (3, 1, 40), strict=True):
            session = lm.model.start()
            output = session.extend(text, "none", layers)
            whole = np.hstack([as_floats(output.hidden[each]) for each in layers])
            assert states.shape == (count, whole.shape[1])
            np.testing.assert_allclose(states, whole[-count:], atol=1e-4)
            session.close()


def test_features_of_a_text_go_on_from_token_to_token() -> None:
    rows = of_text([-1.0, -3.0, -2.0])
    np.testing.assert_allclose(rows[:, 0], [-1.0, -2.0, -2.0])
    np.testing.assert_allclose(rows[:, 1], [-1.0, -3.0, -3.0])


def test_a_head_learns_what_its_model_sees(
    lm: draftwood.LanguageModel, seen: list[list[Example]]
) -> None:
    told = trained(seen, lm, read_layers(lm.model)).about
    assert told["prompts held out"] == PROMPTS / 5
    assert told["AUC held out"] > 0.75
    assert told["best held out"] > told["at random held out"] + 0.1


def test_of_shuffled_outcomes_nothing_is_learnt(
    lm: draftwood.LanguageModel, seen: list[list[Example]]
) -> None:
    """Control: what is told comes from prompts that were not learnt from."""
    rng, found = np.random.default_rng(0), []
    labels = [each.right for prompt in seen for each in prompt]
    for _ in range(5):
        mixed = iter(rng.permutation(labels).tolist())
        other = [[replace(each, right=next(mixed)) for each in prompt] for prompt in seen]
        found.append(trained(other, lm, read_layers(lm.model)).about)
    assert 0.4 < np.mean([each["AUC held out"] for each in found]) < 0.6
    gains = [each["best held out"] - each["at random held out"] for each in found]
    assert abs(np.mean(gains)) < 0.15


def test_outcomes_that_are_all_alike_are_refused(
    lm: draftwood.LanguageModel, seen: list[list[Example]]
) -> None:
    alike = [[replace(each, right=1.0) for each in prompt] for prompt in seen]
    for prompts in (alike, seen[:5]):
        with pytest.raises(ValueError, match="at least 10 prompts with some answers"):
            trained(prompts, lm, read_layers(lm.model))


def test_a_folder_is_read_back_and_is_of_one_model(
    lm: draftwood.LanguageModel, seen: list[list[Example]], stranger: str, tmp_path: Path
) -> None:
    head = trained(seen, lm, read_layers(lm.model))
    head.save(tmp_path)
    again = ValueHead.load(tmp_path)
    row = seen[0][0].features
    np.testing.assert_allclose(again.values(row), head.values(row), atol=1e-4)
    assert (again.layers, again.target) == (head.layers, head.target)
    again.require_model(lm)
    with pytest.raises(ValueError, match=r"was trained on .* and reads no states of"):
        again.require_model(draftwood.load(stranger, method="plain"))
    file = tmp_path / FILE
    told = json.loads(file.read_text())
    torn = [file.read_text()[:-50], "[]", json.dumps({**told, "format": "other"})]
    torn += [json.dumps({**told, "weights": told["weights"][1:]})]
    torn += [json.dumps({**told, "bias": float("nan")})]
    for text in torn:
        file.write_text(text)
        with pytest.raises(ValueError, match="holds no whole value head"):
            ValueHead.load(tmp_path)


def test_lite_search_goes_on_from_the_step_of_the_greatest_value(
    lm: draftwood.LanguageModel, seen: list[list[Example]]
) -> None:
    head = trained(seen, lm, read_layers(lm.model))
    options = {"temperature": 1.0, "max_new_tokens": 12, "seed": 3}
    proposer = Proposer(lm, None, options, head=head)
    search = LiteSearch(proposer, "ab", 4, 3)
    found = search.search()
    valued = [each for each in search.tree.steps[1:] if each.is_whole or each.step.strip()]
    assert proposer.spent.judge_calls == len(valued)
    for each in valued:
        assert each.value == pytest.approx(proposer.valued("ab", [each])[0], abs=1e-6)
    whole = [each for each in search.tree.steps if each.is_whole]
    assert found.best.value == max(each.value for each in whole)


def test_breadth_first_goes_on_from_the_best_of_each_level(
    lm: draftwood.LanguageModel, seen: list[list[Example]]
) -> None:
    head = trained(seen, lm, read_layers(lm.model))
    options = {"temperature": 50.0, "max_new_tokens": 90, "seed": 5}
    proposer = Proposer(lm, None, options, head=head)
    found = breadth_first.search(proposer, "ab", SearchOptions(10))
    by_depth: dict[int, list[Proposal]] = {}
    for each in found.proposals:
        by_depth.setdefault(each.depth, []).append(each)
    assert all(len(level) <= 10 for level in by_depth.values())
    for depth in range(2, max(by_depth) + 1):
        going = {id(each.above) for each in by_depth[depth]}
        assert len(going) <= breadth_first.KEPT
        chosen = [each for each in by_depth[depth - 1] if id(each) in going]
        left = [each for each in by_depth[depth - 1] if id(each) not in going and not each.is_whole]
        if left:
            assert min(x.value for x in chosen) >= max(x.value for x in left)
    assert max(by_depth) > 1  # or nothing went on
    assert found.best.is_whole
    whole = [each for each in found.proposals if each.is_whole]
    assert found.best.value == max(each.value for each in whole)


def questions(folder: Path, count: int) -> str:
    """Questions whose answers a model of random letters sometimes hits."""
    file = folder / "questions.jsonl"
    asked = [{"prompt": f"{each}?", "answer": str(each % 10)} for each in range(count)]
    file.write_text("".join(json.dumps(each) + "\n" for each in asked))
    return str(file)


def test_the_command_writes_a_head_that_search_takes(
    target: str, stranger: str, tmp_path: Path
) -> None:
    head = tmp_path / "head"
    asked = ("--model", target, "--max-new-tokens", "24", "--temperature", "1.5")
    prompts = ("--prompts", questions(tmp_path, 40), "--answers", "8")
    done = run("train", "value", str(head), *asked, *prompts)
    assert done.exit_code == 0, done.output
    assert "AUC held out" in done.stderr
    first = (head / FILE).read_text()
    lines = (head / "answers.jsonl").read_text().splitlines(keepends=True)
    (head / "answers.jsonl").write_text("".join(lines[:30]) + lines[30][:20])  # stopped there
    assert run("train", "value", str(head), *asked, *prompts).exit_code == 0
    assert (head / "answers.jsonl").read_text() == "".join(lines)
    assert (head / FILE).read_text() == first
    assert "other settings" in refused("train", "value", str(head), *asked, *prompts, "--seed", "1")
    judged = ("solve", "hi", "--judge", str(head), "--answers", "3", "--max-new-tokens", "12")
    judged += ("--seed", "1")
    made = run(*judged, "--model", target, "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["spent"]["judge_calls"] == 3
    assert found["details"] == {"by": "value head"}
    assert found["value"] == max(each["value"] for each in found["answers"])
    assert run(*judged, "--model", target, "--checker", "regex:\x07").exit_code == 1
    (worst, *_) = sorted(found["answers"], key=lambda each: each["value"])
    wanted = ("--checker", f"regex:^{re.escape(worst['text'])}$")
    other = json.loads(run(*judged, "--model", target, "--json", *wanted).stdout)
    assert other["text"] == worst["text"] != found["text"]
    assert "reads no states of" in refused(*judged, "--model", stranger)
    voting = refused(*judged, "--model", target, "--method", "majority")
    assert "majority asks no value head" in voting
    assert "no whole value head" in refused("solve", "hi", "--judge", str(tmp_path), *asked)
    bench = ("bench", "solve", "--model", target, *prompts, "--max-new-tokens", "8", "--limit", "1")
    bench += ("--methods", "best-of", "--judge", str(head), "--output", str(tmp_path / "run"))
    assert run(*bench).exit_code == 0


def test_bad_input_is_refused_before_anything_is_written(target: str, tmp_path: Path) -> None:
    command = ("train", "value", str(tmp_path / "head"), "--model", target)
    assert "has no right answer" in refused(*command, "--prompts", "built-in", "--limit", "1")
    assert not (tmp_path / "head").exists()


def test_a_model_without_states_has_no_head() -> None:
    with pytest.raises(ValueError, match="reads hidden states"):
        read_layers(SimpleNamespace(abilities=frozenset(), layers=4))  # type: ignore[arg-type]
