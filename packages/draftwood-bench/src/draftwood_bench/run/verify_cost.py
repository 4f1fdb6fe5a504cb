"""Milliseconds of a forward pass by nodes and by tokens of context before them."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from statistics import median
from typing import Any

from draftwood.loading.hub import load_pretrained
from draftwood.models.cached import CachedModel
from draftwood.models.model import Model, ModelSession
from draftwood.models.native import NativeModel
from draftwood.tree import DraftTree
from draftwood_bench.plan.measurements import TRANSFORMERS, VerifyCost
from draftwood_bench.records.files import Record
from draftwood_bench.run.blank import blank
from draftwood_bench.run.formats import load_format
from draftwood_torch.models.transformers import TransformersModel

CHUNK = 512  # tokens of the context that are read at once


def records(asked: VerifyCost, model: str, context: int) -> list[Record]:
    """One for each path and number of nodes, without stats."""
    return [
        blank(
            path,
            f"{nodes} nodes",
            model,
            prompt=f"{context} tokens",
            prompt_tokens=context,
            nodes=nodes,
        )
        for path in dict.fromkeys(asked.paths)
        for nodes in dict.fromkeys(asked.nodes)
    ]


class ModelPaths:
    """Every path of one model at a time, loaded when the model is first asked for."""

    def __init__(self, asked: VerifyCost, device: str | None) -> None:
        self.asked, self.device = asked, device
        self._loaded: dict[str, Model] = {}
        self._name = ""

    def use(self, name: str) -> None:
        """Load a model on every path, and let go of the one before.

        Raises:
            ValueError: where it cannot run on one of them, or has no room for the longest context.
        """
        if name == self._name:
            return
        self._name, self._loaded = "", {}
        for path in dict.fromkeys(self.asked.paths):
            self._loaded[path] = self._load(name, path)
            self._require_room(name, self._loaded[path])
        self._name = name

    def measure(self, wanted: Sequence[Record]) -> list[dict[str, Any]]:
        """Stats of these records, which are of one model and one context.

        Paths take turns, so that a noisy moment hurts all alike.
        """
        name, context = wanted[0].model or "", wanted[0].prompt_tokens
        self.use(name)
        models = self._loaded
        times: dict[tuple[str, int | None], list[float]] = {
            (record.method, record.nodes): [] for record in wanted
        }
        with ExitStack() as stack:
            sessions: dict[str, ModelSession] = {}
            for path, model in models.items():
                sessions[path] = stack.enter_context(closing(model.start()))
                _read(sessions[path], context, model.vocab_size)
            for turn in range(self.asked.rounds + 1):
                for path, nodes in _in_turns(wanted):
                    spent = _timed(sessions[path], bushy(nodes, models[path].vocab_size))
                    if turn:  # the first turn warms up
                        times[path, nodes].append(spent)
            sizes = {path: _sizes(model) for path, model in models.items()}
        return [
            {
                "milliseconds": round(median(times[record.method, record.nodes]), 2),
                **sizes[record.method],
            }
            for record in wanted
        ]

    def _load(self, name: str, path: str) -> Model:
        if path == TRANSFORMERS:
            return TransformersModel(
                load_pretrained(name, dtype="bfloat16", device=self.device).model
            )
        return load_format(name, path, self.device).model

    def _require_room(self, name: str, model: Model) -> None:
        most, room = max(self.asked.contexts) + max(self.asked.nodes), model.context_length
        if room is not None and most > room:
            raise ValueError(
                f"{name} reads {room} tokens, which have no room for {max(self.asked.contexts)} of"
                f" context and {max(self.asked.nodes)} nodes; ask for less with --contexts or"
                " --nodes"
            )


def bushy(nodes: int, vocab: int = 1 << 15) -> DraftTree:
    """A tree with two children for every node."""
    return DraftTree.of(
        [(7 + node) % vocab for node in range(nodes)],
        [-1] + [node // 2 for node in range(nodes - 1)],
    )


def _in_turns(wanted: Sequence[Record]) -> list[tuple[str, int]]:
    """Every path at one number of nodes before any at the next."""
    return sorted(
        ((record.method, record.nodes or 1) for record in wanted), key=lambda each: each[1]
    )


def _read(session: ModelSession, context: int, vocab: int) -> None:
    tokens = [(5 + place % CHUNK) % vocab for place in range(context)]
    for start in range(0, context, CHUNK):
        session.extend(tokens[start : start + CHUNK], keep="last")


def _timed(session: ModelSession, tree: DraftTree) -> float:
    """Milliseconds of the second of two passes.

    The first brings this path's weights back into the caches, as in decoding.
    """
    session.forward(tree).logits.cpu()
    since = time.perf_counter()
    session.forward(tree).logits.cpu()  # on a GPU this waits for the pass to end
    return (time.perf_counter() - since) * 1e3


def _sizes(model: Model) -> dict[str, int]:
    """Bytes of the cache and of the weights, as far as the model knows them."""
    found = {}
    if isinstance(model, CachedModel):
        found["cache_bytes"] = model.pool.bytes
    if isinstance(model, NativeModel):
        found["weight_bytes"] = model.weight_bytes
    return found
