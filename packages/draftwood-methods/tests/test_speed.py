"""SPEED's pipeline writes what its model writes alone, in the readings of weights that it says."""

import itertools

import numpy as np
import pytest
import torch

from draftwood.native.formats import HeadSizes
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.testing import distance, outcomes
from draftwood_methods.speed import InFlight, LoopedDecoder, Piped, Pipeline
from draftwood_torch.heads.layers import attended, causal

VOCAB, CYCLES, PROMPT = 4, 4, [1, 2, 3, 0, 1]
SIZES = HeadSizes(hidden=16, intermediate_size=24, heads=4, num_kv_heads=2, head_dim=4)


def decoder(layers: int = 2, cycles: int = CYCLES, noise: float = 0.6) -> LoopedDecoder:
    """A random one, whose early cycles foretell its last one now and then."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = LoopedDecoder(SIZES, VOCAB, layers, cycles).eval().requires_grad_(False)
        for weight in model.parameters():
            weight.add_(noise * torch.randn_like(weight))
    return model


def alone(model: LoopedDecoder, text: list[int]) -> np.ndarray:
    """Logits behind a text, all of whose tokens go through every cycle side by side."""
    states, seen = model.embedding.weight[text], causal(len(text))
    for _ in range(model.cycles):
        states = model.cycle(
            states, torch.arange(len(text)), lambda _, q, k, v: attended(q, k, v, seen)
        )
    return model.logits(states[-1:])[0].numpy()


def plain(model: LoopedDecoder, temperature: float, count: int, seed: int = 0) -> list[int]:
    text, rng = [*PROMPT], Rng(seed)
    for _ in range(count):
        text.append(rng.draw(Sampling(temperature).probs(alone(model, text)[None])[0]))
    return text[len(PROMPT) :]


@pytest.mark.parametrize("exit_after", [None, 1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("layers", [1, 2])
def test_texts_are_those_of_the_model_alone(
    layers: int, temperature: float, exit_after: int | None
) -> None:
    model = decoder(layers)
    piped = Pipeline(model, Sampling(temperature), exit_after).write(PROMPT, 40)
    assert piped.tokens == plain(model, temperature, 40)
    if exit_after is not None:
        assert piped.right > 0  # else nothing was kept
        assert piped.wrong > 0 or not temperature  # else nothing was flushed


def law(pipeline: Pipeline, length: int) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    for chance, tokens in outcomes(lambda rng: tuple(pipeline.write(PROMPT, length, rng).tokens)):
        found[tokens] = found.get(tokens, 0.0) + chance
    return found


def own_law(model: LoopedDecoder, length: int) -> dict[tuple[int, ...], float]:
    found = {}
    for tokens in itertools.product(range(VOCAB), repeat=length):
        chance, text = 1.0, [*PROMPT]
        for token in tokens:
            chance *= float(Sampling(1.0).probs(alone(model, text)[None])[0][token])
            text.append(token)
        found[tokens] = chance
    return found


class Unflushed(Pipeline):
    """A wrong one: what was speculated behind a wrong token stays, and only that one changes."""

    def _settle(self, text: Piped, rng: Rng) -> None:
        before = list(self.flying)
        super()._settle(text, rng)
        left = [each for each in before if each.done < self.model.cycles]
        if len(left) > 1 and self.flying[0] is not left[0]:
            self.flying[0].state, self.flying[0].done = left[0].state, left[0].done
            self.flying += left[1:]


class Trusting(Pipeline):
    """A wrong one: what was speculated counts as text."""

    def _settle(self, text: Piped, rng: Rng) -> None:
        speculated = [each.token for each in self.flying if each.done < self.model.cycles]
        before = list(self.flying)
        super()._settle(text, rng)
        if speculated and text.wrong and self.flying[0].token != speculated[0]:
            text.tokens[-1] = speculated[0]
            self.flying = [each for each in before if each.done < self.model.cycles]


@pytest.mark.parametrize("exit_after", [1, 3])
def test_law_at_temperature(exit_after: int) -> None:
    model = decoder()
    assert distance(law(Pipeline(model, Sampling(1.0), exit_after), 3), own_law(model, 3)) < 1e-5


@pytest.mark.parametrize("wrong", [Unflushed, Trusting])
def test_pipelines_that_keep_what_was_wrong_are_caught(wrong: type[Pipeline]) -> None:
    model = decoder()
    assert distance(law(wrong(model, Sampling(1.0), 1), 3), own_law(model, 3)) > 0.02


@pytest.mark.parametrize("exit_after", [1, 2, 3])
def test_readings_of_the_weights_are_those_of_the_formula(exit_after: int) -> None:
    """A right token comes as many readings after the one before as there are cycles to the exit."""
    piped = Pipeline(decoder(), Sampling(1.0), exit_after).write(PROMPT, 60)
    readings = CYCLES + exit_after * piped.right + CYCLES * piped.wrong
    # the last token is not run any more, whichever it is
    assert readings - piped.ticks in (exit_after, CYCLES)
    assert piped.right + piped.wrong == 60
    assert Pipeline(decoder(), Sampling(1.0), None).write(PROMPT, 60).ticks == 60 * CYCLES


def test_one_reading_serves_tokens_in_several_cycles() -> None:
    pipeline = Pipeline(decoder(), Sampling(0.0), 1)
    seen: list[list[int]] = []
    tick = pipeline._tick

    def watched(text: Piped) -> None:
        seen.append([each.done for each in pipeline.flying])
        tick(text)

    pipeline._tick = watched  # type: ignore[method-assign]
    pipeline.write(PROMPT, 12)
    assert max(map(len, seen[CYCLES:])) == CYCLES
    assert all(sorted(each, reverse=True) == each for each in seen[CYCLES:])
    assert InFlight(0, 0, torch.zeros(1)).done == 0


def test_impossible_settings_are_refused() -> None:
    model = decoder()
    for wrong in (0, CYCLES):
        with pytest.raises(ValueError, match=r"cycles 1\.\.3"):
            Pipeline(model, Sampling(0.0), wrong)
    with pytest.raises(ValueError, match="needs a prompt"):
        Pipeline(model, Sampling(0.0)).write([], 3)
    with pytest.raises(ValueError, match="layers and cycles"):
        LoopedDecoder(SIZES, VOCAB, 0)
