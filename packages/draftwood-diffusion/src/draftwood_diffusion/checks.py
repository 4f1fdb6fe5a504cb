"""Checks of this package, which ``draftwood check`` runs."""

from draftwood_diffusion import model_proof, proof

CHECKS = {**proof.CHECKS, **model_proof.CHECKS}
"""By what each checks."""
