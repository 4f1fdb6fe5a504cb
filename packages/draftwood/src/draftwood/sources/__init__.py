"""Sources that `auto` merges: one file per source, their merging, and how much each weighs."""

from draftwood.lazy import importer
from draftwood.sources.bigram_prior import BigramPrior
from draftwood.sources.datastore import Datastore
from draftwood.sources.earlier_texts import EarlierTexts
from draftwood.sources.n_grams import NGrams
from draftwood.sources.nearest_state import NearestState
from draftwood.sources.suffix import Suffix

__all__ = ["BigramPrior", "Datastore", "EarlierTexts", "NGrams", "NearestState", "Suffix"]

__getattr__ = importer(__name__, {})
