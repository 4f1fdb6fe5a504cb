"""Linear maps from a model's inner hidden states to its output head's input, fitted once for each
model and found again by every later load.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftwood.drafters.resources import Resources
from draftwood.models.model import ForwardInput, Model, PromptInput
from draftwood.models.requirements import require_ability
from draftwood.storage.atomic import write_file
from draftwood.storage.progress import progress
from draftwood.storage.safetensors import write_arrays
from draftwood.tree import DraftTree

TEXTS, MOST_TOKENS = 16, 4096  # that a map is fitted on: side by side, and in all
LEAST_STEPS = 16  # even if time is up
HELD_OUT = 8  # every so many-th step is left out of the fit, and chooses the penalty
PENALTIES = (0.003, 0.03, 0.3)  # of the mean square of the states
STORED_SECONDS = 7.0  # of writing, for maps that later loads find again; fitting comes after it
PASSING_SECONDS = 1.0  # for some that are forgotten with the process


def exit_layers(count: int) -> tuple[int, ...]:
    """Layers of a model at which exits are fitted."""
    return tuple(sorted({max(1, count * part // 12) for part in (2, 3, 4, 6, 8, 10)}))


@dataclass(frozen=True, eq=False)
class Exits:
    """Early exits: predict a model's output after some of its layers.

    Hidden states of a layer, each divided by its root mean square, go through a square map to what
    comes out of the final norm. The maps are fitted by ridge regression on text that the model
    writes: the tuned lens (Belrose et al. 2023, arXiv:2303.08112) in closed form.

    Args:
        maps: by layer.
    """

    maps: Mapping[int, Float[Tensor, "dim dim"]]

    @classmethod
    def of(
        cls,
        model: Model,
        before: Sequence[int] = (0,),
        layers: Sequence[int] | None = None,
        seconds: float = float("inf"),
        most: int = MOST_TOKENS,
    ) -> "Exits":
        """Fit maps on text that the model writes.

        Args:
            before: the tokens with which its texts begin, at least one.
            layers: to exit at; None takes ``exit_layers``.
            seconds: stop writing before this time is over.
            most: tokens to write.

        A layer whose map cannot be found is left out.

        Raises:
            ValueError: for a model that gives no hidden states.
        """
        for ability in ("hidden", "fork"):
            require_ability(model, ability, "an early exit")
        layers = exit_layers(model.layers) if layers is None else layers
        sums = {layer: _Sums() for layer in layers}
        wanted = (*layers, model.layers)
        for number, states in enumerate(_written(model, before, wanted, seconds, most)):
            for layer, each in sums.items():
                each.add(states[layer], states[model.layers], number % HELD_OUT == HELD_OUT - 1)
        found = {layer: each.fit() for layer, each in sums.items()}
        return cls({layer: own for layer, own in found.items() if own is not None})

    def normed(self, layer: int, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Map hidden states of a layer to the output head's input."""
        return _scaled(hidden) @ self.maps[layer].to(hidden.device)

    def save(self, path: Path, weights: str) -> None:
        """Write the maps to a file, with a digest of the model's weights."""
        halves = {str(layer): own.half().cpu().numpy() for layer, own in self.maps.items()}
        write_arrays(path, halves, {"weights": weights})

    @classmethod
    def load(cls, path: Path, weights: str) -> "Exits":
        """Read what ``save`` wrote.

        Raises:
            ValueError: where the file holds no maps, or those of other weights.
        """
        try:
            with safe_open(path, "pt") as file:
                if (file.metadata() or {}).get("weights") != weights:
                    raise ValueError(
                        f"{path} holds the exits of other weights; delete it, and they are fitted"
                        " again"
                    )
                return cls({int(name): file.get_tensor(name).float() for name in file.keys()})  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} holds no exits: {error}") from error


def _scaled(states: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
    states = states.float()
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-12)


