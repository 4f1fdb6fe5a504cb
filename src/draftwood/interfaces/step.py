"""Whole steps of one text in one call, for models and drafters that the library has."""

from typing import Protocol, runtime_checkable

from draftwood.interfaces.model import ModelSession
from draftwood.native.step import NativeDraft, NativeStep


@runtime_checkable
class Stepper(Protocol):
    """Decodes a sequence step by step: draft, forward pass, the target's own draws, learning."""

    def __call__(self, draft: NativeDraft, root: int, place: int, room: int) -> NativeStep:
        """One step; the path is yet to be committed.

        Args:
            draft: what drafts.
            root: the newest token.
            place: number of the next draw.
            room: most draft tokens in a row.

        Raises:
            ValueError: for a token beyond the vocabulary.
            UndrawableError: where no token can be drawn.
        """
        ...


@runtime_checkable
class StepModel(Protocol):
    """A model that makes steps of its own; each gives what a ``Decoding`` makes of its passes."""

    def stepper(self, session: ModelSession, key: int, temperature: float) -> Stepper:
        """What decodes a sequence.

        Args:
            session: one of this model.
            key: of the request's noise, as ``Rng.next_draw`` tells it.
            temperature: 0 takes the likeliest tokens.
        """
        ...
