"""Checks of this package, which ``draftwood check`` runs."""

from draftwood.testing.rules import rule_checks

CHECKS = rule_checks("momentum", 0.1)
"""By what each checks."""
