"""Whole steps in one call of the library."""

from collections import abc
from typing import TYPE_CHECKING

from draftwood.engine.executors.executor import Stopwatch, TextHolder
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.task import StepBudget
from draftwood.models.model import ModelInput, ModelOutput
from draftwood.models.requirements import Stepper
from draftwood.sampling import undrawable
from draftwood.stats import Step

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence


class NativeSteps(TextHolder):
    """Lets the library draft, run, verify and learn in one call; implements ``Executor``.

    Steps that the drafter leaves to Python are made in turn.
    """

    def __init__(self, text: "Sequence", stepper: Stepper) -> None:
        super().__init__(text)
        self.stepper, self.in_turn = stepper, InTurn(text)
        self._rows = 1  # of the last step
        # tokens before which end tokens are banned, which the library does not do
        self._least = getattr(text.options.sampler, "min_tokens", 0)

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        text = self.text
        if text.emitted < self._least:
            return self.in_turn.plan(budget)
        context = text.context_for(budget)
        draft = text.draft.native(context)
        if draft is None:
            return self.in_turn.plan(budget)
        return [self.stepper.step(draft, text.root, text.rng, context.max_draft_len, self._rows)]

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> Step | None:
        made = outputs[0].step
        if made is None:
            return self.in_turn.commit(outputs, seconds)
        text, path = self.text, made.path
        if made.undrawable is not None:
            raise undrawable(made.undrawable, text.emitted + len(path))
        watch = Stopwatch(made.seconds)
        self._rows = len(made.tokens)
        text.rng.skip(made.draws, made.uniforms)
        accepted = [made.tokens[node] for node in path]
        text.keep(path, accepted, made.next_token)
        tree = text.draft.commit_native(made)
        text.draft.observe(made, outputs[0].hidden)
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
