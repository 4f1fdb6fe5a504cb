"""Checks of this package, which ``draftwood check`` runs."""

from draftwood.testing.rules import rule_checks
from draftwood_choices.collaboration import proof

CHECKS = {**rule_checks("momentum", 0.1), **proof.CHECKS}
"""By what each checks."""
