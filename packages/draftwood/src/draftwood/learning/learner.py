"""Protocol of a learner, which trains heads; packages bring one by entry point."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from draftwood.arrays import Float, as_array
from draftwood.heads import packed
from draftwood.heads.trained import HeadWeights
from draftwood.learning.texts import WatchedText
from draftwood.models.native import NativeModel
from draftwood.optional import entry_points, install_command

if TYPE_CHECKING:
    from draftwood.heads.trained import TrainedHead
    from draftwood.models.model import Model

GROUP = "draftwood.learners"
"""Entry points that name what makes a learner; the first by name is taken."""

Rows = Float[np.ndarray, "draft_vocab dim"]

Pause = Callable[[], None]
"""Called every few milliseconds of work; returns when work may go on."""


class Learner(Protocol):
    """Trains a head in small steps on watched texts.

    Attributes:
        steps: that were made so far.
    """

    steps: int

    def train(
        self,
        weights: HeadWeights,
        new: Sequence[WatchedText],
        old: Sequence[WatchedText],
        pause: Pause,
    ) -> HeadWeights:
        """Make small steps from the weights of a head; return new ones, the old ones stay.

        Args:
            weights: of a ``TrainedHead``.
            new: texts that came since the last call.
            old: texts of before, for replay.

        Raises:
            ValueError: where numbers are none.
        """
        ...

    def judge(
        self, weights: HeadWeights, texts: Sequence[WatchedText], pause: Pause
    ) -> Float[np.ndarray, "places 2"]:
        """Judge the first draft of a head with these weights at every place of the answers.

        Returns:
            The overlap of both distributions, at the temperature of the text, and 1 where the
            likeliest token of both is the same.
        """
        ...


MakeLearner = Callable[["TrainedHead", Rows, Callable[[Any], Any]], Learner]
"""Makes a learner, as an entry point of ``GROUP`` names it: from a head, the target's output rows
of the draft vocabulary, and a function that embeds tokens [tokens] as the target does.
"""


def make_learner(trained: "TrainedHead", target: "Model") -> Learner:
    """Make the learner of an installed package for a head.

    Raises:
        ImportError: where there is none, with what to install.
    """
    found = entry_points(GROUP)
    if not found:
        raise ImportError(
            "learning while serving needs a trainer, and none is installed:"
            f" {install_command('draftwood-train')}"
        )
    make: MakeLearner = found[0].load()
    return make(trained, output_rows(trained, target), target.embeddings_and_head.embed)


def output_rows(trained: "TrainedHead", target: "Model") -> Rows:
    """Rows of the target's output head, in float32, by which its logits are scaled."""
    if isinstance(target, NativeModel):
        return packed.output_rows(trained, target)
    return as_array(trained.rows_of(target))


ERRORS = 2.0
"""Standard errors by which the overlap must grow: about one in forty gains of chance is larger."""


def is_better(before: Float[np.ndarray, "places 2"], after: Float[np.ndarray, "places 2"]) -> bool:
    """True if more is accepted after than before, by overlap, and as many first tokens are right.

    The overlap must grow by more than chance lets it, given how far the places differ.

    Args:
        before: as ``Learner.judge`` gives it; ``after`` likewise, of the same places.
    """
    if len(before) < 2 or not np.isfinite(after).all():
        return False
    gains = after - before
    overlap, hits = gains.mean(axis=0)
    error = gains[:, 0].std(ddof=1) / len(gains) ** 0.5
    return bool(overlap > ERRORS * error and hits >= 0.0)
