"""Logits processors for rows that are at different places of their texts."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as of

from draftwood.arrays import as_array
from draftwood.sampling import Context, Sampler, Sampling
from draftwood_torch.tensors import as_tensor

# These depend on a row's tokens and scores alone.
BY_ROW = frozenset(
    (
        of.MinLengthLogitsProcessor,
        of.MinNewTokensLengthLogitsProcessor,
        of.TemperatureLogitsWarper,
        of.TopPLogitsWarper,
        of.TopKLogitsWarper,
        of.TopHLogitsWarper,
        of.MinPLogitsWarper,
        of.TypicalLogitsWarper,
        of.EpsilonLogitsWarper,
        of.EtaLogitsWarper,
        of.NoRepeatNGramLogitsProcessor,
        of.SequenceBiasLogitsProcessor,
        of.NoBadWordsLogitsProcessor,
        of.ForcedBOSTokenLogitsProcessor,
        of.ForcedEOSTokenLogitsProcessor,
        of.InfNanRemoveLogitsProcessor,
        of.ExponentialDecayLengthPenalty,
        of.LogitNormalization,
        of.SuppressTokensAtBeginLogitsProcessor,
        of.SuppressTokensLogitsProcessor,
        of.WatermarkLogitsProcessor,
    )
)

# These also read the number of the row in the batch, or hold a setting for each row.
BY_PLACE = frozenset(
    (
        of.RepetitionPenaltyLogitsProcessor,
        of.EncoderRepetitionPenaltyLogitsProcessor,
        of.EncoderNoRepeatNGramLogitsProcessor,
        of.PrefixConstrainedLogitsProcessor,
    )
)


# These keep something between calls.
STATEFUL: Mapping[type, str] = {
    of.UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale keeps a second cache",
    of.SynthIDTextWatermarkLogitsProcessor: "SynthID's watermark keeps what it has marked",
}


def why_stateful(processors: LogitsProcessorList) -> str | None:
    """Reason why processors of Transformers need every token in turn; None if none does."""
    found = (STATEFUL.get(type(each)) for each in processors)
    reason = next((each for each in found if each), None)
    return None if reason is None else f"{reason} between tokens"


def require_stateless(trusted: Sequence[type]) -> tuple[type, ...]:
    """Classes of processors that are said to keep nothing between calls.

    Raises:
        TypeError: for what is no list of classes.
        ValueError: for a class that is known to keep something.
    """
    classes = tuple(trusted) if isinstance(trusted, Iterable) else None
    if classes is None or not all(isinstance(each, type) for each in classes):
        raise TypeError(
            "stateless must be a list of classes of logits processors, such as [MyProcessor], got"
            f" {trusted!r:.80}"
        )
    for each in classes:
        if each in STATEFUL:
            raise ValueError(
                f"{each.__name__} cannot be stateless: {STATEFUL[each]} between tokens; leave it"
                " out of stateless"
            )
    return classes


def strangers(processors: LogitsProcessorList, trusted: Sequence[type]) -> list[str]:
    """Names of processors that may keep something between calls or read other rows."""
    known = BY_ROW | BY_PLACE | set(trusted)
    return [type(processor).__name__ for processor in processors if type(processor) not in known]


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits processors of a call, applied as if every row were where one of them is.

    Args:
        given: the prompts as given, padding and all.
        processors: all of ``BY_ROW``, ``BY_PLACE`` or trusted.
    """

    given: Tensor
    processors: LogitsProcessorList

    @property
    def alike(self) -> bool:
        """True if a row's place in the batch makes no difference."""
        return all(type(processor) in BY_ROW for processor in self.processors)

    def __call__(
        self,
        numbers: Sequence[int],
        answers: Sequence[Sequence[int]],
        logits: Float[Tensor, "rows vocab"],
    ) -> Float[Tensor, "rows vocab"]:
        """Scores of some rows of the batch; those at the same place of their texts share a call.

        Args:
            numbers: of the row each of ``logits`` belongs to.
            answers: the tokens after the prompt, for each.
            logits: one row for each.
        """
        logits = logits.to(self.given.device, torch.float32, copy=True)
        if not self.processors:
            return logits
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        # a row may ask for several nodes of the same depth
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for place, (number, answer) in enumerate(zip(numbers, answers, strict=True)):
            key = (number, len(answer))
            groups[len(answer), 0 if self.alike else seen[key]].append(place)
            seen[key] += 1
        if len(groups) == 1:
            return self._group(numbers, answers, logits)
        scores = torch.empty_like(logits)
        for places in groups.values():
            some = (
                [numbers[place] for place in places],
                [answers[place] for place in places],
                logits[places],
            )
            scores[places] = self._group(*some)
        return scores

    def _group(
        self, numbers: Sequence[int], answers: Sequence[Sequence[int]], logits: Tensor
    ) -> Tensor:
        new = torch.tensor(
            [list(answer) for answer in answers], dtype=self.given.dtype, device=self.given.device
        )
        rows = torch.tensor(list(numbers), device=self.given.device)
        tokens = torch.cat([self.given[rows], new.view(len(numbers), -1)], dim=1)
        if self.alike or list(numbers) == list(range(len(self.given))):
            return self.processors(tokens, logits)  # type: ignore[arg-type]
        everywhere = torch.cat(
            [self.given, tokens[:1, self.given.shape[1] :].expand(len(self.given), -1)], dim=1
        )
        everywhere[rows] = tokens
        scores = logits[:1].expand(len(self.given), -1).clone()
        scores[rows] = logits
        processors = LogitsProcessorList(_asked(each, numbers) for each in self.processors)
        return processors(everywhere, scores)[rows]  # type: ignore[arg-type]


def _asked(processor: LogitsProcessor, numbers: Sequence[int]) -> LogitsProcessor:
    """Ask the function of ``prefix_allowed_tokens_fn`` for these rows of the batch alone.

    It may know no way on from what the others never wrote.
    """
    if type(processor) is not of.PrefixConstrainedLogitsProcessor:
        return processor
    allowed = processor._prefix_allowed_tokens_fn
    return of.PrefixConstrainedLogitsProcessor(
        lambda number, tokens: allowed(number, tokens) if number in numbers else [0], num_beams=1
    )


@dataclass(frozen=True, eq=False)
class RowSampler:
    """Sampling of one row of the call.

    Args:
        scores: of the call.
        number: of the row.
        prompt: tokens the context has before the answer.
        greedy: take the most probable token of the processed scores instead of sampling.
    """

    scores: Scores
    number: int
    prompt: int
    greedy: bool

    @property
    def reads_context(self) -> bool:
        return bool(self.scores.processors)

    def for_drafting(self) -> Sampler:
        return Sampling(temperature=1.0) if self.greedy else self

    def probs(
        self, logits: Float[np.ndarray, "rows vocab"], contexts: Sequence[Context] = ()
    ) -> Float[np.ndarray, "rows vocab"]:
        answers: Sequence[Sequence[int]] = [[]] * len(logits)
        if self.reads_context:
            answers = [context.tokens[self.prompt :] for context in contexts]
        scores = self.scores([self.number] * len(logits), answers, as_tensor(logits))
        return as_array(chances(scores, self.greedy))


def chances(scores: Float[Tensor, "rows vocab"], greedy: bool) -> Float[Tensor, "rows vocab"]:
    """The distribution to draw from."""
    if greedy:
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    return scores.softmax(-1)
