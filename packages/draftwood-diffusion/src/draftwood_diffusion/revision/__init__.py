"""Parts that say what may change again, one file each."""

from draftwood_diffusion.revision.edit import TokenEditing
from draftwood_diffusion.revision.none import KeepAll
from draftwood_diffusion.revision.revise import Revision

REVISIONS: dict[str, type[Revision]] = {each.name: each for each in (KeepAll, TokenEditing)}
"""Revisions by name, the default first."""

__all__ = ["REVISIONS", "Revision"]
