"""Plans agree with curves and papers; wrong machines do not."""

import math
from dataclasses import replace

import pytest

from benchmarks import plan
from checkout import ROOT
from draftwood.costs.curve import LENGTH, Curve
from draftwood.shapes.sequoia import plan as best_tree
from draftwood_bench.machine import MACHINES, NATIVE_ATTENTION, Machine, machine_of
from draftwood_bench.planner import (
    USUAL,
    DraftSource,
    Planner,
    Traffic,
    acceptance_by_rank,
    acceptance_for,
    draft_source,
    expected,
    widths_of,
)
from draftwood_bench.sizes import ModelSize, size_for

SEVEN = ModelSize(6.6e9)


@pytest.mark.parametrize("run", ["tune", "cost"])
@pytest.mark.parametrize("source", ["smollm2-135m", "tinyllama-1.1b"])
def test_one_models_curve_predicts_the_others_within_ten_percent(run, source) -> None:
    curves = plan.stored_curves()[run]
    assert plan.check_curve(run, curves, source).worst <= 0.10


def test_attention_is_as_slow_as_long_texts_show() -> None:
    assert plan.attention_share() == pytest.approx(NATIVE_ATTENTION, rel=0.15)


def test_without_attention_a_small_models_curve_says_too_much(monkeypatch) -> None:
    blind = {name: replace(size, attention=0.0) for name, size in plan.SIZES.items()}
    monkeypatch.setattr(plan, "SIZES", blind)
    curves = plan.stored_curves()["cost"]
    assert not plan.check_curve("cost", curves, "smollm2-135m").passes


def test_published_speed_ups_are_predicted_within_their_spread() -> None:
    foreign = [row for row in plan.PUBLISHED if row not in plan.CALIBRATED]
    assert len(foreign) == 7
    outside = [row for row in foreign if not plan.within(row, plan.predicted(row))]
    assert outside == list(plan.MISSED)


@pytest.mark.parametrize("scale", [0.25, 10.0])
def test_a_wrong_bandwidth_fails_both_checks(scale) -> None:
    for source in plan.SIZES:
        curves = plan.stored_curves()["tune"]
        assert not plan.check_curve("tune", curves, source, scale).passes
    assert not all(plan.within(row, plan.predicted(row, scale)) for row in plan.PUBLISHED)
    assert plan.main([]) == 0
    assert plan.main(["--bandwidth", str(scale)]) == 1


def test_the_page_shows_the_checks_as_they_come_out() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    for line in plan.tables()[0]:
        assert line in page


def test_a_machine_is_found_again_from_the_curve_it_makes() -> None:
    machine = Machine("", 40e9, 600e9, 2.0, attention=NATIVE_ATTENTION)
    nodes = (1, 2, 4, 8, 16, 32, 64)
    size = ModelSize(1e9, 8.5, 22, 23e3, 2e5)
    seconds = [machine.seconds(size, count, context=LENGTH) for count in nodes]
    curve = Curve(nodes, tuple(seconds))
    found = Machine.fitted(curve, size)
    assert found.bandwidth == pytest.approx(machine.bandwidth, rel=0.01)
    assert found.compute == pytest.approx(machine.compute, rel=0.01)
    assert found.sharpness == pytest.approx(machine.sharpness, rel=0.02)
    with pytest.raises(ValueError, match="tune"):
        Machine.fitted(Curve((1, 2), (1.0, 1.0)), size)


def test_a_pass_takes_the_longer_of_reading_and_multiplying() -> None:
    machine = Machine("", 1e9, 1e12, math.inf)
    size = ModelSize(1e9, 8, 10, cache_bytes=1000)
    assert machine.seconds(size) == pytest.approx(1.0)
    assert machine.seconds(size, 1000) == pytest.approx(2.0)
    assert machine.seconds(size, texts=2, context=1000) == pytest.approx(1.002)
    attending = replace(size, attention=1e6)
    assert machine.seconds(attending, 1000, context=1000) == pytest.approx(3.0)
    slow = replace(machine, attention=0.5)
    assert slow.seconds(attending, 1000, context=1000) == pytest.approx(4.0)


def test_a_size_is_estimated_from_its_parameters() -> None:
    for known in plan.VICUNA.values():
        size = size_for(known.parameters, layers=known.layers)
        assert size.cache_bytes == pytest.approx(known.cache_bytes, rel=0.05)
        assert size.attention == pytest.approx(known.attention, rel=0.05)
    assert size_for(7e9).layers == 32
    drafting = draft_source("model", None, SEVEN).size
    assert drafting is not None
    assert drafting.cache_bytes > 0


