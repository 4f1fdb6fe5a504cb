"""Each rule on blocks written by hand, and methods as users type them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftwood_diffusion.blocks import BLOCKS, BlockPlace
from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.revision.edit import TokenEditing
from draftwood_diffusion.rules import RULES
from draftwood_diffusion.rules.learned import Filter
from draftwood_diffusion.unmasking import PARTS, Unmasking, parse
from draftwood_diffusion.view import View

MASK, VOCAB = 3, 4


def view(confidence: list[float], tokens: list[int] | None = None, **more: object) -> View:
    """A block whose likeliest tokens are 0, 1, 0, 1, ... with these probabilities; the rest goes
    to token 2.
    """
    probs = np.zeros((len(confidence), VOCAB))
    places = np.arange(len(confidence))
    probs[places, places % 2] = confidence
    probs[:, 2] = 1.0 - np.array(confidence)
    found = np.array([MASK] * len(confidence) if tokens is None else tokens)
    order = np.linspace(0.0, 0.9, len(confidence))
    return View(found, found == MASK, probs, order, **more)  # type: ignore[arg-type]


def chosen(text: str, seen: View) -> list[int]:
    return sorted(parse(text).rule.choose(seen).tolist())


SURE = [0.95, 0.8, 0.6, 0.91, 0.76, 0.55]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("one-by-one", [0]),
        ("by-margin", [0]),
        ("by-entropy", [0]),
        ("left-to-right", [0]),
        ("random", [5]),
        ("top-k", [0, 3]),
        ("top-k,k=9", [0, 1, 2, 3, 4, 5]),
        ("threshold", [0, 3]),
        ("threshold,tau=0.78", [0, 1, 3]),
        ("threshold,tau=1", [0]),
        ("local-leap", [0, 1, 3, 4]),
        ("local-leap,radius=0", [0, 3]),
        ("local-leap,near=0.5,radius=1", [0, 1, 2, 3, 4]),
        ("entropy", [0, 3]),
        ("entropy,most=0.6", [0, 1, 3, 4]),
        ("longest-prefix", [0]),
        ("longest-prefix,beta=0.7", [0, 1]),
        ("longest-prefix,beta=0.5", [0, 1, 2, 3, 4, 5]),
        ("factor", [0, 1, 3]),
    ],
)
def test_rules_fix_these_places(text: str, places: list[int]) -> None:
    assert chosen(text, view(SURE)) == places


def test_written_places_are_never_named_and_one_open_place_always_is() -> None:
    seen = view(SURE, [0, MASK, MASK, 1, MASK, 2])
    assert chosen("one-by-one", seen) == [1]
    assert chosen("threshold", seen) == [1]  # none is above, so the best one
    assert chosen("left-to-right", seen) == [1]
    assert chosen("longest-prefix,beta=0.5", seen) == [1, 2, 4]
    assert chosen("random", seen) == [4]
    assert chosen("local-leap", seen) == [1]  # anchors are open places
    for name in RULES:
        if name not in ("learned", "oracle"):
            assert set(chosen(name, seen)) <= {1, 2, 4}


def test_scores_of_a_view() -> None:
    seen = view([0.5, 0.75])
    assert seen.predictions.tolist() == [0, 1]
    np.testing.assert_allclose(seen.margin, [0.0, 0.5])
    np.testing.assert_allclose(seen.entropy, [np.log(2), 0.75 * np.log(4 / 3) + 0.25 * np.log(4)])
    # of equal scores the first place
    assert chosen("one-by-one", view([0.6, 0.6])) == [0]


def test_factor_bounds_doubt_times_places() -> None:
    # (n + 1)(1 - c) of the best 1, 2, 3 and 4: 0.2, 0.3, 0.8, 2
    seen = view([0.9, 0.9, 0.8, 0.6])
    assert chosen("factor", seen) == [0, 1, 2]
    assert chosen("factor,f=0.79", seen) == [0, 1]
    assert chosen("factor,f=0.1", seen) == [0]


def test_ccd_needs_predictions_that_stand_still() -> None:
    rule = parse("ccd,passes=3,top=3").rule
    assert rule.remembers == 2
    now = view([0.9, 0.8, 0.7, 0.6])
    assert rule.choose(now).tolist() == [0]  # too few passes
    moved = view([0.9, 0.3, 0.7, 0.6])  # place 1 held token 2 likeliest
    assert rule.choose(replace(now, history=(moved, now))).tolist() == [0, 2]
    assert rule.choose(replace(now, history=(now, now))).tolist() == [0, 1, 2]
    # the averaged distribution decides which place is best, not this pass's
    before = view([0.6, 0.9, 0.7, 0.6])
    assert rule.choose(replace(now, history=(before,))).tolist() == [1]


def test_ccd_agreement_grows_its_buffer_after_warming_up() -> None:
    rule = parse("ccd-agreement,warm=2,most=3").rule
    now = view([0.9, 0.8, 0.7, 0.6])
    assert rule.choose(now).tolist() == [0]
    assert rule.choose(replace(now, history=(now,))).tolist() == [0]
    assert rule.choose(replace(now, history=(now,) * 2)).tolist() == [0, 1]  # of 3 places and 2
    assert rule.choose(replace(now, history=(now,) * 3)).tolist() == [0, 1, 2]
    assert rule.choose(replace(now, history=(now,) * 5)).tolist() == [0, 1, 2]
    new = view([0.4, 0.9, 0.8, 0.7])  # place 0 was not among the best three
    assert rule.choose(replace(now, history=(now, now, now, new))).tolist() == [0]
    turned = view([0.9, 0.15, 0.3, 0.4])  # places 1 and 2 held token 2 likeliest
    assert rule.choose(replace(now, history=(now, now, now, turned))).tolist() == [0]


def test_ccd_agreement_ranks_by_entropy() -> None:
    rule = parse("ccd-agreement,warm=1,most=1").rule
    probs = np.array([[0.6, 0.2, 0.2, 0.0], [0.45, 0.0, 0.55, 0.0]])
    seen = replace(view([0.5, 0.5]), probs=probs)
    assert (seen.confidence.argmax(), seen.entropy.argmin()) == (0, 1)
    assert rule.choose(seen).tolist() == [1]
    assert rule.choose(replace(seen, history=(seen,))).tolist() == [1]


def test_the_oracle_fixes_what_the_text_will_hold() -> None:
    known = view(SURE, reference=np.array([0, 2, 0, 2, 2, 1]))
    assert chosen("oracle", known) == [0, 2, 5]
    wrong = view(SURE, reference=np.full(6, 2))
    assert chosen("oracle", wrong) == [0]
    with pytest.raises(ValueError, match="nobody knows this one"):
        chosen("oracle", view(SURE))


@pytest.fixture
def network(tmp_path: Path) -> str:
    """A network for blocks of six: a place stays if the one before it is sure."""
    first, second = np.eye(6), np.zeros((6, 6))
    second[np.arange(5), np.arange(1, 6)] = 100.0
    found = {"first": first, "first_bias": np.full(6, -0.9), "second": second}
    np.savez(tmp_path / "filter.npz", **found, second_bias=np.full(6, -1.0))
    return str(tmp_path / "filter.npz")


def test_the_learned_rule_asks_its_network(network: str) -> None:
    text = f"learned,file={network}"
    assert chosen(text, view(SURE)) == [0, 1]
    assert chosen(f"{text},above=0.3", view(SURE)) == [0, 1, 4]
    # written places count as sure, and so do places behind a short block
    assert chosen(text, view(SURE, [MASK, MASK, 1, MASK, MASK, MASK])) == [0, 1, 3]
    assert Filter.read(network).probability(np.full(3, 0.5)).shape == (3,)


def test_a_network_that_does_not_fit_is_refused(network: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"learned,file=FILE\.npz"):
        chosen("learned", view(SURE))
    with pytest.raises(ValueError, match="reads blocks of at most 6 places, got 7"):
        chosen(f"learned,file={network}", view([0.5] * 7))
    with pytest.raises(ValueError, match="is not one"):
        chosen(f"learned,file={tmp_path / 'nowhere.npz'}", view(SURE))
    found = np.load(network)
    layers = {"second": found["second"], "second_bias": found["second_bias"]}
    np.savez(tmp_path / "odd.npz", first=found["first"], first_bias=np.zeros(2), **layers)
    with pytest.raises(ValueError, match="do not fit together"):
        chosen(f"learned,file={tmp_path / 'odd.npz'}", view(SURE))


def test_blocks_end_here() -> None:
    place = BlockPlace(start=8, prompt=10, total=40, grid=0, length=8)
    assert BLOCKS["fixed"]().end(place) == 16
    assert BLOCKS["whole"]().end(place) == 40
    assert BLOCKS["fixed"]().end(replace(place, start=36, prompt=10)) == 40
    behind = replace(place, grid=10, start=10)
    assert BLOCKS["fixed"]().end(behind) == 18


def test_adablock_ends_at_the_surest_delimiter_of_the_first_quarter() -> None:
    place = BlockPlace(start=0, prompt=0, total=24, grid=0, length=4)
    blocks = AdaBlock(0.3, frozenset({1}))
    assert blocks.end(place) == 6
    seen = view([0.5, 0.7, 0.5, 0.8, 0.5, 0.6])  # token 1 at places 1, 3 and 5
    assert blocks.kept(seen, place) == 4
    assert replace(blocks, delta=0.9).kept(seen, place) == 4  # the model's own length
    assert replace(blocks, delimiters=frozenset({0})).kept(seen, place) == 1
    late = view([0.5, 0.6, 0.5, 0.6, 0.5, 0.9])
    assert blocks.kept(late, place) == 6
    odd = replace(place, total=23)  # a quarter is rounded down to 5 places
    assert blocks.end(odd) == 5
    assert blocks.kept(late, odd) == 2
    with pytest.raises(ValueError, match="no token for a line break"):
        AdaBlock().kept(seen, place)


def test_editing_changes_written_places_that_the_model_is_sure_of() -> None:
    seen = view([0.95, 0.95, 0.5, 0.95], [2, 1, 2, MASK])
    assert TokenEditing().changes(seen).tolist() == [0]
    assert TokenEditing(0.4).changes(seen).tolist() == [0, 2]


def test_methods_are_typed_as_parts() -> None:
    found = parse(" threshold, tau=0.8 + freedave,d=2+adablock + edit")
    assert (found.rule.name, found.lookahead.name) == ("threshold", "freedave")
    assert (found.blocks.name, found.revision.name) == ("adablock", "edit")
    assert parse("freedave") == replace(Unmasking(), lookahead=PARTS["freedave"]())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("thresh", "there is no rule of unmasking 'thresh'; there are: one-by-one"),
        ("threshold,t=1", "'threshold' has no knob 't'; it has: tau"),
        ("random,t=1", "'random' has no knob 't'; it has: none"),
        ("threshold,tau=x", "threshold's tau must be a number, got 'x'"),
        ("top-k,k=1.5", "top-k's k must be a whole number, got '1.5'"),
        ("threshold,tau=1.01", "threshold's tau must be from 0 to 1, got 1.01"),
        ("freedave,d=0", "freedave's d must be from 1 to inf, got 0"),
        ("threshold+factor", "'threshold' and 'factor' answer the same question"),
    ],
)
def test_what_is_no_method_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(text)


def test_promises() -> None:
    for text in ("one-by-one", "by-margin", "by-entropy", "left-to-right", "random", "freedave"):
        assert parse(text).promise == "same as one by one", text
    for text in (
        "threshold",
        "top-k",
        "edit",
        "adablock",
        "whole",
        "end-cut",
        "threshold+freedave",
    ):
        assert parse(text).promise == "trades quality", text
    assert parse("oracle").promise == "another aim"
