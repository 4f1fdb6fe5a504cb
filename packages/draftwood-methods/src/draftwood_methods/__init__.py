"""Published methods that do not pay on their own, exact and measured.

draftwood finds them by this package's entry point; ``RECIPES`` holds them by name.
"""

from draftwood_methods.recipes import RECIPES

__all__ = ["RECIPES"]
