"""Verifiers, which decide which draft tokens are kept: one file per published rule."""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.verifiers.block import Block
    from draftwood.verifiers.greedy_plus_one import GreedyPlusOne
    from draftwood.verifiers.grouped import Grouped
    from draftwood.verifiers.k_seq import KSeq
    from draftwood.verifiers.match import Match
    from draftwood.verifiers.rejection import Rejection
    from draftwood.verifiers.traversal import Traversal
    from draftwood.verifiers.verifier import NodeProbs, Verdict, Verifier

_HOMES = {
    "draftwood.verifiers.block": ("Block",),
    "draftwood.verifiers.greedy_plus_one": ("GreedyPlusOne",),
    "draftwood.verifiers.grouped": ("Grouped",),
    "draftwood.verifiers.k_seq": ("KSeq",),
    "draftwood.verifiers.match": ("Match",),
    "draftwood.verifiers.rejection": ("Rejection",),
    "draftwood.verifiers.traversal": ("Traversal",),
    "draftwood.verifiers.verifier": ("NodeProbs", "Verdict", "Verifier"),
}

__all__ = [
    "Block",
    "GreedyPlusOne",
    "Grouped",
    "KSeq",
    "Match",
    "NodeProbs",
    "Rejection",
    "Traversal",
    "Verdict",
    "Verifier",
]

__getattr__ = importer(__name__, _HOMES)
