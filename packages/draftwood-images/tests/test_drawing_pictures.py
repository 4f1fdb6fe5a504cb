"""Pictures drawn by every method, and how they are laid out and told of."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from draftwood import engine
from draftwood.drafters import JacobiSampled
from draftwood.engine import Limits, Method
from draftwood.methods import listings
from draftwood.stats import Step
from draftwood.verifiers import Grouped
from draftwood_images.drawing import DrawingRule, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.layout import PictureLayout
from draftwood_images.maps import failing_by_place, given_by_place
from draftwood_images.methods import (
    ROUNDS,
    MachineCosts,
    WindowCosts,
    WindowKnobs,
    picture_method,
    require_method,
)
from draftwood_images.report import page
from draftwood_images.sheet import GAP, in_half_blocks, on_white, sheet, write_png
from draftwood_images.sitting import Sitting
from draftwood_images.small import CODES, COLUMNS, ROWS, small_picture_model
from draftwood_images.starts import PictureStart

LENGTH = ROWS * COLUMNS
WHOLE = WindowKnobs(window=6, whole=True)


@pytest.fixture(scope="module")
def drawing() -> DrawingModel:
    return DrawingModel.of("random", small_picture_model())


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_every_matching_method_draws_the_same_pictures(
    drawing: DrawingModel, guidance: float
) -> None:
    easel = Easel(drawing, "red apple", DrawingRule(1.0, 5, guidance))
    plain = list(easel.draw(picture_method("plain", easel), range(3)))
    assert len({each.codes.tobytes() for each in plain}) == 3
    for name in ("raced-jacobi", "auto", "suffix", "lookup"):
        found = list(easel.draw(picture_method(name, easel, WHOLE), range(3)))
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_array_equal(one.codes, other.codes)
            assert sum(one.given) == LENGTH
    found = list(easel.draw(picture_method("raced-jacobi", easel, WHOLE), range(3)))
    assert np.mean([each.stats.block_efficiency for each in found]) > 1.2


def test_pictures_that_share_passes_are_the_same(drawing: DrawingModel) -> None:
    easel = Easel(drawing, "", DrawingRule(1.0, 0, 1.5))
    method = picture_method("sjd", easel, WHOLE)
    alone = {each.seed: each.codes for each in easel.draw(method, range(4))}
    together = {each.seed: each.codes for each in easel.draw(method, range(4), together=3)}
    assert alone.keys() == together.keys()
    assert all((alone[seed] == together[seed]).all() for seed in alone)


def test_only_codes_are_drawn_and_top_k_is_kept(drawing: DrawingModel) -> None:
    easel = Easel(drawing, "pear", DrawingRule(1.0, 1, 1.0))
    greedy = Easel(drawing, "pear", DrawingRule(0.0, 0, 1.0))
    for name in ("plain", "sjd"):
        (one,) = easel.draw(picture_method(name, easel, WHOLE), [3])
        (other,) = greedy.draw(picture_method(name, greedy, WHOLE), [4])
        np.testing.assert_array_equal(one.codes, other.codes)
        assert one.codes.shape == (ROWS, COLUMNS)
        assert 0 <= one.codes.min() <= one.codes.max() < CODES


def test_lines_with_ends_are_drawn_between_them(drawing: DrawingModel) -> None:
    """A layout as Emu3's, whose lines end with a token that is never drawn by chance."""
    layout = PictureLayout(3, 4, drawing.layout.vocabulary, 5, drawing.layout.tokens, line_end=6)
    lined = replace(drawing, layout=layout)
    for temperature in (0.0, 1.0):
        easel = Easel(lined, "green", DrawingRule(temperature, 5, 2.0))
        plain, raced = (
            next(iter(easel.draw(picture_method(name, easel, WHOLE), [1])))
            for name in ("plain", "raced-jacobi")
        )
        np.testing.assert_array_equal(plain.codes, raced.codes)
        assert sum(plain.given) == layout.length == 15
        assert plain.stats.target_runs > raced.stats.target_runs
        (drawn,) = easel.draw(picture_method("sjd", easel, WHOLE), [1])
        assert drawn.codes.shape == (3, 4)


def test_failures_and_passes_by_place(drawing: DrawingModel) -> None:
    easel = Easel(drawing, "red", DrawingRule(1.0, 5, 1.0))
    (one,) = easel.draw(picture_method("raced-jacobi", easel, WHOLE), [0])
    given = given_by_place(one.given, drawing.layout.places)
    assert given.shape == (ROWS, COLUMNS)
    assert (1 / given).sum() == pytest.approx(len(one.steps))
    shares = failing_by_place([one.failures], drawing.layout.places)
    assert shares.sum() == len(one.failures) > 0
    rejected = sum(step.drafted > step.accepted for step in one.steps)
    assert len(one.failures) == rejected
    assert one.as_json()["passes"] == one.stats.target_runs


