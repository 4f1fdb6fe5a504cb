"""Ways to search, by name."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from draftwood.methods.listings import CommandMethod

if TYPE_CHECKING:
    import regex

    from draftwood_choices.search.proposals import Proposal, Proposer

SearchPromise = Literal["same as one by one", "another aim"]


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        answers: that are written in all, or in a round; children of a step at most.
        rounds: of the method; see ``SearchMethod.rounds``.
        pattern: of the final answer in a text; None takes the last number or line.
    """

    answers: int = 8
    rounds: int = 1
    pattern: "regex.Pattern[str] | None" = None


@dataclass(frozen=True)
class Solution:
    """Outcome of a search.

    Attributes:
        best: the answer that was chosen.
        proposals: all that were looked at, in their order; those of a tree name what they go on
            from.
        details: of the method, by name.
        notes: lines that its user should read.
    """

    best: "Proposal"
    proposals: "list[Proposal]"
    details: dict[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()


Search = Callable[["Proposer", Any, SearchOptions], Solution]


@dataclass(frozen=True)
class SearchMethod:
    """A published way to search for an answer.

    Attributes:
        name: as given to ``--method``; its module has the name with underscores and a function
            ``search``.
        summary: one line.
        source: authors, year, arXiv id.
        promise: of its text.
        needs_checker: True if it does nothing without one.
        takes_head: True if a trained value head may judge for it.
        takes_final: True if it reads final answers, or actions, out of texts.
        draws: False if it writes one greedy answer, and takes no temperature or number of answers.
        drafts: False if it drafts nothing, and takes no draft model or datastore.
        temperature: in its paper.
        rounds: usual number of rounds, expansions of a tree, or actions that are tried.
    """

    name: str
    summary: str
    source: str
    promise: SearchPromise = "another aim"
    needs_checker: bool = False
    takes_head: bool = False
    takes_final: bool = False
    draws: bool = True
    drafts: bool = True
    temperature: float = 0.6
    rounds: int = 1

    @property
    def search(self) -> Search:
        return import_module(f"draftwood_choices.search.{self.name.replace('-', '_')}").search


METHODS = {
    each.name: each
    for each in (
        SearchMethod(
            "best-of",
            "the best of N answers: by the checker, else by mean log-probability",
            "Cobbe et al. 2021, arXiv:2110.14168",
            takes_head=True,
            temperature=0.7,
        ),
        SearchMethod(
            "majority",
            "the final answer that most of N answers reach",
            "Wang et al. 2022, arXiv:2203.11171",
            takes_final=True,
            temperature=0.7,
        ),
        SearchMethod(
            "distinct",
            "N different answers, drawn without replacement; the best of them",
            "Kool et al. 2019, arXiv:1903.06059",
            drafts=False,
            temperature=1.0,
        ),
        SearchMethod(
            "iad",
            "rounds of N answers that are shown the best and the worst so far",
            "Chakraborty et al. 2025, arXiv:2504.01931",
            rounds=4,
            needs_checker=True,
        ),
        SearchMethod(
            "lite-search",
            "a tree of steps behind a greedy answer, whose values say how many children pay",
            "Wang et al. 2024, arXiv:2407.00320",
            takes_head=True,
            rounds=100,
        ),
        SearchMethod(
            "breadth-first",
            "a tree of steps, N a level, of which the five of the greatest value go on",
            "Yao et al. 2023, arXiv:2305.10601",
            takes_head=True,
        ),
        SearchMethod(
            "thought-tree",
            "a tree of sub-questions; the answer has words of question and evidence alone",
            "Bi et al. 2024, arXiv:2407.03687",
            rounds=3,
            temperature=0.7,
        ),
        SearchMethod(
            "answer-mask",
            "one greedy answer that has words of the task alone",
            "Bi et al. 2024, arXiv:2407.03687",
            draws=False,
            temperature=0.0,
        ),
        SearchMethod(
            "plan-tree",
            "N plans merged into a tree, walked with the checker as the world, and back",
            "Hu et al. 2023, arXiv:2310.08582",
            takes_final=True,
            rounds=100,
            needs_checker=True,
            temperature=0.8,
        ),
    )
}

LISTED = [
    CommandMethod(
        each.name,
        f"draftwood solve --method {each.name}{' --checker FILE' * each.needs_checker}",
        each.summary,
        each.source,
        each.promise,
    )
    for each in METHODS.values()
]
"""The same, as ``draftwood methods`` lists them."""


def check_methods(methods: Iterable[SearchMethod], has_checker: bool, has_head: bool) -> None:
    """Raise ValueError for a method that lacks its checker, or takes no value head."""
    for each in methods:
        if each.needs_checker and not has_checker:
            raise ValueError(f"{each.name} goes on by a checker's scores; give --checker")
        if has_head and not each.takes_head:
            taking = ", ".join(name for name, way in METHODS.items() if way.takes_head)
            raise ValueError(f"{each.name} asks no value head; leave --judge out, or take {taking}")


def require_taken(
    method: SearchMethod,
    has_rounds: bool,
    has_final: bool = False,
    of_draws: Sequence[str] = (),
    of_drafts: Sequence[str] = (),
) -> None:
    """Raise ValueError for options that a method would not read.

    Args:
        has_rounds: whether rounds are given.
        has_final: whether a pattern of final answers is.
        of_draws: options of drawing that are given, for instance ``--answers``.
        of_drafts: options of drafting that are given, for instance ``--datastore``.
    """
    if has_rounds and method.rounds == 1:
        taking = ", ".join(name for name, way in METHODS.items() if way.rounds > 1)
        raise ValueError(f"{method.name} has no rounds; leave --rounds out, or take {taking}")
    if has_final and not method.takes_final:
        taking = ", ".join(name for name, way in METHODS.items() if way.takes_final)
        raise ValueError(
            f"{method.name} reads no final answers; leave --final out, or take {taking}"
        )
    if of_draws and not method.draws:
        raise ValueError(
            f"{method.name} writes one greedy answer; leave {' and '.join(of_draws)} out"
        )
    if of_drafts and not method.drafts:
        raise ValueError(f"{method.name} drafts nothing; leave {' and '.join(of_drafts)} out")


def search_method(name: str) -> SearchMethod:
    """A way to search by name; ValueError names those that there are."""
    if name not in METHODS:
        raise ValueError(f"there is no way to search {name!r}; there are: {', '.join(METHODS)}")
    return METHODS[name]
