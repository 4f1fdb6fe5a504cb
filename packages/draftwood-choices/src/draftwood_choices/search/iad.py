"""Iterative agent decoding: rounds that are shown the best and the worst answer so far."""

from typing import Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposal, Proposer, best_of, with_more

FEEDBACK = """

Here is the best answer so far; a checker gave it {best:g} of 1{best_note}:
{best_text}

Here is the worst answer so far; it got {worst:g} of 1{worst_note}:
{worst_text}

Write a new answer that is better than the best one and avoids what makes the worst one bad."""


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Write K answers a round, and show the best and the worst so far in the next prompt.

    Chakraborty et al. 2025, arXiv:2504.01931. The best never gets worse; a round in which an answer
    passes is the last one. An answer without a score is neither best nor worst. The wording of the
    feedback is ours; the paper does not print it.
    """
    made, rounds, notes = list[Proposal](), 0, list[str]()
    while rounds < options.rounds and not any(_passed(each) for each in made):
        asked = with_feedback(prompt, made)
        room = proposer.room(asked)
        if made and room is not None and room < 1:
            notes.append(
                f"no further round: its prompt would not fit into {proposer.context} tokens"
            )
            break
        made += proposer.propose(asked, options.answers)
        rounds += 1
    scored = [each for each in made if _score(each) is not None]
    return Solution(best_of(scored or made), made, {"rounds": rounds}, notes)


def with_feedback(prompt: Any, made: list[Proposal]) -> Any:
    """The prompt of the next round: the task, the best and the worst answer so far."""
    scored = [each for each in made if _score(each) is not None]
    if not scored:
        return prompt
    best, worst = best_of(scored), min(scored, key=lambda each: each.value)
    told = FEEDBACK.format(
        best=best.value,
        best_note=_note(best),
        best_text=best.text.strip(),
        worst=worst.value,
        worst_note=_note(worst),
        worst_text=worst.text.strip(),
    )
    return with_more(prompt, told)


def _score(proposal: Proposal) -> float | None:
    return None if proposal.judgement is None else proposal.judgement.score


def _passed(proposal: Proposal) -> bool:
    return proposal.judgement is not None and proposal.judgement.passed


def _note(proposal: Proposal) -> str:
    note = "" if proposal.judgement is None else proposal.judgement.note
    return f" and said: {note}" if note else ""
