"""Rows that probes read: what a model computes at each place of documents."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.loading.weights import skeleton_of
from draftwood.models.model import ForwardInput, Model
from draftwood.models.native import NativeModel
from draftwood.tree import DraftTree
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.tensors import as_tensor
from draftwood_train.data.states import states_alone
from draftwood_train.inspection.documents import FURTHEST, Document

NODES = 128
"""Tokens that share a pass, each alone behind the first."""

Report = Callable[[], None]
"""Called after each document or pass."""


@dataclass(frozen=True, eq=False)
class Readings:
    """Places of some documents in a row.

    Attributes:
        document: number of each place's.
        newest: the token that was read last.
        ahead: the tokens 1 to 4 ahead.
        states: rows by name, such as the states of the model's layers side by side.
    """

    document: Int[Tensor, " places"]
    newest: Int[Tensor, " places"]
    ahead: Int[Tensor, "places 4"]
    states: Mapping[str, Float[Tensor, "places features"]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.newest)


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Rows of single tokens: embeddings, and states behind the first token alone.

    Attributes:
        row: of each token of the vocabulary; -1 where it has none.
        rows: one for each token that is known.
    """

    row: Int[Tensor, " vocab"]
    rows: Float[Tensor, "known features"]

    def of(self, tokens: Int[Tensor, " places"]) -> Float[Tensor, "places features"]:
        """The rows of tokens."""
        return self.rows[self.row[tokens]]


def read(
    documents: Sequence[Document],
    models: Sequence[tuple[Model, Mapping[str, Sequence[int]]]],
    report: Report,
) -> Readings:
    """Read documents with models.

    Args:
        models: each with the layers whose inputs are read, by the name of their rows.
    """
    found: dict[str, list[Tensor]] = {name: [] for _, blocks in models for name in blocks}
    newest, ahead, numbers = [], [], []
    for number, each in enumerate(documents):
        tokens = torch.tensor(each.tokens)
        places = torch.arange(each.first, each.first + each.places)
        newest.append(tokens[places])
        ahead.append(torch.stack([tokens[places + by] for by in range(1, FURTHEST + 1)], 1))
        numbers.append(torch.full_like(places, number))
        for model, blocks in models:
            layers = [layer for own in blocks.values() for layer in own]
            states, at = states_alone(model, tokens, layers)[places], 0
            for name, own in blocks.items():
                found[name].append(states[:, at : at + len(own)].flatten(1))
                at += len(own)
        report()
    states = {name: torch.cat(rows) for name, rows in found.items()}
    return Readings(torch.cat(numbers), torch.cat(newest), torch.cat(ahead), states)


def token_table(
    model: Model, tokens: Int[Tensor, " known"], first: int, layers: Sequence[int], report: Report
) -> TokenTable:
    """Read tokens without any context with a model.

    Args:
        tokens: distinct ids.
        first: token that stands before each, as a model behaves oddly at its first place.
        layers: whose states stand beside the embedding.
    """
    found = []
    with closing(model.start()) as session:
        for part in tokens.split(NODES):
            parents = np.zeros(len(part) + 1, np.int64)
            parents[0] = -1
            tree = DraftTree(np.array([first, *part.tolist()]), parents)
            asked = ForwardInput(session, tree, 0, tuple(layers), keep="last")
            (output,) = model.forward([asked])
            found.append(torch.cat([output.states(n)[1:].float().cpu() for n in layers], 1))
            session.clear()
            report()
    embedded = as_tensor(model.embeddings_and_head.embed(tokens)).float().cpu()
    row = torch.full((model.vocab_size,), -1)
    row[tokens] = torch.arange(len(tokens))
    return TokenTable(row, torch.cat([embedded, torch.cat(found)], 1))


def untrained(name: str, seed: int) -> Model:
    """A network of a model's configuration whose weights were never trained.

    Transformers draws them as it does before a training.

    Raises:
        ValueError: where the name says nothing of a configuration.
    """
    from transformers import AutoModelForCausalLM

    config: Any = skeleton_of(name).config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    try:
        return NativeModel(network)
    except ValueError:  # another family, or no compiler
        return TransformersModel(network)