def test_windows_groups_and_costs_reach_the_method(drawing: DrawingModel) -> None:
    easel = Easel(drawing, "red", DrawingRule(1.0, 5, 2.0))
    knobs = WindowKnobs(7, "upper", 4, 0.2, 0.5)
    costs = MachineCosts(easel)
    known = replace(costs.windows("gsd", knobs), pays=True)
    vars(costs)["windows"] = lambda name, knobs: known
    built = picture_method("gsd", easel, knobs, costs)
    drafter, rule = built.drafter, built.verifier
    assert isinstance(drafter, JacobiSampled)
    assert isinstance(rule, Grouped)
    assert drafter.window == 7
    assert drafter.start_row == PictureStart(drawing.layout, "upper")
    assert drafter.budget is not None
    assert drafter.budget.costs[0] == known.seconds(1) > 0.0
    assert drafter.hope == known.kept
    assert 0.0 < drafter.hope <= 1.0
    assert (rule.group, rule.delta, rule.distance) == (4, 0.2, 0.5)
    assert rule.vectors is not None
    assert np.isnan(rule.vectors[: drawing.layout.tokens[0]]).all()
    assert np.isfinite(rule.vectors[list(drawing.layout.tokens)]).all()
    other = Easel(replace(drawing, vectors=None), "red", easel.rule)
    with pytest.raises(ValueError, match="no vectors"):
        picture_method("gsd", other, knobs)


def test_a_guided_pass_costs_two_rows_a_node(drawing: DrawingModel) -> None:
    easels = (Easel(drawing, "red", DrawingRule(1.0, 5, each)) for each in (2.0, 1.0))
    guided, plain = (MachineCosts(each).passes for each in easels)
    assert 0.0 < guided(8) <= guided(16)
    assert 0.0 < plain(1) <= plain(16)


