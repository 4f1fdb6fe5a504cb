"""Verifiers, which decide which draft tokens are kept: one file per published rule."""

from draftwood.lazy import importer
from draftwood.verifiers.block import Block
from draftwood.verifiers.greedy_plus_one import GreedyPlusOne
from draftwood.verifiers.k_seq import KSeq
from draftwood.verifiers.match import Match
from draftwood.verifiers.optimal import optimal_acceptance
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal
from draftwood.verifiers.verifier import NodeProbs, Verdict, Verifier

__all__ = [
    "Block",
    "GreedyPlusOne",
    "KSeq",
    "Match",
    "NodeProbs",
    "Rejection",
    "Traversal",
    "Verdict",
    "Verifier",
    "optimal_acceptance",
]

__getattr__ = importer(__name__, {})
