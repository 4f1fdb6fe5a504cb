"""SPEED: speculated tokens in a pipeline through layers that are run again and again.

Hooper et al. 2023, arXiv:2310.12072. It needs a model made for it, so it is a decoding loop of its
own beside a small model of that kind, and no method for others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.arrays import as_array
from draftwood.native.formats import HeadSizes
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.validation import positive
from draftwood_torch.heads import layers as parts

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""An attention rule, as layers of heads take it."""


class LoopedDecoder(nn.Module):
    """A decoder whose few layers run in cycles, as ALBERT's (Lan et al. 2019, arXiv:1909.11942).

    Args:
        sizes: of its layers.
        vocab: tokens; embedding and output head share their weights.
        layers: with weights of their own.
        cycles: how often a token goes through all of them.
    """

    def __init__(self, sizes: HeadSizes, vocab: int, layers: int = 1, cycles: int = 4) -> None:
        super().__init__()
        positive("layers and cycles", (layers, cycles))
        self.sizes, self.cycles = sizes, cycles
        self.embedding = nn.Embedding(vocab, sizes.hidden)
        self.layers = nn.ModuleList(parts.DecoderLayer(sizes) for _ in range(layers))
        self.norm = parts.RmsNorm(sizes.hidden, sizes.epsilon)

    def cycle(
        self,
        states: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows"],
        attend: Attend,
    ) -> Float[Tensor, "... rows dim"]:
        """Run rows through all layers once, whichever cycles they are in."""
        for number, layer in enumerate(self.layers):
            states = layer(states, positions, number, attend)
        return states

    def logits(self, states: Float[Tensor, "... rows dim"]) -> Float[Tensor, "... rows vocab"]:
        """Logits of the next token, after the last cycle or an earlier one."""
        return self.norm(states) @ self.embedding.weight.T


@dataclass
class InFlight:
    """A token in the pipeline.

    Attributes:
        place: in the text.
        state: after the cycles so far [dim].
        done: number of these cycles.
    """

    token: int
    place: int
    state: Float[Tensor, " dim"]
    done: int = 0


@dataclass
class Piped:
    """Text of a pipeline, and its costs.

    Attributes:
        tokens: the text behind the prompt.
        ticks: times that the layers' weights were read.
        rows: tokens that went through them, over all ticks.
        right: speculated tokens that became text.
        wrong: tokens of the text that were not speculated, or wrongly.
    """

    tokens: list[int] = field(default_factory=list)
    ticks: int = 0
    rows: int = 0
    right: int = 0
    wrong: int = 0


class Pipeline:
    """Tokens of one text, each of which may be in another cycle of the same layers.

    Behind its first ``exit_after`` cycles a token says what may follow it, and that token enters
    the pipeline behind it, so that one reading of the weights serves both. The last cycle draws the
    true next token: if the speculated one is another, all behind it leave the pipeline. So every
    token is drawn from the model's own distribution. With a share p of right tokens, one takes
    p e + (1 - p) c readings of the weights, for an exit after e of c cycles.

    Args:
        model: with layers that are run in cycles.
        sampling: how its logits become probabilities.
        exit_after: cycles before a token says what may follow; None never speculates.

    Raises:
        ValueError: for an exit that is not before the last cycle.

    Example:
        Four cycles, an exit after one. The text is 1 2 3 4 5. The first cycle of 5 says 6, so 6
        enters with the second cycle of 5, and says 7, which enters with the third of 5 and the
        second of 6. The last cycle of 5 says 6: it is kept. A reading later the last cycle of 6
        says 9: 7 and what follows it leave, and 9 enters.
    """

    def __init__(
        self, model: LoopedDecoder, sampling: Sampling, exit_after: int | None = 1
    ) -> None:
        if exit_after is not None and not 1 <= exit_after < model.cycles:
            raise ValueError(
                f"an exit is after one of cycles 1..{model.cycles - 1}, or None, got {exit_after}"
            )
        self.model, self.sampling, self.exit_after = model, sampling, exit_after
        self.cache: dict[tuple[int, int], Float[Tensor, "2 kv_heads places head_dim"]] = {}
        self.flying: list[InFlight] = []

    @torch.no_grad()
    def write(self, prompt: Sequence[int], count: int, seed: int | Rng = 0) -> Piped:
        """Write ``count`` tokens behind a prompt."""
        if not prompt or count < 1:
            raise ValueError("a text needs a prompt, and at least one token to write")
        rng = seed if isinstance(seed, Rng) else Rng(seed)
        self.cache, self.flying, text = {}, [], Piped()
        for place, token in enumerate(prompt):
            self._enter(token, place)
        while len(text.tokens) < count:
            self._tick(text)
            self._settle(text, rng)
            self._speculate()
        return text

    def _enter(self, token: int, place: int) -> None:
        state = self.model.embedding.weight[token]
        self.flying.append(InFlight(token, place, state))

    def _tick(self, text: Piped) -> None:
        """Run everything in flight through all layers once."""
        flying = self.flying
        places = torch.tensor([each.place for each in flying], device=flying[0].state.device)
        states = torch.stack([each.state for each in flying])
        for each, state in zip(flying, self.model.cycle(states, places, self._attend), strict=True):
            each.state, each.done = state, each.done + 1
        text.ticks, text.rows = text.ticks + 1, text.rows + len(flying)

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Every row attends to the places up to its own, as they were in its cycle."""
        for row, each in enumerate(self.flying):
            memory = self._memory(each.done, layer, key, each.place)
            memory[:, :, each.place] = torch.stack([key[:, row], value[:, row]])
        mixed = []
        for row, each in enumerate(self.flying):
            keys, values = self.cache[each.done, layer][:, :, : each.place + 1]
            seen = torch.ones(1, each.place + 1, dtype=torch.bool, device=key.device)
            mixed.append(parts.attended(query[:, row : row + 1], keys, values, seen))
        return torch.cat(mixed, dim=1)

    def _memory(self, cycle: int, layer: int, like: Tensor, place: int) -> Tensor:
        known = self.cache.get((cycle, layer))
        if known is None or known.shape[2] <= place:
            grown = like.new_zeros(2, like.shape[0], 2 * place + 16, like.shape[2])
            if known is not None:
                grown[:, :, : known.shape[2]] = known
            self.cache[cycle, layer] = known = grown
        return known

    def _settle(self, text: Piped, rng: Rng) -> None:
        """Draw behind the token that is through, if any, and let what was speculated wrongly go."""
        through = [each for each in self.flying if each.done == self.model.cycles]
        if not through:
            return
        newest = through[-1]
        logits = as_array(self.model.logits(newest.state[None]).float())
        token = rng.draw(self.sampling.probs(logits)[0])
        self.flying = self.flying[len(through) :]
        is_right = bool(self.flying) and self.flying[0].token == token
        if not is_right:
            self.flying = []
            self._enter(token, newest.place + 1)
        text.tokens.append(token)
        text.right, text.wrong = text.right + is_right, text.wrong + (not is_right)

    def _speculate(self) -> None:
        """Let the newest token say what may follow it, once it has come to the exit."""
        newest = self.flying[-1]
        if newest.done == self.exit_after:
            self._enter(int(self.model.logits(newest.state[None]).argmax()), newest.place + 1)
