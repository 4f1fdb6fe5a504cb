"""Best of N: judged by a checker, or by the model's own mean log-probability."""

from typing import Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposer, best_of


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Write N answers in one batch and keep the best (Cobbe et al. 2021, arXiv:2110.14168).

    By a checker answers that score alike stand in the order of their seeds. Without one the mean
    log-probability per token decides, before temperature. A trained verifier is a checker too.
    """
    judged = proposer.checker is not None
    more = {} if judged else {"logprobs": 0}
    made = proposer.propose(prompt, options.answers, **more)
    if not judged:
        for each in made:
            each.value = each.log_prob if each.log_prob is not None else float("-inf")
    return Solution(best_of(made), made, {"by": "checker" if judged else "likelihood"})
