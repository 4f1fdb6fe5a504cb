"""For people who add methods: exact distributions, table models and checks.

Distributions are exact by enumeration. The distribution of a table model's text is known. Every
method must pass the checks.
"""

from typing import TYPE_CHECKING

from draftwood.lazy import importer
from draftwood.testing.axes import check_drafter, check_shape
from draftwood.testing.checks import check_verifier
from draftwood.testing.constraints import Automaton, AutomatonState
from draftwood.testing.laws import (
    Law,
    Rule,
    Walk,
    at_nodes,
    distance,
    drafting,
    emitted_law,
    law_of,
    mean_accepted,
    plain_tree,
    sampled_law,
    target_law,
    walks,
)
from draftwood.testing.models import TableModel, TableSession, writing
from draftwood.testing.outcomes import ScriptedRng, outcomes
from draftwood.testing.statistics import chi_square, ranked_chi_square
from draftwood.testing.steps import OneStep, one_step

if TYPE_CHECKING:
    from draftwood.optional import tiny_llama

__all__ = [
    "Automaton",
    "AutomatonState",
    "Law",
    "OneStep",
    "Rule",
    "ScriptedRng",
    "TableModel",
    "TableSession",
    "Walk",
    "at_nodes",
    "check_drafter",
    "check_shape",
    "check_verifier",
    "chi_square",
    "distance",
    "drafting",
    "emitted_law",
    "law_of",
    "mean_accepted",
    "one_step",
    "outcomes",
    "plain_tree",
    "ranked_chi_square",
    "sampled_law",
    "target_law",
    "tiny_llama",
    "walks",
    "writing",
]

__getattr__ = importer(__name__, {"draftwood.optional": ("tiny_llama",)})
