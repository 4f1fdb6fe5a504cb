"""Several answers to one prompt, which is run once."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from draftwood.engine.decoding import Decoding
from draftwood.engine.options import FinishReason
from draftwood.engine.task import Input
from draftwood.interfaces.model import Output, require_ability
from draftwood.stats import Step


class Answers:
    """Texts that go on from the same prompt, as one task: all share each forward pass.

    The first one runs the prompt; the others copy its cache. Each is the text that it would be
    alone, from its own seed.

    Args:
        members: requests for the same target, drafter and prompt that have not begun.

    Raises:
        ValueError: for no members, and for members of different prompts.
    """

    def __init__(self, members: Sequence[Decoding]) -> None:
        if not members:
            raise ValueError("there must be at least one answer")
        self.members = list(members)
        first = self.members[0]
        if any(each.prompt != first.prompt or each.target is not first.target for each in members):
            raise ValueError("answers share a prompt and a target; run other prompts on their own")
        if len(members) > 1:
            require_ability(first.target, "fork", "a prompt with several answers")
        self._asked: list[int] = []  # members whose inputs are being run
        self._counts: list[int] = []  # inputs of each of them

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set once all have ended: ``stop`` where the last one did."""
        if any(each.finish_reason is None for each in self.members):
            return None
        return self.members[-1].finish_reason

    def next_inputs(self) -> list[Input]:
        first = self.members[0]
        if not first.sessions:
            for each in self.members:
                each.open()
        if first.in_prompt:
            self._asked = [0]
            return first.next_inputs()
        self._asked = [n for n, each in enumerate(self.members) if each.finish_reason is None]
        inputs = [self.members[number].next_inputs() for number in self._asked]
        self._counts = [len(own) for own in inputs]
        return [each for own in inputs for each in own]

    def take(self, outputs: Sequence[Output], seconds: float) -> list[tuple[int, Step]] | None:
        """The steps by number of the answer; None while the prompt goes on."""
        if self.members[0].in_prompt:
            return self._take_prompt(outputs[0], seconds)
        share = seconds / len(self._asked)
        ends = pairwise(accumulate(self._counts, initial=0))
        found = []
        for number, (start, end) in zip(self._asked, ends, strict=True):
            step = self.members[number].take(outputs[start:end], share)
            if step is not None:
                found.append((number, step))
            if self.members[number].finish_reason is not None:
                self.members[number].close()
        return found

    def _take_prompt(self, output: Output, seconds: float) -> list[tuple[int, Step]] | None:
        first, share = self.members[0], seconds / len(self.members)
        if first.last_chunk:
            for each in self.members[1:]:
                first.session.fork(each.session)
        steps = [each.take([output], share) for each in self.members]
        for each in self.members:
            if each.finish_reason is not None:
                each.close()
        told = [(number, step) for number, step in enumerate(steps) if step is not None]
        return told or None

    def close(self) -> None:
        for each in self.members:
            each.close()
