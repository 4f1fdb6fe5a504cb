"""Several answers to one prompt, which is run once."""

from collections import abc
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from draftwood.engine.options import FinishReason
from draftwood.engine.sequence import Sequence
from draftwood.engine.task import Input, SequenceStatus, StepBudget
from draftwood.interfaces.model import PromptInput, require_ability
from draftwood.sampling import SharedPass
from draftwood.stats import Step
from draftwood.together import raise_first, run_together


class ParallelSampling:
    """Texts that go on from the same prompt, as one task: all share each forward pass.

    The first one runs the prompt; the others copy its cache, and so do the sessions of a draft
    model. Each is the text that it would be alone, from its own seed.

    Args:
        members: requests for the same target, drafter and prompt that have not begun.

    Raises:
        ValueError: for no members, and for members of different prompts.
    """

    def __init__(self, members: abc.Sequence[Sequence]) -> None:
        if not members:
            raise ValueError("there must be at least one answer")
        self.members = list(members)
        first = self.members[0]
        if any(each.prompt != first.prompt or each.target is not first.target for each in members):
            raise ValueError("answers share a prompt and a target; run other prompts on their own")
        if len(members) > 1:
            require_ability(first.target, "fork", "a prompt with several answers")
        self._asked: list[tuple[int, Sequence]] = []  # members whose inputs are being run

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set once all have ended: ``stop`` where the last one did."""
        if any(each.finish_reason is None for each in self.members):
            return None
        return self.members[-1].finish_reason

    @property
    def _in_prompt(self) -> bool:
        """Whether the prompt is run, once for all."""
        return self.members[0].root < 0

    @property
    def status(self) -> SequenceStatus:
        if self._in_prompt:
            return self.members[0].status
        each = [member.status for member in self.members if member.finish_reason is None]
        return SequenceStatus(
            sum(one.prompt_left for one in each),
            sum(one.length for one in each),
            sum(one.expected_tokens for one in each),
            sum(one.wants for one in each),
            self.members[0].prefill.cache,
            any(one.has_draft_model for one in each),
        )

    def preempt(self) -> bool:
        # a sum, not any(): every answer gives its share back
        return sum(each.preempt() for each in self.members if each.finish_reason is None) > 0

    def plan(self, turn: StepBudget) -> list[Input]:
        first = self.members[0]
        if not first.sessions:
            first.open()
            for each in self.members[1:]:
                each.open(with_prefix=False)
                if first.prefill.reused:
                    each.prefill.know(each.draft, first.prefill.reused)
        if self._in_prompt:
            return first.plan(turn)
        going = [(n, each) for n, each in enumerate(self.members) if each.finish_reason is None]
        begins = not self._asked  # all have learnt the prompt, and none has drafted
        late = [(number, each) for number, each in going if each.prompt_left]
        if late:
            self._share_prompt(late[0][1])
        self._asked = late[:1] or going  # one after the other where all gave way
        others = len(self._asked) - 1
        shared = SharedPass(turn.shared.rows + others, turn.shared.tokens + others)
        calls = [partial(each.plan, replace(turn, shared=shared)) for _, each in self._asked]
        wanted: list[list[Input]] = []
        if begins:  # the others copy what the first one computes
            for _, each in going[1:]:
                each.draft.follow(going[0][1].draft)
            wanted.append(calls.pop(0)())
        if self.status.has_draft_model:
            wanted += raise_first(run_together(calls))
        else:
            wanted += [call() for call in calls]
        return [each for own in wanted for each in own]

    def _share_prompt(self, late: Sequence) -> None:
        """Let a text that gave way begin with the prompt of another, if any has it."""
        length = len(late.prompt)
        if late.session.length:
            return
        for each in self.members:
            if each.finish_reason is None and each.session.length >= length:
                each.session.fork(late.session, length)
                return

    def take(self, outputs: abc.Sequence[Any], seconds: float) -> list[tuple[int, Step]] | None:
        """The steps by number of the answer; None while the prompt goes on."""
        first, told = self.members[0], []
        if self._in_prompt:  # what came of it is news for all
            given = first.asked
            assert isinstance(given, PromptInput)
            start = first.session.length - len(given.tokens)
            if not first.prompt_left:
                for each in self.members[1:]:
                    first.session.fork(each.session)
            share = seconds / len(self.members)
            steps = [
                (number, each.take_prompt(given.tokens, start, outputs[0], share))
                for number, each in enumerate(self.members)
            ]
        else:
            steps = [
                (number, each.take([output], seconds / len(self._asked)))
                for (number, each), output in zip(self._asked, outputs, strict=True)
            ]
        for number, step in steps:
            if step is not None:
                told.append((number, step))
            if self.members[number].finish_reason is not None:
                self.members[number].close()
        return told or None

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self.members:
                stack.callback(each.close)
