"""A sampler of rules that learns to draw each in proportion to its reward."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

Rule = tuple[int, ...]
"""Kinds of events in the order in which they must come; the empty one says nothing."""

LOOKS, DRAWS, BATCH = 200, 600, 10
"""Rewards that are asked, draws at most, and draws before the table changes."""
RATE = 0.03
AGAIN = 5
"""Times that as many of all rules drawn so far pull at the table."""
CLIPPED = 5.0
"""Largest imbalance in nats that pulls, so that one rule cannot throw the table about."""
EXPLORING = 0.2
"""Share of the next kinds that are drawn at random while it learns."""


@dataclass
class RuleSampler:
    """Draws rules kind by kind from a table of logits for each beginning.

    Sub-trajectory balance (Madan et al. 2022, arXiv:2209.12782) in the form in which every state
    may be the last one (Hu et al. 2023, arXiv:2310.04363). Where all pairs balance, the law of
    rules is their rewards' share.

    Attributes:
        kinds: of events.
        longest: kinds in a rule at most.
        log_reward: of a rule, asked for beginnings too; 0 for the empty one.
        seed: of the draws.
        table: logits of the next kind, and of the stop behind them, by beginning.
        rewards: that were asked.
    """

    kinds: int
    longest: int
    log_reward: Callable[[Rule], float]
    seed: int = 0
    table: dict[Rule, Float[np.ndarray, " choices"]] = field(default_factory=dict)
    rewards: dict[Rule, float] = field(default_factory=dict)

    def log_chances(self, begun: Rule) -> Float[np.ndarray, " choices"]:
        """Log-probabilities of each next kind, and of the stop; a kind comes once."""
        if len(begun) == self.longest:
            return np.append(np.full(self.kinds, -np.inf), 0.0)
        logits = self.table.setdefault(begun, np.zeros(self.kinds + 1)).copy()
        logits[list(begun)] = -np.inf
        return logits - np.logaddexp.reduce(logits)

    def log_chance(self, rule: Rule) -> float:
        """Log-probability that a rule is drawn."""
        steps = (self.log_chances(rule[:n])[kind] for n, kind in enumerate(rule))
        return float(sum(steps) + self.log_chances(rule)[-1])

    def draw(self, rng: np.random.Generator, exploring: float = 0.0) -> Rule:
        """Draw a rule.

        Args:
            exploring: share of the choices that are made at random.
        """
        rule: Rule = ()
        while True:
            chances = np.exp(self.log_chances(rule))
            usual = (chances > 0) / np.count_nonzero(chances)
            chances = (1.0 - exploring) * chances + exploring * usual
            choice = int(rng.choice(len(chances), p=chances / chances.sum()))
            if choice == self.kinds:
                return rule
            rule = (*rule, choice)

    def learn(self, looks: int = LOOKS, draws: int = DRAWS, is_learning: bool = True) -> None:
        """Draw rules, ask their rewards and those of their beginnings, and balance the table.

        Args:
            looks: different rules whose reward is asked, about.
            draws: at most.
            is_learning: False leaves the table as it is.
        """
        rng, drawn = np.random.default_rng(self.seed), list[Rule]()
        while len(self.rewards) < looks and len(drawn) < draws:
            drawn += [self.draw(rng, EXPLORING) for _ in range(BATCH)]
            for rule in drawn[-BATCH:]:
                for size in range(len(rule) + 1):
                    self.reward(rule[:size])
            for _ in range(AGAIN if is_learning else 0):
                old = rng.integers(0, len(drawn), BATCH)
                for each in [self._slopes(drawn[place]) for place in old]:
                    for begun, slope in each.items():
                        self.table[begun] -= RATE * slope

    def reward(self, rule: Rule) -> float:
        """A rule's log-reward, asked once."""
        if rule not in self.rewards:
            self.rewards[rule] = self.log_reward(rule)
        return self.rewards[rule]

    def _slopes(self, rule: Rule) -> dict[Rule, Float[np.ndarray, " choices"]]:
        """Derivative by the logits of half the squared imbalance of all pairs of beginnings.

        A pair balances where both log-probabilities lie equally far above the log-rewards.
        """
        states = [rule[:n] for n in range(len(rule) + 1)]
        chances = [self.log_chances(state) for state in states]
        above = np.array([self.log_chance(each) - self.reward(each) for each in states])
        pulls = np.clip(above[:, None] - above[None], -CLIPPED, CLIPPED).sum(1)
        slopes = dict[Rule, Float[np.ndarray, " choices"]]()
        for place, begun in enumerate(states[: self.longest]):
            further = pulls[place + 1 :].sum()
            slope = -(pulls[place] + further) * np.exp(chances[place])
            slope[-1] += pulls[place]
            if place < len(rule):
                slope[rule[place]] += further
            slopes[begun] = slope
        return slopes
