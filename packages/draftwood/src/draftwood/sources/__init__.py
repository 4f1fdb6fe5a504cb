"""Sources that `auto` merges: one file per source, their merging, and how much each weighs."""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.sources.auto.n_grams import NGrams
    from draftwood.sources.auto.suffix import Suffix
    from draftwood.sources.bigram_prior import BigramPrior
    from draftwood.sources.datastore import Datastore
    from draftwood.sources.earlier_texts import EarlierTexts
    from draftwood.sources.nearest_state import NearestState

_HOMES = {
    "draftwood.sources.bigram_prior": ("BigramPrior",),
    "draftwood.sources.datastore": ("Datastore",),
    "draftwood.sources.earlier_texts": ("EarlierTexts",),
    "draftwood.sources.auto.n_grams": ("NGrams",),
    "draftwood.sources.nearest_state": ("NearestState",),
    "draftwood.sources.auto.suffix": ("Suffix",),
}

__all__ = ["BigramPrior", "Datastore", "EarlierTexts", "NGrams", "NearestState", "Suffix"]

__getattr__ = importer(__name__, _HOMES)
