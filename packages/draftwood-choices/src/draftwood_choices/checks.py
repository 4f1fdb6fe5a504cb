"""Checks of this package, which ``draftwood check`` runs."""

from draftwood.testing.rules import rule_checks
from draftwood_choices.collaboration import proof as of_collaboration
from draftwood_choices.search import proof as of_search

CHECKS = {**rule_checks("momentum", 0.1), **of_collaboration.CHECKS, **of_search.CHECKS}
"""By what each checks."""
