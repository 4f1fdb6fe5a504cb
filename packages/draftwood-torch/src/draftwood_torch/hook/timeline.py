"""Texts of a call as ``generate`` writes them: every row gets its next token at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation import BaseStreamer


@dataclass(frozen=True, eq=False)
class Emitted:
    """A token, with its processed scores and raw logits if requested."""

    token: int
    scores: Tensor | None = None
    logits: Tensor | None = None


class Timeline:
    """Collect tokens of rows, some ahead of others, and write them step by step.

    Criteria and streamer are called in Transformers' order.

    Args:
        input_ids: the prompts as given.
        criteria: asked once for every step of all rows, with all rows.
        config: of the call.
        streamer: gets the tokens of every step.
    """

    def __init__(
        self,
        input_ids: Tensor,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: BaseStreamer | None,
    ) -> None:
        self.criteria, self.config, self.streamer = criteria, config, streamer
        self.width, self.length = input_ids.shape[1], input_ids.shape[1]
        self._tokens = input_ids  # the first `length` columns are in use
        self.unfinished = [True] * len(input_ids)
        self.lengths = [0] * len(input_ids)  # of the answers, padding left out
        self.ended = False
        self.scores: tuple[Tensor, ...] = ()
        self.logits: tuple[Tensor, ...] = ()
        self._waiting: list[list[Emitted]] = [[] for _ in self.unfinished]
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)

    def runs(self, number: int) -> bool:
        """True if the row still gets tokens.

        Finished rows do if there is no token to pad with.
        """
        return not self.ended and (self.unfinished[number] or not self._pads)

    def add(self, number: int, emitted: Sequence[Emitted]) -> None:
        """Add tokens to a row."""
        self._waiting[number] += emitted

    def advance(self) -> None:
        """Write all steps for which every row has a token."""
        while not self.ended and all(
            waiting for number, waiting in enumerate(self._waiting) if self.runs(number)
        ):
            self._step()

    @property
    def sequences(self) -> Tensor:
        """Prompts and answers, padded as Transformers pads."""
        return self._tokens[:, : self.length]

    def _step(self) -> None:
        taken = [
            self._waiting[n].pop(0) if self.runs(n) else Emitted(self._pad)
            for n in range(len(self.unfinished))
        ]
        for number in range(len(taken)):
            self.lengths[number] += self.runs(number)
        step = torch.tensor(
            [emitted.token for emitted in taken],
            dtype=self._tokens.dtype,
            device=self._tokens.device,
        )
        # room for as many again, so that a text is not copied for each token
        if self.length == self._tokens.shape[1]:
            self._tokens = torch.cat(
                [self._tokens, torch.zeros_like(self._tokens[:, :1]).expand(-1, self.length + 16)],
                1,
            )
        self._tokens[:, self.length] = step
        self.length += 1
        scores = self._record(taken)
        done = self.criteria(self.sequences, scores)  # type: ignore[arg-type]
        self.unfinished = [
            was and not ends for was, ends in zip(self.unfinished, done.tolist(), strict=True)
        ]
        if self.streamer is not None:
            self.streamer.put(step.cpu())
        self.ended = not any(self.unfinished)

    def _record(self, taken: Sequence[Emitted]) -> tuple[Tensor, ...] | None:
        """Record scores and logits of a call with one row if requested; return the scores for
        criteria.
        """
        (first, *_) = taken
        wanted = self.config.return_dict_in_generate
        if wanted and self.config.output_logits and first.logits is not None:
            self.logits += (first.logits[None],)
        if wanted and self.config.output_scores and first.scores is not None:
            self.scores += (first.scores[None],)
        return self.scores if wanted and self.config.output_scores else None
