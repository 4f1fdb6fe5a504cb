"""A source that only Python has, in trees that C++ grows: its errors, its time, its memory."""

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from ctypes import Structure, c_double
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import pytest

from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, MultiSource, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import ModelOutput
from draftwood.native import drafting, library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import BigramPrior, NGrams, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import Merger
from draftwood.sources.source import Candidates, Evidence, Source
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from merged_trees import BUDGET, VOCAB, model_of
from reference.bigram_prior import BigramPriorSession
from reference.sessions import start

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


@dataclass
class Again:
    """The same token once more, or an error."""

    name = "again"
    reads_logits = False
    fails: str = ""
    error: BaseException = field(default_factory=lambda: KeyError("no such text"))
    calls: list[str] = field(default_factory=list)

    def start(self, request: DraftRequest) -> "Again":
        return self

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails == name:
            raise self.error

    def learn(self, news: object) -> None:
        self._called("learn")

    def begin(self, root: int) -> int:
        self._called("begin")
        return root

    def advance(self, state: int, token: int) -> int:
        self._called("advance")
        return token

    def candidates(self, state: int) -> list[Candidates]:
        self._called("candidates")
        return [(Evidence(self.name, 1), {state: 0.9})]


def merged(*sources: Source) -> Merger:
    request = DraftRequest(Sampling(), Rng(0), model_of(0).start())
    return Merger(sources, Estimator(), request)


def learn(merger: Merger, tokens: Sequence[int]) -> None:
    chain = DraftTree.chain(list(tokens))
    output = ModelOutput(model_of(0).logits[chain.tokens])
    merger.learn(VerifiedTree(chain, range(len(tokens)), output), quiet=False)


