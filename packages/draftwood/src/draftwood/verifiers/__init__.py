"""Which draft tokens are kept: one file per published rule."""

from draftwood.interfaces.verifier import NodeProbs, Verdict, Verifier
from draftwood.verifiers.block import Block
from draftwood.verifiers.blockwise import Distance, TopN
from draftwood.verifiers.greedy_plus_one import GreedyPlusOne
from draftwood.verifiers.k_seq import KSeq
from draftwood.verifiers.match import Match
from draftwood.verifiers.optimal import optimal_acceptance
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal
from draftwood.verifiers.typical import Typical

__all__ = [
    "Block",
    "Distance",
    "GreedyPlusOne",
    "KSeq",
    "Match",
    "NodeProbs",
    "Rejection",
    "TopN",
    "Traversal",
    "Typical",
    "Verdict",
    "Verifier",
    "optimal_acceptance",
]
