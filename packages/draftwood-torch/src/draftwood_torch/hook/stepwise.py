"""Transformers' own loop, token by token, with the draws of this library.

It serves calls in which drafts cannot help.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput

from draftwood.arrays import as_array
from draftwood.rng import Rng
from draftwood.stats import Stats
from draftwood_torch.hook.call import Call


def decode_stepwise(call: Call) -> tuple[Tensor | GenerateDecoderOnlyOutput, Stats]:
    """Run the call step by step; return the output of ``generate`` and the stats.

    Sampled texts equal those with drafts.
    """
    config = call.config
    draws = (
        _Draws([Rng(seed) for seed in call.seeds], bool(config.output_scores))
        if config.do_sample
        else None
    )
    watched = _Watched(
        call.criteria, len(call.input_ids), None if draws is None else lambda: draws.scores
    )
    output = call.model._sample(  # type: ignore[attr-defined]
        call.input_ids,
        logits_processor=LogitsProcessorList(
            [*call.processors, *([] if draws is None else [draws])]
        ),
        stopping_criteria=watched,
        generation_config=config,
        streamer=call.streamer,
        **call.inputs,
    )
    if draws is not None and config.return_dict_in_generate and config.output_scores:
        output.scores = draws.scores
    return output, watched.stats


class _Draws(LogitsProcessor):
    """Last processor: draws a token for every row and masks all others."""

    def __init__(self, rngs: Sequence[Rng], keep: bool) -> None:
        self.rngs, self.keep = rngs, keep
        self.scores: tuple[Tensor, ...] = ()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        if self.keep:
            self.scores += (scores,)
        probs = as_array(scores.softmax(-1))
        tokens = [rng.draw(row) for rng, row in zip(self.rngs, probs, strict=True)]
        drawn = torch.tensor(tokens, device=scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(-1, drawn, 0.0)


class _Watched(StoppingCriteriaList):
    """Stopping criteria of a call that also count its steps."""

    def __init__(
        self,
        criteria: StoppingCriteriaList,
        rows: int,
        scores: Callable[[], tuple[Tensor, ...]] | None,
    ) -> None:
        super().__init__(criteria)
        self._scores = scores
        self._running = torch.ones(rows, dtype=torch.bool)
        self._since = time.perf_counter()
        self.stats = Stats()

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:  # type: ignore[override]
        first, now = self.stats.prefills == 0, time.perf_counter()
        running = int(self._running.sum())
        self.stats.seconds["prefill" if first else "target"] += now - self._since
        self.stats.tokens += running
        self.stats.prefills += running if first else 0
        self.stats.target_runs += 0 if first else running
        self._since = now
        if scores is not None and self._scores is not None:
            scores = self._scores()
        done = super().__call__(input_ids, scores, **options)  # type: ignore[arg-type]
        self._running &= ~done.cpu()
        return done