@pytest.mark.parametrize("fails", ["learn", "begin", "advance", "candidates"])
@pytest.mark.parametrize("error", [KeyError("no such text"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_of_a_source_is_the_error_of_its_request(fails: str, error: BaseException) -> None:
    source, other = Again(fails, error), merged(Suffix(), Again())
    merger = merged(Suffix(), source, NGrams())

    def step() -> None:
        learn(merger, range(10))
        merger.grow(3, BUDGET)

    with pytest.raises(type(error)) as caught:
        step()
    assert caught.value is error
    assert source.calls[-1] == fails
    source.fails = ""  # nothing is left of the error, here or elsewhere
    for each in (merger, other):
        learn(each, range(10))
        assert each.grow(3, BUDGET).tokens[:3] == [3, 3, 3]


def test_an_error_ends_a_text_in_words_of_the_source() -> None:
    drafter = MultiSource((Suffix(), Again("advance")), Budget(lambda nodes: 1.0))
    with pytest.raises(KeyError, match="no such text"):
        list(generate(model_of(0), drafter, Match(), [1, 2, 3], Options(max_new_tokens=8)))


def test_unusable_candidates_are_refused_by_python() -> None:
    class Wrong(Again):
        def candidates(self, state: int) -> list[Any]:
            return [(Evidence("wrong", 1), {"a": 0.5})]

    with pytest.raises(Exception, match="required argument is not an integer"):
        merged(Wrong()).grow(3, BUDGET)


def test_evidence_of_too_many_names_is_refused() -> None:
    class Many(Again):
        def candidates(self, state: int) -> list[Any]:
            return [(Evidence(f"name {i}", 1), {i: 0.1}) for i in range(drafting.MAX_NAMES + 1)]

    with pytest.raises(ValueError, match="at most 64 names of sources, and 'name 64'"):
        merged(Many()).grow(3, BUDGET)


def test_a_request_leaves_nothing_behind() -> None:
    """No ring of references holds a request and its text until somebody collects garbage."""
    source = Again()
    merger = merged(Suffix(), source)
    merger.grow(3, BUDGET)
    gc.disable()
    try:
        gone = weakref.ref(merger), weakref.ref(merger.drafting), weakref.ref(merger.evidence)
        del merger
        assert not any(each() for each in gone)
    finally:
        gc.enable()


def test_a_node_is_told_once_and_only_where_candidates_are_asked() -> None:
    source = Again()
    merger = merged(source)
    grown = merger.grow(3, BUDGET)
    assert source.calls.count("begin") == 1
    assert source.calls.count("candidates") == 1 + source.calls.count("advance")
    assert source.calls.count("candidates") <= len(grown.tokens)


class Longer(Structure):
    """Settings that have one number more than those of C++."""

    _fields_ = (*((name, c_double) for name in "abcdefgh"),)


def test_settings_of_another_size_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"'suffix' must have 48 bytes.*Longer has 64"):
        drafting.checked_kind("suffix", Longer)
    with pytest.raises(RuntimeError, match=r"must know a source 'mine', but it knows .*suffix"):
        drafting.checked_kind("mine", Longer)


WORDS = 1200  # a source of Python may cost a step, besides its own work, what so many take


class Timed:
    """A source's session, with the time that it takes itself."""

    def __init__(self, session: Any) -> None:
        self.session, self.spent = session, 0

    def start(self, request: DraftRequest) -> "Timed":
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.session, name)

        def timed(*arguments: Any) -> Any:
            since = time.perf_counter_ns()  # a thread's own time takes a system call to read
            result = function(*arguments)
            self.spent += time.perf_counter_ns() - since
            return result

        self.__dict__[name] = timed
        return timed


def seconds_of_a_step(sources: Sequence[Any], timed: Timed | None = None) -> float:
    """Median over steps of a text that repeats itself, without what ``timed`` took."""
    model, times = model_of(3), []
    merger = merged(*sources)
    words = np.random.default_rng(0).integers(0, VOCAB, (4, 6)).tolist()
    learn(merger, [token for _ in range(5) for word in words for token in word])
    roots = [token for _ in range(8) for word in words for token in word]
    for root in roots:
        before = 0 if timed is None else timed.spent
        since = time.thread_time_ns()
        grown = merger.grow(root, BUDGET)
        tree = DraftTree.of(grown.tokens, grown.parents)
        merger.learn(VerifiedTree(tree, [0], ModelOutput(model.logits[tree.tokens])), quiet=False)
        own = 0 if timed is None else timed.spent - before
        times.append((time.thread_time_ns() - since - own) / 1e9)
    return median(times)


def python_work(words: int) -> None:
    """Spend Python's time in the currency of a step: small objects made and kept."""
    kept = {}
    for word in range(words):
        kept[word % 50] = (word, str(word))


def seconds_of_work() -> float:
    """Median of what ``WORDS`` take here and now: hosts differ, and other programs slow them."""
    times = []
    for _ in range(25):
        since = time.thread_time_ns()
        python_work(WORDS)
        times.append((time.thread_time_ns() - since) / 1e9)
    return median(times)


def cost_of(make: Callable[[BigramPrior], Any]) -> float:
    """Share of ``WORDS`` that a step costs more where the prior is a source of Python.

    Its own work is not counted.
    """
    prior, found = BigramPrior.of(model_of(3), ranks=8), []
    request = DraftRequest(Sampling(), Rng(0), model_of(3).start())
    for _ in range(5):  # the least of five: other programs run too
        timed = Timed(start(prior, request))
        timed.name, timed.reads_logits = "bigram-prior", False
        own = make(prior) or timed
        extra = seconds_of_a_step((Suffix(), NGrams(), own), timed)
        extra -= seconds_of_a_step((Suffix(), NGrams(), prior))
        found.append(extra / seconds_of_work())
    return min(found)


def test_a_source_of_python_costs_a_step_little_besides_its_own_work() -> None:
    assert cost_of(lambda prior: None) < 1


def test_the_cost_is_measured() -> None:
    """Untimed work of a source counts as cost."""

    class Slow(BigramPrior):
        def start(self, request: DraftRequest) -> Any:
            session = BigramPriorSession(self)
            candidates = session.candidates

            def slowly(state: int) -> list[Candidates]:
                python_work(WORDS // 4)
                return candidates(state)

            session.candidates = slowly
            return session

    assert cost_of(lambda prior: Slow(prior.ids, prior.tokens, prior.probs)) > 1
