"""Published methods by name."""

from draftwood.engine.method import Method
from draftwood.methods.recipes import RECIPES, Recipe
from draftwood.methods.registry import build, recipe, require_parts

__all__ = ["RECIPES", "Method", "Recipe", "build", "recipe", "require_parts"]
