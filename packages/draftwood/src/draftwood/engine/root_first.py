"""A tree whose root is run by itself first, while the nodes below it are still being drafted."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.engine.overlap import OverlappedSession
from draftwood.engine.stopwatch import Stopwatch
from draftwood.interfaces.model import ForwardInput, Output
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampler
from draftwood.stats import Step
from draftwood.tree import DraftTree

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence


class RestNeededError(Exception):
    """A verdict depends on more than the root."""


class RootProbs(LazyProbs):
    """The target's distribution at the root of a tree."""

    def __getitem__(self, node: int) -> Float[Tensor, " vocab"]:
        """Probabilities after the root; RestNeededError after another node."""
        if node > 0:
            raise RestNeededError
        return super().__getitem__(node)

    def draw(self, node: int, rng: Rng) -> int:
        if node > 0:
            raise RestNeededError
        return super().draw(node, rng)


def node_probs(
    logits: Float[Tensor, "rows vocab"], sampler: Sampler, tree: DraftTree, before: Context
) -> LazyProbs:
    """The target's distributions at the nodes that were run: all of them, or the root."""
    kind = LazyProbs if len(logits) == len(tree) else RootProbs
    return kind(logits, sampler, tree, before)


@dataclass(frozen=True, eq=False)
class RootRun:
    """A tree of which only the root was run.

    Attributes:
        run: of the whole tree.
        output: of the root; None where the cache has lost it since.
        seconds: by phase so far.
    """

    run: ForwardInput
    output: Output | None
    seconds: dict[str, float]

    @property
    def rest(self) -> ForwardInput:
        """What is still to be run."""
        return replace(self.run, first=0 if self.output is None else 1)

    def joined(self, rest: Output) -> Output:
        """The output of the whole tree."""
        if self.output is None:
            return rest
        return Output(torch.cat([self.output.logits, rest.logits]))


class RootFirst:
    """Which nodes of a text's trees the target runs next; all at once where they are there."""

    def __init__(self) -> None:
        self._runs_root = False  # at present
        self._root_run: RootRun | None = None  # where its verdict depends on more

    def lose_cache(self) -> None:
        """A root that was run is to be run again."""
        if self._root_run is not None:
            self._root_run = replace(self._root_run, output=None)

    def next(self, text: "Sequence") -> tuple[ForwardInput, dict[str, float]]:
        """The next tree, or its root while the others are being drafted, or these others; and the
        seconds so far.
        """
        draft, before = text.draft, self._root_run
        if not isinstance(draft, OverlappedSession) or text.options.bound is not None:
            return text.propose()
        if before is not None:
            draft.draft_ahead()
            return before.rest, before.seconds
        watch = Stopwatch()
        self._runs_root = draft.begin(text.root, text.context_of_tree)
        watch.lap("draft")
        if self._runs_root:
            return ForwardInput(text.session, DraftTree.of([text.root], [-1])), watch.seconds
        run, seconds = text.propose()
        seconds["draft"] += watch.seconds["draft"]
        return run, seconds

    def take(
        self, text: "Sequence", run: ForwardInput, output: Output, seconds: dict[str, float]
    ) -> Step | None:
        """The step that comes of these nodes; None where the verdict depends on others."""
        if self._runs_root:
            return self._take_root(text, output, seconds)
        before, self._root_run = self._root_run, None
        if before is None:
            return text.settle(run, output, seconds)
        return replace(text.settle(before.run, before.joined(output), seconds), runs=2)

    def _take_root(
        self, text: "Sequence", output: Output, seconds: dict[str, float]
    ) -> Step | None:
        self._runs_root = False
        run, drafted = text.propose()
        seconds["draft"] += drafted["draft"]
        state = text.rng.state
        try:
            return text.settle(run, output, seconds)
        except RestNeededError:
            text.rng.state = state
            self._root_run = RootRun(run, output, seconds)
            return None
