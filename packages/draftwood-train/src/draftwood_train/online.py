"""Small steps on texts that were just written: the learner of `lm.learn()` and `serve --learn`."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.trained import TrainedHead
from draftwood.learning.texts import WatchedText
from draftwood_torch.heads import layers
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.heads.networks import filled
from draftwood_torch.tensors import as_tensor

Weights = Mapping[str, np.ndarray]
"""Weights of a head, by their names."""
Pause = Callable[[], None]
Place = tuple[WatchedText, int]
"""A text, and the first row that counts of a window of it."""


@dataclass(frozen=True)
class OnlineSettings:
    """Sizes of the steps, and how far they may lead.

    Attributes:
        rate: of AdamW.
        passes: over new texts in a round.
        replay: places of old texts for each new one.
        batch: windows of a step.
        window: rows of a window; its first quarter is context alone.
        kept: weight of a place whose draft was accepted, beside 1 of a rejected one.
        radius: largest change of a matrix or vector since learning began, as a share of its norm.
    """

    rate: float = 1e-4
    passes: int = 3
    replay: float = 1.0
    batch: int = 8
    window: int = 32
    kept: float = 0.3
    radius: float = 0.2


@dataclass(frozen=True, eq=False)
class Window:
    """Rows of one text, and the target's state behind each row's token.

    Attributes:
        tokens: behind each row.
        states: that the head reads.
        final: the target's, behind that token.
        weight: of the place in the loss.
        temperature: of the text's draws.
    """

    tokens: Int[Tensor, " rows"]
    states: Float[Tensor, "rows reads dim"]
    final: Float[Tensor, "rows dim"]
    weight: Float[Tensor, " rows"]
    temperature: float


class HeadLearner:
    """Trains an EAGLE head on the target's distributions at places where drafts were rejected.

    Online speculative decoding (Liu et al. 2023, arXiv:2310.07177): KL(p || q) over the draft
    vocabulary, at the first draft token. Differs from it: places that were right count a little
    too, texts of before are replayed, and a trust region bounds how far each weight gets from those
    at the beginning.

    Args:
        trained: the head at the beginning.
        rows: of the target's output head, one for each token of the draft vocabulary.
        embed: the target's embedding of tokens.
        settings: of the steps.

    Raises:
        ValueError: for a head of another kind.
    """

    def __init__(
        self,
        trained: TrainedHead,
        rows: Float[np.ndarray, "draft_vocab dim"],
        embed: Callable[[Tensor], Tensor],
        settings: OnlineSettings | None = None,
    ) -> None:
        if trained.config.kind != "eagle":
            raise ValueError(
                f"learning while serving trains EAGLE heads, not the kind {trained.config.kind!r};"
                " take an EAGLE head with --draft-model"
            )
        self._config = trained.config
        self.settings, self.steps = settings or OnlineSettings(), 0
        self._rows, self._embed = as_tensor(rows), embed
        self._random = random.Random(0)
        self._scale = self.settings.batch * self.settings.window  # of a step's loss
        self._beginning = {name: torch.tensor(each) for name, each in trained.weights.items()}

    def train(
        self,
        weights: Weights,
        new: Sequence[WatchedText],
        old: Sequence[WatchedText],
        pause: Pause,
    ) -> Weights:
        """Make small steps on new and old texts; these weights stay as they are.

        Raises:
            ValueError: where the loss is NaN or infinite.
        """
        network = deepcopy(self._network(weights)).requires_grad_(True)
        _freeze(network)
        optimisers = _optimisers(network, self.settings.rate)
        batches = list(self._batches(new, old))
        for number, batch in enumerate(batches):
            for text, place in batch:
                pause()
                self._backward(network, self._window(text, place), pause)
            rate = self.settings.rate * min(1.0, 2 * (1 - number / len(batches)))
            self._step(optimisers, rate, pause)
        self._bound(network)
        return {name: each.numpy() for name, each in network.state_dict().items()}

    def _network(self, weights: Weights) -> EagleHead:
        network = filled(self._config, weights)
        assert isinstance(network, EagleHead)
        return network

    @torch.no_grad()
    def judge(
        self, weights: Weights, texts: Sequence[WatchedText], pause: Pause
    ) -> Float[np.ndarray, "places 2"]:
        """Overlap with the target's distribution, and equal likeliest tokens, place by place."""
        head, found = self._network(weights), [np.zeros((0, 2))]
        for text in texts:
            for place in self._places(text):
                pause()
                window = self._window(text, place)
                counts = window.weight > 0
                q, p = self._logits(head, self._states(head, window), window, counts)
                hits = (q.argmax(-1) == p.argmax(-1)).double()
                probs = _probs(p, window.temperature)
                own = _probs(q, window.temperature or 1.0)  # greedy drafts are drawn as at 1
                overlap = torch.minimum(own, probs).sum(-1).double()
                found.append(torch.stack([overlap, hits], dim=-1).numpy())
        return np.concatenate(found)

    def _batches(
        self, new: Sequence[WatchedText], old: Sequence[WatchedText]
    ) -> Iterator[list[Place]]:
        """New windows in random order, ``passes`` times, each batch with its share of old ones."""
        settings = self.settings
        fresh = [(text, place) for text in new for place in self._places(text)]
        share = settings.replay / (1 + settings.replay) if old else 0.0
        own = max(1, round((1 - share) * settings.batch))
        for _ in range(settings.passes):
            self._random.shuffle(fresh)
            for first in range(0, len(fresh), own):
                batch = fresh[first : first + own]
                picked = self._random.choices(old, k=settings.batch - own) if old else []
                yield batch + [(text, self._random.choice(self._places(text))) for text in picked]

    def _places(self, text: WatchedText) -> range:
        """First rows that count of a text's windows; each place of the answer counts in one."""
        size = self.settings.window
        return range(max(text.answer - 1, 0), len(text.tokens) - 1, size - size // 4)

    def _window(self, text: WatchedText, first: int) -> Window:
        """Rows before place ``first`` as context, and those from it on that count.

        Row t of a head reads the token at t + 1 and drafts the one at t + 2.
        """
        settings = self.settings
        start = max(0, first - settings.window // 4)
        most = first - settings.window // 4 + settings.window
        stop = min(most, len(text.tokens) - 1)
        behind = slice(start + 1, stop + 1)
        states, final = text.part(start, stop + 1)
        rejected = torch.from_numpy(text.rejected[behind])
        weight = torch.where(rejected, 1.0, settings.kept)
        weight[: first - start] = 0.0
        return Window(
            torch.from_numpy(text.tokens[behind]),
            torch.from_numpy(states[:-1]),
            torch.from_numpy(final[1:]),
            weight,
            text.temperature,
        )

    def _states(self, head: EagleHead, window: Window) -> Float[Tensor, "rows dim"]:
        """States of the head that its output head reads."""
        places = torch.arange(len(window.tokens))
        seen = places[:, None] >= places
        if head.config.window is not None:
            seen &= places[:, None] - places < head.config.window

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return layers.attended(query, key, value, seen)

        embedded = as_tensor(self._embed(window.tokens)).float()
        return head(embedded, head.combine(window.states), places, attend)[1]

    def _logits(
        self, head: EagleHead, states: Tensor, window: Window, counts: Bool[Tensor, " rows"]
    ) -> tuple[Tensor, Tensor]:
        """Logits of the head and of the target at the places that count."""
        rows = self._rows if head.own_rows is None else head.own_rows
        return states[counts] @ rows.T, window.final[counts] @ self._rows.T

    def _backward(self, head: EagleHead, window: Window, pause: Pause) -> None:
        """Add a window's share to the gradients, in pieces of a few milliseconds."""
        counts = window.weight > 0
        states = self._states(head, window)
        pause()
        q, p = self._logits(head, states, window, counts)
        divergence = functional.kl_div(q.log_softmax(-1), p.softmax(-1), reduction="none").sum(-1)
        loss = (divergence * window.weight[counts]).sum() / self._scale
        if not math.isfinite(float(loss.detach())):
            raise ValueError("its loss is no number, so a state or a weight is damaged")
        pause()
        loss.backward()

    def _step(self, optimisers: Sequence[torch.optim.AdamW], rate: float, pause: Pause) -> None:
        """Move the weights, one matrix at a time."""
        for optimiser in optimisers:
            pause()
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
            optimiser.zero_grad()
        self.steps += 1

    @torch.no_grad()
    def _bound(self, head: nn.Module) -> None:
        """Bring weights that got too far back into the trust region."""
        for name, weight in head.named_parameters():
            beginning = self._beginning[name]
            change, most = weight - beginning, self.settings.radius * beginning.norm()
            if change.norm() > most:
                weight.copy_(beginning + change * (most / change.norm()))


def _probs(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities at a temperature; at 0 all of it is on the likeliest token."""
    if temperature > 0:
        return (logits / temperature).softmax(-1)
    return functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()


def _freeze(head: EagleHead) -> None:
    """Leave a combination of states as it is where it hands them on unchanged (EAGLE-1)."""
    weight = head.fc.weight
    if weight.shape[0] == weight.shape[1] and torch.equal(weight, torch.eye(len(weight))):
        weight.requires_grad_(False)


def _optimisers(head: nn.Module, rate: float) -> list[torch.optim.AdamW]:
    """One for each weight, so that a step comes in small pieces."""
    return [
        torch.optim.AdamW([each], rate, betas=(0.9, 0.99), weight_decay=0.0)
        for each in head.parameters()
    ]
