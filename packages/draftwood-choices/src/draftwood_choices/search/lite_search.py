"""LiteSearch: a tree of steps whose values say how many children pay."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from draftwood.text.builder import TextBuilder
from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposal, Proposer

GREEDY_STEPS = 64
"""Steps of the greedy answer at most."""
CHILDREN = 10
"""Children of a step at most."""
LEAVES = 5
"""Whole answers after which the search ends, the greedy one apart."""
ENOUGH = 0.8
"""Value above which a whole answer ends the search."""
EPSILON = 0.9
"""Chance with which one of a step's children should be right."""

Value = Callable[[Sequence[Proposal]], list[float]]
"""Chances that answers which begin like this are right, from 0 to 1."""


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Write a greedy answer, then expand the step of the greatest value until an answer is enough.

    Wang et al. 2024, arXiv:2407.00320, in its batch form: a step gets all of its children in one
    pass a token. Steps are lines. The value is a trained head's, else the checker's score of the
    text so far, else the mean probability of the tokens.

    Differs from the paper: an empty line keeps its parent's value and is gone on from, instead of
    counting as wrong.
    """
    return LiteSearch(proposer, prompt, min(options.answers, CHILDREN), options.rounds).search()


def children(value: float, greedy: float, depth: int, most: int = CHILDREN) -> int:
    """Number of children of a step: few where it is likely right, and deep down.

    Args:
        value: of the step.
        greedy: value of the greedy answer, on which early steps lean.
        depth: of the step, from 1 on.
        most: children at most.

    Returns:
        min(ceil(log(1 - epsilon) / (depth log(1 - v))), most), where v is
        (value + greedy / depth) / (1 + 1 / depth).
    """
    calibrated = (value + greedy / depth) / (1.0 + 1.0 / depth)
    if calibrated <= 0.0:
        return most
    if calibrated >= 1.0:
        return 1
    wanted = math.log(1.0 - EPSILON) / (depth * math.log1p(-calibrated))
    return math.ceil(min(wanted, most))  # infinite for the least of chances


class LiteSearch:
    """A search under way.

    Args:
        most: children of a step.
        expansions: of steps.
    """

    def __init__(self, proposer: Proposer, prompt: Any, most: int, expansions: int) -> None:
        self.tree, self.most, self.expansions = StepTree(proposer, prompt), most, expansions

    def search(self) -> Solution:
        greedy = self._greedy()
        hat, enough = greedy.value, max(ENOUGH, greedy.value - 0.01)
        self.tree.root.value = hat
        expanded, leaves = set[int](), list[Proposal]()
        while len(expanded) < self.expansions and len(leaves) < LEAVES:
            open_steps = [
                each for each in self.tree.steps if not each.is_whole and id(each) not in expanded
            ]
            if greedy.value > ENOUGH or not open_steps or any(x.value > enough for x in leaves):
                break
            step = max(open_steps, key=lambda each: each.value)
            expanded.add(id(step))
            count = children(step.value, hat, max(step.depth, 1), self.most)
            found = self.tree.children(step, count)
            leaves += [each for each in found if each.is_whole]
        best = max([greedy, *leaves], key=lambda each: each.value)
        told = {"expansions": len(expanded), "greedy_value": hat, "steps": len(self.tree.steps) - 1}
        return Solution(best, self.tree.steps, told)

    def _greedy(self) -> Proposal:
        """The greedy answer, whose steps join the tree."""
        step = self.tree.root
        while not step.is_whole and step.depth < GREEDY_STEPS:
            (step,) = self.tree.children(step, 1, temperature=0.0)
        step.is_whole = True
        return step


class StepTree:
    """A tree of steps, lines of answers to one task, and their values.

    Attributes:
        proposer: writes and values steps.
        behind: tokens with which an answer goes on.
        ends: tokens that end an answer.
        steps: all that were looked at, the task itself first.
    """

    def __init__(self, proposer: Proposer, prompt: Any) -> None:
        why = "a step is a line, and knows nothing of the answer's end"
        proposer.refuse(("stop", "grammar", "json_schema", "min_tokens"), why)
        self.proposer = proposer
        self.task, self.prompt = prompt, proposer.lm.encode(prompt, proposer.raw)
        self.behind = proposer.lm.text_before(self.prompt, proposer.raw)
        self.shown = {} if proposer.raw else proposer.lm.shown_tokens
        self.length: int = proposer.options.get("max_new_tokens", 128)
        if proposer.context is not None:
            self.length = min(self.length, max(1, proposer.context - len(self.prompt)))
        ignores = bool(proposer.options.get("ignore_eos"))
        self.ends = frozenset[int]() if ignores else frozenset(proposer.lm.end_tokens)
        self.values: Value = _probabilities
        if proposer.head is not None:
            self.values = lambda steps: proposer.valued(self.task, steps)
        elif proposer.checker is not None:
            self.values = lambda steps: [self._score(each) for each in steps]
        self.steps = [Proposal("", is_whole=False)]

    @property
    def root(self) -> Proposal:
        """The task itself."""
        return self.steps[0]

    def children(self, above: Proposal, count: int, **options: Any) -> list[Proposal]:
        """New children of a step, each text once, which join the tree."""
        lm, found = self.proposer.lm, dict[str, Proposal]()
        known = {each.text for each in self.steps if each.above is above}
        left = self.length - len(above.token_ids)
        options |= {"stop": "\n", "max_new_tokens": left, "logprobs": 0}
        for made in self.proposer.write([*self.prompt, *above.token_ids], count, **options):
            tokens = [*above.token_ids, *made.token_ids]
            ended = made.token_ids[-1] in self.ends or len(tokens) >= self.length
            told = [*above.logprobs, *(each.logprob for each in made.logprobs or ())]
            step = Proposal(
                TextBuilder.whole(lm.tokenizer, tokens, self.behind, self.shown),
                tokens,
                sum(told) / len(tokens),
                told,
                above=above,
                step=made.text,
                is_whole=ended,
            )
            if step.text not in known and step.text not in found:
                step.value = above.value
                found[step.text] = step
        steps = list(found.values())
        self.steps += steps
        if told := [each for each in steps if each.is_whole or each.step.strip()]:
            for each, value in zip(told, self.values(told), strict=True):
                each.value = value
        return steps

    def _score(self, step: Proposal) -> float:
        step.judgement = self.proposer.judge(step.text)
        return step.judgement.value


def _probabilities(steps: Sequence[Proposal]) -> list[float]:
    """Mean probabilities of a token, geometrically."""
    return [math.exp(min(each.log_prob or 0.0, 0.0)) for each in steps]
