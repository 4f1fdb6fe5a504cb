"""Recover the temporal rules that drive an event from sequences of events.

    python -m draftwood_choices.forms.event_rules --worlds 20

After latent logic trees (Song et al. 2024, arXiv:2406.01124). A rule names kinds of events that
must come in this order before the event in question, its head: "a, then b, then the head", all of
it within a window before now. The head comes at the rate

    rate(t) = softplus(base + sum over rules r of weight_r holds_r(t))

Two steps take turns. A sampler of rules grows one kind by kind, and learns to draw rules in
proportion to their reward, which grows with what a rule adds to the log-likelihood beside those
that are kept. Then the rule of the greatest gain among those that were drawn is kept if chance
would not give as much, all weights are fitted anew, and rules that it made needless are dropped.

Differs from the paper: a table stands for the language model that draws rules, and its prior of
their texts is left out, as these events have no names; the reward is a power of the gain in nats,
since likelihoods of hundreds of sequences leave nothing to draw but the best; one set of rules
holds for all sequences; the rate is constant between events, so that its integral is exact.

Beside the rules that are found stand no rules, random ones, those found among as many looks of a
sampler that does not learn, and those found after the heads' times were shuffled, which must be
none.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count, permutations

import click
import numpy as np
from jaxtyping import Bool, Float, Int

from draftwood_choices.forms.rule_sampler import Rule, RuleSampler

LONGEST = 3
"""Kinds in a rule at most."""
SPAN, WINDOW = 10.0, 2.0
"""Duration of a sequence, and how long before now a rule's first event may lie."""
RATE = 0.25
"""Events of each kind in a unit of time."""
BASE, WEIGHT = -2.0, 3.0
"""Figures of planted rules."""
POWER = 3.0
"""Exponent of a rule's gain, by which it is drawn."""
CHANCE = 0.01
"""Probability that any rule is kept where none holds, by a bound over all rules."""


@dataclass(frozen=True)
class Events:
    """Sequences of events behind one another on one line of time, a window apart.

    Attributes:
        times, kinds: of the events that rules are made of, in order.
        heads: times of the event that rules foretell, in order.
        sequences: how many.
    """

    times: Float[np.ndarray, " events"]
    kinds: Int[np.ndarray, " events"]
    heads: Float[np.ndarray, " heads"]
    sequences: int

    @cached_property
    def edges(self) -> Float[np.ndarray, "pieces 2"]:
        """Pieces of time within which no rule begins or ceases to hold: start and end."""
        starts = np.arange(self.sequences) * (SPAN + WINDOW)
        cuts = np.concatenate([starts, starts + SPAN, self.times, self.times + WINDOW])
        cuts = np.unique(cuts)
        pieces = np.stack([cuts[:-1], cuts[1:]], axis=1)
        return pieces[pieces.mean(1) % (SPAN + WINDOW) < SPAN]

    @cached_property
    def counts(self) -> Int[np.ndarray, " pieces"]:
        """Heads in each piece."""
        places = np.searchsorted(self.edges[:, 0], self.heads, side="right") - 1
        return np.bincount(places, minlength=len(self.edges))

    def holds(self, rule: Rule) -> Bool[np.ndarray, " pieces"]:
        """True if a rule's events came in its order, the first less than a window ago."""
        first = last = self.times[self.kinds == rule[0]]
        for kind in rule[1:]:
            nexts = self.times[self.kinds == kind]
            before = np.searchsorted(last, nexts) - 1
            first, last = first[before[before >= 0]], nexts[before >= 0]
        middles = self.edges.mean(1)
        before = np.searchsorted(last, middles) - 1
        found = np.append(first, -np.inf)[before]  # -1, for no such event, takes the last
        return middles - found < WINDOW

    def shuffled(self, rng: np.random.Generator) -> "Events":
        """Give all heads other times, at random in any sequence: no rule holds any more."""
        starts = rng.integers(0, self.sequences, len(self.heads)) * (SPAN + WINDOW)
        return replace(self, heads=np.sort(starts + rng.uniform(0.0, SPAN, len(starts))))


def drawn(rules: Sequence[Rule], kinds: int, sequences: int, rng: np.random.Generator) -> Events:
    """Draw sequences: events of all kinds at random, and heads by the rate that rules give."""
    each = rng.poisson(RATE * SPAN * kinds, sequences)
    starts = np.repeat(np.arange(sequences) * (SPAN + WINDOW), each)
    times = np.sort(starts + rng.uniform(0.0, SPAN, len(starts)))
    events = Events(times, rng.integers(0, kinds, len(times)), np.zeros(0), sequences)
    score = BASE + WEIGHT * sum(events.holds(rule).astype(float) for rule in rules)
    low, high = events.edges.T
    heads = rng.poisson(np.logaddexp(0.0, score) * (high - low))
    placed = rng.uniform(np.repeat(low, heads), np.repeat(high, heads))
    return replace(events, heads=np.sort(placed))


