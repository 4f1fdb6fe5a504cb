"""Best of N: judged by a checker, or by the model's own mean log-probability."""

from typing import Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposer, best_of, proposal_of


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Write N answers in one batch and keep the best (Cobbe et al. 2021, arXiv:2110.14168).

    By a checker answers that score alike stand in the order of their seeds. Without one the mean
    log-probability per token decides, before temperature. A trained value head goes before both:
    beside a checker the best by the head that passes is kept.

    Differs from the paper: the verifier is a head on states of the model as it is, and not a second
    model that is fine-tuned.
    """
    if proposer.head is not None:
        made = [proposal_of(x) for x in proposer.write(prompt, options.answers, logprobs=0)]
        for each, value in zip(made, proposer.valued(prompt, made), strict=True):
            each.value = value
        ranked = sorted(made, key=lambda each: each.value, reverse=True)
        best = ranked[0]
        if proposer.checker is not None:
            for each in ranked:
                each.judgement = proposer.judge(each.text)
                if each.judgement.passed:
                    best = each
                    break
        return Solution(best, made, {"by": "value head"})
    judged = proposer.checker is not None
    more = {} if judged else {"logprobs": 0}
    made = proposer.propose(prompt, options.answers, **more)
    if not judged:
        for each in made:
            each.value = each.log_prob if each.log_prob is not None else float("-inf")
    return Solution(best_of(made), made, {"by": "checker" if judged else "likelihood"})
