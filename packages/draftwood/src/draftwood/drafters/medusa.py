"""Draft with heads that each draft one of the next places from the target's newest state."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from draftwood.arrays import Float
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import (
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.native_side import native_medusa
from draftwood.native.medusa import NativeMedusa
from draftwood.sampling import Context
from draftwood.tree import DraftTree


@dataclass(frozen=True, eq=False)
class Medusa(HeadDrafter):
    """A tree whose level i the i-th head drafts; all nodes of a level get the same draft tokens.

    Medusa (Cai et al. 2024, arXiv:2401.10774). The paper's tree has a fixed form; here any shape
    grows one from the heads' distributions, as deep as there are heads. Nothing is kept from step
    to step but the target's newest state. The library runs the heads where it runs the target.

    Args:
        trained: heads, draft vocabulary and fingerprint of the target.
        target: the model whose text is written.
        shape: the tree to grow.

    Raises:
        ValueError: where the heads are of another kind, or do not fit the target.

    Example:
        The text is 1 2 3 4 5, and 5 was drawn from the target's state at 4, which all heads read.
        The first says 6 or 8 after 5, the second 7 one place on, whatever stands between. Drafted
        are 6 7 and 8 7. The target says 6 after 5, 7 after 6 and 9 after that: it keeps 6 7 and
        goes on with 9.
    """

    name: ClassVar[str] = "medusa"
    sees_drafted: ClassVar[bool] = False
    config: MedusaConfig = field(init=False, repr=False)
    native: NativeMedusa | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        config = self.fitting(MedusaConfig)
        if config.sees_drafted != self.sees_drafted:
            sees, other = ("see", "hydra") if config.sees_drafted else ("do not see", "medusa")
            raise ValueError(
                f"these heads {sees} what was drafted before, method {self.name!r} expects the"
                f" opposite; choose method {other!r}"
            )
        object.__setattr__(self, "config", config)
        object.__setattr__(self, "native", native_medusa(self.trained, self.target))
        self.require_runtime(self.native)

    def start(self, request: DraftRequest) -> DraftSession:
        if self.native is not None:
            return _NativeMedusaSession(self, request, self.native)
        return self.runner.medusa_session(self, request)


class Hydra(Medusa):
    """A tree whose level i the i-th head drafts, from what was drafted above each node.

    Hydra (Ankner et al. 2024, arXiv:2402.05109), with one head call per level.

    Example:
        The text is 1 2 3 4 5. From the target's state at 4 and from 5 the first head says 6 or 8.
        The second also reads the draft token: it says 7 below 6, and 9 below 8. The target says 8
        after 5, 9 after 8 and 0 after that: it keeps 8 9 and goes on with 0.
    """

    name: ClassVar[str] = "hydra"
    sees_drafted: ClassVar[bool] = True


class MedusaSession(DraftSession):
    """Trees of one text; each runtime of the heads scores their nodes.

    Attributes:
        state: the target's at the newest place, as the runtime keeps it.
    """

    def __init__(self, drafter: Medusa, request: DraftRequest) -> None:
        self.drafter, self.rng = drafter, request.rng
        self.sampler = request.sampler.for_drafting()
        self.layer = drafter.config.reads[0]
        self.state: Any = None

    @property
    def reads(self) -> Reads:
        return Reads(hidden=(self.layer,))

    @property
    def needs_prompt(self) -> bool:
        return False  # the newest state alone counts

    def update(self, verified: VerifiedTree) -> None:
        if verified.output is not None:
            self.learn(verified.output.hidden[self.layer], verified.path[-1])

    def propose(self, root: int, context: Context) -> DraftTree:
        if context.max_draft_len < 1:
            return DraftTree.of([root], [-1])
        most = min(context.max_draft_len, self.drafter.config.heads)
        within = replace(context, max_draft_len=most)
        return self.drafter.vocabulary.grow(
            self.drafter.shape, root, self.score, self.sampler, within, self.rng
        )

    @abstractmethod
    def learn(self, states: Any, row: int) -> None:
        """Keep the newest state, which is a row of the pass's [nodes dim]."""

    @abstractmethod
    def score(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits after the nodes from ``first`` on, each by the head of its level."""


class _NativeMedusaSession(MedusaSession):
    """The same in the library, which reads the state where the target's pass left it.

    Heads that read no drafted tokens draft all levels in one call, so that the rows of the output
    head are read once.
    """

    def __init__(self, drafter: Medusa, request: DraftRequest, heads: NativeMedusa) -> None:
        super().__init__(drafter, request)
        self.heads, self.row = heads, 0
        self._memory = np.empty((0, heads.vocab_size), np.float32)
        # of this tree, where they are known
        self._levels: Float[np.ndarray, "levels draft_vocab"] | None = None

    def learn(self, states: Any, row: int) -> None:
        self.state, self.row, self._levels = states, row, None

    def propose(self, root: int, context: Context) -> DraftTree:
        self._levels = None
        if not self.drafter.config.sees_drafted:
            depth = min(self.drafter.shape.depth, context.max_draft_len)
            levels = range(min(depth, self.drafter.config.heads))
            reads = self.heads.shape.reads[0]
            if levels:
                self._levels = self._logits(levels, [[root][:reads]] * len(levels))
        return super().propose(root, context)

    def score(self, tree: DraftTree, first: int) -> Float[np.ndarray, "nodes draft_vocab"]:
        """Logits after the nodes from ``first`` on; the library's memory until the next call."""
        levels = tree.depths[first:].tolist()
        if self._levels is not None:
            level = levels[0]
            return self._levels[levels] if len(levels) > 1 else self._levels[level : level + 1]
        return self._logits(levels, [self._read_by(tree, node) for node in range(first, len(tree))])

    def _read_by(self, tree: DraftTree, node: int) -> list[int]:
        """Tokens, from the root on, that the head of a node's level reads."""
        return [tree.token_list[each] for each in (0, *tree.path_to(node))]

    def _logits(
        self, levels: Sequence[int], tokens: Sequence[Sequence[int]]
    ) -> Float[np.ndarray, "rows draft_vocab"]:
        assert self.state is not None  # the prompt is the first update
        if len(levels) > len(self._memory):
            self._memory = np.empty((len(levels), self.heads.vocab_size), np.float32)
        return self.heads.logits([self.state], self.row, levels, tokens, self._memory)
