"""Draft with several sources at once, in one tree that is as large as pays."""

import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

from draftwood.costs.budget import Budget
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Need,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.resources import Resources
from draftwood.drafters.resting import Rest
from draftwood.models.native import NativeModel
from draftwood.models.requirements import require_ability
from draftwood.native import library
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.sampling import Context
from draftwood.shapes.shape import Shape
from draftwood.sources import auto
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import Grown, Merger
from draftwood.sources.source import Source
from draftwood.tree import UNBOUNDED, DraftTree, Draw

if TYPE_CHECKING:
    from draftwood.heads.trained import TrainedHead

IN_PYTHON = 3.0  # times as long a step of drafting takes where one of its sources is Python's
READ_BEFORE = 4  # last steps of a rest from drafting, which a trained head reads states of
BREAK_EVEN = 1.0  # gain of a step that is as fast as without drafting
AGREEING = 8  # tokens that follow a prediction, at which a rest ends


@cache
def sources_of_auto() -> "tuple[Callable[[], Source], ...]":
    """Classes of ``sources/auto/`` in their order, which they say by ``in_auto``."""
    files = pkgutil.iter_modules(auto.__path__, f"{auto.__name__}.")
    classes = [each for file in files for each in vars(import_module(file.name)).values()]
    found = {each for each in classes if isinstance(each, type) and "in_auto" in vars(each)}
    return tuple(sorted(found, key=lambda each: (vars(each)["in_auto"], each.__name__)))


def _sources() -> tuple[Source, ...]:
    return tuple(make() for make in sources_of_auto())


def _of_head(resources: Resources) -> tuple[Source, ...]:
    """The source of a trained head, or of the target's own layer where there is no other."""
    head, mtp, target = resources.head, resources.mtp, resources.target
    if head is None and mtp is None:
        return ()
    if isinstance(target, NativeModel):
        from draftwood.sources.trained_head import TrainedHeadSource

        if head is not None:
            return (TrainedHeadSource.of(head, target),)
        assert mtp is not None
        assert mtp.native is not None  # as all layers of native models
        return (TrainedHeadSource(mtp.native, mtp.reads),)
    from draftwood.sources.head_in_pytorch import HeadInPytorchSource

    if head is not None:
        return (HeadInPytorchSource.of(head, target),)
    assert mtp is not None
    return (HeadInPytorchSource(mtp.text, mtp.reads),)


