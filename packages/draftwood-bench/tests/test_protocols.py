"""Protocols go to JSON and back, and list the cells they promise."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.missing import HEADS, OF_OTHER_MODELS, RUNS, commands, keep_card, main
from draftwood import methods
from draftwood.heads.folder import save
from draftwood.loading.models import model_for
from draftwood.methods.measured import measured_speeds
from draftwood.shapes import BestFirst, Independent, StochasticBeam, Widths
from draftwood.testing import tiny_llama
from draftwood_bench.cli.bench import bench
from draftwood_bench.plan.configurations import RSD_METHODS, Configuration
from draftwood_bench.plan.protocols import (
    Axes,
    Load,
    Protocol,
    Rsd,
    Settings,
    SpecBench,
    as_json,
    from_json,
)
from draftwood_bench.records.statistics import FEWEST_PASSES
from tiny_heads import tiny_medusa

PROTOCOLS = [
    SpecBench(("auto", "lookup"), Settings(temperatures=(0.0, 0.5), categories=("math",))),
    Rsd(lengths=(2,), budgets=(6,), thrifty=True),
    Axes(vary="shape"),
    Load(rates=(0.5,)),
    SpecBench(("auto", "rsd-s"), tree="2x3"),
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_json_both_ways(protocol: Protocol) -> None:
    assert from_json(json.loads(json.dumps(as_json(protocol)))) == protocol


@pytest.mark.parametrize("name", ["spec-bench", "rsd", "axes"])
def test_bounds_over_the_usual_tokens_are_told(name: str) -> None:
    """Even where a pass emits three tokens."""
    usual = Settings()
    passes = usual.bound_prompts * (usual.bound_tokens - 1) / 3
    assert passes >= FEWEST_PASSES
    given = {each.name: each.default for each in bench.commands[name].params}
    assert given["bound_prompts"] == usual.bound_prompts
    assert given["bound_tokens"] == usual.bound_tokens


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_cells_differ_and_plain_decoding_is_among_them(protocol: Protocol) -> None:
    cells = protocol.cells()
    assert len({cell.key for cell in cells}) == len(cells)
    assert any(cell.method == "plain" for cell in cells)


def test_every_budget_is_used_up() -> None:
    for cell in Rsd(methods=tuple(RSD_METHODS)).cells():
        kind, _, size = cell.at.partition(" ")
        if kind == "budget":
            assert cell.tree is not None
            assert cell.tree.nodes == int(size), cell.key
        if kind == "length":
            assert cell.draft_steps == int(size)


def test_trained_drafters_draw_the_trees_of_rsd() -> None:
    cells = Rsd(trained="lm").cells()[1:]
    assert {cell.drafts_with for cell in cells} == {methods.recipe("lm-rsd").drafter}
    assert [cell.shape for cell in cells] == [cell.shape for cell in Rsd().cells()[1:]]
    assert all(cell.lossless for cell in cells)


def test_trees_that_are_deeper_than_a_head_drafts_are_left_out() -> None:
    whole, some = Rsd(trained="ctc").cells(), Rsd(trained="ctc", levels=6).cells()
    left_out = {cell.key for cell in whole} - {cell.key for cell in some}
    assert {cell.tree.depth for cell in whole if cell.tree and cell.key in left_out} > {7, 30}
    assert max(cell.tree.depth for cell in some if cell.tree) == 6


def test_a_tree_is_for_methods_that_can_draw_it() -> None:
    cells = SpecBench(("auto", "rsd-s"), tree="2x3").cells()
    assert {cell.method: cell.shape for cell in cells} == {
        **{"plain": None, "auto": None},
        "rsd-s": StochasticBeam(2, 3),
    }
    loads = Load(("rsd-s",), batches=(1, 2), tree="2x3").cells()
    assert [cell.shape for cell in loads if cell.method == "rsd-s"] == 2 * [StochasticBeam(2, 3)]
    stored = {"protocol": "spec-bench", "methods": ["auto"]}  # of earlier versions
    assert from_json(stored) == SpecBench(("auto",))


def test_every_method_is_measured_by_some_run() -> None:
    known = {name for run in RUNS for name in run.methods} | measured_speeds().keys()
    assert known | OF_OTHER_MODELS >= methods.known().keys() - {"plain"}
    assert not known & OF_OTHER_MODELS
    for run in RUNS:
        assert commands(dict.fromkeys(HEADS, "somewhere"))[run.name][-1].endswith(run.name)
    assert not {"medusa", "hydra"} & commands({}).keys()  # no package brings these heads


def test_what_is_missing_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--masked-block", "somewhere"]) == 0
    listed = capsys.readouterr().out
    assert "medusa is left out" in listed
    assert "masked-block is left out" not in listed
    assert "somewhere" in listed


def test_heads_that_no_package_brings_count_by_their_cards(tmp_path: Path) -> None:
    target = model_for(tiny_llama(0, layers=4))
    trained: Any = tiny_medusa(target)
    folder = save(tmp_path / "medusa-300k", trained, "# 300k tokens, seed 0")
    keep_card("medusa", folder, tmp_path / "results")
    kept = tmp_path / "results" / "medusa" / "card.md"
    assert kept.read_text() == "# 300k tokens, seed 0\n"
    with pytest.raises(ValueError, match="holds a head of medusa; name one of hydra"):
        keep_card("hydra", folder, tmp_path / "results")
    (folder / "card.md").unlink()
    with pytest.raises(ValueError, match="so nobody could train it again"):
        keep_card("medusa", folder, tmp_path / "results")


def test_rsd_has_several_shapes_of_a_budget() -> None:
    shapes = {
        cell.shape for cell in Rsd().cells() if (cell.method, cell.at) == ("rsd-c", "budget 14")
    }
    assert shapes == {Widths((2, 1, 1, 1, 1, 1, 1)), Widths((2, 2, 2)), Widths((7, 1))}
    beams = {
        cell.shape for cell in Rsd().cells() if (cell.method, cell.at) == ("rsd-s", "budget 14")
    }
    assert beams == {StochasticBeam(2, 7), StochasticBeam(7, 2)}


def test_axes_change_one_thing() -> None:
    plain, *verifiers = Axes(("rsd-s",), "verifier").cells()
    assert plain == Configuration("plain")
    assert {cell.tree for cell in verifiers} == {StochasticBeam(2, 3)}
    assert {cell.rule.name for cell in verifiers} == {"match", "rejection", "traversal"}
    shapes = Axes(("rsd-s",), "shape").cells()[1:]
    assert {cell.rule.name for cell in shapes} == {"rejection"}
    assert all(cell.tree.draw in cell.rule.exact_for for cell in shapes if cell.tree)
    drafters = Axes(("rsd-s",), "drafter").cells()[1:]
    assert {cell.drafts_with.name for cell in drafters} == {
        *("draft-model", "layer-skip", "layer-search", "early-exit", "windowed", "shadow"),
        *("horizontal", "merged-drawn"),
    }
    assert {cell.tree for cell in drafters} == {StochasticBeam(2, 3)}


def test_pairs_are_every_shape_with_every_verifier_that_is_exact_for_it() -> None:
    pairs = Axes(("layer-skip",), "pair", budget=6).cells()[1:]
    assert len({cell.key for cell in pairs}) == len(pairs)
    assert all(cell.tree and cell.tree.draw in cell.rule.exact_for for cell in pairs)
    alone = {cell.key for cell in Axes(("layer-skip",), "shape", budget=6).cells()[1:]}
    assert alone == {cell.key for cell in pairs if cell.method == "layer-skip"}
    rules = {
        shape: {cell.rule.name for cell in pairs if cell.shape == shape}
        for shape in (Widths((2, 2)), Widths((1,) * 6), BestFirst(3, 2, 6))
    }
    chain = {"match", "rejection", "traversal", "block"}
    assert list(rules.values()) == [chain - {"block"}, chain, {"match"}]


def test_labels_say_what_changed() -> None:
    verifiers = {
        cell.method: cell.rule.name for cell in Axes(("traversal",), "verifier").cells()[1:]
    }
    assert verifiers == {
        "traversal + match": "match",
        "traversal + rejection": "rejection",
        "traversal": "traversal",
    }
    drafters = {
        cell.method: cell.drafts_with.name
        for cell in Axes(("layer-skip", "lookup"), "drafter").cells()[1:]
    }
    own = {label: drafter for label, drafter in drafters.items() if "," not in label}
    assert own == {"layer-skip": "layer-skip", "lookup": "prompt-lookup"}
    others = {label: drafter for label, drafter in drafters.items() if label not in own}
    assert others["layer-skip, drafter draft-model"] == "draft-model"
    assert others["lookup, drafter suffix"] == "suffix"
    assert all(label.endswith(f", drafter {drafter}") for label, drafter in others.items())


def test_levels_of_shapes() -> None:
    """A method's runs of the draft model are the levels of its shape, whatever it keeps of them."""
    shapes = (Widths((3, 1)), StochasticBeam(2, 5), Independent(3, 4), BestFirst(4, 4, 2))
    cells = [Configuration("x", recipe="rsd-s", shape=shape) for shape in shapes]
    assert [cell.draft_steps for cell in cells] == [2, 5, 4, 4]
    assert Configuration("x", recipe="layer-skip", shape=shapes[0]).draft_steps is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SpecBench(("plain",)).cells(), "at least one other method"),
        (lambda: SpecBench(("lokup",)).cells()[1].rule, "did you mean lookup"),
        (lambda: Rsd(methods=("lookup",)), "rsd compares trees of a draft model: .*not 'lookup'"),
        (
            lambda: Rsd(trained="medusa"),
            "drafters of kind 'medusa' do not; take one of: ctc",
        ),
        (lambda: Rsd(budgets=(7,)), "budgets are of 4, 6, 10, 14, 21, 30, got 7"),
        (lambda: Axes(vary="mood"), "drafter, shape, verifier or pair, not 'mood'"),  # type: ignore[arg-type]
        (lambda: Axes(("lookup",), "shape").cells(), "lookup takes no other shapes"),
        (lambda: Load(batches=(), rates=()), "nothing to measure"),
        (lambda: Load(batches=(0,)), "at least 1, got batches 0 and most 8"),
        (lambda: Load(rates=(2.0, float("inf"))), "finite, got 2.0, inf"),
        (lambda: Load(rates=(float("nan"),)), "above 0"),
        (lambda: Settings(temperatures=(float("nan"),)), "0 or above"),
        (lambda: Settings(temperatures=()), "at least one, got none"),
        (lambda: Settings(temperatures=()), "at least one"),
        (lambda: Settings(max_new_tokens=0), "max_new_tokens must be at least 1, got 0"),
        (lambda: from_json({"protocol": "x"}), "no protocol 'x'; there are spec-bench, rsd"),
        (lambda: from_json({"protocol": "rsd", "mood": 1}), "rsd has no option 'mood'"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
