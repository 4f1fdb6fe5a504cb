"""Published methods by name."""

from draftwood.engine.method import Method, Promise
from draftwood.methods.parts import Parts, PartsWarning, known_parts
from draftwood.methods.recipes import Recipe
from draftwood.methods.registry import (
    build,
    drafts_ahead,
    known,
    lacking,
    needs_draft_model,
    needs_drafter,
    needs_layers,
    recipe,
    require,
    uses_datastore,
    uses_draft_model,
    uses_drafter,
)

__all__ = [
    "Method",
    "Parts",
    "PartsWarning",
    "Promise",
    "Recipe",
    "build",
    "drafts_ahead",
    "known",
    "known_parts",
    "lacking",
    "needs_draft_model",
    "needs_drafter",
    "needs_layers",
    "recipe",
    "require",
    "uses_datastore",
    "uses_draft_model",
    "uses_drafter",
]
