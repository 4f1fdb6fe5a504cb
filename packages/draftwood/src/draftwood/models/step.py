"""Whole steps of texts made by the library, for models and drafters that it has."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from draftwood.models.model import ModelSession, StepInput
from draftwood.native.step import SINGLE

if TYPE_CHECKING:
    from draftwood.native.drawn_trees import Rule
    from draftwood.native.step import NativeDraft, RunLimits
    from draftwood.rng import Rng


@runtime_checkable
class Stepper(Protocol):
    """Makes whole steps of a sequence: draft, forward pass, verdict, learning."""

    def step(
        self,
        draft: "NativeDraft",
        root: int,
        rng: "Rng",
        max_draft_len: int,
        rows: int,
        limits: "RunLimits" = SINGLE,
    ) -> StepInput:
        """Prepare the next step for a forward pass of the model; its path is yet to be committed.

        Args:
            draft: what drafts.
            root: the newest token.
            rng: of the request, which is left as it is.
            max_draft_len: most draft tokens in a row.
            rows: that the pass is expected to run.
            limits: of steps in a row, each of which goes on behind the one before; where the pass
                is shared a single one is made.
        """
        ...


@runtime_checkable
class StepModel(Protocol):
    """A model that makes steps of its own; each gives what a ``Sequence`` makes of its passes."""

    def stepper(self, session: ModelSession, key: int, temperature: float, rule: "Rule") -> Stepper:
        """Start to make the steps of a sequence.

        Args:
            session: one of this model.
            key: of the request's noise, as ``Rng.next_draw`` gives it.
            temperature: 0 takes the likeliest tokens.
            rule: by which nodes of drawn trees are kept.
        """
        ...


def stepper_of(session: ModelSession, key: int, temperature: float, rule: "Rule") -> Stepper | None:
    """Ask the model of a session to make whole steps; None where it makes none.

    Args:
        key: of the request's noise, as ``Rng.next_draw`` gives it.
        temperature: 0 takes the likeliest tokens.
        rule: by which nodes of drawn trees are kept.
    """
    model = session.model
    return model.stepper(session, key, temperature, rule) if isinstance(model, StepModel) else None