@dataclass(frozen=True)
class RuleModel:
    """Rules with their weights.

    Attributes:
        rules: that are kept.
        weights: the base first.
    """

    rules: tuple[Rule, ...] = ()
    weights: Float[np.ndarray, " weights"] = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def fitted(cls, rules: Sequence[Rule], events: Events) -> tuple["RuleModel", float]:
        """Fit weights by Newton's method; also gives the log-likelihood."""
        shown, spans, counts = _gathered(rules, events)
        weights = np.zeros(len(rules) + 1)
        best = _log_likelihood(shown @ weights, spans, counts)
        for _ in range(50):
            step, scale = _newton_step(shown, shown @ weights, spans, counts), 1.0
            while (now := _log_likelihood(shown @ (weights + scale * step), spans, counts)) < best:
                scale /= 2
                if scale < 1e-6:
                    return cls(tuple(rules), weights), best
            weights, gained, best = weights + scale * step, now - best, now
            if gained < 1e-9:
                break
        return cls(tuple(rules), weights), best

    def log_likelihood(self, events: Events) -> float:
        """Log-likelihood of the heads, in nats."""
        shown, spans, counts = _gathered(self.rules, events)
        return _log_likelihood(shown @ self.weights, spans, counts)


def _gathered(rules: Sequence[Rule], events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sets of rules that hold together [sets rules+1], with the times and heads of each."""
    code = np.zeros(len(events.edges), int)
    for place, rule in enumerate(rules):
        code += events.holds(rule).astype(int) << place
    spans = np.bincount(code, np.diff(events.edges, axis=1)[:, 0], 1 << len(rules))
    counts = np.bincount(code, events.counts, 1 << len(rules))
    some = np.flatnonzero(spans)
    shown = np.stack([np.ones(len(some)), *((some >> n) & 1 for n in range(len(rules)))], axis=1)
    return shown, spans[some], counts[some]


def _log_likelihood(score: np.ndarray, spans: np.ndarray, counts: np.ndarray) -> float:
    rate = np.logaddexp(0.0, score)
    return float(counts @ np.log(rate) - spans @ rate)


def _newton_step(
    shown: np.ndarray, score: np.ndarray, spans: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    rate, slope = np.logaddexp(0.0, score), 1.0 / (1.0 + np.exp(-score))
    bend = slope * (1.0 - slope)
    first = (counts / rate - spans) * slope
    second = counts * (bend / rate - (slope / rate) ** 2) - spans * bend
    hessian = (shown * second[:, None]).T @ shown - 1e-9 * np.eye(shown.shape[1])
    return -np.linalg.solve(hessian, shown.T @ first)


def all_rules(kinds: int) -> list[Rule]:
    """Every rule of kinds that differ, as long as a rule may be."""
    return [rule for size in range(1, LONGEST + 1) for rule in permutations(range(kinds), size)]


def least_gain(kinds: int) -> float:
    """Gain in nats that no rule of them all reaches by chance but with probability ``CHANCE``.

    Twice the gain follows chi-square with one degree of freedom (Wilks); its tail is bounded by
    that of the normal distribution, 2 exp(-gain).
    """
    return float(np.log(2.0 * len(all_rules(kinds)) / CHANCE))


@dataclass(frozen=True)
class Recovery:
    """Rules that were found.

    Attributes:
        model: of them.
        fits: of a rule's gain, in all rounds.
    """

    model: RuleModel
    fits: int


def recovered(events: Events, kinds: int, seed: int, is_learning: bool = True) -> Recovery:
    """Find rules: draw some, keep the best, fit all weights, until chance could give the best.

    Args:
        is_learning: False draws rules at random, which is a control.
    """
    model, before = RuleModel.fitted((), events)
    fits, least = 0, least_gain(kinds)
    for turn in count():
        gains = dict[Rule, float]({(): 0.0})
        looking = partial(_log_reward, events, model, before, gains)
        sampler = RuleSampler(kinds, LONGEST, looking, 1000 * seed + turn)
        sampler.learn(is_learning=is_learning)
        fits += len(gains) - 1
        best = max(gains, key=lambda rule: gains[rule])
        if gains[best] < least:
            break
        model, before = pruned((*model.rules, best), events, least)
    return Recovery(model, fits)


def _log_reward(
    events: Events, model: RuleModel, before: float, gains: dict[Rule, float], rule: Rule
) -> float:
    """A power of what a rule adds to a model, in nats; also keeps the gain."""
    if not rule or rule in model.rules:
        return 0.0
    if rule not in gains:
        gains[rule] = RuleModel.fitted((*model.rules, rule), events)[1] - before
    return POWER * math.log1p(max(0.0, gains[rule]))


def pruned(rules: tuple[Rule, ...], events: Events, least: float) -> tuple[RuleModel, float]:
    """Fit rules, without those that others have made needless."""
    model, whole = RuleModel.fitted(rules, events)
    for rule in rules:
        others, rest = RuleModel.fitted([each for each in model.rules if each != rule], events)
        if whole - rest < least:
            model, whole = others, rest
    return model, whole


def planted(rules: int, kinds: int, rng: np.random.Generator) -> list[Rule]:
    """Rules of one kind, of two, of three, and so on again; no kind is in two of them."""
    left = [int(kind) for kind in rng.permutation(kinds)]
    return [tuple(left.pop() for _ in range(n % LONGEST + 1)) for n in range(rules)]


def measured(rules: int, kinds: int, sequences: int, seed: int) -> dict[str, dict[str, float]]:
    """Figures of one world by what is compared, ``none`` to ``planted``.

    Nats per head are those that a held-out log-likelihood has over that of no rules.
    """
    rng = np.random.default_rng(seed)
    true = planted(rules, kinds, rng)
    seen, held = (drawn(true, kinds, sequences, rng) for _ in range(2))
    every = all_rules(kinds)
    guessed = [every[place] for place in rng.choice(len(every), rules, replace=False)]
    searched = {
        "random draws": recovered(seen, kinds, seed, is_learning=False),
        "shuffled times": recovered(seen.shuffled(rng), kinds, seed),
        "learned": recovered(seen, kinds, seed),
    }
    models = {
        "none": RuleModel.fitted((), seen)[0],
        "random rules": RuleModel.fitted(guessed, seen)[0],
        **{name: each.model for name, each in searched.items()},
        "planted": RuleModel.fitted(true, seen)[0],
    }
    nothing = models["none"].log_likelihood(held)
    return {
        name: {
            **agreement(model.rules, true),
            "nats per head": (model.log_likelihood(held) - nothing) / max(1, len(held.heads)),
            "fits": float(searched[name].fits if name in searched else 0),
        }
        for name, model in models.items()
    }


def agreement(found: Sequence[Rule], true: Sequence[Rule]) -> dict[str, float]:
    """Recall, and wrong rules, of which there can be any number."""
    right = len({*found} & {*true})
    return {"recall": right / len(true), "wrong rules": float(len(found) - right)}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean with its 95 % interval, from worlds drawn again."""
    each = np.array(values)
    again = np.random.default_rng(0).integers(0, len(each), (2000, len(each)))
    low, high = np.quantile(each[again].mean(1), (0.025, 0.975))
    return float(each.mean()), float(low), float(high)


def summary(
    worlds: Sequence[Mapping[str, Mapping[str, float]]],
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Means over worlds with their intervals."""
    return {
        name: {each: interval([world[name][each] for world in worlds]) for each in figures}
        for name, figures in worlds[0].items()
    }


@click.command()
@click.option("--worlds", type=click.IntRange(2), default=20, show_default=True)
@click.option("--rules", type=click.IntRange(1, 4), default=3, show_default=True, help="Planted.")
@click.option("--kinds", type=click.IntRange(8, 20), default=10, show_default=True)
@click.option("--sequences", type=click.IntRange(2), default=300, show_default=True)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first world."
)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def main(worlds: int, rules: int, kinds: int, sequences: int, seed: int, as_json: bool) -> None:
    """Plant rules in worlds of events, and tell how many are found again, with 95 % intervals."""
    found = summary([measured(rules, kinds, sequences, seed + n) for n in range(worlds)])
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo("".join(f"{each:<25}" for each in ("", *found["none"])).rstrip())
    for name, figures in found.items():
        shown = (f"{mean:.2f} [{low:.2f}, {high:.2f}]" for mean, low, high in figures.values())
        click.echo("".join(f"{each:<25}" for each in (name, *shown)).rstrip())


if __name__ == "__main__":
    main()
