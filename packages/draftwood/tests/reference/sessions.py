"""Sessions of all sources in Python, by the source's class."""

from typing import Any
from weakref import WeakKeyDictionary

from draftwood.drafters.drafter import DraftRequest
from draftwood.sources import BigramPrior, Datastore, EarlierTexts, NearestState, NGrams, Suffix
from draftwood.sources.auto.suffix import deepest
from draftwood.sources.prediction import PredictionSource
from draftwood.sources.source import PythonSource, Source, SourceSession, kinds_of, require_width
from draftwood.sources.trained_head import TrainedHeadSource
from reference.bigram_prior import BigramPriorSession
from reference.copies import DatastoreSession, EarlierTextsSession, Memory, SuffixSession
from reference.nearest_state import NearestStateSession
from reference.prediction import PredictionSession
from reference.trained_head import TrainedHeadSession
from roads import NGramSession, NGramTables

KEPT: WeakKeyDictionary[Source, Any] = WeakKeyDictionary()
"""Data that the requests of a source share, by source."""


def start(source: Source, request: DraftRequest) -> SourceSession:
    """Start a source for one request, in Python."""
    if isinstance(source, PythonSource):
        return source.start(request)
    if isinstance(source, NGrams):
        return _n_grams(source)
    if isinstance(source, EarlierTexts):
        memory = Memory(source.max_tokens, deepest(source.longest))
        return EarlierTextsSession(source, KEPT.setdefault(source, memory))
    if isinstance(source, TrainedHeadSource):
        return TrainedHeadSession(source, request)
    if isinstance(source, NearestState):
        require_width(source.name, source.width, request.target.model)
    return SESSIONS[type(source)](source)


SESSIONS: dict[type, Any] = {
    BigramPrior: BigramPriorSession,
    Datastore: DatastoreSession,
    NearestState: NearestStateSession,
    PredictionSource: PredictionSession,
    Suffix: SuffixSession,
}


def _n_grams(source: NGrams) -> SourceSession:
    tables = NGramTables(source.order, source.fresh, source.max_contexts)
    if source.keep:
        tables = KEPT.setdefault(source, tables)
    return NGramSession(tables, kinds_of(source.name, source.order))


class InPython:
    """A source of the library as if Python alone had it."""

    def __init__(self, source: Source) -> None:
        self.source, self.name, self.reads_logits = source, source.name, source.reads_logits

    def start(self, request: DraftRequest) -> SourceSession:
        return start(self.source, request)