def test_acceptance_is_found_again_from_the_tokens_it_gives() -> None:
    ranks = acceptance_by_rank(0.7)
    tokens = expected(ranks, best_tree(ranks, 20, 5))
    assert acceptance_for(tokens, 20, 5)[0] == pytest.approx(0.7, abs=1e-3)
    chain = acceptance_for(2.28, 5, 5, "chain")[0]
    assert sum(chain**count for count in range(6)) == pytest.approx(2.28, abs=1e-3)
    for first in (0.0, 0.3, 0.6, 0.8, 1.0):
        assert sum(acceptance_by_rank(first)) <= 1
    for tokens in (1.0, 7.0):
        with pytest.raises(ValueError, match="between 1 and 6"):
            acceptance_for(tokens, 20, 5)


@pytest.mark.parametrize(
    ("name", "tokens", "draft_tokens", "depth", "form"),
    [
        ("copying", 2.73, 80, 6, "tree"),
        ("head", 3.61, 25, 5, "tree"),
        ("model", 2.28, 5, 5, "chain"),
    ],
)
def test_usual_acceptance_gives_the_published_tokens(
    name, tokens, draft_tokens, depth, form
) -> None:
    ranks = acceptance_by_rank(USUAL[name])[: 1 if form == "chain" else None]
    reached = expected(ranks, best_tree(ranks, draft_tokens, depth))
    assert reached == pytest.approx(tokens, rel=0.01)


def test_no_other_size_of_chain_is_better_than_the_best() -> None:
    planner = Planner(machine_of("rtx-3090"), SEVEN)
    source = draft_source("model", acceptance_by_rank(0.75), SEVEN)
    best = planner.best(source, "chain")
    for length in range(1, 9):
        tokens = sum(0.75**count for count in range(length + 1))
        tried = planner.price(source, tokens, (1,) * length, "chain")
        assert tried.tokens_per_second <= best.tokens_per_second * (1 + 1e-9)
    assert widths_of([(0,), (1,), (0, 0)]) == (2, 1)


@pytest.mark.parametrize(("name", "texts"), [("h100", 16), ("a100-80g", 16), ("a100-80g", 1)])
@pytest.mark.parametrize("kind", ["head", "model"])
def test_levels_are_priced_as_the_whole_is(name: str, texts: int, kind: str) -> None:
    planner = Planner(machine_of(name), SEVEN, Traffic(texts))
    source = draft_source(kind, None, SEVEN)
    best, first = planner.best(source, "chain"), source.acceptance[0]
    for length in range(1, 9):
        tokens = sum(first**count for count in range(length + 1))
        tried = planner.price(source, tokens, (1,) * length, "chain")
        assert tried.tokens_per_second <= best.tokens_per_second * (1 + 1e-9)


def test_trees_shrink_as_texts_share_a_pass_and_stop_to_pay() -> None:
    source = draft_source("head", None, SEVEN)
    sizes, gains = [], []
    for texts in (1, 4, 16, 256):
        planner = Planner(machine_of("a100-80g"), SEVEN, Traffic(texts))
        best = planner.best(source, "tree", 32, 6)
        sizes.append(best.draft_tokens)
        gains.append(best.speed_up)
    assert sizes == sorted(sizes, reverse=True)
    assert gains == sorted(gains, reverse=True)
    busy = Planner(machine_of("a100-80g"), SEVEN, Traffic(4096))
    assert busy.choices([source], 8, 4)[0].source is None


def test_drafts_never_accepted_are_not_recommended() -> None:
    planner = Planner(machine_of("h100"), SEVEN)
    hopeless = DraftSource("copying", (0.0, 0.0))
    assert planner.choices([hopeless], 4, 2)[0].source is None


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"take one of t4, .*h100"):
        machine_of("abacus")
    with pytest.raises(ValueError, match="native, graphs, transformers"):
        machine_of("h100", "steam")
    with pytest.raises(ValueError, match="above 0"):
        ModelSize(0)
    for bandwidth in (0, math.nan, math.inf):
        with pytest.raises(ValueError, match="above 0"):
            Machine("", bandwidth, 1)
    with pytest.raises(ValueError, match="above 0"):
        ModelSize(math.inf)
    for ranks in ((0.7, 0.7), (0.7, math.nan), (-0.1,)):
        with pytest.raises(ValueError, match="at most 1"):
            DraftSource("copying", ranks)
    with pytest.raises(ValueError, match="exactly where"):
        DraftSource("head", (0.7,), None, "once")
    with pytest.raises(ValueError, match="copying, head, model"):
        draft_source("oracle", None, SEVEN)
    with pytest.raises(ValueError, match="from 0 to 1"):
        acceptance_by_rank(1.5)
    with pytest.raises(ValueError, match="at least 0"):
        Traffic(1, -1)
    assert all(machine.name == name for name, machine in MACHINES.items())
