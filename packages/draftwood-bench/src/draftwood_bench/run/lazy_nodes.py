"""Measure block efficiency cheaply: run only nodes that are read, for many texts per pass.

The engine, the drafters and the verifiers are the library's own. A node is run when its
distribution is asked for, so a rule that walks from the root costs as much as plain decoding, and
one that starts at the leaves what it looks at. The sequences under way share one pass. The texts
are those of ordinary decoding; times mean nothing.
"""

from collections.abc import Sequence
from functools import partial
from itertools import takewhile

import torch

from draftwood.drafters import Nothing
from draftwood.drafters.draft_model import DraftModel
from draftwood.engine import ModelInput, Options, generate
from draftwood.models.cached import CachedModel
from draftwood.models.model import Ability, ForwardInput, ModelOutput, ModelSession
from draftwood.models.requirements import require_layers
from draftwood.models.session import PooledSession
from draftwood.models.shared import SharedPasses
from draftwood.stats import Step
from draftwood.together import raise_first, run_together
from draftwood.tree import DraftTree
from draftwood_bench.plan.configurations import Configuration


def decode_together(
    target: CachedModel,
    draft: CachedModel,
    cell: Configuration,
    prompts: Sequence[Sequence[int]],
    options: Sequence[Options],
    whole_trees: bool = False,
) -> list[list[Step]]:
    """Decode every prompt plainly or by a method with a draft model.

    Return the steps of each; their times mean nothing.

    Args:
        target: the model whose texts they are.
        draft: another one, of the same vocabulary.
        cell: which shape and verifier; without a shape nothing is drafted.
        prompts: token ids.
        options: for each prompt.
        whole_trees: run every node of every tree.
    """
    model = SharedPasses(target, first=False) if whole_trees else LazyNodes(target)
    drafter = Nothing() if cell.tree is None else DraftModel(SharedPasses(draft), cell.tree)

    def text(number: int) -> list[Step]:
        return list(generate(model, drafter, cell.rule, prompts[number], options[number]))

    with torch.no_grad():
        found = run_together([partial(text, number) for number in range(len(prompts))])
    return raise_first(found)


class LazyNodes(SharedPasses):
    """Target that runs a node when its distribution is read. It has no other abilities."""

    def __init__(self, inner: CachedModel) -> None:
        super().__init__(inner, first=False)
        self.abilities: frozenset[Ability] = frozenset()

    def start(self) -> PooledSession:
        return LazySession(self)  # type: ignore[arg-type]

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        trees = [each for each in inputs if isinstance(each, ForwardInput)]
        if len(trees) < len(inputs):
            return super().forward(inputs)
        for each in trees:
            require_layers(self, each.layers)  # type: ignore[arg-type]
        return [ModelOutput(each.session.read(each.tree)) for each in trees]  # type: ignore[arg-type,attr-defined]


class LazySession(PooledSession):
    """One sequence, whose cache holds the path that is being read."""

    def read(self, tree: DraftTree) -> "RowsOnDemand":
        """The logits of this tree, which are not computed yet."""
        self.rows = RowsOnDemand(self, tree)
        return self.rows

    def commit(self, path: Sequence[int]) -> None:
        self.rows.keep(path)

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> PooledSession:
        raise ValueError(
            "a session that runs nodes when they are read cannot be forked, as its cache holds the"
            " nodes that were read last; fork a session of the model itself"
        )


class RowsOnDemand:
    """Logits by node; reading one runs it.

    Missing nodes between it and the last path are run too.
    """

    def __init__(self, session: LazySession, tree: DraftTree) -> None:
        self.session, self.tree = session, tree
        self.path: list[int] = []  # nodes in the cache after the committed tokens

    def __len__(self) -> int:
        return len(self.tree)

    def __getitem__(self, rows: slice) -> torch.Tensor:
        wanted = [0, *self.tree.path_to(rows.start)]
        self.keep(wanted[: min(self._shared_with(wanted), len(wanted) - 1)])
        missing = [self.tree.token_list[node] for node in wanted[len(self.path) :]]
        self.path = wanted
        return self.session.extend(missing, keep="last").logits

    def keep(self, path: Sequence[int]) -> None:
        """Drop all nodes that were read after this part of the path.

        Raises:
            ValueError: for nodes that were not read.
        """
        if self._shared_with(path) < len(path):
            raise ValueError(
                f"nodes {list(path)} were not all read; the last ones were {self.path}"
            )
        if len(path) < len(self.path):
            self.session.rewind(len(self.path) - len(path))
        self.path = list(path)

    def _shared_with(self, path: Sequence[int]) -> int:
        """Number of nodes that both paths begin with."""
        return len(
            list(takewhile(lambda pair: pair[0] == pair[1], zip(self.path, path, strict=False)))
        )
