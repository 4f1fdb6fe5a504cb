"""Weights that a run is made on."""

from dataclasses import dataclass
from typing import Any

from draftwood.model_names import ModelNames


@dataclass(frozen=True)
class Models(ModelNames):
    """Target, adapter, draft model, head and datastore of a run, and the way they are run.

    Attributes:
        threads: that PyTorch uses; None leaves it its own choice.
    """

    threads: int | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        """Adapter, draft model, head and datastore under the names of ``RunInfo``."""
        drafts = self.drafts
        return {
            "draft_model": drafts.model,
            "drafter": drafts.head if drafts.takes_shipped else "none",
            "datastore": self.datastore,
            "adapter": self.adapter,
        }
