"""Inspect a model: all figures of `draftwood inspect`, and the steps that make them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftwood.heads.trained import TrainedHead
from draftwood.models.requirements import require_ability
from draftwood.text.language_model import LanguageModel
from draftwood_torch.tensors import as_tensor
from draftwood_train.data.states import default_layers
from draftwood_train.inspection.acceptance import Acceptance, expected, laws, measured
from draftwood_train.inspection.documents import Document, parts
from draftwood_train.inspection.probe import Classes, Probe
from draftwood_train.inspection.readings import read, token_table, untrained
from draftwood_train.inspection.surplus import (
    AHEAD,
    DRAFTER,
    LADDER,
    ROOT,
    SplitReadings,
    Surplus,
    climbed,
    surplus,
)

Bar = Callable[[str, int], Callable[[], None]]
"""Begins a phase of so many steps; gives what is called after each."""


@dataclass(frozen=True)
class Inspection:
    """Outcome.

    Attributes:
        layers: whose inputs were read, besides the state after the final norm.
        documents, places: that the probes learnt from, stopped by, and are told by.
        classes: tokens that probes tell apart.
        covered: share of the text that has these tokens.
        bits: for each place ahead.
        foretold: of a drafter that knows tokens alone, and of one that reads states too.
        measured: of a trained head; None where there is none.
    """

    model: str
    layers: tuple[int, ...]
    documents: tuple[int, ...]
    places: tuple[int, ...]
    classes: int
    covered: float
    bits: tuple[Surplus, ...]
    foretold: tuple[Acceptance, Acceptance]
    measured: Acceptance | None


def layers_of(model: Any, name: str, asked: Sequence[int]) -> tuple[int, ...]:
    """Inner layers whose inputs are read; by default those that EAGLE-3 reads.

    Raises:
        ValueError: for a model without hidden states, and for layers that it lacks.
    """
    require_ability(model, "hidden", f"inspecting {name}")
    require_ability(model, "embeddings_and_head", f"inspecting {name}")
    if wrong := [each for each in asked if not 0 <= each < model.layers]:
        raise ValueError(
            f"--layers takes numbers from 0 to {model.layers - 1}, the layers of {name}, got"
            f" {', '.join(map(str, wrong))}"
        )
    return tuple(sorted(set(asked))) or default_layers(model.layers)[:-1]


def inspected(
    lm: LanguageModel,
    documents: Sequence[Document],
    layers: Sequence[int],
    seed: int,
    drafter: tuple[str, TrainedHead] | None,
    temperature: float,
    bar: Bar,
) -> Inspection:
    """Train probes on documents, and tell what they find.

    Args:
        drafter: name and head that is measured in decoding; None measures none.

    Raises:
        ValueError: for too little text.
    """
    split = parts(documents, seed)
    made = _rows(lm, split, layers, seed, bar)
    weights = as_tensor(lm.model.embeddings_and_head.weights().head).float().cpu()
    classes = Classes.of(made.readings[0].ahead[:, AHEAD[0] - 1], weights)
    step = bar("probes", len(AHEAD) * len(LADDER))
    probes = {ahead: climbed(made, classes, ahead, seed, step) for ahead in AHEAD}
    told = laws(lm.model, split[-1], classes.tokens, bar("distributions", len(split[-1])))

    def hoped(name: str, rung: str) -> Acceptance:
        chosen: dict[int, tuple[Probe, str]] = {
            ahead: (every[rung], rung) for ahead, every in probes.items()
        }
        return expected(name, chosen, made, classes, told)

    return Inspection(
        lm.name,
        tuple(layers),
        tuple(map(len, split)),
        tuple(map(len, made.readings)),
        len(classes.tokens),
        _covered(classes, made.readings[-1].ahead[:, AHEAD[0] - 1]),
        tuple(surplus(probes[ahead], made, classes, ahead) for ahead in AHEAD),
        (hoped("tokens alone", ROOT), hoped("probes on states", DRAFTER)),
        None
        if drafter is None
        else measured(lm, *drafter, split[-1], temperature, seed, bar("drafts", len(split[-1]))),
    )


def _covered(classes: Classes, tokens: Tensor) -> float:
    return float((classes.of_token[tokens] < len(classes.tokens)).float().mean())


def _rows(
    lm: LanguageModel,
    split: Iterable[Sequence[Document]],
    layers: Sequence[int],
    seed: int,
    bar: Bar,
) -> SplitReadings:
    """Read the documents with the model and with one that was never trained."""
    model, last = lm.model, lm.model.layers
    split = list(split)
    beside, every = untrained(lm.name, seed), (*layers, last)
    step = bar("states", sum(map(len, split)))
    models = (model, {"inner": layers, "final": (last,)}), (beside, {"untrained": every})
    found = [read(documents, models, step) for documents in split]
    tokens = torch.cat([torch.cat([each.newest, each.ahead[:, 0]]) for each in found]).unique()
    first = split[0][0].tokens[0]
    return SplitReadings.of(found, token_table(model, tokens, first, (last,), bar("tokens", 1)))
