"""A target that drafts for itself with parts of its layers, its weights or its cache, counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.common.curves import stored
from benchmarks.self_speculation.paired_counts import (
    Decoder,
    Records,
    Row,
    Side,
    Table,
    Texts,
    best,
    figure,
    held_out,
    kept_tokens,
    loaded,
    over,
    side,
    spec_bench,
)
from draftwood.drafters import Drafter
from draftwood.engine.method import Method
from draftwood.models.model import ForwardInput, Layers, Model
from draftwood.models.native import NativeModel
from draftwood.models.native.weights import MATRICES
from draftwood.models.session import PooledSession
from draftwood.shapes import Widths
from draftwood.text.language_model import LanguageModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Rejection
from draftwood_methods import exits as exit_maps
from draftwood_methods.drafters.dynamic_exit import DynamicExit
from draftwood_methods.drafters.early_exit import EarlyExit
from draftwood_methods.drafters.layer_search import BAYESIAN, WINDOW
from draftwood_methods.drafters.layer_sets import (
    Units,
    agreement,
    found_alone,
    likely_better,
    programme,
)
from draftwood_methods.drafters.layer_skip import middle_layers

# Layers left out

SHARE = 1 / 3  # of the layers, as every other one of the middle two thirds
LENGTH, CHAINS = 3, 12  # draft tokens in a row, and how many such rows in each text
SETS = 200
TRIALS = 12  # of SWIFT's, before the first token that counts


@dataclass(frozen=True, eq=False)
class Written:
    """A greedy text in the cache of a model, and where counting begins."""

    prompt: str
    session: PooledSession
    tokens: list[int]
    start: int

    def before(self) -> PooledSession:
        """The text up to where counting begins."""
        return self.session.fork(length=self.start)


def written(lm: LanguageModel, texts: Texts) -> list[Written]:
    """Greedy answers, those left out that end too early."""
    found = []
    for prompt, tokens in texts:
        length = WINDOW + 2 + LENGTH * CHAINS + 1
        made = lm.generate(list(tokens), max_new_tokens=length)
        if len(made.token_ids) < length:
            continue
        whole = [*tokens, *made.token_ids]
        session = lm.model.start()
        assert isinstance(session, PooledSession)
        session.extend(whole[:-1], "none")
        found.append(Written(prompt, session, whole, len(tokens) + WINDOW + 2))
    return found


def right(text: Written, layers: Layers) -> int:
    """Count the tokens of a text that a part of its model drafts, in chains over the whole model's
    cache, each token behind the text's own.
    """
    forks, inputs = [], []
    for number in range(CHAINS):
        place = text.start + LENGTH * number
        fork = text.session.fork(length=place)
        tree = DraftTree.chain(text.tokens[place : place + LENGTH])
        forks.append(fork)
        inputs.append(ForwardInput(fork, tree, layers=layers))
    outputs = text.session.model.forward(inputs)
    for fork in forks:
        fork.close()
    said = torch.cat([output.logits.argmax(-1) for output in outputs]).tolist()
    return sum(map(int.__eq__, said, text.tokens[text.start + 1 :]))


def by_programme(text: Written, units: Units) -> Layers:
    session = text.before()
    newest = text.tokens[text.start - 2 : text.start]
    try:
        return units.layers(programme(session, newest, units, SHARE))
    finally:
        session.close()


def by_swift(text: Written, units: Units) -> Layers:
    """The best of so many trials on the newest tokens."""
    session, chance = text.before(), np.random.default_rng(0)
    newest = text.tokens[text.start - WINDOW - 1 : text.start]
    seen = [(own := units.evenly(SHARE), agreement(session, newest, units.layers(own)))]
    while len(seen) < TRIALS:
        bayesian = len(seen) % BAYESIAN == BAYESIAN - 1
        own = likely_better(units, seen, SHARE, chance) if bayesian else units.drawn(SHARE, chance)
        seen.append((own, agreement(session, newest, units.layers(own))))
    session.close()
    return units.layers(max(seen, key=lambda trial: trial[1])[0])


def run_layers(records: Records) -> None:
    lm = loaded("smollm2-135m")
    model, depth = lm.model, lm.model.layers
    whole, halves = Units(depth, False), Units(depth, True)
    fixed = middle_layers(depth)
    ways: dict[str, Callable[[Written], Layers]] = {
        FIXED: lambda _: Layers(without_attention=fixed, without_mlp=fixed),
        "SWIFT, 12 trials on 32 tokens": lambda text: by_swift(text, whole),
        "CLaSp's programme, at the newest token": lambda text: by_programme(text, whole),
        "KnapSpec's programme, attention and MLP apart": lambda text: by_programme(text, halves),
    }
    for name, units in (("layers", whole), ("halves", halves)):
        alone = units.layers(found_alone(model, units, SHARE))
        ways[f"programme on a text of its own, {name}"] = lambda _, alone=alone: alone
    chance = np.random.default_rng(1)
    for number in range(SETS):
        drawn = whole.layers(whole.drawn(SHARE, chance))
        ways[f"random {number}"] = lambda _, drawn=drawn: drawn
    if not records.has("price", "all"):
        records.add("price", "all", layers=share_of_layers(model))
    texts = written(lm, spec_bench(lm, 2, longest=256))
    for name, layers in ways.items():
        for text in texts[:: 2 if name.startswith("random") else 1]:
            if not records.has(name, text.prompt):
                count = right(text, layers(text))
                records.add(name, text.prompt, right=count, compared=LENGTH * CHAINS)
        print("layers", name, flush=True)


FIXED = "every other layer"


def share_of_layers(model: Model) -> float:
    """Share of the layers in the weights that a pass multiplies; the rest is the output head."""
    assert isinstance(model, NativeModel)
    layers = model.structure.layers[: model.layers]
    own = [getattr(layer, name) for layer in layers for name in MATRICES]
    count = sum(each.outputs * each.inputs for each in own)
    head = model.structure.lm_head
    return round(count / (count + head.outputs * head.inputs), 4)


def break_even(cost: float, second: float) -> float:
    """Acceptance of a single draft token at which drafting is as fast as plain decoding.

    Args:
        cost: of a draft pass, in plain passes.
        second: cost of a pass over two nodes, likewise.
    """
    return cost + second - 1.0


def second_node() -> float:
    """A pass over two nodes in passes over one, as measured."""
    times = stored("cost")["smollm2-135m"]
    return times[2] / times[1]


def layer_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Acceptance on the prompts that the random sets were counted on, of all other arms too."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    every = {arm: side(rows, arm, "right", "compared") for arm in arms if arm != "price"}
    common = list(every[FIXED])[::2]
    sides = {
        arm: {prompt: own[prompt] for prompt in common}
        for arm, own in every.items()
        if own.keys() >= set(common)
    }
    base = sides[FIXED]
    random = {arm: sides.pop(arm) for arm in list(sides) if arm.startswith("random")}
    drawn, several = held_out(list(random.values())), f"best of {len(random)} random sets"
    sides[f"{several}, chosen on other prompts"] = drawn
    sides[f"{several}, chosen on these prompts"] = random[best(random)]
    sides["all random sets together"] = {
        prompt: tuple(np.sum([own[prompt] for own in random.values()], axis=0)) for prompt in common
    }
    price = next(row["layers"] for row in rows if row["arm"] == "price")
    bar = break_even(1.0 - SHARE * price, second_node())
    yield (
        f"A third of the layers left out; one draft token breaks even at {bar:.2f}",
        [
            {
                "left out": arm,
                "acceptance": str(figure(own)),
                "over every other layer": "" if arm == FIXED else str(over(own, base)),
                "over the best random set": "" if "random" in arm else str(over(own, drawn)),
            }
            for arm, own in sides.items()
        ],
    )


# Early exits

LENGTHS = (1, 2, 3)
NEW_TOKENS = 32
MAPPED, UNMAPPED, SHUFFLED = "fitted map", "no map", "map of shuffled pairs"
DEL = "DEL"


def fitted(lm: LanguageModel) -> dict[str, exit_maps.Exits]:
    """Maps fitted on text that the model writes, and on the same text with states that belong to
    other tokens.
    """
    layers, most = exit_maps.exit_layers(lm.model.layers), exit_maps.MOST_TOKENS
    wanted = (*layers, lm.model.layers)
    pairs = list(exit_maps._written(lm.model, lm.prior.before, wanted, float("inf"), most))
    order = torch.Generator().manual_seed(0)
    last = torch.cat([each[lm.model.layers] for each in pairs])
    mixed = last[torch.randperm(len(last), generator=order)].split(len(pairs[0][layers[0]]))
    others = [{**own, lm.model.layers: part} for own, part in zip(pairs, mixed, strict=True)]
    found = {}
    for name, given in ((MAPPED, pairs), (SHUFFLED, others)):
        with patch.object(exit_maps, "_written", lambda *_, given=given: iter(given)):
            found[name] = exit_maps.Exits.of(lm.model, lm.prior.before)
    return found


class LayerCount:
    """Layers that draft passes ran since it was asked last; the output head counts as some."""

    def __init__(self, model: Model) -> None:
        # a layer of a usual network has 12 times the square of its width
        self.head = model.vocab_size / (12 * model.hidden_size)
        self.whole, self.count = model.layers + self.head, 0.0
        self.forward = model.forward
        model.forward = self._counted  # type: ignore[method-assign]

    def _counted(self, inputs: Sequence[Any]) -> list[Any]:
        for each in inputs:
            if isinstance(each, ForwardInput) and each.layers.stop is not None:
                self.count += each.layers.stop + self.head
        return self.forward(inputs)

    def __call__(self) -> Mapping[str, float]:
        count, self.count = self.count, 0.0
        return {"draft_layers": round(count, 3), "whole": round(self.whole, 3)}


def run_exits(records: Records) -> None:
    lm = loaded("smollm2-135m")
    maps = fitted(lm)
    layers = tuple(maps[MAPPED].maps)
    drafters: dict[str, Drafter] = {DEL: DynamicExit(layers, maps[MAPPED])}
    for layer in layers:
        for length in LENGTHS:
            shape = Widths((1,) * length)
            drafters[exit_arm(layer, length)] = EarlyExit(layer, maps[MAPPED], shape)
        for name, own in ((UNMAPPED, None), (SHUFFLED, maps[SHUFFLED])):
            drafters[exit_arm(layer, 1, name)] = EarlyExit(layer, own, Widths((1,)))
    arms = {name: lm.with_method(Method(own, Rejection())) for name, own in drafters.items()}
    decoder, texts = Decoder(records, NEW_TOKENS, LayerCount(lm.model)), spec_bench(lm, 1)
    decoder.run({"plain": lm, **arms}, texts, 0.0)
    some = {name: arms[name] for name in (DEL, *(exit_arm(layer, 1) for layer in layers))}
    decoder.run({"plain": lm, **some}, texts, 1.0)


def exit_arm(layer: int, length: int, maps: str = MAPPED) -> str:
    return f"exit {layer}, {length}, {maps}"


def in_layers(rows: Sequence[Row], arm: str, temperature: float = 0.0) -> Side:
    """Tokens, and the plain passes that as many layers make."""
    return side(
        rows,
        arm,
        "tokens",
        lambda row: row["passes"] + row["draft_layers"] / row["whole"],
        temperature,
    )


def exit_tables(rows: Sequence[Row]) -> Iterator[Table]:
    arms = dict.fromkeys(row["arm"] for row in rows)
    layers = sorted({int(arm.split(",")[0].split()[1]) for arm in arms if arm.startswith("exit")})
    lines = []
    for layer in layers:
        sides = {
            name: side(rows, exit_arm(layer, 1, name), kept_tokens, "passes")
            for name in (UNMAPPED, SHUFFLED, MAPPED)
        }
        drawn = side(rows, exit_arm(layer, 1), kept_tokens, "passes", 1.0)
        lines.append(
            {
                "exit after layer": f"{layer} of 30",
                **{name: str(figure(own)) for name, own in sides.items()},
                "map over none": str(over(sides[MAPPED], sides[UNMAPPED])),
                f"{MAPPED}, T = 1": str(figure(drawn)),
            }
        )
    yield "Acceptance of one draft token from an early exit, greedy but for the last column", lines
    title = "Tokens for as many layers as plain decoding runs for one"
    yield title, in_layer_rows(rows, layers)


def in_layer_rows(rows: Sequence[Row], layers: Sequence[int]) -> list[dict[str, str]]:
    lines = [
        {
            "drafts": f"exit after layer {layer}",
            **{
                f"drafting {length}": str(figure(in_layers(rows, exit_arm(layer, length))))
                for length in LENGTHS
            },
        }
        for layer in layers
    ]
    fixed = [in_layers(rows, exit_arm(layer, length)) for layer in layers for length in LENGTHS]
    own = in_layers(rows, DEL)
    for name, value in (
        ("best fixed exit and length, chosen on other prompts", figure(held_out(fixed))),
        ("DEL", figure(own)),
        ("DEL over the best fixed", over(own, held_out(fixed))),
        ("DEL over plain decoding", over(own, in_layers(rows, "plain"))),
        ("DEL at T = 1", figure(in_layers(rows, DEL, 1.0))),
    ):
        lines.append({"drafts": name, "drafting 1": str(value)})
    return [{head: line.get(head, "") for head in lines[0]} for line in lines]
