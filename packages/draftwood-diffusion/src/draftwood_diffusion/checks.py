"""Checks of this package, which ``draftwood check`` runs."""

from draftwood_diffusion import proof

CHECKS = {**proof.CHECKS}
"""By what each checks."""
