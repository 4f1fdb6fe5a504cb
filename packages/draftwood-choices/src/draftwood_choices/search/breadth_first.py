"""Breadth-first search: every level of steps whole, of which the best go on."""

from typing import Any

from draftwood_choices.search.lite_search import GREEDY_STEPS, StepTree
from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposal, Proposer, best_of

KEPT = 5
"""Steps of a level that go on."""


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Write N steps a level, and go on from the five of the greatest value (Yao et al. 2023,
    arXiv:2305.10601).

    Steps that go on share the N evenly, and the best of them have what is left over. Whole answers
    stay, and the one of the greatest value is chosen. Steps and values are those of LiteSearch,
    whose control this is.

    Differs from the paper: a trained head or the checker judges instead of the model that writes.
    """
    tree = StepTree(proposer, prompt)
    level, whole, depth = [tree.root], list[Proposal](), 0
    while level and depth < GREEDY_STEPS:
        share, over = divmod(options.answers, len(level))  # a level has at most N steps
        made = [
            step
            for place, above in enumerate(level)
            for step in tree.children(above, share + (place < over))
        ]
        whole += [each for each in made if each.is_whole]
        going = [each for each in made if not each.is_whole]
        level = sorted(going, key=lambda each: each.value, reverse=True)[:KEPT]
        depth += 1
    for each in level:  # as long as the greedy answer may get
        each.is_whole = True
    return Solution(best_of(whole + level), tree.steps, {"levels": depth})
