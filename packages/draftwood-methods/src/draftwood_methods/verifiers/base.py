"""Common parts of lossy rules."""

from dataclasses import replace

from draftwood.sampling import LazyProbs
from draftwood.verifiers.verifier import NodeProbs


def never_one_hot(probs: NodeProbs) -> NodeProbs:
    """The same order of tokens at temperature 0 too, where all probability is on one."""
    if not isinstance(probs, LazyProbs):
        return probs
    return replace(probs, sampler=probs.sampler.for_drafting(), rows={})
