"""Whole steps of texts made by the library, for models and drafters that it has."""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from draftwood.models.model import ModelSession, StepInput

if TYPE_CHECKING:
    from draftwood.native.step import NativeDraft


@runtime_checkable
class Stepper(Protocol):
    """Makes whole steps of a sequence: draft, forward pass, the target's own draws, learning."""

    def step(
        self, draft: "NativeDraft", root: int, place: int, max_draft_len: int, rows: int
    ) -> StepInput:
        """Prepare the next step for a forward pass of the model; its path is yet to be committed.

        Args:
            draft: what drafts.
            root: the newest token.
            place: number of the next draw.
            max_draft_len: most draft tokens in a row.
            rows: that the pass is expected to run.
        """
        ...


@runtime_checkable
class StepModel(Protocol):
    """A model that makes steps of its own; each gives what a ``Sequence`` makes of its passes."""

    def stepper(self, session: ModelSession, key: int, temperature: float) -> Stepper:
        """Start to make the steps of a sequence.

        Args:
            session: one of this model.
            key: of the request's noise, as ``Rng.next_draw`` gives it.
            temperature: 0 takes the likeliest tokens.
        """
        ...


def stepper_of(session: ModelSession, key: int, temperature: float) -> Stepper | None:
    """Ask the model of a session to make whole steps; None where it makes none.

    Args:
        key: of the request's noise, as ``Rng.next_draw`` gives it.
        temperature: 0 takes the likeliest tokens.
    """
    model = session.model
    return model.stepper(session, key, temperature) if isinstance(model, StepModel) else None