@dataclass(frozen=True)
class MultiSource(Drafter):
    """The best candidates of several sources in one tree, sized again for every forward pass.

    Sources name candidates for what follows a text; ``Estimator`` makes them one estimate of
    acceptance, learnt online. The tree grows best first over the product of the estimates along
    each path, and ``Budget`` keeps the part of it that emits most tokens per second: all of a long
    copy, a bush of alternatives, or nothing where no draft token pays. Merging exact copies with
    what the target held likely was done by SAM-Decoding (Hu et al. 2024, arXiv:2411.10666) and
    RACER (2026, arXiv:2604.14885).

    Texts that are drawn are drafted with the noise of the draw in view (``Rng.exponential_noise``),
    as Daliri et al. 2024 (arXiv:2408.07978) couple draft and target: a token is likely where its
    probability is large or its number small.

    Where draft tokens gain less than drafting costs, the drafter rests for some steps, longer each
    time: it drafts nothing and reads no logits, so that decoding is as fast as without it.

    Differs from the papers: no rule chooses between the sources; a draft token that several propose
    is in the tree once, with the evidence of all of them. Nothing is learnt from the logits of the
    prompt: an answer of 120 tokens asks for some 40 of its rows, a few at a time, and texts come as
    fast without any of them as with all.

    The library grows the trees. Where there is none, the drafter says so once and copies by
    ``PromptLookup`` alone.

    Args:
        sources: what proposes.
        budget: what a forward pass costs on this machine.
        estimator: how candidates become estimates; None takes the one learnt for greedy or for
            drawn texts.

    Example:
        Copies propose 3 1 2, for that followed 1 2, and two of these tokens pay. The next step also
        has what the target held likely after each token of this one.

        >>> drafter = MultiSource(budget=Budget(max_draft_tokens=3))
        >>> one_step(drafter, writing([1, 2, 3, 4]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 1]], accepted=[3], then=4)
    """

    name: ClassVar[str] = "combined"
    uses: ClassVar[frozenset[Need]] = frozenset({"curve", "prior", "head", "datastore", "mtp"})
    takes_prediction: ClassVar[bool] = True
    sources: tuple[Source, ...] = field(default_factory=_sources)
    budget: Budget = field(default_factory=Budget)
    estimator: Estimator | None = None

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"a combined drafter needs at least one source, all of different names, got {names}"
            )

    @classmethod
    def unused_here(cls) -> frozenset[Need]:
        """Prompt lookup, which takes its place without the library, asks for no figures."""
        return frozenset() if library.available() else frozenset({"curve", "prior"})

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        if not library.available() and resources.head is None:
            return cls()  # prompt lookup asks for no curve and no prior
        known, prior = _sources(), resources.prior
        if prior is not None:
            known = (*known, prior)
        if resources.datastore is not None:
            known = (*known, resources.datastore)
        return cls((*known, *_of_head(resources)), Budget.of(resources.curve))

    @property
    def most_nodes(self) -> int:
        return self.budget.max_draft_tokens

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"chosen", "coupled"})

    @property
    def learnable(self) -> "TrainedHead | None":
        found = (getattr(source, "trained", None) for source in self.sources)
        return next((each for each in found if each is not None), None)

    def with_head(self, trained: "TrainedHead") -> Drafter:
        sources: Any = [
            each.with_head(trained) if getattr(each, "trained", None) is not None else each
            for each in cast(Any, self.sources)
        ]
        return replace(self, sources=tuple(sources))

    def start(self, request: DraftRequest) -> DraftSession:
        if not library.available():
            from draftwood.drafters.prompt_lookup import PromptLookup

            _say_what_is_missing()
            return PromptLookup().start(request)
        return _MultiSourceSession(self, request)


@dataclass(frozen=True)
class WithInt4SelfDraft(MultiSource):
    """``MultiSource``, which may ask the target's weights in 4 bits where the others know little.

    A cascade as in CS-Drafting (Chen et al. 2023, arXiv:2312.11462) and ML-SpecQD (Georganas et al.
    2025, arXiv:2503.13565), without fixed stages: tables and a trained head first, the 4 bits where
    its pass promises more tokens than the same time of verified ones.

    Differs from the papers: the price decides at each node who is asked, where theirs fix the
    lengths of the stages.

    Example:
        Nothing in the text 1 2 3 4 5 stood there before, so copies say nothing of what follows 5.
        The shadow is asked: its pass over 5 says 6. A second pass over 6 costs what it cost, and
        promises more tokens than verification would emit in that time; it says 7, and then no
        further one pays. The target runs 5, 6 and 7, says 6, 7 and 8: it keeps 6 7 and goes on with
        8.
    """

    name: ClassVar[str] = "with-shadow"
    needs: ClassVar[frozenset[Need]] = frozenset({"layers"})

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        from draftwood.sources.int4_self_draft import Int4SelfDraftSource

        require_ability(resources.target, "int4", "auto-shadow")
        plain = MultiSource.build(resources)
        assert isinstance(plain, MultiSource)
        int4 = Int4SelfDraftSource.of(resources.target, plain.budget.seconds(1))
        return cls((*plain.sources, int4), plain.budget)


@cache
def _say_what_is_missing() -> None:
    warnings.warn(
        "auto and suffix draft by prompt lookup alone, as draftwood's C++ library is missing:"
        f" {library.why_missing()}",
        stacklevel=2,
    )


