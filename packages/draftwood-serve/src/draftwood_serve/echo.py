"""Texts whose prompt is echoed with log-probabilities."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from draftwood import engine
from draftwood.engine import ModelInput, SequenceStatus, StepBudget
from draftwood.engine.logprobs import token_logprobs
from draftwood.models.model import ModelOutput, PromptInput
from draftwood.stats import Step, TokenLogprob

ROWS = 64  # whose logits are held at once


class PromptEcho:
    """Run a text as usual, and record the prompt's log-probabilities.

    Args:
        sequence: the text; it has not begun.
        count: most probable tokens to report at each place of the prompt.

    Attributes:
        prompt: the log-probability of each token of the prompt so far; the first has none.
    """

    def __init__(self, sequence: engine.Sequence, count: int) -> None:
        self.sequence, self.count = sequence, count
        self.prompt: list[TokenLogprob | None] = [None]
        self._asked: PromptInput | None = None  # the chunk that is being run

    @property
    def finish_reason(self) -> str | None:
        return self.sequence.finish_reason

    @property
    def status(self) -> SequenceStatus:
        return self.sequence.status

    def preempt(self) -> bool:
        return self.sequence.preempt()

    def plan(self, budget: StepBudget) -> Sequence[ModelInput]:
        rows = min(budget.prompt_rows, ROWS)
        inputs = self.sequence.plan(replace(budget, prompt_rows=rows))
        chunks = [each for each in inputs if isinstance(each, PromptInput)]
        self._asked = chunks[0] if chunks else None
        return [replace(each, keep="all") for each in chunks] or inputs

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> Step | None:
        asked = self._asked
        if asked is None:
            return self.sequence.commit(outputs, seconds)
        (output,) = outputs
        self._read(output.rows, self.sequence.session.length - len(asked.tokens))
        wanted = {"all": output.logits, "last": output.logits[-1:], "none": output.logits[:0]}
        return self.sequence.commit([ModelOutput(wanted[asked.keep], output.hidden)], seconds)

    def _read(self, logits: Float[np.ndarray, "rows vocab"], first: int) -> None:
        """Record next-token logits of the prompt's tokens from ``first`` on."""
        prompt = self.sequence.prompt
        wanted = prompt[first + 1 : first + 1 + len(logits)]
        if not wanted or len(self.prompt) > first + 1:  # recorded already
            return
        self.prompt += token_logprobs(wanted, logits[: len(wanted)], self.count)

    def close(self) -> None:
        self.sequence.close()
