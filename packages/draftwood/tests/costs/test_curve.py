"""Curves, and measuring them: on a model whose every run takes a known time of a clock that only it
moves.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from draftwood.costs.curve import DEPTH, FULL, FURTHER, QUICK, Curve, measure, tree_parents
from draftwood.models.model import Ability, EmbeddingsAndHead, Keep, ModelInput, ModelOutput
from draftwood.models.requirements import NoEmbeddingsAndHead
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.models.transformers import TransformersModel


@dataclass(eq=False)
class SlowModel:
    """Runs of n nodes that take ``cost(n)`` seconds of its own clock."""

    cost: Callable[[int], float]
    per_context_token: float = 0.0
    context_length: int | None = None
    full_at: int = 10**9
    broken: bool = False
    now: float = 100.0
    runs: list[int] = field(default_factory=list)
    sessions: list["SlowSession"] = field(default_factory=list)
    vocab_size: int = 11
    layers: int = 0
    end_tokens: frozenset[int] = frozenset()
    abilities: frozenset[Ability] = frozenset()
    hidden_size: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        return NoEmbeddingsAndHead(self)

    def clock(self) -> float:
        return self.now

    def start(self) -> "SlowSession":
        self.now += 1e-6
        self.sessions.append(SlowSession(self))
        return self.sessions[-1]

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        raise NotImplementedError


@dataclass(eq=False)
class SlowSession:
    model: SlowModel
    length: int = 0
    closed: bool = False

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        if self.model.broken:
            raise RuntimeError("no such kernel")
        self.model.now += (
            self.model.cost(len(tokens)) + len(tokens) * self.length * self.model.per_context_token
        )
        self.length += len(tokens)
        return ModelOutput(torch.zeros(1, self.model.vocab_size))

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        if len(tree) >= self.model.full_at:
            raise torch.OutOfMemoryError("too large")
        assert max(tree.token_list) < self.model.vocab_size
        limit = self.model.context_length
        assert limit is None or self.length + tree.depth < limit
        self.model.now += (
            self.model.cost(len(tree)) + len(tree) * self.length * self.model.per_context_token
        )
        self.model.runs.append(len(tree))
        return ModelOutput(torch.zeros(len(tree), self.model.vocab_size))

    def commit(self, path: Sequence[int]) -> None:
        raise NotImplementedError

    def rewind(self, count: int) -> None:
        raise NotImplementedError

    def fork(self) -> "SlowSession":
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def measured(model: SlowModel, sizes: Sequence[int] = QUICK, **options: float) -> Curve:
    return measure(model, sizes, clock=model.clock, **options)


# ---- curves


def test_a_curve_is_straight_between_sizes_and_goes_on_behind_them() -> None:
    curve = Curve((1, 2, 4), (1.0, 1.0, 2.0))
    assert [curve(nodes) for nodes in (1, 2, 3, 4, 6)] == [1.0, 1.0, 1.5, 2.0, 3.0]


def test_a_flat_end_does_not_make_larger_trees_free() -> None:
    curve = Curve((1, 16, 32), (1.0, 2.0, 2.0))
    assert curve(63) == pytest.approx(2.0 + 31 * 1 / 31)
    assert Curve((1, 64), (1.0, 1.0))(1000) == 1.0  # flat all the way is what a large GPU is


def test_one_size_alone_assumes_a_cost() -> None:
    assert Curve((1,), (2.0,))(9) == 4.0


def test_noise_never_makes_a_larger_tree_cheaper() -> None:
    curve = Curve.fit({8: 1.5, 1: 1.0, 2: 1.4, 4: 1.2, 16: 1.4})
    assert curve.nodes == (1, 2, 4, 8, 16)
    assert curve.seconds == pytest.approx((1.0, 1.3, 1.3, 1.45, 1.45))
    drawn = random.Random(0)
    for _ in range(100):
        curve = Curve.fit({nodes: drawn.uniform(0.5, 2.0) for nodes in FULL})
        assert all(curve(nodes) <= curve(nodes + 1) for nodes in range(1, 200))


def test_fit_is_the_nearest_curve_that_never_falls() -> None:
    """Against every way to join neighbours: the fit has the least squares of those that do not
    fall.
    """
    drawn = random.Random(1)
    for _ in range(20):
        times = [drawn.uniform(0.1, 1.0) for _ in range(6)]
        fitted = Curve.fit(dict(enumerate(times, start=1))).seconds
        best = min(_squares(times, levels) for levels in _joined(times) if levels == sorted(levels))
        assert _squares(times, fitted) == pytest.approx(best)


def _joined(times: list[float]) -> list[list[float]]:
    if not times:
        return [[]]
    heads = [[sum(times[:count]) / count] * count for count in range(1, len(times) + 1)]
    return [head + rest for head in heads for rest in _joined(times[len(head) :])]


def _squares(times: Sequence[float], levels: Sequence[float]) -> float:
    return sum((time - level) ** 2 for time, level in zip(times, levels, strict=True))


@pytest.mark.parametrize(
    ("nodes", "seconds", "message"),
    [
        ((), (), "from 1 on"),
        ((2, 4), (1.0, 2.0), "from 1 on"),
        ((1, 4, 2), (1.0, 2.0, 3.0), "growing"),
        ((1, 1), (1.0, 1.0), "growing"),
        ((1, 2), (1.0,), "one time for each"),
        ((1, 2), (2.0, 1.0), "never fall.*Curve.fit"),
        ((1,), (0.0,), "above 0"),
        ((1, 2), (1.0, float("inf")), "above 0"),
        ((1, 2), (1.0, float("nan")), "above 0"),
    ],
)
def test_what_is_no_curve(nodes: tuple[int, ...], seconds: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Curve(nodes, seconds)


def test_a_run_has_at_least_its_root() -> None:
    with pytest.raises(ValueError, match="at least one node, the root, got 0"):
        Curve((1,), (1.0,))(0)


def test_trees_are_bushy_and_not_deeper_than_methods_draft() -> None:
    # checks the order, too
    trees = {nodes: DraftTree.of([0] * nodes, tree_parents(nodes)) for nodes in range(1, 130)}
    assert all(tree.depth <= DEPTH for tree in trees.values())
    assert all(tree.depth == DEPTH for nodes, tree in trees.items() if nodes in (5, 16, 31, 121))
    assert max(len(children) for children in trees[31].children) == 2
    assert max(len(children) for children in trees[128].children) == 4


# ---- measuring


def test_the_curve_is_what_the_runs_cost() -> None:
    model = SlowModel(lambda nodes: 0.01 + 0.001 * max(0, nodes - 8))
    curve = measured(model, FULL)
    assert curve.nodes == FULL
    assert curve.seconds == pytest.approx([0.01 + 0.001 * max(0, nodes - 8) for nodes in FULL])
    assert all(session.closed for session in model.sessions)
    assert model.sessions[0].length == 128 + FURTHER


@pytest.mark.parametrize(("device", "sizes"), [("cpu", 3), ("meta", 7)])
def test_on_other_devices_first_runs_do_not_tell_what_there_is_time_for(
    device: str, sizes: int
) -> None:
    seen: set[int] = set()

    def cost(nodes: int) -> float:
        first = nodes not in seen
        seen.add(nodes)
        return 0.1 if first else 0.001

    # one token is run before
    model = SlowModel(cost, device=torch.device(device), context_length=2 + DEPTH)
    curve = measured(model, seconds=1.0)
    assert len(curve.nodes) == sizes
    assert curve.seconds == pytest.approx([0.001] * sizes)


def test_what_context_costs_each_node_is_measured_too() -> None:
    model = SlowModel(lambda nodes: 0.001 + 0.0001 * nodes, per_context_token=2e-7)
    curve = measured(model)
    assert curve.per_context_token == pytest.approx(2e-7)
    assert curve(8) == pytest.approx(0.0018 + 8 * 128 * 2e-7)


def test_a_burst_of_noise_does_not_hide_what_context_costs() -> None:
    runs = 0

    def cost(nodes: int) -> float:
        nonlocal runs
        runs += 1
        return 0.001 + 0.0001 * nodes + (0.05 if runs % 8 == 0 else 0.0)

    assert measured(SlowModel(cost, per_context_token=2e-7)).per_context_token == pytest.approx(
        2e-7
    )


def test_what_drowns_in_noise_is_not_seen() -> None:
    drawn = random.Random(0)
    model = SlowModel(
        lambda nodes: 0.001 + 0.0001 * nodes + drawn.uniform(0.0, 0.004), per_context_token=2e-8
    )
    assert measured(model).per_context_token == 0.0


@pytest.mark.parametrize(("limit", "seconds"), [(600, 3.0), (None, 0.5)])
def test_where_there_is_no_room_or_time_context_costs_nothing(
    limit: int | None, seconds: float
) -> None:
    model = SlowModel(
        lambda nodes: 0.001 + 0.001 * nodes, per_context_token=2e-7, context_length=limit
    )
    assert measured(model, seconds=seconds).per_context_token == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
def test_times_that_agree_end_the_measurement(noise: float) -> None:
    drawn = random.Random(3)
    model = SlowModel(lambda nodes: 0.004 * (1 + nodes / 32) * (1 + noise * drawn.random()))
    curve = measured(model, seconds=3.0)
    assert curve.seconds == pytest.approx([model.cost(nodes) for nodes in QUICK], rel=noise + 1e-9)
    assert (model.runs.count(64) < 10) == (noise < 0.03)


def test_bursts_of_noise_and_slow_first_runs_do_not_count() -> None:
    drawn, seen = random.Random(2), set()

    def cost(nodes: int) -> float:
        first, noisy = nodes not in seen, drawn.random() < 0.2
        seen.add(nodes)
        return 0.001 * (1 + nodes / 32) * (20 if first else 5 if noisy else 1)

    curve = measured(SlowModel(cost), seconds=3.0)
    assert curve.seconds == pytest.approx([0.001 * (1 + nodes / 32) for nodes in QUICK])


@pytest.mark.parametrize("plain", [0.001, 0.02, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("per_node", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("budget", [1.0, 3.0])
def test_the_time_is_kept(plain: float, per_node: float, budget: float) -> None:
    model = SlowModel(lambda nodes: plain * (1 + per_node * (nodes - 1)))
    curve = measured(model, FULL, seconds=budget)
    assert model.now - 100.0 <= budget + 1e-9
    assert curve.seconds[0] == pytest.approx(plain)
    assert {nodes: curve(nodes) for nodes in curve.nodes} == pytest.approx(
        {nodes: plain * (1 + per_node * (nodes - 1)) for nodes in curve.nodes}
    )


def test_a_slow_model_is_measured_at_few_sizes_once() -> None:
    model = SlowModel(lambda nodes: 0.6 + 0.002 * nodes)
    curve = measured(model)
    assert model.runs == [1, 4, 16]
    assert curve(8) == pytest.approx(0.6 + 0.002 * 8)


def test_a_model_slower_than_the_time_allows_still_has_a_curve() -> None:
    model = SlowModel(lambda nodes: 20.0)
    curve = measured(model)
    assert model.now == pytest.approx(120.0)
    assert curve(9) == 40.0
    assert measured(SlowModel(lambda nodes: 0.5), seconds=1e-9).seconds == pytest.approx((0.5,))


def test_short_contexts_are_not_overrun() -> None:
    for limit in (6, 9, 64):
        model = SlowModel(lambda nodes: 0.001, context_length=limit)
        measured(model)
        assert model.sessions[0].length == limit - DEPTH - 1


def test_sizes_that_do_not_fit_the_memory_are_left_out() -> None:
    model = SlowModel(lambda nodes: 0.001 * nodes, full_at=32)
    assert measured(model).nodes == (1, 2, 4, 8, 16)


def test_the_session_is_closed_when_a_run_fails() -> None:
    model = SlowModel(lambda nodes: 0.001, broken=True)
    with pytest.raises(RuntimeError, match="no such kernel"):
        measured(model)
    assert model.sessions[0].closed


def test_progress_is_told() -> None:
    told: list[None] = []
    measure(
        SlowModel(lambda nodes: 0.001),
        rounds=4,
        clock=lambda: 0.0,
        advance=lambda: told.append(None),
    )
    assert len(told) == 5


@pytest.mark.parametrize(
    "options", [{"sizes": (0, 4)}, {"length": 0}, {"seconds": 0.0}, {"seconds": float("nan")}]
)
def test_options_that_make_no_sense(options: dict) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        measure(SlowModel(lambda nodes: 0.001), **options)


def test_a_real_model_is_left_as_it_was() -> None:
    hf_model = tiny_llama(context=64)
    model = TransformersModel(hf_model)
    session = model.start()
    wanted = session.extend([1, 2, 3]).logits
    random_state = torch.get_rng_state()
    curve = measure(model, seconds=0.5)
    assert curve.nodes[0] == 1
    assert torch.equal(torch.get_rng_state(), random_state)
    assert len(model.pool.used) == 1  # only ours
    assert not hf_model.training
    session.rewind(3)
    assert torch.allclose(session.extend([1, 2, 3]).logits, wanted, atol=1e-5)
