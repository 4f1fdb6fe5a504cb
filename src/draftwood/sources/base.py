"""Where a merged tree takes its guesses from: the rules for sources, which learn from every run and
state opinions.
"""

from dataclasses import replace

from draftwood.sampling import Sampler, Sampling


def sampling_of_rows(sampler: Sampler) -> Sampling:
    """Temperature and cuts of a request, to be used on the likeliest tokens of a row.

    Penalties and bias are left out: they concern few tokens, and what they do to acceptance is
    learnt online.
    """
    drafting = sampler.for_drafting()
    if not isinstance(drafting, Sampling):
        return Sampling(1.0)
    return replace(
        drafting, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={}
    )
