"""Distinct texts: k texts drawn without replacement, a forward pass a token for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from draftwood import engine
from draftwood.engine import Options
from draftwood.engine.task import KeepsCache
from draftwood.models.model import Model, ModelOutput, ModelSession, PromptInput, extend_in_chunks
from draftwood.models.requirements import require_ability
from draftwood.native.logit_rows import Children
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes.base import RowsAfter
from draftwood.shapes.stochastic_beam import Beams
from draftwood.together import clock


@dataclass(eq=False)
class DistinctText:
    """One of the texts.

    Attributes:
        tokens: of the answer.
        ended: True once the answer has an end token or its greatest length.
        log_prob: of the answer, in nats.
        session: holds the prompt and the answer's tokens but the newest; None once it has ended.
        parent: place of the text that it goes on from, a level before.
    """

    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    log_prob: float = 0.0
    session: ModelSession | None = None
    parent: int = 0


class NewBeams(Beams):
    """Beams that no token of a spent row joins again."""

    def children(self, rows: RowsAfter, width: int) -> Children:
        found = super().children(rows, width)
        chances = list[list[float]]()
        for own, given in zip(found.tokens, found.chances, strict=True):
            new = [token not in own[:place] for place, token in enumerate(own)]
            chances.append(
                [each if is_new else 0.0 for each, is_new in zip(given, new, strict=True)]
            )
        return found._replace(chances=chances)


class DistinctTexts(KeepsCache):
    """Draw different answers to a prompt, each text at most once, as one task of a scheduler.

    Stochastic beam search (Kool et al. 2019, arXiv:1903.06059): the first answer is a draw of the
    model's own text, each further one a draw among the texts that are left. The order of ``texts``
    is that of drawing. A text that has ended stays a beam that goes on with its end for certain.

    Args:
        target: a model whose sessions fork.
        prompt: its tokens.
        options: length, sampling, end tokens and seed; at temperature 0 this is beam search.
        count: texts; fewer come out where the model has fewer.

    Attributes:
        texts: in the order of drawing.
        runs, written: forward passes, and tokens that were drawn, for texts that went out too.
        prefill_seconds: of the passes over the prompt.

    Raises:
        ValueError: for an empty or too long prompt, no texts, a grammar, and a target that cannot
            fork.
    """

    def __init__(self, target: Model, prompt: Sequence[int], options: Options, count: int) -> None:
        require_ability(target, "fork", "distinct answers")
        if not prompt or count < 1:
            raise ValueError(
                f"distinct answers need a prompt and a count of at least 1, got {len(prompt)}"
                f" tokens and {count}"
            )
        if options.constraint is not None:
            raise ValueError("distinct answers follow no grammar or schema; leave it out")
        self.target, self.prompt, self.options = target, list(prompt), options
        self._longest = options.longest(target, prompt)
        self.beams = NewBeams(count, Rng(options.seed, noise=not options.sampler.greedy))
        sampler = options.sampler
        if isinstance(sampler, Sampling) and sampler.greedy:  # what it leaves out bounds the beams
            sampler = replace(sampler, temperature=1.0)
        self.sampler = sampler
        self.texts = [DistinctText()]
        self.runs = self.written = 0
        self.prefill_seconds = 0.0
        self._ran: list[int] = []  # places of the texts whose rows are being computed

    @property
    def finish_reason(self) -> str | None:
        """Set once all have ended."""
        return "stop" if all(each.ended for each in self.texts) else None

    def plan(self, budget: engine.StepBudget) -> Sequence[engine.ModelInput]:
        del budget
        if not self.runs:
            since, self.texts[0].session = clock(), self.target.start()
            if len(self.prompt) > 1:
                extend_in_chunks(self.texts[0].session, self.prompt[:-1])
            self.prefill_seconds = clock() - since
        self._ran = [place for place, each in enumerate(self.texts) if not each.ended]
        asked = list[engine.ModelInput]()
        for place in self._ran:
            text = self.texts[place]
            assert text.session is not None  # it has not ended
            asked.append(PromptInput(text.session, text.tokens[-1:] or self.prompt[-1:], "last"))
        return asked

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> list[object]:
        """Draw the next level; reports nothing before the end."""
        if not self.runs:
            self.prefill_seconds += seconds
        self.runs += 1
        given = dict(zip(self._ran, outputs, strict=True))
        places = range(len(self.texts))
        rows = np.concatenate([self._row(place, given.get(place)) for place in places])
        tokens, parents = self.beams(rows)
        beams = self.beams
        level = zip(tokens, parents, beams.log_prob, beams.perturbed, strict=True)
        kept = [each for each in level if each[3] > -np.inf]
        beams.log_prob = [each[2] for each in kept]
        beams.perturbed = [each[3] for each in kept]
        self._go_on([each[:3] for each in kept])
        return []

    def _row(self, place: int, output: ModelOutput | None) -> np.ndarray:
        """Probabilities of what comes next [1 vocab]; behind an end the same token for certain."""
        text = self.texts[place]
        if output is not None:
            context = Context([*self.prompt, *text.tokens], len(self.prompt))
            return self.sampler.probs(output.rows, [context])
        row = np.zeros((1, self.target.vocab_size), np.float32)
        row[0, text.tokens[-1]] = 1.0
        return row

    def _go_on(self, drawn: Sequence[tuple[int, int, float]]) -> None:
        """Let the texts go on with tokens, given with the place before them and their chances."""
        before, self.texts = self.texts, []
        for token, parent, log_prob in drawn:
            old = before[parent]
            self.written += not old.ended
            tokens = old.tokens if old.ended else [*old.tokens, token]
            text = DistinctText(tokens, old.ended, log_prob)
            full = len(text.tokens) >= self._longest
            text.ended = old.ended or full or token in self.options.stop_tokens
            if not text.ended:
                text.parent = parent
            self.texts.append(text)
        self._share_sessions(before)

    def _share_sessions(self, before: Sequence[DistinctText]) -> None:
        """Give each text that goes on a session of its own; the last one takes its parent's."""
        going = [each for each in self.texts if not each.ended]
        for place, text in enumerate(going):
            session = before[text.parent].session
            assert session is not None  # it went on
            shared = any(other.parent == text.parent for other in going[place + 1 :])
            text.session = session.fork() if shared else session
        taken = [text.session for text in going]
        for old in before:
            if old.session is not None and not any(old.session is each for each in taken):
                old.session.close()

    def close(self) -> None:
        for text in self.texts:
            if text.session is not None:
                text.session.close()
                text.session = None
