"""Estimates of acceptance: mixing opinions, and learning from what came."""

import random

import pytest

from draftwood.drafters import DraftRequest
from draftwood.drafters.multi_source import MultiSource
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import Suffix
from draftwood.sources.acceptance import BUCKETS, Estimator
from draftwood.sources.merger import Merger
from draftwood.sources.source import Evidence
from merged_trees import model_of
from reference.estimates import Estimates, bucket_of

GOOD, BAD = Evidence("good", 1), Evidence("bad", 1)


def test_buckets_cover_all_means_in_order() -> None:
    found = [bucket_of(mean / 1000) for mean in range(1, 1001)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, BUCKETS - 1)
    assert set(found) == set(range(BUCKETS))


def test_opinions_are_weighed_by_trust() -> None:
    estimates = Estimates(Estimator({GOOD: 1.0986122886681098}))  # log 3
    prediction = estimates.predict([(GOOD, {7: 0.8}), (BAD, {7: 0.4, 8: 0.6})], table=1)
    assert prediction.mixed == pytest.approx({7: 0.7, 8: 0.15})
    assert prediction.estimates[7] > prediction.estimates[8]
    assert prediction.sources(7) == ("good", "bad")
    assert prediction.sources(8) == ("bad",)
    assert estimates.predict([], table=0).estimates == {}


def test_a_kind_that_is_right_is_trusted_more() -> None:
    estimates = Estimates(Estimator(log_weight={}))
    for _ in range(50):
        estimates.learn(estimates.predict([(GOOD, {1: 0.9}), (BAD, {2: 0.9})], table=1), 1)
    prediction = estimates.predict([(GOOD, {3: 0.9}), (BAD, {4: 0.9})], table=1)
    assert prediction.mixed[3] > 5 * prediction.mixed[4]


def test_estimates_become_the_share_that_is_accepted() -> None:
    random.seed(0)
    estimates = Estimates(Estimator(strength=10.0, decay=1.0))
    for _ in range(2000):
        estimates.learn(
            estimates.predict([(GOOD, {1: 0.5})], table=0), 1 if random.random() < 0.2 else 2
        )
    assert estimates.predict([(GOOD, {1: 0.5})], table=0).estimates[1] == pytest.approx(
        0.2, abs=0.04
    )
    untouched = Estimates(Estimator()).predict([(GOOD, {1: 0.5})], table=1).estimates[1]
    # the root tells nothing below it
    assert estimates.predict([(GOOD, {1: 0.5})], table=1).estimates[1] == untouched


def test_the_formula_of_prior_and_evidence() -> None:
    estimates = Estimates(Estimator(root=(0.0, 1.0), strength=3.0, decay=0.5))
    prior = estimates.predict([(GOOD, {1: 0.5})], table=0).estimates[1]
    assert prior == pytest.approx(0.5)
    estimates.learn(estimates.predict([(GOOD, {1: 0.5})], table=0), 1)
    estimates.learn(estimates.predict([(GOOD, {1: 0.5})], table=0), 9)
    value = estimates.predict([(GOOD, {1: 0.5})], table=0).estimates[1]
    assert value == pytest.approx((3.0 * 0.5 + 0.5) / (3.0 + 1.5))


def test_what_is_left_of_rows_that_are_cut_is_likelier() -> None:
    whole = Estimator.for_sampling().sharpness
    assert whole == Estimator().sharpness
    for cuts in (Sampling(1.0, top_k=50_000), Sampling(1.0, top_p=0.95)):
        assert Estimator.for_sampling(cuts).sharpness == pytest.approx(whole, abs=1e-3)
    few = [Sampling(1.0, top_k=4), Sampling(1.0, top_p=0.85), Sampling(1.0, min_p=0.1)]
    for cuts in (*few, Sampling(0.7, top_k=20, top_p=0.8)):
        assert whole + 0.5 < Estimator.for_sampling(cuts).sharpness <= whole + 0.75


def test_a_text_that_is_drawn_from_cut_rows_is_drafted_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[float]()
    make = Merger.__init__

    def watched(self: Merger, sources: object, estimator: Estimator, request: object) -> None:
        found.append(estimator.sharpness)
        make(self, sources, estimator, request)  # type: ignore[arg-type]

    monkeypatch.setattr(Merger, "__init__", watched)
    for sampling in (Sampling(0.0, top_p=0.5), Sampling(1.0), Sampling(1.0, top_p=0.85)):
        drafter = MultiSource((Suffix(),))
        drafter.start(DraftRequest(sampling, Rng(0), model_of(0).start())).close()
    assert found == [1.25, 1.25, pytest.approx(1.95)]


def test_what_changed_is_noticed() -> None:
    estimates = Estimates(Estimator(decay=0.9, strength=5.0))
    for token in [1] * 100 + [2] * 40:
        estimates.learn(estimates.predict([(GOOD, {1: 0.5})], table=1), token)
    assert estimates.predict([(GOOD, {1: 0.5})], table=1).estimates[1] < 0.35


def test_requests_learn_for_themselves() -> None:
    config = Estimator()
    one, other = Estimates(config), Estimates(config)
    for _ in range(20):
        one.learn(one.predict([(GOOD, {1: 0.9}), (BAD, {2: 0.9})], table=1), 2)
    fresh = Estimates(config).predict([(GOOD, {1: 0.9}), (BAD, {2: 0.9})], table=1)
    assert other.predict([(GOOD, {1: 0.9}), (BAD, {2: 0.9})], table=1) == fresh


@pytest.mark.parametrize(
    "options", [{"rate": -1.0}, {"strength": 0.0}, {"decay": 0.0}, {"decay": 1.5}, {"floor": 0.0}]
)
def test_impossible_settings(options: dict) -> None:
    with pytest.raises(ValueError, match="strength above 0"):
        Estimator(**options)
