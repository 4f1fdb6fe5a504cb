"""Texts whose prompt is echoed with log-probabilities."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from draftwood.engine import Decoding, FinishReason, Input
from draftwood.engine.logprobs import token_logprobs
from draftwood.engine.task import Standing, Turn
from draftwood.interfaces.model import Output, PromptInput
from draftwood.stats import TokenLogprob

ROWS = 64  # whose logits are held at once


class PromptEcho:
    """Run a text as usual, and record the prompt's log-probabilities.

    Args:
        decoding: the text; it has not begun.
        count: most probable tokens to report at each place of the prompt.

    Attributes:
        prompt: the log-probability of each token of the prompt so far; the first has none.
    """

    def __init__(self, decoding: Decoding, count: int) -> None:
        self.decoding, self.count = decoding, count
        self.prompt: list[TokenLogprob | None] = [None]

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.decoding.finish_reason

    @property
    def standing(self) -> Standing:
        return self.decoding.standing

    def give_way(self) -> bool:
        return self.decoding.give_way()

    def next_inputs(self, turn: Turn) -> Sequence[Input]:
        rows = min(turn.prompt_rows, ROWS)
        inputs = self.decoding.next_inputs(replace(turn, prompt_rows=rows))
        return [
            replace(each, keep="all") if isinstance(each, PromptInput) else each for each in inputs
        ]

    def take(self, outputs: Sequence[Any], seconds: float) -> Any:
        asked = self.decoding.asked
        if not isinstance(asked, PromptInput):
            return self.decoding.take(outputs, seconds)
        (output,) = outputs
        self._read(output.logits, self.decoding.session.length - len(asked.tokens))
        wanted = {"all": output.logits, "last": output.logits[-1:], "none": output.logits[:0]}
        return self.decoding.take([Output(wanted[asked.keep], output.hidden)], seconds)

    def _read(self, logits: Float[Tensor, "rows vocab"], first: int) -> None:
        """Record next-token logits of the prompt's tokens from ``first`` on."""
        prompt = self.decoding.prompt
        wanted = prompt[first + 1 : first + 1 + len(logits)]
        if not wanted or len(self.prompt) > first + 1:  # recorded already
            return
        self.prompt += token_logprobs(wanted, logits[: len(wanted)], self.count)

    def close(self) -> None:
        self.decoding.close()
