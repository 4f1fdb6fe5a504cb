"""Figures of unmasking rules on a real model: what is free, areas, and anchors' neighbours."""

import argparse
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common import json_lines
from benchmarks.diffusion import claims, stories
from benchmarks.diffusion.claims import FAR, NEAR, rights
from benchmarks.diffusion.tables import apart, area, families, is_free, tables
from benchmarks.pages import diffusion
from draftwood_diffusion.rules.local_leap import LocalLeap
from draftwood_diffusion.view import View


def way(name, nats, passes, distinct=0.9, tokens=96, model="converted"):
    texts = 20
    noise = np.linspace(-0.1, 0.1, texts)
    return {
        "model": model,
        "way": name,
        "texts": texts,
        "longest": 96,
        "nats": list(nats + noise),
        "passes": [passes] * texts,
        "tokens": [tokens] * texts,
        "distinct_2": [distinct] * texts,
    }


BASE = way("one-by-one", 2.4, 96)


def test_a_rule_is_free_within_all_three_bounds_on_both_sides():
    assert is_free(way("a", 2.44, 50), BASE)
    assert not is_free(way("a", 2.46, 50), BASE)
    assert not is_free(way("a", 2.34, 50), BASE)  # likelier texts are another distribution too
    assert not is_free(way("a", 2.4, 50, distinct=0.84), BASE)
    assert not is_free(way("a", 2.4, 50, tokens=80), BASE)


def test_the_area_of_one_point_is_its_rate_and_points_apart_add_less():
    alone = area([(1.0, 0.0)])
    assert alone == pytest.approx(100.0)
    same, worse, better, cut = (
        area([(1.0, 0.0), (2.0, more)]) for more in (0.0, 0.04, -0.04, 0.06)
    )
    assert same == pytest.approx(200.0)
    assert alone < worse < same
    assert worse == pytest.approx(better)  # likelier texts are another distribution too
    assert cut == pytest.approx(alone)


def test_a_family_names_its_fastest_free_knob():
    own = [BASE, way("threshold,tau=0.9", 2.41, 60), way("threshold,tau=0.5", 2.6, 30)]
    found = {each["rule"]: each for each in families(own, BASE)}
    assert found["threshold"]["for nothing"] == "1.60 (threshold,tau=0.9)"
    other = [way("left-to-right", 2.0, 96), way("left-to-right+freedave", 2.0, 48)]
    ordered = {each["rule"]: each for each in families(other, BASE)}
    assert ordered["left-to-right"]["for nothing"] == "none"
    assert ordered["left-to-right+freedave"]["for nothing"].startswith("2.00 ")
    only_paid = families([way("entropy", 2.6, 30)], BASE)
    assert only_paid[0]["for nothing"] == "none"


def test_tables_stand_beside_one_by_one_and_the_source():
    records = [way("plain", 2.3, 96, model="source"), BASE, way("threshold", 2.45, 48)]
    (_, rows), (_, found) = tables(records, "source")
    last = rows[-1]
    assert last["tokens a pass"] == "2.00"
    assert last["beside one by one"].startswith("0.05 ")
    assert last["beside the source"].startswith("0.15 ")
    assert [each["rule"] for each in found] == ["one-by-one", "threshold"]


def test_a_seed_without_a_story_is_left_out_of_pairs():
    own = way("threshold", 2.41, 60)
    own["nats"][3] = own["distinct_2"][3] = None
    assert is_free(own, BASE)
    ((_, rows), _) = tables([BASE, own], "source")
    assert "nan" not in " ".join(rows[-1].values())


def test_what_the_page_says_of_orders_holds_in_the_record():
    records = json_lines.read(json_lines.RESULTS / "stories-diffusion.jsonl")
    ways = {each["way"]: each for each in records if each["model"] == diffusion.MODEL}
    for in_order in ("left-to-right", "longest-prefix"):
        assert apart(ways[in_order], ways["one-by-one"]).high < 0
    assert {len(each["nats"]) for each in ways.values()} == {diffusion.TEXTS}


def test_texts_of_figures_have_seeds_above_those_of_training_texts(monkeypatch):
    drawn = []

    class Lm:
        model, end_tokens = SimpleNamespace(context_length=256), frozenset()

        def tokenizer(self, text, add_special_tokens):
            return {"input_ids": [1]}

        def generate(self, prompt, seed, **options):
            drawn.append(seed)
            return SimpleNamespace(text="")

    monkeypatch.setattr(claims.draftwood, "load", lambda name, method: Lm())
    monkeypatch.setattr(claims, "masked_model", lambda lm, settings: None)
    monkeypatch.setattr(claims, "near_anchors", lambda *given: {"told": ""})
    monkeypatch.setattr(claims, "end_cut", lambda lm, seeds, room: drawn.extend(seeds) or {"": ""})
    claims.run(argparse.Namespace(model="", texts=3, longest=8))
    assert drawn == 2 * [1_000_000, 1_000_001, 1_000_002]
    assert stories.FIRST_SEED == claims.FIRST_SEED


def view(confidence, predictions, reference, open_places):
    probs = np.zeros((len(confidence), 4))
    for row, (sure, token) in enumerate(zip(confidence, predictions, strict=True)):
        probs[row] = (1 - sure) / 3
        probs[row, token] = sure
    is_open = np.isin(np.arange(len(confidence)), open_places)
    return View(
        np.zeros(len(confidence), int),
        is_open,
        probs,
        np.zeros(len(confidence)),
        (),
        np.array(reference),
    )


def test_only_moderately_sure_open_places_count_by_their_distance_from_open_anchors():
    confidence = [0.95, 0.8, 0.5, 0.8, 0.6, 0.8, 0.8]
    seen = view(confidence, [1] * 7, [1, 1, 1, 2, 1, 1, -1], [0, 1, 2, 3, 5, 6])
    assert rights([seen], LocalLeap(radius=3)) == {NEAR: (1, 2), FAR: (1, 1)}
    written_anchor = view(confidence, [1] * 7, [1, 1, 1, 2, 1, 1, -1], [1, 2, 3, 5, 6])
    assert rights([written_anchor], LocalLeap(radius=3)) == {NEAR: (0, 0), FAR: (0, 0)}
