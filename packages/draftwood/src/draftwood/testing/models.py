"""Models small enough to know everything about."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftwood.models.model import (
    Ability,
    Cpu,
    EmbeddingsAndHead,
    ForwardInput,
    Keep,
    ModelInput,
    ModelOutput,
    ModelSession,
    RowsInput,
)
from draftwood.models.requirements import (
    NoEmbeddingsAndHead,
    require_ability,
    require_embeddings,
    require_layers,
    require_rows,
)
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class TableModel:
    """A language model whose next token depends on the last few tokens alone.

    ``logits[..., i, j]`` are the logits after i, j. It has no layers and no cache, but its
    sessions insist on the order of calls that models with a cache need.

    Args:
        logits: one axis for each token that is looked at, the newest last, then one for the next
            token. Where a text is shorter, its first token is assumed before it too. An array, or a
            tensor; passes give rows of it.
    """

    logits: Any
    # the same for all, so no fields
    context_length, layers, hidden_size, device = None, 0, 0, Cpu()
    end_tokens, abilities = frozenset[int](), frozenset[Ability](("fork",))

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[-1]

    @property
    def order(self) -> int:
        """Number of tokens that the next one depends on."""
        return self.logits.ndim - 1

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        return NoEmbeddingsAndHead(self)

    def start(self) -> "TableSession":
        return TableSession(self)

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        for each in inputs:
            if isinstance(each, ForwardInput):
                require_layers(self, each.layers)
            if isinstance(each, RowsInput):
                require_rows(self)
        return [each.alone() for each in inputs]

    def after(self, tails: Sequence[tuple[int, ...]]) -> Any:
        """Logits [tails vocab] after these ends of texts, each at least as long as is looked at."""
        places = np.array([tail[-self.order :] for tail in tails])
        return self.logits[tuple(places.T)]


def writing(text: Sequence[int], vocab: int = 10) -> TableModel:
    """Make a model that writes after each token the one that follows it in a text, round and round.

    Where a token stands there more than once the last place counts. Of all other tokens smaller
    ones are likelier.
    """
    usual = np.float32(-0.01) * np.arange(vocab, dtype=np.float32)
    logits = np.tile(usual, (vocab, 1))
    for token, following in zip(text, [*text[1:], text[0]], strict=True):
        logits[token] = usual
        logits[token, following] = 9.0
    return TableModel(logits)


@dataclass(eq=False)
class TableSession:
    """One sequence on a TableModel.

    Attributes:
        tokens: committed so far.
        run: (token, parent) of each node of a forward pass since the last commit.
    """

    model: TableModel
    tokens: list[int] = field(default_factory=list)
    run: list[tuple[int, int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        if embeddings is not None:
            require_embeddings(self.model, tokens, embeddings)
        if hidden:
            require_ability(self.model, "hidden", f"a pass that gives hidden states {list(hidden)}")
        if len(tokens) == 0:
            raise ValueError("extend needs at least one token")
        tails = [self._tail(tokens[0])]
        for token in tokens:
            tails.append((*tails[-1], token)[-self.model.order :])
        self.tokens += list(tokens)
        self.run = []
        wanted = tails[1:] if keep == "all" else tails[-1:]
        return ModelOutput(self.model.after(wanted)[: len(wanted) * (keep != "none")])

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        if hidden:
            require_ability(self.model, "hidden", f"a pass that gives hidden states {list(hidden)}")
        nodes = list(zip(tree.token_list, tree.parent_list, strict=True))
        if nodes[:first] != self.run[:first]:
            raise ValueError(
                f"nodes before {first} must have been run since the last commit, {self.run} were"
            )
        self.run = nodes
        tails: list[tuple[int, ...]] = []
        for token, parent in nodes:
            above = self._tail(token) if parent < 0 else tails[parent]
            tails.append((*above, token)[-self.model.order :])
        return ModelOutput(self.model.after(tails[first:]))

    def commit(self, path: Sequence[int]) -> None:
        chosen = [self.run[node] for node in path]
        before = [-1, *path[:-1]]
        if [parent for _, parent in chosen] != before:
            raise ValueError(
                f"a commit keeps a path from the root down, got nodes {list(path)} of {self.run}"
            )
        self.tokens += [token for token, _ in chosen]
        self.run = []

    def wants(self, count: int) -> int:
        return 0

    def clear(self) -> None:
        self.tokens, self.run = [], []

    def rewind(self, count: int) -> None:
        if not 0 <= count <= len(self.tokens):
            raise ValueError(f"cannot take back {count} of {len(self.tokens)} tokens")
        taken = self.tokens[len(self.tokens) - count :]
        del self.tokens[len(self.tokens) - count :]
        self.run = [(token, place - 1) for place, token in enumerate(taken)]

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> "TableSession":
        fork = TableSession(self.model) if into is None else into
        if not isinstance(fork, TableSession) or fork.model is not self.model or fork.tokens:
            raise ValueError("a fork goes into an empty session of the same model")
        fork.tokens = self.tokens[:length]
        return fork

    def close(self) -> None:
        self.tokens, self.run = [], []

    def _tail(self, token: int) -> tuple[int, ...]:
        """The newest tokens before this one, as many as are looked at."""
        order = self.model.order
        return (*((self.tokens or [token])[:1] * order), *self.tokens[-order:])[-order:]
