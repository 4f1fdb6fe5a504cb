"""Continuous tokens: exact methods leave known Gaussians as they are, others are told apart."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from draftwood.methods.listings import of_package
from draftwood.testing.promises import SIGNIFICANCE
from draftwood_images.checks import CHECKS as OF_PACKAGE
from draftwood_images.continuous.cspd import Cspd
from draftwood_images.continuous.cspd_released import CspdReleased
from draftwood_images.continuous.gaussians import GaussianChains, gaussian_pair
from draftwood_images.continuous.kolmogorov import (
    distance_from_normal,
    distance_of_samples,
    kolmogorov_tail,
    normal_distance,
    normal_p_value,
    samples_p_value,
)
from draftwood_images.continuous.loop import DrawnPictures, draw, draw_plainly
from draftwood_images.continuous.methods import METHODS, method_named
from draftwood_images.continuous.proof import CHECKS, keeping_sample, known_p_value, sample
from draftwood_images.continuous.reflected import Reflected
from draftwood_images.continuous.rule import ContinuousRule, reflected_points

DRAWS = 4000
EXACT = [rule for rule in METHODS.values() if rule.promise == "lossless"]


def rows(drawn: DrawnPictures) -> np.ndarray:
    return drawn.tokens.reshape(len(drawn.tokens), -1)


@pytest.mark.parametrize("last_noise", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_the_target_alone_draws_the_distribution_in_closed_form(
    size: int, last_noise: bool
) -> None:
    target, _ = gaussian_pair(size)
    drawn = rows(draw_plainly(target, range(DRAWS), last_noise))
    assert normal_p_value(drawn, target.distribution(last_noise)) > SIGNIFICANCE
    assert normal_p_value(drawn, target.distribution(not last_noise)) < SIGNIFICANCE


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_exact_methods_leave_the_distribution_as_it_is(rule: ContinuousRule, size: int) -> None:
    assert known_p_value(size, sample(size, rule, DRAWS)) > SIGNIFICANCE


@pytest.mark.parametrize("block", [1, 2, 7])
@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_so_they_do_for_drafts_of_any_length(rule: ContinuousRule, block: int) -> None:
    target, draft = gaussian_pair(2)
    drawn = rows(draw(target, draft, rule, range(DRAWS), block))
    assert normal_p_value(drawn, target.distribution()) > SIGNIFICANCE


@pytest.mark.proof
@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_checks_of_the_package_pass(check: Callable) -> None:
    assert check().passed


def test_the_package_brings_these_checks() -> None:
    assert OF_PACKAGE.items() >= CHECKS.items()


def test_tokens_that_stay_behind_a_failed_one_are_caught() -> None:
    assert known_p_value(1, keeping_sample(1, DRAWS)) < SIGNIFICANCE


def test_wrong_companies_of_right_coordinates_are_caught() -> None:
    drawn = sample(2, Reflected(), 3 * DRAWS)
    mixed = drawn.copy()
    mixed[:, :2] = np.roll(mixed[:, :2], 1, axis=0)  # of another picture
    assert known_p_value(2, drawn) > SIGNIFICANCE
    assert known_p_value(2, mixed) < SIGNIFICANCE
    assert samples_p_value(mixed, drawn) < SIGNIFICANCE


def test_a_draft_that_is_the_target_is_kept_whole() -> None:
    target, _ = gaussian_pair(2, length=11)
    for rule in EXACT:
        drawn = draw(target, target, rule, range(20), block=4)
        assert (drawn.passes == 3).all()  # 5, 5 and 1
        assert drawn.kept.tolist() == drawn.tested.tolist() == [9] * 20


def test_counts_tell_what_was_tested() -> None:
    target, draft = gaussian_pair(1, length=9)
    for rule in METHODS.values():
        drawn = draw(target, draft, rule, range(200), block=3)
        own = drawn.tokens.shape[1] - drawn.kept  # tokens that the target finished
        assert (own <= drawn.passes).all()  # the last pass may need none
        assert (drawn.passes - own <= 1).all()
        assert (drawn.kept <= drawn.tested).all()
        assert (drawn.tested - drawn.kept <= drawn.passes).all()
    alone = draw_plainly(target, range(5))
    assert (alone.passes == 9).all()
    assert (alone.head_passes == 9 * 5).all()


@pytest.mark.parametrize("rule", METHODS.values(), ids=list(METHODS))
def test_a_picture_depends_on_its_seed_alone(rule: ContinuousRule) -> None:
    target, draft = gaussian_pair(2)
    together = draw(target, draft, rule, range(-3, 30)).tokens
    alone = draw(target, draft, rule, [12]).tokens
    np.testing.assert_allclose(together[15], alone[0])
    assert not np.allclose(together[14], alone[0])


def test_reflected_noise_keeps_its_length_and_turns_along_the_means() -> None:
    noise, zeros = np.array([[3.0, 4.0]]), np.zeros((1, 2))
    points = reflected_points(noise, np.array([[2.0, 0.0]]), zeros, np.array([[0.5]]))
    np.testing.assert_allclose(points, [[2.0 - 1.5, 2.0]])
    np.testing.assert_allclose(reflected_points(noise, zeros, zeros, np.ones((1, 1))), noise)


def one_step(deviation: float, start: float) -> GaussianChains:
    identity = np.eye(1)
    return GaussianChains(
        2, np.array([start]), 0.5 * identity, 0.5 * identity, np.array([deviation])
    )


def test_cspd_is_exact_for_one_step_of_any_deviations() -> None:
    target, draft = one_step(0.7, 1.0), one_step(1.0, 0.2)
    drawn = draw(target, draft, Cspd(prefill=0.0), range(DRAWS))
    assert normal_p_value(rows(drawn), target.distribution()) > SIGNIFICANCE
    assert (drawn.kept < drawn.tested).any()


def test_cspd_weighs_earlier_steps_where_deviations_differ() -> None:
    distances = {}
    for spread in (1.0, 1.15):
        target, draft = gaussian_pair(2, spread=spread)
        drawn = rows(draw(target, draft, Cspd(), range(DRAWS)))
        distances[spread] = normal_distance(drawn, target.distribution())
    assert distances[1.0] < 0.04  # as far as chance goes
    assert distances[1.15] > 0.1


def test_the_released_form_has_no_noise_in_the_last_step_and_keeps_nearly_all() -> None:
    target, draft = gaussian_pair(1)
    drawn = draw(target, target, CspdReleased(), range(DRAWS))
    assert normal_p_value(rows(drawn), target.distribution(last_noise=False)) > SIGNIFICANCE
    drafted = draw(target, draft, CspdReleased(), range(DRAWS))
    assert drafted.kept.sum() / drafted.tested.sum() > 0.99
    assert normal_p_value(rows(drafted), target.distribution(last_noise=False)) < SIGNIFICANCE


def test_shared_noise_raises_acceptance() -> None:
    target, draft = gaussian_pair(2)
    shares = []
    for shared in (True, False):
        drawn = draw(target, draft, Cspd(shared=shared), range(500))
        shares.append(drawn.kept.sum() / drawn.tested.sum())
    assert shares[0] > 1.5 * shares[1]


def test_first_tokens_are_the_targets() -> None:
    target, _ = gaussian_pair(1, length=40)
    drawn = draw(target, target, Cspd(), range(3), block=38)
    assert (drawn.passes == 3).all()  # two of the target, 38 that are kept
    assert (drawn.kept == 38).all()
    alone = draw_plainly(target, range(3))
    np.testing.assert_allclose(drawn.tokens[:, :2], alone.tokens[:, :2])


def test_what_does_not_belong_together_is_refused() -> None:
    target, draft = gaussian_pair(1)
    wide = replace(draft, deviations=1.1 * draft.deviations)
    quiet = np.append(target.deviations[:-1], 0.0)
    refused: list[tuple[GaussianChains, GaussianChains, ContinuousRule, str]] = [
        (target, gaussian_pair(2)[1], Reflected(), "4 tokens of 1 numbers in 5 steps, but this"),
        (target, gaussian_pair(1, length=3)[1], Cspd(), "train both together"),
        (target, wide, Reflected(), "equal deviations.*take cspd"),
        (target, wide, METHODS["aligned"], "equal deviations"),
        *(
            (replace(target, deviations=quiet), replace(draft, deviations=quiet), rule, "noise")
            for rule in EXACT
        ),
        (replace(target, deviations=quiet), draft, Cspd(), "give the target a deviation above 0"),
    ]
    for one, other, rule, told in refused:
        with pytest.raises(ValueError, match=told):
            draw(one, other, rule, [0])
    with pytest.raises(ValueError, match="at least one token, 0"):
        draw(target, draft, Reflected(), [0], block=0)
    with pytest.raises(ValueError, match=r"no method 'fast'.*reflected"):
        method_named("fast")
    with pytest.raises(ValueError, match="1 and 2 coordinates, 3"):
        gaussian_pair(3)


def test_distances_and_their_p_values() -> None:
    uniform = np.linspace(-2, 2, 101)
    assert distance_of_samples(uniform, uniform) == 0.0
    assert distance_of_samples(uniform, uniform + 10) == 1.0
    assert distance_from_normal(np.zeros(10), 0.0, 1.0) == pytest.approx(0.5)
    assert kolmogorov_tail(1.358 / 1e3, 1e6) == pytest.approx(0.05, abs=1e-3)
    assert kolmogorov_tail(0.0, 100) == 1.0
    draws = np.random.default_rng(0).standard_normal((400, 200))
    values = [kolmogorov_tail(distance_from_normal(row, 0.0, 1.0), 200) for row in draws.T[:, :200]]
    assert 0.02 < np.mean(np.array(values) < 0.1) < 0.2


def test_methods_are_listed_with_what_they_promise() -> None:
    told = {each.name: each for each in of_package("images")[1]}
    assert told["reflected"].promise == told["aligned"].promise == "lossless"  # type: ignore[union-attr]
    assert told["cspd"].promise == told["cspd-released"].promise == "trades quality"  # type: ignore[union-attr]
    assert "2501.05370" in told["reflected"].source
