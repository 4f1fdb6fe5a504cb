"""Texts of trained heads that PyTorch runs, and the rows of their caches.

In a cache the rows of the text come first, what is drafted behind them. Rows of logits become NumPy
arrays in ``DraftVocabulary``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.heads.eagle import NEWEST, EagleConfig
from draftwood.heads.lm import LmConfig
from draftwood.models.model import CHUNK, EmbeddingsAndHead
from draftwood.tree import DraftTree
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.heads.lm import LmHead
from draftwood_torch.heads.placed import OutputHead
from draftwood_torch.tensors import as_tensor

Layout = tuple[Int[Tensor, " new"], Bool[Tensor, "new context"]]
"""Places of new rows in the text, and which rows each of them sees."""


class RowCache(Protocol):
    """Keys and values of one text's rows; those of the text come first."""

    def attend(self, seen: Bool[Tensor, "rows context"]) -> Any:
        """Give new rows, which are appended, what they attend with; see ``HeadCache``."""
        ...

    def copy(self, other: Any, length: int) -> None:
        """Take over the first ``length`` rows of another sequence."""
        ...

    def keep(self, length: int) -> None:
        """Drop all rows from ``length`` on."""
        ...


class HeadRows:
    """The cache of one text, and where in it new rows lie.

    Args:
        cache: with no rows yet.
        window: newest rows that a row sees; None for all.
        device: of the cache.

    Attributes:
        text: rows of the text. The newest is the root's, below which trees grow.
    """

    def __init__(self, cache: RowCache, window: int | None, device: torch.device) -> None:
        self.cache, self.window, self.device = cache, window, device
        self.text = 0

    @classmethod
    def of(cls, config: EagleConfig | LmConfig, like: Tensor) -> "HeadRows":
        """Begin those of a head, in the type and on the device of a tensor."""
        return cls(HeadCache(config.layers, config.sizes, like), config.window, like.device)

    def chunks(self, count: int) -> Iterator[tuple[slice, Layout]]:
        """Further rows of the text, a chunk at a time: which of ``count`` these are."""
        for first in range(0, count, CHUNK):
            rows = min(CHUNK, count - first)
            places = torch.arange(self.text, self.text + rows, device=self.device)
            seen = causal(rows, self.text, self.window, self.device)
            yield slice(first, first + rows), (places, seen)
            self.text += rows

    def below(self, tree: DraftTree, first: int) -> Layout:
        """Nodes of a tree from ``first`` on: each sees the text, its ancestors and itself."""
        depths, ancestors = (as_tensor(each, self.device) for each in (tree.depths, tree.ancestors))
        context = torch.arange(self.text, device=self.device)
        places = torch.cat([context, self.text - 1 + depths[1:]])
        own = self.text - 1 + depths[first:]
        seen = torch.cat([ancestors.new_ones(len(own), self.text), ancestors[first:, 1:]], dim=-1)
        if self.window is not None:
            seen &= own[:, None] - places < self.window
        return own, seen

    def drop(self) -> None:
        """Forget what was drafted."""
        self.cache.keep(self.text)

    def copy(self, other: "HeadRows", count: int) -> bool:
        """Take over ``count`` rows of another text with the same beginning, where it has them."""
        if not other.text >= count > self.text:
            return False
        self.cache.copy(other.cache, count)
        self.text = count
        return True


class TorchText(ABC):
    """One text of a head that PyTorch runs; implements ``HeadText``.

    Args:
        rows: cache of the head.
        embeddings: the target's embedding.
        logits: output head.
    """

    def __init__(self, rows: HeadRows, embeddings: EmbeddingsAndHead, logits: OutputHead) -> None:
        self.rows, self.embeddings, self.logits = rows, embeddings, logits
        self.late: list[int] = []  # tokens of the text whose rows are not in the cache

    @abstractmethod
    def take(
        self,
        tokens: Sequence[int],
        hidden: Mapping[int, Any],
        path: Sequence[int],
    ) -> None: ...

    @torch.no_grad()
    def level(self, tree: DraftTree, first: int) -> Float[Tensor, "nodes draft_vocab"]:
        """Logits after nodes; see ``HeadText``."""
        states = self._begin(tree.token_list[0]) if first == 0 else self._below(tree, first)
        return self.logits(states)

    def drop(self) -> None:
        self.rows.drop()

    @abstractmethod
    def follow(self, first: Any) -> None: ...

    @abstractmethod
    def _begin(self, root: int) -> Float[Tensor, "1 dim"]:
        """Take in all rows of the text; gives what the output head reads after the root."""

    @abstractmethod
    def _below(self, tree: DraftTree, first: int) -> Float[Tensor, "nodes dim"]:
        """Run nodes of a tree; gives what the output head reads after them."""

    def _embed(self, tokens: Int[Tensor, " rows"], like: Tensor) -> Float[Tensor, "rows dim"]:
        return as_tensor(self.embeddings.embed(tokens)).to(like.dtype)


class StateReader(Protocol):
    """A head that continues the target's states: an ``EagleHead``, or a layer for multi-token
    prediction.
    """

    def combine(self, features: Tensor) -> Tensor:
        """Combine the target's states [rows reads dim] into those [rows dim] that it continues."""
        ...

    def __call__(
        self, embedded: Tensor, state: Tensor, positions: Tensor, attend: Any
    ) -> tuple[Tensor, Tensor]:
        """Run one step; see ``EagleHead.forward``."""
        ...


