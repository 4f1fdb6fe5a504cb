"""Rules of collaboration, as ``draftwood methods`` lists them."""

from draftwood.methods.listings import CommandMethod
from draftwood_choices.collaboration.rules import RULES


def option_of(name: str) -> str:
    """The command with this rule, its knobs as they are by themselves."""
    knobs = (f"{each.name}={each.default:g}" for each in RULES[name].knobs())
    return f"draftwood collaborate --rule {','.join((name, *knobs))} --inexact"


METHODS = [
    CommandMethod(name, option_of(name), each.summary, each.source, "trades quality")
    for name, each in RULES.items()
]
