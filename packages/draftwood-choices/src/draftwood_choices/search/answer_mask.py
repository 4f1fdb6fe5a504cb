"""Answer mask: one greedy answer that has words of the task alone."""

from typing import Any

from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposer, proposal_of
from draftwood_choices.search.word_bank import GRAMMARS, bank_grammar, prompt_text


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Answer greedily with words of the task, the constraint of STOC-TOT without its tree.

    Bi et al. 2024, arXiv:2407.03687. The task holds evidence and question, or is a text to
    continue. Marks between words are free.

    Differs from the paper: a grammar bans what leads to no word of the task, so that a word is
    whole; the paper bans tokens that are in none.

    Raises:
        ValueError: for a task without any word.
    """
    proposer.refuse((*GRAMMARS, "min_tokens"), "it writes words of the task alone")
    grammar = bank_grammar(prompt_text(prompt))
    (made,) = proposer.write(prompt, temperature=0.0, grammar=grammar)
    only = proposer.judged(proposal_of(made))
    return Solution(only, [only])
