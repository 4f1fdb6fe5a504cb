"""The size of a tree: nothing where nothing pays, never more than pays, found without trying every
tree.
"""

import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from draftwood.costs.budget import SHARED_MARGIN, Budget, default_cost
from draftwood.costs.calibration import Calibration
from draftwood.costs.curve import LENGTH, Curve


def linear(slope: float):
    return lambda nodes: 1.0 + slope * (nodes - 1)


def steps(nodes: int) -> float:
    """Sizes up to a multiple of 8 cost the same, as with padded kernels."""
    return 1.0 + 0.3 * ((nodes - 1) // 8)


def best_by_trying(budget: Budget, estimates: list[float]) -> int:
    rates = [
        (1.0 + sum(estimates[:n])) / budget.costs[n]
        for n in range(min(len(estimates), budget.max_draft_tokens) + 1)
    ]
    return rates.index(max(rates))


@pytest.mark.parametrize("curve", [linear(0.05), linear(0.3), steps, default_cost, linear(0.0)])
def test_the_best_size_is_the_one_found_by_trying_all(curve) -> None:
    random.seed(1)
    budget = Budget(curve, per_draft_token=0.0, max_draft_tokens=24)
    for _ in range(200):
        estimates = sorted(
            (random.random() ** 3 for _ in range(random.randrange(30))), reverse=True
        )
        assert budget.best(estimates) == best_by_trying(budget, estimates)


def test_the_tree_is_empty_where_nothing_pays() -> None:
    budget = Budget(linear(0.2), per_draft_token=0.0)
    assert budget.best([]) == 0
    assert budget.best([0.19, 0.19, 0.19]) == 0
    assert budget.best([0.21]) == 1
    assert Budget(linear(0.2), per_draft_token=0.05).best([0.21]) == 0  # drafting has its price too
    assert Budget(linear(0.0), max_draft_tokens=0).best([1.0]) == 0


def test_dearer_runs_and_less_likely_guesses_never_make_a_tree_larger() -> None:
    random.seed(2)
    for _ in range(50):
        estimates = sorted((random.random() for _ in range(20)), reverse=True)
        sizes = [
            Budget(linear(slope), per_draft_token=0.0).best(estimates)
            for slope in (0.0, 0.02, 0.1, 0.3, 1.0)
        ]
        assert sizes == sorted(sizes, reverse=True)
    assert Budget(linear(0.1), 0.0).best([0.9] * 5 + [0.05] * 5) == 5


@pytest.mark.parametrize("curve", [linear(0.05), linear(0.3), steps])
def test_no_guess_below_the_least_estimate_can_pay(curve) -> None:
    random.seed(3)
    budget = Budget(curve, per_draft_token=0.0, max_draft_tokens=24)
    for _ in range(200):
        estimates = sorted((random.random() ** 3 for _ in range(24)), reverse=True)
        tokens, rate = 1.0, 1.0 / budget.costs[0]
        for count, estimate in enumerate(estimates):
            if estimate < rate * budget.slopes[count]:
                assert best_by_trying(budget, estimates) <= count
                break
            tokens += estimate
            rate = max(rate, tokens / budget.costs[count + 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_draft_tokens": -1}, "negative"),
        ({"per_draft_token": -1.0}, "negative"),
        ({"per_step": math.nan}, "per_step must be finite"),
        ({"per_context_token": math.nan}, "per_context_token must be finite"),
    ],
)
def test_impossible_budgets(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**options)


NO_CURVES = [
    (lambda nodes: math.nan, ValueError, "curve must give finite seconds above 0.*got nan for 1$"),
    (lambda nodes: 0.01 if nodes < 8 else math.nan, ValueError, "curve.*got nan for 8$"),
    (lambda nodes: 0.01 if nodes < 20 else math.inf, ValueError, "curve.*got inf for 20$"),
    (lambda nodes: 0.0, ValueError, "curve.*got 0.0 for 1$"),
    (lambda nodes: -1, ValueError, "curve.*got -1.0 for 1$"),
    (lambda nodes: None, TypeError, "curve must give a number of seconds, got None for 1 nodes"),
    (lambda nodes: "0.1", TypeError, "curve must give a number of seconds, got '0.1' for 1 nodes"),
]


@pytest.mark.parametrize(("curve", "error", "message"), NO_CURVES)
def test_a_curve_that_gives_no_times_is_refused_by_its_name_and_size(
    curve: Callable[[int], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Budget(curve)
    with pytest.raises(error, match=message):
        Calibration(cast(Any, None), curve=curve)


def test_a_user_s_curve_never_falls() -> None:
    with pytest.raises(ValueError, match=r"curve must never fall, got 0\.5 seconds for 2 nodes"):
        Calibration(cast(Any, None), curve=lambda nodes: 1 / nodes)
    # one that learns may while it changes
    assert Budget(lambda nodes: 1 / nodes, per_draft_token=0.0).costs[1] == 0.5


def test_sizes_that_are_asked_for_beside_other_texts_are_checked_too() -> None:
    budget = Budget(lambda nodes: 0.01 if nodes < 40 else math.nan)
    with pytest.raises(ValueError, match="curve must give finite seconds"):
        budget.beside(20)


@pytest.mark.parametrize("kind", [int, float, np.float32, np.float64, np.array])
def test_numbers_of_any_kind_are_times(kind: Callable[[int], Any]) -> None:
    assert Budget(kind, per_draft_token=0.0, max_draft_tokens=3).costs == [1.0, 2.0, 3.0, 4.0]


def test_a_gain_counts_what_drafting_takes() -> None:
    budget = Budget(linear(0.1), per_draft_token=0.0, per_step=0.2)
    assert budget.gain([]) == pytest.approx(1.0 / 1.2)
    assert budget.gain([0.5, 0.3]) == pytest.approx(1.8 / 1.4)
    with pytest.raises(ValueError, match="per_step"):
        Budget(linear(0.1), per_step=-1.0)


def test_behind_long_contexts_nodes_cost_more() -> None:
    budget = Budget(linear(0.1), per_draft_token=0.0, per_context_token=0.001)
    far = budget.with_context(1024)
    assert far.costs[3] == pytest.approx(budget.costs[3] + 4 * 0.001 * (1024 - 128))
    assert far.best([0.5, 0.4, 0.3]) < budget.best([0.5, 0.4, 0.3])
    assert budget.with_context(1030) is far
    assert budget.with_context(LENGTH) is budget
    assert budget.with_context(2 * LENGTH).costs[0] == pytest.approx(
        budget.costs[0] + LENGTH * 0.001
    )


def test_a_budget_takes_what_a_curve_knows_of_context() -> None:
    assert Budget.of(Curve((1, 2), (1.0, 1.1), per_context_token=0.5)).per_context_token == 0.5
    assert Budget.of(linear(0.1)).with_context(10**6).costs == Budget(linear(0.1)).costs
    with pytest.raises(ValueError, match="per_context_token"):
        Budget(linear(0.1), per_context_token=-1.0)


@pytest.mark.parametrize("others", [0, 1, 4, 15])
def test_beside_other_texts_a_draft_token_must_be_worth_what_it_takes_from_them(
    others: int,
) -> None:
    """It enters where its estimate exceeds all tokens per second times what a row counts."""
    slope = 0.1
    budget = Budget(linear(slope), per_draft_token=0.0, max_draft_tokens=8).beside(others)
    margin = SHARED_MARGIN if others else 1.0
    price = margin * (1 + others) * slope / linear(slope)(1 + others)
    assert budget.best([price + 0.01], others) == 1
    assert budget.best([price - 0.01], others) == 0
    assert budget.gain([price + 0.01], -budget.per_step, others) > 1.0
    assert budget.gain([price - 0.01], -budget.per_step, others) < 1.0


def test_the_price_of_a_row_grows_with_the_load() -> None:
    """Alone a fifth of a token pays on this curve; beside fifteen texts a nearly certain one."""
    curve = Curve((1, 16, 64), (2.83e-3, 10.93e-3, 42e-3))
    estimates = [0.85, 0.5, 0.4]
    budget = Budget(curve, per_draft_token=0.0)
    assert budget.best(estimates) == 3
    assert budget.beside(15).best(estimates, 15.0) == 0


CURVES_IN_USE = """
import math
from draftwood import Sampling, methods
from draftwood.engine import Options, generate
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama

target = NativeModel(tiny_llama())
for curve in (lambda nodes: math.nan, lambda nodes: 1e300 * nodes, lambda nodes: 1e-300):
    try:
        method = methods.build("auto", target, curve=curve)
    except ValueError as error:
        print(error)
        continue
    asked = Options(Sampling(), 24)
    steps = generate(target, method.drafter, method.verifier, [1, 2, 1, 2], asked)
    print(sum(len(step.tokens) for step in steps))
"""


def test_no_curve_ends_the_process() -> None:
    """A time that is no number was a segmentation fault, as trees are grown in C++."""
    done = subprocess.run([sys.executable, "-c", CURVES_IN_USE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first.startswith("curve must give finite seconds above 0")
    assert others == ["24", "24"]