def test_where_nothing_pays_the_library_draws(drawing: DrawingModel) -> None:
    """A window that costs too much is left out, and whole steps are plain drawing's."""
    easel = Easel(drawing, "red", DrawingRule(1.0, 5, 1.0))
    steep = WindowCosts(lambda nodes: float(nodes**2), 0.5)
    costs, never = MachineCosts(easel), MachineCosts(easel)
    vars(costs)["windows"] = lambda name, knobs: steep
    vars(never)["windows"] = lambda name, knobs: replace(steep, pays=False)
    for name in ("raced-jacobi", "sjd", "gsd"):
        assert picture_method(name, easel, WindowKnobs(), never).drafter.name == "nothing"
        whole = picture_method(name, easel, WindowKnobs(whole=True), never)
        assert isinstance(whole.drafter, JacobiSampled)
    plain = list(easel.draw(picture_method("plain", easel), range(2)))
    for name in ("raced-jacobi", "sjd"):
        found = list(easel.draw(picture_method(name, easel, WindowKnobs(), costs), range(2)))
        assert sum(each.stats.drafted for each in found) == 0
        if name == "raced-jacobi":
            assert [each.codes.tolist() for each in found] == [
                each.codes.tolist() for each in plain
            ]
    flat = WindowCosts(lambda nodes: 1.0 + 0.3 * nodes, 0.3)
    vars(costs)["windows"] = lambda name, knobs: flat
    found = list(easel.draw(picture_method("raced-jacobi", easel, WindowKnobs(), costs), range(2)))
    assert [each.codes.tolist() for each in found] == [each.codes.tolist() for each in plain]
    steps = [step for each in found for step in each.steps if step.tree is not None]
    assert {step.drafted > 0 for step in steps} == {False, True}


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes take 10 seconds and one more for each row."""
    now = 0.0

    def counted(texts: Sequence[engine.Sequence], limits: Limits) -> Iterator[tuple[int, Step]]:
        nonlocal now
        for number, step in engine.run_all(texts, limits):
            now += 10 / len(texts) + 1 + step.drafted
            yield number, step

    monkeypatch.setattr("draftwood_images.drawing.run_all", counted)
    monkeypatch.setattr("draftwood_images.methods.time", SimpleNamespace(perf_counter=lambda: now))


@pytest.mark.usefixtures("by_rows")
def test_windows_that_pay_alone_are_left_out_where_pictures_share_passes(
    drawing: DrawingModel,
) -> None:
    easel = Easel(drawing, "red", DrawingRule(1.0, 5, 1.0))
    for name in ("raced-jacobi", "sjd", "gsd"):
        alone = picture_method(name, easel, None, MachineCosts(easel))
        assert isinstance(alone.drafter, JacobiSampled)
        shared = picture_method(name, easel, None, MachineCosts(easel, together=16))
        assert shared.drafter.name == "nothing"
        assert shared.name == name


@pytest.mark.usefixtures("by_rows")
def test_a_sitting_counts_the_pictures_that_share_passes(drawing: DrawingModel) -> None:
    for together, count, has_drafts in ((16, 16, False), (16, 1, True), (1, 2, True)):
        sitting = Sitting(drawing, "red", DrawingRule(1.0, 5, 1.0), WindowKnobs())
        sitting.run(["sjd"], range(count), together)
        assert (sitting.drawn[0].stats.drafted > 0) == has_drafts


def test_windows_are_timed_as_they_are_drawn_and_once(
    drawing: DrawingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, timed = Easel.pieces, list[Method]()

    def noted(self: Easel, method: Method, seeds: Sequence[int], tokens: int) -> object:
        timed.append(method)
        return pieces(self, method, seeds, tokens)

    monkeypatch.setattr(Easel, "pieces", noted)
    easel = Easel(drawing, "red", DrawingRule(1.0, 5, 1.0))
    costs, knobs = MachineCosts(easel, together=2), WindowKnobs(window=3, start="row")
    first = costs.windows("sjd", knobs)
    windows = [each.drafter for each in timed if each.name != "plain"]
    for drafter in windows:
        assert type(drafter) is JacobiSampled
        assert drafter.window <= 3
        assert drafter.start_row == PictureStart(drawing.layout, "row")
    assert {each.name for each in timed} == {"plain", "sjd"}
    before = len(timed)
    assert costs.windows("sjd", knobs) is first
    assert len(timed) == before
    costs.windows("raced-jacobi", knobs)
    assert {each.name for each in timed[before:]} >= {"raced-jacobi"}
    assert sum(each.name == "plain" for each in timed) <= 1 + ROUNDS  # shared, once to warm up


@pytest.mark.parametrize("name", ["raced-jacobi", "sjd", "gsd", "suffix"])
def test_a_picture_of_one_code_is_drawn(drawing: DrawingModel, name: str) -> None:
    one = replace(drawing, layout=replace(drawing.layout, rows=1, columns=1))
    easel = Easel(one, "red", RULE)
    method = picture_method(name, easel, WindowKnobs(), MachineCosts(easel))
    (found,) = easel.draw(method, [0])
    assert found.codes.shape == (1, 1)
    if name != "suffix":
        assert method.drafter.name == "nothing"


def test_methods_that_pictures_lack_are_refused() -> None:
    for name, told in [
        ("speculative", "draft-model"),
        ("gsd", "--inexact"),
        ("sdj", "did you mean"),
    ]:
        with pytest.raises(ValueError, match=told):
            require_method(name, inexact=False)
    require_method("gsd", inexact=True)
    assert "raced-jacobi" in listings()


def test_sheets() -> None:
    red, blue = (np.full((4, 6, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 0, 255)))
    page_ = sheet([red, blue, red])
    factor = 24
    assert page_.shape == ((8 + GAP) * factor, (12 + GAP) * factor, 3)
    assert page_[0, 0].tolist() == [255, 0, 0]
    assert page_[0, -1].tolist() == [0, 0, 255]
    assert page_[-1, -1].tolist() == [255, 255, 255]
    assert sheet([red, blue], 1).shape == ((8 + GAP) * factor, 6 * factor, 3)
    with pytest.raises(ValueError, match="one size"):
        sheet([red, blue[1:]])
    with pytest.raises(ValueError, match="got none"):
        sheet([])


def test_seeds_that_are_not_drawn_leave_their_places_empty(
    drawing: DrawingModel, tmp_path: Path
) -> None:
    """As where pictures that share passes were stopped: a later one may be finished first."""
    from PIL import Image

    sitting = Sitting(drawing, "red", RULE, WHOLE)
    sitting.run(["plain", "raced-jacobi"], range(3))
    whole, part = tmp_path / "whole.png", tmp_path / "part.png"
    sitting.write(whole)
    del sitting.drawn[1].pictures[:2]
    sitting.write(part)
    before, after = (np.asarray(Image.open(each)) for each in (whole, part))
    assert before.shape == after.shape
    half, last = after.shape[0] // 2, after.shape[1] * 2 // 3
    np.testing.assert_array_equal(before[:half], after[:half])
    np.testing.assert_array_equal(before[:, last:], after[:, last:])
    assert (after[half:, :last] == 255).all()


def test_what_a_picture_lets_through_is_white() -> None:
    pixels = np.array([[[0, 0, 0, 0], [10, 20, 30, 255]]], np.uint8)
    assert on_white(pixels).tolist() == [[[255, 255, 255], [10, 20, 30]]]


def test_half_blocks_have_both_pixels() -> None:
    text = in_half_blocks(np.array([[[1, 2, 3]], [[255, 0, 16]], [[7, 8, 9]]], np.uint8))
    assert text.plain == "▀\n▀\n"
    style = text.spans[0].style
    assert "#010203" in str(style)
    assert "#ff0010" in str(style)


def test_png_files_are_whole(tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    write_png(tmp_path / "deep" / "a.png", pixels)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "deep" / "a.png")), pixels)
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["a.png"]


def test_a_page_shows_all_methods(drawing: DrawingModel) -> None:
    sitting = Sitting(drawing, "red apple", RULE, WHOLE)
    sitting.run(["plain", "raced-jacobi", "gsd"], range(2))
    html = page(sitting)
    assert html.count("<img") == 6 + 2 * 4 + 2
    assert "2 of 2" in html
    assert "trades quality" in html
    told = sitting.as_json()["methods"]
    assert isinstance(told, list)
    assert [each["same_as_plain"] for each in told][:2] == [2, 2]
    assert sitting.drawn[1].told(sitting.plain).endswith("2 as drawn plainly")


RULE = DrawingRule(1.0, 5, 2.0)
