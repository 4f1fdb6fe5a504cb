"""A text of a server, which tells each block once it is finished."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.engine import Options
from draftwood.models.model import ModelOutput
from draftwood.stats import Step
from draftwood.tokenizer.protocol import AnyTokenizer
from draftwood.tree import DraftTree
from draftwood_diffusion.loop import MaskedText
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.painting import pieces
from draftwood_diffusion.unmasking import Unmasking


@dataclass(frozen=True)
class NothingReused:
    """Reading of a prompt of which no earlier text has left anything."""

    reused: int = 0


class ServedText(MaskedText):
    """A text that runs beside others and tells its finished blocks.

    Args:
        masked, prompt, options, method: as for ``MaskedText``; stop rules of the options end it.
        tokenizer: of the model.
        behind: tokens with which the text goes on.

    Attributes:
        stops: stop rules at work on it.
        prompt_logprobs: none are known, as no pass predicts a prompt.
        prefill: what was reused of the prompt.
    """

    def __init__(
        self,
        masked: MaskedModel,
        prompt: Sequence[int],
        options: Options,
        method: Unmasking,
        tokenizer: AnyTokenizer,
        behind: Sequence[int],
    ) -> None:
        super().__init__(masked, prompt, options, method)
        self.stops = [rule.start() for rule in options.stop_rules]
        self.prompt_logprobs: tuple[None, ...] = ()
        self.prefill, self._tokenizer, self._behind = NothingReused(), tokenizer, behind
        self._told = self._told_runs = 0  # tokens and passes
        self._seconds = {"prefill": 0.0, "target": 0.0}  # of passes not yet told

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> list[object]:
        """Take a pass; report a block that it has finished."""
        super().commit(outputs, seconds)
        self._seconds["prefill" if self._reads_prompt else "target"] += seconds
        new = self.text.tokens[self._told :]
        if not new and self.finish_reason is None:
            return []
        for check in self.stops:
            new = new[: check.add(new)]
        if any(check.stopped for check in self.stops):
            self.text.tokens[self._told :] = new
            self._over = True
        return [self._step(new)]

    def _step(self, new: list[int]) -> Step:
        """The passes of a block as one step, below the token before it."""
        before = [*self.prompt, *self.text.tokens[: self._told]][-1]
        runs, taken = self.text.runs - self._told_runs, self._seconds
        self._told, self._told_runs = len(self.text.tokens), self.text.runs
        self._seconds = dict.fromkeys(taken, 0.0)
        return Step(new, seconds=taken, tree=DraftTree.chain([before]), runs=runs)

    @property
    def details(self) -> dict[str, object]:
        """Facts that ``generate`` tells beside a text, and the characters of each place."""
        told = [{"token": token} for token in self.text.tokens]
        return {**self.text.details(), "pieces": pieces(self._tokenizer, told, self._behind)}
