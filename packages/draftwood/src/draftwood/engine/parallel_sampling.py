"""Several answers to one prompt, which is run once."""

from collections import abc
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from draftwood.engine.options import FinishReason
from draftwood.engine.sequence import Sequence
from draftwood.engine.task import SequenceStatus, StepBudget
from draftwood.models.model import ModelInput, ModelOutput
from draftwood.models.requirements import require_ability
from draftwood.stats import Step
from draftwood.together import results_together


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
        for each in members:
            each.prefill.is_alone = len(members) == 1
        self._asked: list[tuple[int, Sequence]] = []  # members whose inputs are being run
        self._rows: dict[int, int] = {}  # of each one's last inputs

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set once all have ended: ``stop`` where the last one did."""
        if any(each.finish_reason is None for each in self.members):
            return None
        return self.members[-1].finish_reason

    @property
    def _in_prompt(self) -> bool:
        """True while the prompt is run, once for all."""
        return self.members[0].root < 0

    @property
    def status(self) -> SequenceStatus:
        if self._in_prompt:
            first = self.members[0].status
            copied = 1 if first.cache is None else 1 + first.cache.beside  # the end, for each
            return replace(first, wants=first.wants + (len(self.members) - 1) * copied)
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

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        first = self.members[0]
        if not first.sessions:
            first.open()
            for each in self.members[1:]:
                each.open(with_prefix=False)
                if first.prefill.reused:
                    each.prefill.know(first.prefill.reused)
        if self._in_prompt:
            return first.plan(budget)
        going = [(n, each) for n, each in enumerate(self.members) if each.finish_reason is None]
        begins = not self._asked  # all have learnt the prompt, and none has drafted
        late = [(number, each) for number, each in going if each.prompt_left]
        if late:
            self._share_prompt(late[0][1])
        self._asked = late[:1] or going  # one after the other where all were preempted
        wanted_blocks = sum(each.prefill.wants for _, each in self._asked)
        for _, each in self._asked:
            each.prefill.promised = wanted_blocks - each.prefill.wants
        rows = [self._rows.get(number, 1) for number, _ in self._asked]
        tokens = [each.status.expected_tokens for _, each in self._asked]
        calls = [
            partial(each.plan, replace(budget, shared=beside))
            for (_, each), beside in zip(
                self._asked, budget.shared.among(rows, tokens), strict=True
            )
        ]
        wanted: list[abc.Sequence[ModelInput]] = []
        if begins:  # the others copy what the first one computes
            for _, each in going[1:]:
                each.draft.follow(going[0][1].draft)
            wanted.append(calls.pop(0)())
        if self.status.has_draft_model:
            wanted += results_together(calls)
        else:
            wanted += [call() for call in calls]
        for (number, _), own in zip(self._asked, wanted, strict=True):
            self._rows[number] = sum(each.rows for each in own)
        return [each for own in wanted for each in own]

    def _share_prompt(self, late: Sequence) -> None:
        """Let a text that was preempted begin with the prompt of another, if any has it."""
        length = len(late.prompt)
        if late.session.length:
            return
        for each in self.members:
            if each.finish_reason is None and each.session.length >= length:
                each.session.fork(late.session, length)
                return

    def commit(
        self, outputs: abc.Sequence[ModelOutput], seconds: float
    ) -> list[list[tuple[int, Step]]]:
        """Report the steps by number of the answer; nothing while the prompt goes on."""
        steps = self._read(outputs[0], seconds) if self._in_prompt else self._made(outputs, seconds)
        for number, _ in steps:
            if self.members[number].finish_reason is not None:
                self.members[number].close()
        found = [(number, step) for number, own in steps for step in own]
        return [found] if found else []

    def _read(self, output: ModelOutput, seconds: float) -> list[tuple[int, abc.Sequence[Step]]]:
        """Let all learn of a chunk of the prompt that the first one has run."""
        first = self.members[0]
        asked = first.prefill.asked
        assert asked is not None  # it was planned
        start = first.session.length - len(asked.tokens)
        if not first.prompt_left:
            for each in self.members[1:]:
                first.session.fork(each.session)
        share = seconds / len(self.members)
        return [
            (number, each.prefill.read(asked.tokens, start, output, share))
            for number, each in enumerate(self.members)
        ]

    def _made(
        self, outputs: abc.Sequence[ModelOutput], seconds: float
    ) -> list[tuple[int, abc.Sequence[Step]]]:
        """Let each commit its own."""
        share = seconds / len(self._asked)
        return [
            (number, each.commit([output], share))
            for (number, each), output in zip(self._asked, outputs, strict=True)
        ]

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self.members:
                stack.callback(each.close)