class EagleText(TorchText):
    """One text of an EAGLE head in PyTorch, or of another one that reads the same.

    The row of a place needs the token at the next one, so the newest always waits. Of many
    that wait the ``NEWEST`` are run, the others never.

    Args:
        head: that runs the rows.
        reads: the target's layers whose inputs it reads.
        dtype: of what it reads.
        rows, embeddings, logits: as ``TorchText`` takes them.
    """

    def __init__(
        self,
        head: StateReader,
        reads: Sequence[int],
        dtype: torch.dtype,
        rows: HeadRows,
        embeddings: EmbeddingsAndHead,
        logits: OutputHead,
    ) -> None:
        super().__init__(rows, embeddings, logits)
        self.head, self.reads, self.dtype = head, tuple(reads), dtype
        self.states: list[Float[Tensor, "places reads dim"]] = []  # the target's, at late tokens
        self.left_out = 0  # rows
        self.fed: list[Float[Tensor, "nodes dim"]] = []  # by the nodes to their children

    @torch.no_grad()
    def take(
        self,
        tokens: Sequence[int],
        hidden: Mapping[int, Any],
        path: Sequence[int],
    ) -> None:
        self.late += tokens
        if not hidden:
            self.left_out += len(self.late)
            self.late, self.states = [], []
            return
        places = [*path][-NEWEST:]
        states = [as_tensor(hidden[layer])[places] for layer in self.reads]
        self.states.append(torch.stack(states, dim=-2))
        if (more := len(self.late) - NEWEST) > 0:
            self.late, self.left_out = self.late[more:], self.left_out + more
            self.states = [torch.cat(self.states)[-NEWEST:]]

    def follow(self, first: Any) -> None:
        """Take over the rows that were run for another text with the same prompt."""
        is_alike = first.left_out == self.left_out
        if is_alike and self.rows.copy(first.rows, self.rows.text + len(self.late) - 1):
            self.states, self.late = [torch.cat(self.states)[-1:]], self.late[-1:]

    def _begin(self, root: int) -> Tensor:
        fed, read = self._take_in([*self.late[1:], root])
        self.fed = [fed[-1:]]
        return read[-1:]

    def _below(self, tree: DraftTree, first: int) -> Tensor:
        above = torch.cat(self.fed)[tree.parent_list[first:]]
        tokens = as_tensor(tree.tokens[first:], above.device)
        fed, read = self._run(tokens, above, self.rows.below(tree, first))
        self.fed.append(fed)
        return read

    def _take_in(self, following: list[int]) -> tuple[Tensor, Tensor]:
        """Append the rows whose next tokens are known; gives what the last ones say.

        Args:
            following: these tokens.
        """
        states, said = torch.cat(self.states), None
        for part, layout in self.rows.chunks(len(following)):
            tokens = torch.tensor(following[part], device=states.device)
            features = states[part].to(self.dtype)
            said = self._run(tokens, self.head.combine(features), layout)
        assert said is not None  # there is a token to follow
        self.late, self.states = self.late[len(following) :], [states[len(following) :]]
        return said

    def _run(
        self, tokens: Int[Tensor, " rows"], state: Float[Tensor, "rows dim"], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        places, seen = layout
        return self.head(self._embed(tokens, state), state, places, self.rows.cache.attend(seen))


class LmText(TorchText):
    """One text of a draft LM in PyTorch. The root's row is in the cache before it is text."""

    def __init__(self, head: LmHead, embeddings: EmbeddingsAndHead, logits: OutputHead) -> None:
        super().__init__(HeadRows.of(head.config, head.proj.weight), embeddings, logits)
        self.head, self._ahead = head, 0

    def take(
        self,
        tokens: Sequence[int],
        hidden: Mapping[int, Any],
        path: Sequence[int],
    ) -> None:
        self.late += tokens[self._ahead :]
        self._ahead = 0

    def follow(self, first: Any) -> None:
        """Take over the rows that were run for another text with the same prompt."""
        if self.rows.copy(first.rows, self.rows.text + len(self.late)):
            self.late = []

    def branch(self) -> "LmText":
        """Begin another text with the same rows."""
        other = LmText(self.head, self.embeddings, self.logits)
        other.rows.copy(self.rows, self.rows.text)
        other.late, other._ahead = [*self.late], self._ahead
        return other

    def _begin(self, root: int) -> Tensor:
        tokens, newest = [*self.late, root], None
        for part, layout in self.rows.chunks(len(tokens)):
            newest = self._run(torch.tensor(tokens[part], device=self.rows.device), layout)
        assert newest is not None  # the root is among them
        self.late, self._ahead = [], 1
        return newest[-1:]

    def _below(self, tree: DraftTree, first: int) -> Tensor:
        tokens = as_tensor(tree.tokens[first:], self.rows.device)
        return self._run(tokens, self.rows.below(tree, first))

    def _run(self, tokens: Int[Tensor, " rows"], layout: Layout) -> Float[Tensor, "rows dim"]:
        places, seen = layout
        embedded = self._embed(tokens, self.head.proj.weight)
        return self.head(embedded, places, self.rows.cache.attend(seen))
