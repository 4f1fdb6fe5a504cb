"""A text whose prompt is told with log-probabilities."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.engine import Decoding, FinishReason, Input, PromptChunk
from draftwood.interfaces.model import Output, chunks
from draftwood.stats import TokenLogprob

ROWS = 64  # whose logits are held at once


class PromptEcho:
    """Runs a text as it would run alone, and reads the prompt's log-probabilities on the way.

    Args:
        decoding: the text; it has not begun.
        count: likeliest tokens told at each place of the prompt.

    Attributes:
        prompt: the log-probability of each token of the prompt so far; the first has none.
    """

    def __init__(self, decoding: Decoding, count: int) -> None:
        self.decoding, self.count = decoding, count
        self.prompt: list[TokenLogprob | None] = [None]
        self._chunk: PromptChunk | None = None  # that the text asked for
        self._left: list[Sequence[int]] = []  # of it
        self._outputs: list[Output] = []
        self._seconds = 0.0

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.decoding.finish_reason

    def next_inputs(self, alone: bool = False) -> Sequence[Input]:
        if self._left:
            return [self._next_rows()]
        inputs = self.decoding.next_inputs(alone)
        first = inputs[0] if inputs else None
        if not isinstance(first, PromptChunk):
            return inputs
        self._chunk, self._left = first, list(chunks(first.tokens, ROWS))
        return [self._next_rows()]

    def _next_rows(self) -> PromptChunk:
        assert self._chunk is not None
        return replace(self._chunk, tokens=self._left[0], keep="all")

    def take(self, outputs: Sequence[Any], seconds: float) -> Any:
        if self._chunk is None:
            return self.decoding.take(outputs, seconds)
        (output,) = outputs
        self._left.pop(0)
        self._read(output.logits)
        last = output.logits if self._chunk.keep == "all" else output.logits[-1:].clone()
        self._outputs.append(Output(last, output.hidden))
        self._seconds += seconds
        if self._left:
            return None
        whole, spent = self._whole(), self._seconds
        self._chunk, self._outputs, self._seconds = None, [], 0.0
        return self.decoding.take([whole], spent)

    def _read(self, logits: Float[Tensor, "rows vocab"]) -> None:
        prompt, first = self.decoding.prompt, len(self.prompt)
        wanted = prompt[first : first + len(logits)]
        if not wanted:
            return
        rows = logits[: len(wanted)].float().cpu().log_softmax(-1)
        best = rows.topk(min(self.count, rows.shape[-1]), dim=-1)
        for token, row, top, values in zip(wanted, rows, best.indices, best.values, strict=True):
            likeliest = dict(zip(top.tolist(), values.tolist(), strict=True))
            self.prompt.append(TokenLogprob(token, float(row[token]), likeliest))

    def _whole(self) -> Output:
        """What one pass over the chunk would have given."""
        assert self._chunk is not None
        parts = self._outputs
        logits = [part.logits for part in parts]
        hidden = {
            layer: torch.cat([part.hidden[layer] for part in parts]) for layer in parts[0].hidden
        }
        return Output(torch.cat(logits) if self._chunk.keep == "all" else logits[-1], hidden)

    def close(self) -> None:
        self.decoding.close()
