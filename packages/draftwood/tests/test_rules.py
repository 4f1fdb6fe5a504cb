"""Rules of sampling that packages bring: found by name, checked, followed, refused in a line."""

import pickle
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from command import refused
from draftwood import SamplingParams, engine, rules
from draftwood.drafters import Nothing
from draftwood.optional import install_command
from draftwood.rules import Before, TextRule, parse_rules, text_rule
from draftwood.sampling import Context, Sampling
from draftwood.testing import TableModel
from draftwood.verifiers import Match


def ban(row: Any, before: Before, strength: float) -> None:
    """Ban the newest token."""
    row[before.tokens[-1]] = -np.inf


def shift(row: Any, before: Before, strength: float) -> None:
    row += np.arange(len(row)) * strength


PLANTED = ModuleType("planted_rules")
PLANTED.ban = TextRule("ban", "no token twice", "nobody", "another aim", 1.0, ban)  # type: ignore[attr-defined]
PLANTED.shift = TextRule("shift", "later ones", "nobody", "trades quality", 2.0, shift)  # type: ignore[attr-defined]
NAMED = {"ban": "ban", "shift": "shift", "other": "ban", "absent": "absent"}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that brings rules, two of which are none."""
    monkeypatch.setitem(sys.modules, "planted_rules", PLANTED)
    found = [EntryPoint(name, f"planted_rules:{at}", rules.GROUP) for name, at in NAMED.items()]
    monkeypatch.setattr(rules, "entry_points", lambda group: found)
    text_rule.cache_clear()
    yield
    text_rule.cache_clear()


def test_each_position_follows_the_rules_in_its_own_context() -> None:
    logits = np.zeros((2, 4), np.float32)
    contexts = [Context([0, 3], 1), Context([0, 3, 1], 1)]
    sampling = Sampling(rules={"shift": 1.0, "ban": 1.0})
    assert sampling.probs(logits, contexts).argmax(-1).tolist() == [2, 3]
    assert sampling.reads_context
    assert not sampling.in_steps
    assert not logits.any()
    assert pickle.loads(pickle.dumps(sampling)) == sampling
    assert Sampling(rules={"shift": 0.0}).probs(logits[:1], contexts[:1]).argmax() == 0


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"nosuch": 1.0}, ValueError, "no rule 'nosuch'; the rules are ban, shift, other, absent"),
        ({"ban": -1.0}, ValueError, r"rules\['ban'\] must be a finite number >= 0, got -1.0"),
        ({"ban": float("inf")}, ValueError, "finite"),
        ({"ban": float("nan")}, ValueError, "finite"),
        ({"ban": "much"}, TypeError, r"rules\['ban'\] must be a number"),
        ({1: 1.0}, TypeError, "each name in rules must be a text"),
        ("ban", TypeError, "rules must be a dict from names to strengths"),
        ({"other": 1.0}, ValueError, "planted_rules:ban is no TextRule with the name 'other'"),
        ({"absent": 1.0}, ValueError, "cannot be imported .AttributeError: .*mend or remove"),
        ({"shift": 1.0}, ValueError, "'shift' changes what the model would say; --inexact"),
    ],
)
def test_what_cannot_be_followed_is_refused(given: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        SamplingParams(rules=given)


def test_what_trades_quality_is_followed_where_texts_may_be_inexact() -> None:
    SamplingParams(rules={"ban": 1.0})
    SamplingParams(rules={"ban": 1.0, "shift": 1.0}, exact=False)
    assert "--inexact" in refused("generate", "Hi", "--rules", "shift")


def test_a_rule_refuses_options_before_a_text_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def require(params: SamplingParams) -> None:
        if params.temperature:
            raise ValueError("no draws")

    monkeypatch.setattr(PLANTED, "ban", replace(PLANTED.ban, require=require))
    given = SamplingParams(rules={"ban": 1.0})
    with pytest.raises(ValueError, match="no draws"):
        replace(given, temperature=1.0)
    for name in ("ban", "shift"):
        own = replace(getattr(PLANTED, name), executor=lambda text, strength: text)
        monkeypatch.setattr(PLANTED, name, own)
    text_rule.cache_clear()
    with pytest.raises(ValueError, match="both make steps; give one"):
        SamplingParams(rules={"ban": 1.0, "shift": 1.0}, exact=False)


def test_a_rule_that_two_packages_bring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = [EntryPoint("ban", f"{place}:ban", rules.GROUP) for place in ("one", "two")]
    monkeypatch.setattr(rules, "entry_points", lambda group: twice)
    with pytest.raises(ValueError, match="two rules have the name 'ban': one:ban and two:ban"):
        text_rule("ban")


@pytest.mark.parametrize("promise", ["lossless", "same as one by one", "same quality"])
def test_no_rule_promises_the_model_s_own_text(promise: Any) -> None:
    with pytest.raises(ValueError, match="promises 'trades quality' or 'another aim'"):
        TextRule("mine", "", "", promise, 1.0, ban)


def test_one_rule_alone_may_make_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own strength; what it gives is the text's executor."""
    seen = list[float]()

    def start(text: Any, strength: float) -> engine.InTurn:
        seen.append(strength)
        return engine.InTurn(text)

    for name in ("ban", "shift"):
        own = replace(getattr(PLANTED, name), executor=start)
        monkeypatch.setattr(PLANTED, name, own)
    options = engine.Options(Sampling(rules={"ban": 0.5}), 4)
    model = TableModel(np.zeros((4, 4), np.float32))
    list(engine.generate(model, Nothing(), Match(), [1], options))
    assert seen == [0.5]
    both = replace(options, sampler=Sampling(rules={"ban": 1.0, "shift": 1.0}), exact=False)
    with pytest.raises(ValueError, match="rules 'ban' and 'shift' both make steps; give one"):
        list(engine.generate(model, Nothing(), Match(), [1], both))


def test_rules_are_typed_by_name_with_or_without_a_strength() -> None:
    assert parse_rules("ban, shift=0.5") == {"ban": 1.0, "shift": 0.5}
    for text, told in (
        ("ban=x", "strength of rule 'ban' is no number"),
        ("", "no rule ''"),
        ("ban=0.2,ban=0.9", "rule 'ban' is given twice; give it once"),
    ):
        with pytest.raises(ValueError, match=told):
            parse_rules(text)


def test_broken_rules_are_left_out_of_lists_with_a_warning() -> None:
    with pytest.warns(rules.RulesWarning) as told:
        found = rules.installed_rules()
    assert [each.name for each in found] == ["ban", "shift"]
    assert len(told) == 2


def test_without_packages_there_is_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "entry_points", lambda group: [])
    assert rules.installed_rules() == []
    cure = re.escape(install_command("draftwood-choices"))
    with pytest.raises(ValueError, match=f"no rule 'ban'; rules come .*{cure}$"):
        SamplingParams(rules={"ban": 1.0})
