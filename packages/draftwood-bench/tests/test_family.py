"""Experiments on the family of trained drafters: fair arms, counted work, and forecasts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.json_lines import append
from benchmarks.training import family, family_chains, scaling
from draftwood.engine import Method, Options, generate
from draftwood.sampling import Sampling
from draftwood.testing import tiny_llama
from draftwood.verifiers import Rejection
from draftwood_methods.drafters import S2d
from draftwood_methods.shapes import Gated
from draftwood_torch.lean.model import LeanModel
from tiny_heads import tiny_lm, tiny_s2d

PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 61]


def test_arms_of_a_question_see_as_many_tokens_and_come_after_what_they_go_on_from() -> None:
    arms = family.arms(1000)
    names = [arm.name for arm in arms]
    assert len(set(names)) == len(names)
    for arm in arms:
        assert not arm.start or names.index(arm.start) < names.index(arm.name)
        assert not arm.drafted or arm.start == family.START
        assert arm.tokens == (500 if arm.question in ("divergences", "stopping") else 1000)
    for way in family_chains.DIVERGENCES:
        one, other = (next(a for a in arms if a.name == f"{way}, {on}") for on in ("off", "on"))
        assert (one.recipe, one.start, one.tokens) == (other.recipe, other.start, other.tokens)
        assert (one.drafted, other.drafted) == (False, True)
    assert [arm.name for arm in family.chosen(1000, "fspad")] == names[:3]
    with pytest.raises(SystemExit, match="no arm or question 'fsapd'"):
        family.chosen(1000, "fsapd")
    assert family.work_of(arms[0]) == 2.0
    assert family.work_of(next(arm for arm in arms if arm.name == "s2d")) == 9.0


def test_the_work_of_drafters_is_counted() -> None:
    """A call of an LM of two layers counts three, however it is held; an exit after one two."""
    model, work = LeanModel(tiny_llama(0, layers=2)), family_chains.Work()
    lm = family_chains.chain(tiny_lm(model, layers=2), model, family_chains.fixed(3))
    head = tiny_s2d(model)
    nested = [
        S2d(head, model, shape=Gated(3), least=0.0, sizes=sizes, sure=sure)
        for sizes, sure in (((2,), 0.5), ((1,), 0.5), ((1, 2), 1.0))
    ]
    watched = [work.watch(drafter) for drafter in (lm, *nested)]
    for drafter, layers in zip(watched, (3, 3, 2, 4), strict=True):
        method = Method(drafter, Rejection())
        steps = list(
            generate(model, method.drafter, method.verifier, PROMPT, Options(Sampling(), 12))
        )
        runs = sum(step.drafted for step in steps)
        assert runs > 3
        assert work.told()["layers"] == layers * runs
    assert work.told()["layers"] == 0


def rows_of(arm: str, tokens: list[int], layers: int) -> list[dict[str, Any]]:
    made = [{"arm": arm, "prompt": str(n), "tokens": each} for n, each in enumerate(tokens)]
    return [
        {**row, "passes": 10, "layers": layers, "temperature": heat, "kept": [5, 2], "drafted": 20}
        for row in made
        for heat in (0.0, 1.0)
    ]


def test_settings_are_chosen_on_other_prompts_by_their_price() -> None:
    rows = rows_of("fixed:1", [15] * 6, 10) + rows_of("fixed:4", [20] * 6, 60)
    rows += rows_of("specdec++:0.5", [19] * 6, 20)
    (fixed, told) = family_chains.stopping_rows(rows)
    assert fixed["drafts"] == "fixed"
    assert fixed["layer 0.05, T = 0"].startswith("1.54")  # 20 / 13, the longer one
    assert fixed["layer 0.2, T = 1"].startswith("1.25")  # 15 / 12, the shorter one
    assert told["layer 0.2, T = 1"].startswith("x 1.09")  # (19 / 14) / (15 / 12)
    divergences = rows_of("kl, off", [15] * 4, 0) + rows_of("tv, on", [18] * 4, 0)
    base, other = family_chains.divergence_rows(divergences)
    assert base["beside kl, off, T = 0"] == ""
    assert other["beside kl, off, T = 0"].startswith("1.20")
    sizes = rows_of("separate:1", [15] * 4, 20) + rows_of("nested:1", [15] * 4, 20)
    found = family_chains.size_rows(sizes)
    assert found[-1]["drafts"] == "nested 1 beside separate 1"
    assert found[-1]["tokens per pass, T = 0"].startswith("x 1.00")


def test_one_question_is_measured_beside_what_its_arms_go_on_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[set[str]] = []
    monkeypatch.setattr(family, "measure_chains", lambda folders, _: asked.append({*folders}))
    for arm in family.arms(1000):
        if arm.name != "lm 2":
            arm.folder(tmp_path).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(family.FamilyArm, "is_trained", lambda arm, work: arm.folder(work).is_dir())
    family.measure(tmp_path, 1000, "stopping")
    assert asked == [{"told lm", "lm 1"}]


def test_there_are_at_most_twelve_runs_and_their_hours_are_told() -> None:
    every = [*scaling.arms(True), scaling.largest()]
    assert len(every) <= 12
    assert len({arm.name for arm in every}) == len(every)
    assert {arm.question for arm in every} == {"data", "weights", "batch", "target"}
    one, four = (next(a for a in every if a.name == n) for n in ("data 300000", "layers 4"))
    assert scaling.hours([one], 1000.0) == pytest.approx(300 / 3600)
    assert scaling.hours([four], 1000.0) == pytest.approx(2.5 * 100 / 3600)
    took = [scaling.hours([arm], 1000.0) for arm in every]
    assert took == sorted(took)
    assert {
        name for axis in ("data", "weights", "batch", "target") for name in scaling.names_of(axis)
    } == {arm.name for arm in every[:-1]}


def test_a_point_on_the_line_is_foretold_and_one_off_it_is_not() -> None:
    sizes = scaling.DATA
    line = 0.3 * np.log10(sizes) - 1.0
    exact = np.tile(line, (200, 1))
    found = scaling.forecast(exact, sizes, scaling.LARGEST)
    assert found.value == pytest.approx(0.3 * np.log10(scaling.LARGEST) - 1.0)
    assert found.high - found.low < 1e-6
    assert scaling.slope(exact, sizes).value == pytest.approx(0.3)
    assert scaling.explained(exact, sizes) == pytest.approx(1.0)
    bent = exact + np.array([0.05, -0.05, -0.05, 0.05])
    wide = scaling.forecast(bent, sizes, scaling.LARGEST)
    assert wide.high - wide.low > 0.2
    assert scaling.explained(bent, sizes) < 0.99


def test_a_forecast_comes_before_its_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, told = tmp_path / "records.jsonl", tmp_path / "foretold.jsonl"
    monkeypatch.setattr(scaling, "RECORDS", records)
    monkeypatch.setattr(scaling, "FORETOLD", told)

    def add(name: str, tokens: int, accepted: int) -> None:
        for prompt in range(4):
            for heat in scaling.TEMPERATURES:
                record = {"name": name, "temperature": heat, "prompt": str(prompt), "runs": 100}
                append(records, {**record, "tokens": 100 + accepted, "data": tokens, "weights": 9})

    for number, tokens in enumerate(scaling.DATA):
        add(f"data {tokens}", tokens, 100 + 10 * number)
    scaling.foretell()
    kept = told.read_text()
    (row, _) = scaling.foretold_rows()
    assert (row["foretold"][:4], row["measured"]) == ("1.38", "")
    (data, _) = scaling.rows()
    assert data["adds"].startswith("0.20")
    add(scaling.largest().name, scaling.LARGEST, 138)
    scaling.foretell()
    assert told.read_text() == kept  # never foretold again
    assert scaling.foretold_rows()[0]["within"] == "yes"
    told.unlink()
    with pytest.raises(RuntimeError, match="is no forecast"):
        scaling.foretell()
    with pytest.raises(ValueError, match="not all prompts are measured"):
        scaling.accepted([], ["data 100000"], 0.0)
