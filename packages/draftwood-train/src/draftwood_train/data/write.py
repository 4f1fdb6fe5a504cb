"""Write many texts at once by plain decoding, each the same as alone.

Each job takes a slot of the model's cache and asks for one text after the other; what the cache
holds already of the next text, such as the system's message or the prompt, is not run again. All
slots share each forward pass. Over ``engine.Scheduler`` this saves what serves requests of all
kinds, and it keeps the states of all places.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, TypeVar

import torch

from draftwood.models.model import (
    ForwardInput,
    Model,
    ModelSession,
    extend_in_chunks,
)
from draftwood.rng import Rng
from draftwood.tree import DraftTree
from draftwood_train.data.states import (
    PlaceStates,
    extend,
    in_bytes,
    rows_of,
    spread_of,
    stacked,
    top_tokens,
)
from draftwood_train.data.texts import TopTokens

Outcome = TypeVar("Outcome")
LONGEST_PERIOD, LEAST_CIRCLED = 64, 24
"""Tokens."""


@dataclass(frozen=True)
class Request:
    """Text to continue until it ends or repeats itself.

    Attributes:
        tokens: it begins with.
        max_new_tokens: most to write.
        ends: tokens that end the text; they are part of it.
        seed: of the draws at temperature 1; None takes the likeliest tokens.
        keeps_states: whether what the target computes on the way is wanted.
    """

    tokens: tuple[int, ...]
    max_new_tokens: int
    ends: frozenset[int]
    seed: int | None
    keeps_states: bool


@dataclass(frozen=True, eq=False)
class Written:
    """A request's text.

    Attributes:
        tokens: all of it.
        start: place of the first one that was written.
        states: at all places, where they were asked for.
        top: the target's likeliest tokens from the place before ``start`` on, likewise.
    """

    tokens: tuple[int, ...]
    start: int
    states: PlaceStates | None
    top: TopTokens | None = None


_Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Likeliest tokens after a place, their probabilities, and the logits' normaliser."""

Job = Generator[Request, Written, Outcome]
"""Generator that yields requests, is sent each text, and returns its result."""


