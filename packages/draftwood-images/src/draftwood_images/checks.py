"""Checks of this package, which ``draftwood check`` runs."""

from draftwood_images import proof as of_drawing
from draftwood_images.continuous import proof as of_continuous

CHECKS = {**of_drawing.CHECKS, **of_continuous.CHECKS}
"""By what each checks."""
