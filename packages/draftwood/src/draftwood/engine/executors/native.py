"""Whole steps in one call of the library, or several in a row."""

from collections import abc
from typing import TYPE_CHECKING

from draftwood.engine.executors.executor import Stopwatch, TextHolder
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.task import StepBudget
from draftwood.models.model import ModelInput, ModelOutput, StepInput
from draftwood.native.step import (
    PLACES_OF_RUN,
    SINGLE,
    NativeDraft,
    RunLimits,
    StepCaller,
)
from draftwood.sampling import undrawable
from draftwood.stats import Step

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence


IN_A_ROW = 8
"""Most steps of a row."""


class NativeSteps(TextHolder):
    """Lets the library draft, run, verify and learn in one call; implements ``Executor``.

    Of texts that end at no string it makes several steps in a row. Steps that the drafter leaves to
    Python are made in turn.
    """

    def __init__(self, text: "Sequence", caller: StepCaller) -> None:
        super().__init__(text)
        self.caller, self.in_turn = caller, InTurn(text)
        self._rows = 1  # of the last step
        # tokens before which end tokens are banned, which the library does not do
        self._least = getattr(text.options.sampler, "min_tokens", 0)

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        text = self.text
        if text.emitted < self._least or not text.prefill.has_tree_room:
            return self.in_turn.plan(budget)
        context = text.context_for(budget)
        draft = text.draft.native(context)
        if draft is None:
            return self.in_turn.plan(budget)
        limits = self._limits(draft, budget)
        place, uniforms = text.rng.next_draw[1], text.rng.coming(limits.steps * draft.uniforms)
        self.caller.prepare(draft, text.root, place, context.max_draft_len, uniforms, limits)
        self.caller.prepare_text(context.tokens, context.prompt)
        return [StepInput(text.session, self.caller, draft.most, draft.hidden, self._rows)]

    def _limits(self, draft: NativeDraft, budget: StepBudget) -> RunLimits:
        """Bound the steps that the library makes before the text is told."""
        text, options = self.text, self.text.options
        if draft.in_a_row == 1 or any(check.may_stop for check in text.stops):
            return SINGLE
        if not self._has_blocks(1 + draft.most + PLACES_OF_RUN, 1 + budget.shared.rows):
            return SINGLE
        most, is_watched = min(draft.in_a_row, IN_A_ROW), options.watch is not None
        return RunLimits(most, text.tokens_left, text.tell_within, options.stop_tokens, is_watched)

    def _has_blocks(self, places: int, texts: int) -> bool:
        """True if the cache, where it has a limit, has blocks for so many places of each text."""
        cache = self.text.prefill.cache
        free = None if cache is None else cache.free_blocks
        return free is None or texts * self.text.session.wants(places) <= free

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> abc.Sequence[Step]:
        made = outputs[0].steps
        if not made:
            return self.in_turn.commit(outputs, seconds)
        last = len(made) - 1
        return [
            self._commit(outputs[0], number, is_last=number == last) for number in range(len(made))
        ]

    def _commit(self, output: ModelOutput, number: int, is_last: bool) -> Step:
        text, made = self.text, output.steps[number]
        path = made.path
        if made.undrawable is not None:
            raise undrawable(made.undrawable, text.emitted + len(path))
        watch = Stopwatch(made.seconds)
        self._rows = len(made.tokens)
        text.rng.skip(made.draws, made.uniforms)
        accepted = [made.tokens[node] for node in path]
        if is_last:  # the library has put the others' paths in place
            text.session.commit(path)
        text.go_on(accepted, made.next_token)
        tree = text.draft.commit_native(made)
        text.draft.observe(made, output.hidden_of(number))
        if made.is_head_broken:
            from draftwood.engine.undrafted import without_drafts

            text.draft = without_drafts(text.drafter)
        tokens = text.emit([*accepted[1:], made.next_token])
        kept = min(len(path) - 1, len(tokens))
        watch.lap("verify")
        return Step(
            tokens,
            len(tree) - 1,
            kept,
            watch.seconds,
            tree,
            tuple(path[1 : 1 + kept]),
            drafter_seconds=made.drafter_seconds,
        )

    def preempt(self) -> None:
        """Nothing is kept in the cache between two steps."""

    def close(self) -> None:
        self.in_turn.close()