def goes_round(tokens: Sequence[int], start: int) -> bool:
    """True if the newest tokens from ``start`` on repeat a piece three times or more, over
    ``LEAST_CIRCLED`` tokens.

    A small model's greedy text often ends so; more of it is useless for training.
    """
    new, newest = len(tokens) - start, tokens[-1]
    for period in range(1, min(LONGEST_PERIOD, new // 3) + 1):
        if tokens[-1 - period] != newest:
            continue
        span = max(3 * period, LEAST_CIRCLED)
        if span <= new:
            tail = tokens[len(tokens) - span :]
            if tail[period:] == tail[:-period]:
                return True
    return False


@dataclass(eq=False)
class _Slot:
    """A sequence of the model and the job that it works for."""

    session: ModelSession
    begins: int  # row of its first place among the states of all slots
    number: int = -1
    job: "Job | None" = None
    request: Request | None = None
    rng: Rng | None = None
    tokens: list[int] = field(default_factory=list)  # of the text; some may not have been run yet
    ran: list[int] = field(default_factory=list)  # tokens in the cache
    top: list["_Row"] = field(default_factory=list)  # from the place before the first new token
    circles: bool = False  # the text repeats itself

    @property
    def is_done(self) -> bool:
        """True if nothing more is to be written."""
        assert self.request is not None
        new = len(self.tokens) - len(self.request.tokens)
        is_over = new > 0 and self.tokens[-1] in self.request.ends
        return is_over or new == self.request.max_new_tokens or self.circles

    @property
    def is_in_answer(self) -> bool:
        """True if the newest token that ran is the prompt's last one or comes after it."""
        assert self.request is not None
        return self.request.keeps_states and len(self.ran) >= len(self.request.tokens)

    def begin(self, request: Request) -> None:
        self.request = request
        self.rng = None if request.seed is None else Rng(request.seed)
        self.tokens, self.circles, self.top = list(request.tokens), False, []
        pairs = zip(self.tokens[:-1], self.ran, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.session.rewind(len(self.ran) - common)
        del self.ran[common:]

    def take(self, logits: torch.Tensor, row: int, best: int) -> None:
        """Choose the next token by the logits after the newest one, of which ``best`` is first."""
        assert self.request is not None
        if self.rng is not None:
            best = self.rng.draw_from_logits(logits[row : row + 1].float().cpu().numpy(), 0, 1.0)
        self.tokens.append(best)
        self.circles = goes_round(self.tokens, len(self.request.tokens))


class BatchWriter:
    """Writer of the texts that jobs request.

    Args:
        model: the target.
        at_once: texts in progress at a time.
        longest: most tokens of a text.
        layers: whose states are kept; None keeps none.
        top: how many of the likeliest tokens at each place of an answer are kept.
    """

    def __init__(
        self,
        model: Model,
        at_once: int,
        longest: int,
        layers: tuple[int, ...] | None,
        top: int = 0,
    ) -> None:
        self.model, self.layers, self.top = model, layers, top
        self.tokens = 0  # written so far, of prompts too
        self._longest, self._at_once = longest, at_once
        self._states: PlaceStates | None = None  # of all places of all slots
        if layers is not None:
            shape = (at_once * longest, len(layers))
            self._states = PlaceStates(
                torch.zeros(*shape, model.hidden_size, dtype=torch.int8),
                torch.zeros(*shape, dtype=torch.float32),
                torch.zeros(shape[0], dtype=torch.float32),
                spread_of(model, layers),
            )

    def run(
        self, jobs: Iterator[tuple[int, Job[Outcome]]]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Number and outcome of each job, in the order in which they end.

        The next job is started as soon as there is room for it.
        """
        with ExitStack() as stack, torch.no_grad():
            free: list[_Slot] = []
            for number in range(self._at_once):
                session = self.model.start()
                stack.callback(session.close)
                free.append(_Slot(session, number * self._longest))
            running: list[_Slot] = []
            while True:
                while free and (job := next(jobs, None)) is not None:
                    slot = free.pop()
                    slot.number, slot.job = job
                    running.append(slot)
                    yield from self._ask(slot, None, running, free)
                if not running:
                    return
                self._step(running)
                for slot in [slot for slot in running if self._is_whole(slot)]:
                    yield from self._ask(slot, self._written(slot), running, free)

    def _is_whole(self, slot: _Slot) -> bool:
        """True if nothing is left to write or, where states or places are wanted, to run."""
        assert slot.request is not None
        wants_last = slot.request.keeps_states and (self.layers is not None or self.top > 0)
        return slot.is_done and (not wants_last or len(slot.ran) == len(slot.tokens))

    def _ask(
        self, slot: _Slot, written: Written | None, running: list[_Slot], free: list[_Slot]
    ) -> Iterator[tuple[int, Any]]:
        """Send a text to its job and get its next request; yield number and outcome if it ended."""
        assert slot.job is not None
        try:
            slot.begin(next(slot.job) if written is None else slot.job.send(written))
        except StopIteration as end:
            running.remove(slot)
            free.append(slot)
            yield slot.number, end.value

    def _written(self, slot: _Slot) -> Written:
        assert slot.request is not None
        states = None
        if slot.request.keeps_states and self._states is not None:
            held = self._states
            places = slice(slot.begins, slot.begins + len(slot.tokens))
            parts = (held.codes, held.scales, held.log_normalizer)
            states = PlaceStates(*(part[places].clone() for part in parts), spread=held.spread)
        top = _joined(slot.top) if slot.request.keeps_states and self.top else None
        return Written(tuple(slot.tokens), len(slot.request.tokens), states, top)

    def _step(self, slots: list[_Slot]) -> None:
        """Extend each slot by one token: prompts in passes of their own, others together."""
        ready = []
        for slot in slots:
            if len(slot.tokens) - len(slot.ran) == 1 and slot.ran:
                ready.append(slot)
            else:
                self._prefill(slot)
        if not ready:
            return
        outputs = self.model.forward(
            [
                ForwardInput(
                    slot.session, DraftTree.of(slot.tokens[-1:], [-1]), hidden=self.layers or ()
                )
                for slot in ready
            ]
        )
        for slot in ready:
            slot.session.commit([0])
        logits = rows_of(outputs)
        found = top_tokens(logits, max(self.top, 1))
        if self.layers is not None:
            places = torch.tensor([slot.begins + len(slot.ran) for slot in ready])
            self._keep(places, stacked(outputs, self.layers), found[2])
        for slot in ready:
            slot.ran.append(slot.tokens[-1])
        self._go_on(ready, logits, found)
        self.tokens += len(ready)

    def _prefill(self, slot: _Slot) -> None:
        missing = slot.tokens[len(slot.ran) :]
        if self.layers is not None:
            states, normalizers, last = extend(slot.session, missing, self.layers)
            first = slot.begins + len(slot.ran)
            self._keep(slice(first, first + len(missing)), states, normalizers)
        else:
            last = extend_in_chunks(slot.session, missing).logits[-1].cpu()
        slot.ran = list(slot.tokens)
        self.tokens += len(missing)
        self._go_on([slot], last[None], top_tokens(last[None], max(self.top, 1)))

    def _keep(
        self, places: "slice | torch.Tensor", states: torch.Tensor, normalizers: torch.Tensor
    ) -> None:
        """Store the states of these places."""
        assert self._states is not None
        new = in_bytes(states, normalizers, self._states.spread)
        self._states.codes[places] = new.codes
        self._states.scales[places] = new.scales
        self._states.log_normalizer[places] = new.log_normalizer

    def _go_on(self, slots: Sequence[_Slot], logits: torch.Tensor, found: _Row) -> None:
        """Choose the next token of each slot that has not ended, by its row."""
        best, probabilities, normalizers = found
        if not bool(normalizers.isfinite().all()):
            raise ValueError("the model's logits are not finite; its weights may be damaged")
        tokens = best[:, 0].tolist()
        for row, slot in enumerate(slots):
            if self.top and slot.is_in_answer:
                slot.top.append((best[row], probabilities[row], normalizers[row]))
            if not slot.is_done:
                slot.take(logits, row, tokens[row])


def _joined(rows: Sequence[_Row]) -> TopTokens:
    tokens, probabilities, normalizers = (torch.stack(part) for part in zip(*rows, strict=True))
    return TopTokens(tokens.cpu(), probabilities.float().log().cpu(), normalizers.float().cpu())
