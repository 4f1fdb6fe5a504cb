"""Event rules: planted ones are found again, and none where the times say nothing."""

import json
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from draftwood.testing import chi_square
from draftwood_choices.forms import event_rules
from draftwood_choices.forms.event_rules import (
    BASE,
    SPAN,
    WEIGHT,
    WINDOW,
    Events,
    RuleModel,
    all_rules,
    drawn,
    planted,
    recovered,
)
from draftwood_choices.forms.rule_sampler import Rule, RuleSampler

KINDS, SEQUENCES = 8, 300
TRUE: list[Rule] = [(3,), (5, 1)]


def world(seed: int) -> Events:
    return drawn(TRUE, KINDS, SEQUENCES, np.random.default_rng(seed))


def test_planted_rules_are_found_and_their_weights() -> None:
    found = recovered(world(0), KINDS, 0).model
    assert {*found.rules} == {*TRUE}
    assert found.weights == pytest.approx([BASE, WEIGHT, WEIGHT], abs=0.4)


def test_no_rule_is_found_where_times_are_shuffled() -> None:
    rng = np.random.default_rng(1)
    for seed in range(3):
        events = world(seed)
        assert recovered(events.shuffled(rng), KINDS, seed).model.rules == ()
        assert len(events.shuffled(rng).heads) == len(events.heads)


def test_the_order_of_a_rule_tells() -> None:
    events, turned = world(0), [(3,), (1, 5)]
    _, right = RuleModel.fitted(TRUE, events)
    _, wrong = RuleModel.fitted(turned, events)
    assert right > wrong + 50.0


def brute(events: Events, rule: Rule, moment: float, least: float) -> bool:
    """True if events of these kinds in this order lie between two moments."""
    if not rule:
        return True
    times = events.times[(events.kinds == rule[0]) & (events.times > least)]
    return any(brute(events, rule[1:], moment, t) for t in times[times < moment])


@pytest.mark.parametrize("rule", [(0,), (0, 1), (2, 0, 1)])
def test_a_rule_holds_where_its_events_are_found_one_by_one(rule: Rule) -> None:
    events = drawn([], 3, 6, np.random.default_rng(2))
    middles = events.edges.mean(1)
    expected = [brute(events, rule, moment, moment - WINDOW) for moment in middles]
    assert events.holds(rule).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_pieces_fill_the_sequences_and_heads_come_at_the_rate() -> None:
    events = world(3)
    spans = np.diff(events.edges, axis=1)[:, 0]
    assert spans.sum() == pytest.approx(SEQUENCES * SPAN)
    assert all(one[1] <= other[0] for one, other in pairwise(events.edges))
    held = sum(events.holds(rule).astype(int) for rule in TRUE)
    for count in range(3):
        rate = events.counts[held == count].sum() / spans[held == count].sum()
        assert rate == pytest.approx(np.log1p(np.exp(BASE + WEIGHT * count)), rel=0.15)


def test_weights_are_those_of_the_greatest_likelihood() -> None:
    events = world(4)
    model, best = RuleModel.fitted(TRUE, events)
    assert model.log_likelihood(events) == pytest.approx(best)
    for place in range(3):
        for step in (-0.05, 0.05):
            weights = model.weights + step * np.eye(3)[place]
            assert RuleModel(model.rules, weights).log_likelihood(events) < best


def reward(rule: Rule) -> float:
    return 0.7 * len(rule) + sum((n + 1) * kind for n, kind in enumerate(rule)) / 4


def test_the_sampler_draws_rules_by_their_rewards() -> None:
    rules = [(), *(rule for rule in all_rules(3))]
    shares = np.exp([reward(rule) for rule in rules])
    expected = dict(zip(rules, (shares / shares.sum()).tolist(), strict=True))
    sampler = RuleSampler(3, 3, reward, 0)
    rng = np.random.default_rng(5)
    before = [sampler.draw(rng) for _ in range(2000)]
    sampler.learn(looks=len(rules) + 1, draws=1000)
    for rule, chance in expected.items():
        assert np.exp(sampler.log_chance(rule)) == pytest.approx(chance, rel=0.01)
    counted = {rule: [sampler.draw(rng) for _ in range(2000)].count(rule) for rule in rules}
    assert chi_square(counted, expected) > 1e-4
    assert chi_square({rule: before.count(rule) for rule in rules}, expected) < 1e-4


def test_planted_rules_share_no_kind() -> None:
    rules = planted(4, 10, np.random.default_rng(0))
    assert [len(rule) for rule in rules] == [1, 2, 3, 1]
    assert len({kind for rule in rules for kind in rule}) == 7


def test_the_command_prints_intervals_beside_controls() -> None:
    asked = ["--worlds", "2", "--rules", "2", "--kinds", "8", "--sequences", "100"]
    made = CliRunner().invoke(event_rules.main, [*asked, "--json"])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert {"none", "random rules", "shuffled times"} < {*found}
    for name, figures in found.items():
        for mean, low, high in figures.values():
            assert low <= mean <= high
        assert figures["recall"][0] == pytest.approx(float(name == "planted")) or name in (
            "learned",
            "random draws",
        )
    assert found["learned"]["nats per head"][0] > found["random rules"]["nats per head"][0]
    shown = CliRunner().invoke(event_rules.main, asked).stdout
    assert "shuffled times" in shown
    for wrong in (("--kinds", "3"), ("--seed", "-1")):
        assert CliRunner().invoke(event_rules.main, wrong).exit_code == 2
