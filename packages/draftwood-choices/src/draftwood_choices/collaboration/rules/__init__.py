"""Rules of collaboration, one file each."""

from draftwood.methods.knobs import made
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.rules.entropy_switch import EntropySwitch
from draftwood_choices.collaboration.rules.first_n import FirstTokens
from draftwood_choices.collaboration.rules.fixed_score import FixedScore
from draftwood_choices.collaboration.rules.foreal import Foreal
from draftwood_choices.collaboration.rules.oracle import Oracle
from draftwood_choices.collaboration.rules.random_turns import RandomTurns
from draftwood_choices.collaboration.rules.step_router import StepRouter

RULES: dict[str, type[CollaborationRule]] = {
    each.name: each
    for each in (Foreal, EntropySwitch, StepRouter, RandomTurns, FirstTokens, FixedScore, Oracle)
}
"""Rules by name, controls last."""


def parse_rule(text: str) -> CollaborationRule:
    """A rule as users type it: its name, then knobs, as in ``foreal,n=25,p=0.5``.

    Raises:
        ValueError: for an unknown rule or knob, and for a value that is no number or out of range.
    """
    name, *given = [part.strip() for part in text.split(",")]
    if name not in RULES:
        raise ValueError(f"there is no rule {name!r}; there are: {', '.join(RULES)}")
    pairs = [part.partition("=") for part in given]
    knobs = {knob: value for knob, _, value in pairs}
    if len(knobs) < len(pairs):
        raise ValueError(f"a knob of {text!r} is given twice; give each once")
    return made(RULES[name], knobs)
