"""Choice of the executor of a text."""

from dataclasses import replace
from typing import TYPE_CHECKING

from draftwood.drafters.drafter import DraftRequest
from draftwood.engine.executors.executor import Executor
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.executors.native import NativeSteps
from draftwood.native.step import StepCaller
from draftwood.rng import Rng
from draftwood.rules import executor_of
from draftwood.sampling import Sampling, is_masked
from draftwood.verifiers.verifier import library_rule, writes_same_text

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence
    from draftwood.native.filters import Filters


def start_executor(text: "Sequence") -> Executor:
    """Start the drafter of a text, and choose what makes its steps.

    Texts under a grammar are drafted in turn, as are those whose randomness is enumerated. A rule
    of a package that brings an executor makes the steps.
    """
    sampler, overlap = text.options.sampler, text.drafter.overlap
    plain = getattr(sampler, "unmasked", sampler)
    own = executor_of(getattr(plain, "rules", None))
    if own is None and overlap is not None and type(text.rng) is Rng and not is_masked(sampler):
        from draftwood.engine.executors.overlapped import Overlapped

        return Overlapped(text, overlap)
    request = DraftRequest(
        sampler,
        text.rng,
        text.session,
        text.sessions,
        text.options.predicted,
        writes_same_text(text.verifier, text.drafter.draws, sampler.greedy),
    )
    text.draft = text.drafter.start(request)
    if text.options.watch is not None:
        text.draft = text.options.watch(text.draft, request)
    try:
        if own is not None:
            return own(text)
        caller = _caller(text)
    except BaseException:
        text.draft.close()
        raise
    return InTurn(text) if caller is None else NativeSteps(text, caller)


def _caller(text: "Sequence") -> StepCaller | None:
    """Look for what makes whole steps, where nothing is wanted that only Python can do.

    Wanted is a rule that it has, on logits that options of sampling alone change.
    """
    options, sampler = text.options, text.options.sampler
    if type(sampler) is not Sampling or not sampler.in_steps or type(text.rng) is not Rng:
        return None
    if options.logprobs is not None or options.bound is not None:
        return None
    rule = library_rule(text.verifier)
    if rule is None or not text.drafter.draws <= text.verifier.exact_for:
        return None
    if sampler.greedy and rule not in ("match", "rejection"):
        return None
    sampler.require_biases(text.session.model.vocab_size)
    if not getattr(text.session.model, "makes_steps", False):
        return None
    key = text.rng.next_draw[0]
    return StepCaller(key, sampler.temperature, rule, _filters(sampler))


def _filters(sampler: Sampling) -> "Filters | None":
    """Rules besides the temperature; ``min_tokens`` is kept where steps are planned."""
    any_length = replace(sampler, min_tokens=0) if sampler.min_tokens else sampler
    if any_length.only_temperature:
        return None
    from draftwood.native.filters import Filters

    return Filters(sampler)
