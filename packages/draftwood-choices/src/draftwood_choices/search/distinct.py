"""Distinct answers: drawn without replacement, then judged."""

import time
from typing import Any

import draftwood
from draftwood.engine import run_all
from draftwood.text.builder import TextBuilder
from draftwood_choices.answers import DRAWING, OF_TOKENS, options_of, require_taken, told_fewer
from draftwood_choices.distinct import DistinctTexts
from draftwood_choices.search.methods import SearchOptions, Solution
from draftwood_choices.search.proposals import Proposal, Proposer, best_of


def search(proposer: Proposer, prompt: Any, options: SearchOptions) -> Solution:
    """Draw N different answers by stochastic beam search, a pass a token for all; keep the best.

    Without a checker the log-probability of the whole answer is its value. Options are those of
    ``generate --method distinct``: beams are tokens, so stop strings and grammars, which need
    texts, are refused, and so is a prediction, as nothing is drafted.

    Raises:
        ValueError: for an option that beams do not take.
    """
    lm, params = proposer.lm, draftwood.SamplingParams(**proposer.options)
    require_taken("distinct", params, OF_TOKENS | DRAWING)
    since, wanted = time.perf_counter(), options_of(lm, params)
    given = lm.encode(prompt, params.raw)
    task = DistinctTexts(lm.model, given, wanted, options.answers)
    for _ in run_all([task]):
        pass
    proposer.spent.seconds += time.perf_counter() - since
    proposer.spent.passes += task.runs
    proposer.spent.tokens += task.written
    made, behind = list[Proposal](), lm.text_before(given, params.raw)
    shown = {} if params.raw else lm.shown_tokens
    for each in task.texts:
        text = TextBuilder.whole(lm.tokenizer, each.tokens, behind, shown)
        mean = each.log_prob / max(1, len(each.tokens))
        made.append(proposer.judged(Proposal(text, each.tokens, mean, value=each.log_prob)))
    return Solution(best_of(made), made, notes=told_fewer(len(made), options.answers))
