"""Experiments on the family of trained drafters: fair arms and counted work."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import family, family_chains
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
