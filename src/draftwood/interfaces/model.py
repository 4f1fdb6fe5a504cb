"""What the engine needs of a model: run a tree, keep a path."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol, SupportsIndex, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.tree import DraftTree

Keep = Literal["all", "last"]


class InProcess:
    """What lives in the memory of one process: it is neither pickled nor copied with all that it
    holds.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        self._refuse("pickled")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self._refuse("copied")

    def __copy__(self) -> Any:
        double = object.__new__(type(self))
        double.__dict__.update(self.__dict__)
        return double

    def _refuse(self, act: str) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be {act}: its weights and caches belong to this process,"
            " where all threads may share it; in another process load the model anew with"
            " draftwood.load"
        )


@dataclass(frozen=True, eq=False)
class Output:
    """What a run of the model gave.

    Attributes:
        logits: one row per node that was run, or a single row for the last one where only that was
            asked for.
        hidden: hidden states at these nodes for the layers asked for; layer i is the input of
            decoder layer i.
    """

    logits: Float[Tensor, "rows vocab"]
    hidden: dict[int, Float[Tensor, "nodes dim"]] = field(default_factory=dict)


@runtime_checkable
class ModelSession(Protocol):
    """One sequence on one model, used for targets and for draft models.

    The KV cache holds ``length`` committed tokens and behind them the nodes run since the last
    commit.
    """

    @property
    def model(self) -> "Model": ...

    @property
    def length(self) -> int: ...

    def extend(
        self, tokens: Sequence[int], keep: Keep = "all", hidden: Sequence[int] = ()
    ) -> Output:
        """Append tokens for good; logits of all of them or of the last one."""
        ...

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> Output:
        """Run the nodes from ``first`` on; each sees the committed tokens, its ancestors and
        itself.

        Nodes before ``first`` must have been run since the last commit.
        """
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the tree as the newest tokens, in this order, and drop the other
        nodes.
        """
        ...

    def rewind(self, count: int) -> None:
        """Take back the newest ``count`` tokens. They count as run: a tree may start with them."""
        ...

    def skipping(self, layers: frozenset[int]) -> "ModelSession":
        """The same sequence and the same cache, run with these decoder layers left out.

        Raises:
            ValueError: where the model has no such layers to leave out.
        """
        ...

    def fork(self, into: "ModelSession | None" = None) -> "ModelSession":
        """Another session with the same committed tokens, without running them again.

        Args:
            into: an empty session of the same model that takes the copy; None starts one.

        Nodes run since the last commit are not copied, nor are tokens that were taken back. From
        then on both sessions write texts of their own, and closing one leaves the other as it is.
        """
        ...

    def close(self) -> None:
        """Give the session's share of the cache back."""
        ...


@dataclass(frozen=True, eq=False)
class ForwardInput:
    """One sequence's part in a forward pass: nodes of ``tree`` from ``first`` on.

    Attributes:
        hidden: layers whose hidden states are wanted; each sequence may want others.
    """

    session: ModelSession
    tree: DraftTree
    first: int = 0
    hidden: tuple[int, ...] = ()


@runtime_checkable
class Model(Protocol):
    """Weights that can run trees."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int | None:
        """Most tokens a sequence may have; None where there is no limit."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers; 0 where there are none to speak of."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens with which the model ends its text."""
        ...

    @property
    def device(self) -> torch.device: ...

    def start(self) -> ModelSession: ...

    def forward(self, inputs: Sequence[ForwardInput]) -> list[Output]:
        """Run several sequences at once, of different lengths and with different trees, padded to
        one batch.
        """
        ...


CHUNK = 512
"""Tokens of a prompt run at once: long enough to be efficient, short enough that logits and masks
stay small.
"""


def chunks(tokens: Sequence[int], size: int = CHUNK) -> Iterator[Sequence[int]]:
    """The tokens in pieces of at most ``size``."""
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


def extend_in_chunks(session: ModelSession, tokens: Sequence[int]) -> Output:
    """Append any number of tokens; logits of the last one."""
    output = None
    for chunk in chunks(tokens):
        output = session.extend(chunk, keep="last")
    if output is None:
        raise ValueError("there must be at least one token")
    return output
