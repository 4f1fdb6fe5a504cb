"""Draft copies of what followed the newest tokens before, as long as their matches deserve."""

from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.costs.budget import Budget
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, Need
from draftwood.drafters.multi_source import MultiSource
from draftwood.drafters.resources import Resources
from draftwood.shapes.shape import Shape
from draftwood.sources.acceptance import Estimator
from draftwood.sources.auto.suffix import Suffix
from draftwood.sources.earlier_texts import EarlierTexts
from draftwood.sources.source import Source
from draftwood.tree import Draw


@dataclass(frozen=True)
class SuffixDecoding(Drafter):
    """A tree of what followed the longest match of the newest tokens; reads no logits.

    SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975), SAM-Decoding (Hu et al. 2024,
    arXiv:2411.10666).

    Differs from the papers: one automaton instead of suffix trees of limited depth; how much a
    match weighs is learnt from what became of earlier copies, and the tree's size follows from the
    cost of a forward pass, not from the match.

    Args:
        suffix: how the request's own text is searched.
        earlier: how texts of earlier requests are searched; None forgets them.
        datastore: texts of a file that are searched too.
        budget: what a forward pass costs on this machine.
        estimator: how matches become estimates; None takes what was learnt for greedy or for drawn
            texts.

    Example:
        The longest match, 1 2, was followed by 3 1 2. A token is accepted only where those before
        it are, so each has a smaller chance than the last; the third does not pay any more.

        >>> drafter = SuffixDecoding(budget=Budget(max_draft_tokens=3))
        >>> one_step(drafter, writing([1, 2, 3, 4]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 1]], accepted=[3], then=4)
    """

    name: ClassVar[str] = "suffix"
    uses: ClassVar[frozenset[Need]] = frozenset({"curve", "datastore"})
    takes_prediction: ClassVar[bool] = True
    suffix: Suffix = field(default_factory=Suffix)
    earlier: EarlierTexts | None = None
    datastore: Source | None = None
    budget: Budget = field(default_factory=Budget)
    estimator: Estimator | None = None

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(datastore=resources.datastore, budget=Budget.of(resources.curve))

    @property
    def most_nodes(self) -> int:
        return self.budget.max_draft_tokens

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return MultiSource.labels(shape)

    def start(self, request: DraftRequest) -> DraftSession:
        sources: list[Source] = [self.suffix]
        sources += [each for each in (self.earlier, self.datastore) if each is not None]
        return MultiSource(tuple(sources), self.budget, self.estimator).start(request)
