"""Sources whose answers take time are asked where that pays, the same in C++ and in Python."""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from draftwood.arrays import as_array
from draftwood.drafters import DraftRequest
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import NGrams, Suffix
from draftwood.sources.acceptance import Asking, Estimator, SlowPrior
from draftwood.sources.merger import Merger
from draftwood.sources.source import Candidates, Evidence, Source
from merged_trees import BUDGET, model_of, trees
from reference.estimates import AskingGains
from reference.merger import PythonMerger
from roads import softmax

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


@dataclass
class Oracle:
    """Knows the model's own distributions, and takes its time."""

    name = "oracle"
    reads_logits = False
    root_seconds: float
    deep_seconds: float
    hidden = ()
    anywhere: bool = False
    asked: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def seconds(self) -> Any:
        return self._seconds

    def start(self, request: DraftRequest) -> "Oracle":
        self._seconds = (ctypes.c_double * 2)(self.root_seconds, self.deep_seconds)
        return self

    def learn(self, news: object) -> None:
        """It knows all."""

    def spent(self) -> float:
        return 0.0

    def begin(self, root: int) -> tuple[int, ...]:
        return (root,)

    def advance(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*state, token)

    def candidates(self, state: tuple[int, ...]) -> list[Candidates]:
        self.asked.append(state)
        probs = softmax(as_array(model_of(0).logits[state[-1]]))
        best = np.argsort(-probs, kind="stable")[:4]
        known = dict(zip(best.tolist(), probs[best].tolist(), strict=True))
        return [(Evidence(self.name, len(state)), known)]


def grown(
    way: Any,
    oracle: Oracle,
    temperature: float = 0.0,
    company: tuple[int, ...] = (0, 0, 3, 15),
) -> list[Any]:
    request = DraftRequest(Sampling(temperature), Rng(0), model_of(0).start())
    sources: tuple[Source, ...] = (Suffix(), oracle, NGrams())
    estimator = Estimator.for_sampling() if temperature else Estimator()
    return trees(way(sources, estimator, request), request, model_of(0), 1, company)


@pytest.mark.parametrize("seconds", [(0.01, 0.005), (0.2, 0.1), (50.0, 50.0)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("anywhere", [False, True])
def test_the_same_trees_in_both_languages(
    seconds: tuple[float, float], temperature: float, anywhere: bool
) -> None:
    one, other = (Oracle(*seconds, anywhere=anywhere) for _ in range(2))
    native, python = grown(Merger, one, temperature), grown(PythonMerger, other, temperature)
    assert one.asked == other.asked
    for (ours, names), (theirs, their_names) in zip(native, python, strict=True):
        assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
        assert ours.chances == pytest.approx(theirs.chances, rel=1e-9)
        assert names == their_names


def test_dear_answers_are_asked_for_at_trials_alone() -> None:
    cheap, dear = Oracle(0.001, 0.001), Oracle(50.0, 50.0)
    count = len(grown(Merger, cheap, company=(0,)))
    grown(Merger, dear, company=(0,))
    assert len(dear.asked) == count // Asking().trial
    in_company = Oracle(50.0, 50.0)
    grown(Merger, in_company, company=(3,))
    assert not in_company.asked
    assert len(cheap.asked) > count  # at the root of most trees, and deeper


def test_it_is_asked_below_nodes_at_which_it_was_asked() -> None:
    oracle = Oracle(0.01, 0.001)
    grown(Merger, oracle)
    roots = {state for state in oracle.asked if len(state) == 1}
    deeper = [state for state in oracle.asked if len(state) > 1]
    assert deeper
    assert {state[:1] for state in deeper} <= roots


def test_it_is_asked_below_any_node_where_it_goes_anywhere() -> None:
    oracle = Oracle(0.01, 0.001, anywhere=True)
    grown(Merger, oracle)
    asked = set(oracle.asked)
    assert any(state[:-1] not in asked for state in oracle.asked if len(state) > 1)


def test_gains_are_learnt_by_what_others_promise() -> None:
    gains = AskingGains(Asking(strength=2.0), SlowPrior(gain=0.5))
    assert gains.gain(False, 0.2) == pytest.approx(0.4)
    for _ in range(200):
        gains.learn(False, 0.2, 0.0)
    gains.trees = 1
    assert gains.gain(False, 0.2) < 0.05
    assert gains.gain(True, 0.2) == pytest.approx(0.4)
    asked = {"price": 0.1, "rate": 250.0, "seconds": 4e-4}
    assert not gains.pays(False, 1.0, 0.2, **asked)
    assert gains.pays(True, 1.0, 0.2, **asked)
    assert not gains.pays(True, 0.15, 0.2, **asked)  # no node there is worth its price
    gains.trees = Asking().trial
    assert gains.pays(False, 1.0, 0.2, **asked)


def test_an_error_of_a_slow_source_is_the_error_of_its_request() -> None:
    oracle = Oracle(0.001, 0.001)
    merger = Merger((oracle,), Estimator(), _request())

    def fail(state: object) -> list[Candidates]:
        raise KeyError("no such row")

    oracle.candidates = fail  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="no such row"):
        merger.grow(3, BUDGET)


def _request() -> DraftRequest:
    return DraftRequest(Sampling(), Rng(0), model_of(0).start())