@dataclass(eq=False)
class _Sums:
    """Sums for a ridge regression over the pairs seen so far."""

    inputs: Tensor | None = None  # products of inputs with each other
    both: Tensor | None = None  # and with results
    held: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, states: Tensor, results: Tensor, hold: bool) -> None:
        states, results = _scaled(states), results.float()
        if hold:
            self.held.append((states, results))
            return
        inputs, both = states.T @ states, states.T @ results
        self.inputs = inputs if self.inputs is None else self.inputs + inputs
        self.both = both if self.both is None else self.both + both

    def fit(self) -> Tensor | None:
        """Map that is best on held-out pairs; None if there is none.

        The ridge pulls towards a map of each number by itself.
        """
        if self.inputs is None or self.both is None or not self.held:
            return None
        size = self.inputs.diagonal().mean()
        usual = torch.diag(self.both.diagonal() / (self.inputs.diagonal() + 1e-6 * size))
        left = self.both - self.inputs @ usual
        eye = torch.eye(len(left), device=left.device)
        states, results = (torch.cat(each) for each in zip(*self.held, strict=True))
        best, least = None, float("inf")
        for penalty in PENALTIES:
            factor, failed = torch.linalg.cholesky_ex(self.inputs + penalty * size * eye)
            found = usual + torch.cholesky_solve(left, factor)
            off = float((states @ found - results).square().mean())
            if not int(failed) and off < least:  # false for what is no number
                best, least = found, off
        return best


def _written(
    model: Model, before: Sequence[int], layers: Sequence[int], seconds: float, most: int
) -> Iterator[dict[int, Float[Tensor, "texts dim"]]]:
    """Hidden states of texts that the model draws, side by side, token by token."""
    chance, limit = torch.Generator().manual_seed(0), model.context_length or most
    with ExitStack() as stack:
        sessions = [model.start() for _ in range(TEXTS)]
        for session in sessions:
            stack.callback(session.close)
        start = list(before)[-limit // 2 :]
        outputs = model.forward([PromptInput(session, start) for session in sessions[:1]]) * TEXTS
        for session in sessions[1:]:
            sessions[0].fork(session)
        since = time.perf_counter()
        for length in range(1, min(most // TEXTS, limit - len(start)) + 1):
            logits = torch.cat([output.logits[-1:] for output in outputs]).float().cpu()
            tokens = logits.softmax(-1).multinomial(1, generator=chance).flatten().tolist()
            inputs = [
                ForwardInput(session, DraftTree.of([token], [-1]), hidden=tuple(layers))
                for session, token in zip(sessions, tokens, strict=True)
            ]
            outputs = model.forward(inputs)
            for session in sessions:
                session.commit([0])
            yield {layer: torch.cat([out.states(layer) for out in outputs]) for layer in layers}
            over = (time.perf_counter() - since) * (1 + 1 / length) > seconds
            if over and length >= LEAST_STEPS:
                return


def exits_for(resources: Resources) -> Exits | None:
    """The exits of a target, next to whose prior they lie: read from disk, or fitted and stored.

    None where nothing is to be measured. A file that is damaged, or of other weights, is written
    again; one that cannot be written is not stored, nor one fitted beside other programs.
    """
    prior = resources.stored
    if prior is None:
        return None
    kept = prior.kept_beside("exits", MOST_TOKENS, exit_layers(prior.model.layers))
    if kept is None:
        return _fitted(prior.model, prior.before, PASSING_SECONDS)
    path, digest = kept
    if path.exists():
        with suppress(ValueError, OSError):
            return Exits.load(path, digest)
    fit = partial(_fitted, prior.model, prior.before, STORED_SECONDS)
    exits, was_alone = prior.alone(fit)
    if not was_alone:  # on too little text: the next load fits them again
        return exits
    with suppress(OSError):  # so it does here
        write_file(path, lambda file: exits.save(file, digest))
    return exits


def _fitted(model: Model, before: tuple[int, ...], seconds: float) -> Exits:
    with progress(f"fitting the model's early exits on its own text, {seconds:.0f} s"):
        return Exits.of(model, before, seconds=seconds)
