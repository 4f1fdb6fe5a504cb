"""Majority: the final answer that most of N answers reach."""

from collections import Counter
from typing import Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposer, final_answer, proposal_of


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Let N answers vote by what they say in the end (Wang et al. 2022, arXiv:2203.11171).

    The first of equals wins. Its value is its share of the votes; the checker judges the winner
    alone, so that a vote costs one call.
    """
    made = [proposal_of(each) for each in proposer.write(prompt, options.answers)]
    said = [final_answer(each.text, options.pattern) for each in made]
    votes = Counter(said)
    (winner, _), *_ = votes.most_common(1)
    for each, final in zip(made, said, strict=True):
        each.value = votes[final] / len(made)
    best = made[said.index(winner)]
    if proposer.checker is not None:
        best.judgement = proposer.judge(best.text)
    return Solution(best, made, {"final": winner, "votes": dict(votes.most_common())})
