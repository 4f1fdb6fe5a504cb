"""The merged tree of ``merged_sources`` grown in C++, for the sources that ``auto`` takes.

Python's objects lie all over memory, and a run of the target has just pushed them out of the
caches; in C++ the same guesses take a third of the time.
"""

from collections.abc import Sequence
from ctypes import c_int32
from functools import cache

from draftwood.costs.budget import Budget
from draftwood.interfaces.drafter import DraftRequest, VerifiedTree
from draftwood.interfaces.source import Evidence, Source, TargetUpdate
from draftwood.native import library
from draftwood.native.drafting import (
    MOST_ORDER,
    N_GRAMS,
    PRIOR,
    SUFFIX,
    CDraftingSettings,
    Costs,
    Drafting,
)
from draftwood.sources.acceptance import BUCKET_OF, Estimator, before_evidence
from draftwood.sources.base import sampling_of_rows
from draftwood.sources.bigram_prior import BigramPrior
from draftwood.sources.n_grams import NGrams
from draftwood.sources.python_merger import Grown
from draftwood.sources.suffix import Suffix
from draftwood.tree import UNBOUNDED

_NUMBERS: dict[type, int] = {Suffix: SUFFIX, NGrams: N_GRAMS, BigramPrior: PRIOR}


def known(sources: Sequence[Source]) -> bool:
    """Whether the library knows all of these sources and can be had on this machine."""
    orders = [source.order for source in sources if isinstance(source, NGrams)]
    return (
        all(type(source) in _NUMBERS for source in sources)
        and max(orders, default=0) <= MOST_ORDER
        and (library.available())
    )


class NativeMerger:
    """Implements ``Merged`` for sources that are ``known``; the arguments are those of
    ``PythonMerger``.
    """

    def __init__(
        self, sources: Sequence[Source], estimator: Estimator, request: DraftRequest
    ) -> None:
        self.sources = sources  # the library reads the prior's memory
        self.names = {_NUMBERS[type(source)]: source.name for source in sources}
        tables = next(
            (source.native_tables() for source in sources if isinstance(source, NGrams)), None
        )
        self.reads_rows = tables is not None
        self.sampling = sampling_of_rows(request.sampler)
        self.rng = None if request.sampler.greedy else request.rng
        self.drafting = Drafting(_settings(sources, estimator), tables)
        self.costs: tuple[Budget, Costs] | None = None  # of the last tree

    def grow(self, root: int, budget: Budget, room: int = UNBOUNDED) -> Grown:
        if self.costs is None or self.costs[0] is not budget:
            self.costs = (budget, Costs(budget.costs, budget.slopes))
        draw = None if self.rng is None else self.rng.next_draw
        return Grown(*self.drafting.grow(root, self.costs[1], draw, room))

    def proposers(self, size: int) -> tuple[tuple[str, ...], ...]:
        return tuple(self._named(bits) for bits in self.drafting.proposers(size))

    def learn(self, accepted: VerifiedTree, quiet: bool) -> None:
        tree, rows = accepted.tree.to("cpu"), None
        if self.reads_rows and not quiet:
            best, probs = TargetUpdate(accepted, self.sampling).likeliest
            if len(best) != len(tree):
                raise ValueError(
                    f"there must be logits of every node, got {len(best)} rows for {len(tree)}"
                    " nodes"
                )
            rows = (best.cpu(), probs.float().cpu().contiguous())
        self.drafting.learn(tree.tokens, tree.parents, accepted.path, rows)

    def _named(self, bits: int) -> tuple[str, ...]:
        return tuple(name for number, name in self.names.items() if bits >> number & 1)


def _settings(sources: Sequence[Source], estimator: Estimator) -> CDraftingSettings:
    kinds: list[Evidence] = []
    settings = CDraftingSettings(
        sources=(c_int32 * 3)(*([_NUMBERS[type(source)] for source in sources] + [-1] * 3)[:3]),
        suffix_kind=-1,
        n_gram_kind=-1,
        prior_kind=-1,
        rate=estimator.rate,
        strength=estimator.strength,
        decay=estimator.decay,
        floor=estimator.floor,
        bucket_of=_bucket_of(),
        steps=len(BUCKET_OF),
    )
    for source in sources:
        first = len(kinds)
        if isinstance(source, Suffix):
            settings.suffix_kind, settings.suffix_longest = first, source.longest
            settings.suffix_shortest = source.shortest
            kinds += [Evidence(source.name, length) for length in range(source.longest + 1)]
        elif isinstance(source, NGrams):
            settings.n_gram_kind = first
            kinds += [Evidence(source.name, length) for length in range(source.order + 1)]
        elif isinstance(source, BigramPrior):
            settings.prior_kind = first
            settings.prior_tokens, settings.prior_probs = (
                source.tokens.data_ptr(),
                source.probs.data_ptr(),
            )
            settings.prior_known, settings.prior_ranks = source.tokens.shape
            kinds.append(Evidence(source.name, 1))
    prior = [value for line in (estimator.root, estimator.deep) for value in before_evidence(line)]
    settings.before_evidence, settings.buckets = library.doubles(prior), len(prior) // 2
    settings.log_weight, settings.kinds = (
        library.doubles([estimator.log_weight.get(kind, 0.0) for kind in kinds]),
        len(kinds),
    )
    return settings


@cache
def _bucket_of() -> object:
    return (c_int32 * len(BUCKET_OF))(*BUCKET_OF)
