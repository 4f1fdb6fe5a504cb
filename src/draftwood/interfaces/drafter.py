"""Where guesses come from: the rules of the game."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.interfaces.model import Model, ModelSession, Output
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class VerifiedTree:
    """News for a drafter: what the target made of a tree. The first news is the prompt, as a chain
    that is all kept.

    Attributes:
        tree: what was run.
        path: nodes that are now part of the sequence, root included, in order.
        output: logits (and hidden states, where asked for) of every node that was run, kept or not;
            None where the drafter said that it reads neither.
    """

    tree: DraftTree
    path: Sequence[int]
    output: Output | None = None

    @cached_property
    def tokens(self) -> list[int]:
        """The tokens that are now part of the sequence."""
        return [self.tree.token_list[node] for node in self.path]

    @property
    def logits(self) -> Float[Tensor, "nodes vocab"]:
        """The target's logits at every node of the tree."""
        if self.output is None:
            raise ValueError("a drafter that reads logits must say so with needs_logits = True")
        return self.output.logits


@dataclass(frozen=True, eq=False)
class DraftRequest:
    """What a drafter may know of the request it drafts for.

    Attributes:
        sampler: how the target's logits become probabilities; drafting with the same options
            accepts most.
        rng: the request's only source of randomness.
        target: the target's own session, for drafters that read the target's cache.
        started: sessions of other models, which are closed with the request.
    """

    sampler: Sampler
    rng: Rng
    target: ModelSession
    started: list[ModelSession] = field(default_factory=list)

    def start(self, model: Model) -> ModelSession:
        """A session of a model that drafts."""
        session = model.start()
        self.started.append(session)
        return session


@runtime_checkable
class DraftSession(Protocol):
    """State of one request. Two methods: the prompt is the first ``update``."""

    def propose(self, root: int, context: Context) -> DraftTree:
        """A tree below ``root``, the newest token; ``context`` holds the tokens before it.

        No path longer than ``context.room`` can become text. The engine cuts off what is deeper,
        which gives the nodes left new numbers.
        """
        ...

    def update(self, accepted: VerifiedTree) -> None:
        """Learn what became of the last tree."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Settings and weights, shared by all requests.

    Attributes:
        name: as in the method table.
        needs_logits: whether ``update`` reads the target's logits.
        needs_hidden: layers of the target whose hidden states ``update`` reads.
    """

    name: ClassVar[str]
    needs_logits: ClassVar[bool]
    needs_hidden: ClassVar[tuple[int, ...]]

    def start(self, request: DraftRequest) -> DraftSession: ...
