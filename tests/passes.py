"""Record the passes of a model for tests of drafters that run it in part."""

import threading
from typing import Any, NamedTuple

import pytest

from draftwood.models.model import Layers, ModelOutput


class SeenPass(NamedTuple):
    """One sequence's share of a pass.

    Attributes:
        layers: that ran.
        rows: number of them.
        is_beside: whether it ran in another thread than the one that asked for the record.
    """

    layers: Layers
    rows: int
    is_beside: bool


def passes_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[SeenPass]:
    """Give a list that every later pass is added to, prompts left out."""
    seen: list[SeenPass] = []
    compute, main = model.compute, threading.get_ident()

    def watched(parts: Any, hidden: Any) -> list[ModelOutput]:
        own = [part for part in parts if not getattr(part, "is_prompt", False)]
        beside = threading.get_ident() != main
        seen.extend(SeenPass(part.layers, part.place.count, beside) for part in own)
        return compute(parts, hidden)

    monkeypatch.setattr(model, "compute", watched)
    return seen
