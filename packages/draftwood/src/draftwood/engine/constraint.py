"""Protocol of a constraint on texts: which tokens may come next."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Bool


@runtime_checkable
class ConstraintState(Protocol):
    """A text so far under a constraint.

    A state never changes, so that every branch of a draft tree has its own. All states of one text
    are read by one thread at a time.
    """

    @property
    def may_end(self) -> bool:
        """True if the text satisfies the constraint as it stands."""
        ...

    @property
    def must_end(self) -> bool:
        """True if nothing but an end token may follow."""
        ...

    def after(self, token: int) -> "ConstraintState | None":
        """The state one token later; None where the token is forbidden."""
        ...

    def allowed(self) -> Bool[np.ndarray, " vocab"]:
        """The tokens that may come next, as wide as the logits.

        End tokens are among them exactly where the text may end, and alone where it must.
        """
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, one after the other; empty where there is a choice."""
        ...


@runtime_checkable
class Constraint(Protocol):
    """A condition on texts, for instance a grammar; shared by all requests that ask for it.

    Attributes:
        vocab_size: width of the logits that it masks.
        end_tokens: tokens that end a text; a text under the constraint ends with any of them.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_tokens(self) -> frozenset[int]: ...

    def start(self) -> ConstraintState:
        """The state of an empty text."""
        ...
