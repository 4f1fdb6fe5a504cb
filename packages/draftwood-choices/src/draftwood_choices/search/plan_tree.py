"""Tree-Planner: plans merged into a tree, walked with the world, and back from dead ends."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposal, Proposer, with_more

if TYPE_CHECKING:
    import regex

VOTES = 20
"""Votes of the model where a step has several continuations."""
BULLET = re.compile(r"^\s*(?:\d+\s*[.):]|[-*•])?\s*")
CHOOSE = """

Done so far: {done}
Seen: {seen}
What comes next?
{choices}
Answer with a number."""


@dataclass(eq=False)
class PlanStep:
    """An action in the tree of plans, with what may follow it.

    Attributes:
        action: in the words of the plans; empty for the root.
        following: by action.
        failed: True once it led nowhere.
    """

    action: str = ""
    following: "dict[str, PlanStep]" = field(default_factory=dict)
    failed: bool = False

    def add(self, plan: Sequence[str]) -> None:
        """Merge a plan below this step."""
        step = self
        for action in plan:
            step = step.following.setdefault(action, PlanStep(action))


def plan_of(text: str) -> list[str]:
    """Actions of a plan, a line each, without numbers and bullets."""
    lines = [BULLET.sub("", line, count=1).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def unknown_action(plan: Sequence[str], pattern: "regex.Pattern[str] | None") -> str | None:
    """The first action of a plan that a pattern does not know; None where it knows all."""
    if pattern is None:
        return None
    return next((each for each in plan if not pattern.fullmatch(each)), None)


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Write N plans at once, merge them, and walk down with the checker as the world.

    Hu et al. 2023, arXiv:2310.08582. The checker is given the actions so far, a line each, from the
    beginning: a score below 0 says that the last one cannot be done, 1 that the goal is reached,
    and its note is what is seen. Where a step has one continuation nobody is asked; else the model
    votes, and chooses by numbers.

    Differs from the paper: a plan that ends short of the goal leads back too, as the checker begins
    again with each call and nothing need be undone.
    """
    proposer.refuse(("json_schema", "min_tokens"), "its votes have a grammar of their own")
    written = [plan_of(each.text) for each in proposer.write(prompt, options.answers)]
    firsts = [unknown_action(each, options.pattern) for each in written]
    unknown = [each for each in firsts if each is not None]
    plans = [each for each, first in zip(written, firsts, strict=True) if each and first is None]
    root = PlanStep()
    for plan in plans:
        root.add(plan)
    walk = PlanWalk(proposer, prompt, options.rounds)
    walk.down(root)
    details: dict[str, object] = {"plans": len(plans), "unknown_plans": len(unknown)}
    details["corrections"] = walk.corrections
    notes = (*left_out(len(written), len(plans), unknown), *walk.notes)
    return Solution(walk.best, walk.tried, details, notes)


def left_out(written: int, plans: int, unknown: Sequence[str]) -> tuple[str, ...]:
    """Say in a line how many plans were left out, and why; nothing where none was.

    Args:
        written, plans: in all, and of these those that are walked.
        unknown: the first unknown action of each that has one.
    """
    if written == plans:
        return ()
    why = f"{unknown[0]!r:.80} is no known action" if unknown else "they hold no action"
    cure = "" if plans else "; give more --answers, or a --final that fits the actions"
    return (f"{written - plans} of {written} plans are left out, as {why}{cure}",)


class PlanWalk:
    """A walk through the tree of plans.

    Args:
        most: actions that are tried.

    Attributes:
        tried: the root and every action that was tried.
        best: of these; the first that has the greatest score.
        corrections: actions that could not be done.
        notes: lines that the user should read.
    """

    def __init__(self, proposer: Proposer, prompt: Any, most: int) -> None:
        self.proposer, self.prompt, self.most = proposer, prompt, most
        self.tried = [Proposal("", is_whole=False)]
        self.best = self.tried[0]
        self.corrections = 0
        self.notes = list[str]()

    def down(self, root: PlanStep) -> None:
        """Walk until the goal is reached, nothing is left, or enough was tried."""
        path = [(root, self.tried[0])]
        while path and len(self.tried) <= self.most:
            step, place = path[-1]
            going = [each for each in step.following.values() if not each.failed]
            if not going:
                step.failed = True
                path.pop()
                continue
            chosen = going[0] if len(going) == 1 else self._vote(going, place)
            reached = self._try(chosen, place)
            if reached is None:
                chosen.failed = True
                continue
            path.append((chosen, reached))
            if reached.judgement is not None and reached.judgement.passed:
                return

    def _try(self, step: PlanStep, before: Proposal) -> Proposal | None:
        """Do an action; None where it cannot be done."""
        text = f"{before.text}\n{step.action}".strip()
        reached = Proposal(text, above=before, step=step.action)
        reached.judgement = self.proposer.judge(text)
        reached.value = reached.judgement.value
        self.tried.append(reached)
        score = reached.judgement.score
        if score is None or score < 0.0:
            self.corrections += 1
            return None
        if self.best.judgement is None or reached.value > self.best.value:
            self.best = reached
        return reached

    def _vote(self, going: Sequence[PlanStep], place: Proposal) -> PlanStep:
        """The continuation that most votes are for; the first of equals."""
        numbers = range(1, len(going) + 1)
        lines = (f"{number}. {each.action}" for number, each in zip(numbers, going, strict=True))
        asked = CHOOSE.format(
            done=place.text.replace("\n", "; ") or "nothing",
            seen="nothing" if place.judgement is None else place.judgement.note or "nothing",
            choices="\n".join(lines),
        )
        room = self.proposer.room(with_more(self.prompt, asked))
        if room is not None and room < 1:
            told = f"a vote would not fit into {self.proposer.context} tokens"
            self.notes = [f"{told}: from there on the first continuation is tried first"]
            return going[0]
        grammar = "start: " + " | ".join(f'"{number}"' for number in numbers)
        made = self.proposer.write(with_more(self.prompt, asked), VOTES, grammar=grammar)
        votes = Counter(each.text for each in made)
        return max(zip(numbers, going, strict=True), key=lambda each: votes[str(each[0])])[1]