class _MultiSourceSession(DraftSession):
    def __init__(self, config: MultiSource, request: DraftRequest) -> None:
        self.budget, self.greedy = config.budget, request.sampler.greedy
        self.prediction, sources = request.prediction, config.sources
        if self.prediction is not None:
            from draftwood.sources.prediction import PredictionSource

            sources = (*sources, PredictionSource(self.prediction))
        cuts = request.row_sampling
        usual = Estimator() if self.greedy else Estimator.for_sampling(cuts)
        self.merged = Merger(sources, config.estimator or usual, request)
        if self.merged.in_python:
            self.budget = replace(self.budget, per_step=IN_PYTHON * self.budget.per_step)
        self.reads_logits = any(source.reads_logits for source in sources)
        self.drafts = False  # before that comes the prompt
        self.rest = Rest(BREAK_EVEN)
        self._tries = False  # sizes that are not known, in the step under way
        self._native_budget: Budget | None = None  # of the step under way; None rests
        self._others = 0.0  # tokens that other texts are expected to emit in it
        self._rested = 0  # steps of the row under way

    @property
    def reads(self) -> Reads:
        hidden = self.merged.reads if self._reads_states else self.merged.always
        return Reads(self.reads_logits and self.drafts, hidden)

    @property
    def _reads_states(self) -> bool:
        """False in a rest whose end is far: nothing is drafted by what its steps read."""
        return self.rest.left <= READ_BEFORE

    @property
    def needs_prompt(self) -> bool:
        return False  # states of the newest tokens alone count

    def propose(self, root: int, context: Context) -> DraftTree:
        self.drafts = True
        budget, others = self._budget(context), context.shared.tokens
        if budget is None:
            return DraftTree.chain([root])
        tokens, parents, chances = self.merged.grow(root, budget, context.max_draft_len, others)
        size = 1 + budget.best(chances[1:], others)
        grown = Grown(tokens[:size], parents[:size], chances[:size])
        self._count(grown, budget, self.merged.spent(), others)
        return self._tree(grown, self.merged.proposers(size))

    def update(self, verified: VerifiedTree) -> None:
        self.merged.learn(verified, quiet=self.rest.left > 0 or not self.drafts)

    def native(self, context: Context) -> NativeDraft | None:
        if self.merged.in_python:
            return None
        self.drafts = True
        self._native_budget = self._budget(context)
        self._others = context.shared.tokens
        self._rested = 0
        reads = self._native_budget is not None or self._reads_states
        return self.merged.native(self._native_budget, self._others, reads, self._in_a_row)

    @property
    def _in_a_row(self) -> int:
        """Steps that may be made as the one that is prepared."""
        if self._tries:
            return 1
        if self._native_budget is not None:
            return UNBOUNDED
        return self.rest.left - (0 if self._reads_states else READ_BEFORE)

    def commit_native(self, step: NativeStep) -> DraftTree:
        if self._native_budget is None:
            self._rested += 1
            if self._rested > 1:  # the first one of a row is counted
                self.rest.goes_on()
            return DraftTree.chain(step.tokens)
        grown = Grown(step.tokens, step.parents, step.chances)
        self._count(grown, self._native_budget, step.drafter_seconds, self._others)
        return self._tree(grown, self.merged.names_of(step.proposers))

    def _budget(self, context: Context) -> Budget | None:
        """For the next step, by what passes took so far; None rests."""
        for took in context.last_passes:
            self.budget.saw(took)
        if self.prediction is not None and self.prediction.agreeing >= AGREEING:
            self.rest.end()
        rests, trial = self.rest.goes_on(), self.budget.trial()
        self._tries = trial is not None
        if rests and trial is None:
            return None
        now = trial or self.budget.now()
        return now.with_context(len(context.tokens)).beside(context.shared.rows)

    def _count(self, grown: Grown, budget: Budget, spent: float, others: float) -> None:
        """Count what a tree gains, whose slow sources took so many seconds."""
        if not self._tries:  # a trial's budget says what may be, not what is
            gain = budget.gain(grown.chances[1:], spent, others)
            self.rest.count(gain, in_company=others > 0)

    def _tree(self, grown: Grown, proposers: tuple[tuple[str, ...], ...]) -> DraftTree:
        draw = "chosen" if self.greedy else "coupled"
        return DraftTree.of(grown.tokens, grown.parents, draw, proposers)
