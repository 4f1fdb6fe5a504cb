"""Models whose tokens are vectors, each of them the end of a denoising chain."""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int


@runtime_checkable
class ContinuousModel(Protocol):
    """A model that draws vectors one after the other.

    A token is the end of a chain of points. The first point is standard normal. The point behind
    step s is normal around ``means`` of the point before it, with the deviation ``deviations[s]``
    in each coordinate; the last step is no exception. ``means`` sees earlier tokens through a state
    alone.
    """

    @property
    def length(self) -> int:
        """Tokens of a picture."""
        ...

    @property
    def size(self) -> int:
        """Coordinates of a token."""
        ...

    @property
    def deviations(self) -> Float[np.ndarray, " steps"]:
        """Standard deviations of the steps, in their order."""
        ...

    def states(
        self, tokens: Float[np.ndarray, "pictures tokens size"]
    ) -> Float[np.ndarray, "pictures tokens+1 features"]:
        """States from which the first token, the second and so on are drawn, in one pass."""
        ...

    def means(
        self,
        states: Float[np.ndarray, "rows features"],
        points: Float[np.ndarray, "rows size"],
        steps: Int[np.ndarray, " rows"],
    ) -> Float[np.ndarray, "rows size"]:
        """Means of the next points, each row at a step of its own."""
        ...


def require_alike(target: ContinuousModel, draft: ContinuousModel) -> None:
    """Raise ValueError unless both models draw pictures of one form, in as many steps."""
    forms = [(each.length, each.size, len(each.deviations)) for each in (target, draft)]
    if forms[0] != forms[1]:
        told = ["{} tokens of {} numbers in {} steps".format(*form) for form in forms]
        raise ValueError(
            f"a draft model draws what its target draws, {told[0]}, but this one draws {told[1]};"
            " train both together"
        )


def require_noise(
    target: ContinuousModel, draft: ContinuousModel, name: str, first: int = 0
) -> None:
    """Raise ValueError unless steps from ``first`` on have the same noise in both, and have some.

    Args:
        name: of the method that needs it.
    """
    own, other = target.deviations[first:], draft.deviations[first:]
    if not np.array_equal(own, other):
        raise ValueError(
            f"{name} couples steps of equal deviations, but target and draft differ in theirs; take"
            " cspd, which trades quality"
        )
    if not (own > 0).all():
        raise ValueError(f"{name} needs noise in each step it couples, but some step has none")
