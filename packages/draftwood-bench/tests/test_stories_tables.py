"""Figures of unmasking rules on a real model: what is free, areas, and anchors' neighbours."""

import argparse
from types import SimpleNamespace

import numpy as np
import pytest

import draftwood
from benchmarks.common import json_lines
from benchmarks.diffusion import claims, delimiters, stories
from benchmarks.diffusion.claims import FAR, NEAR, rights
from benchmarks.diffusion.tables import apart, area, families, is_free, tables
from benchmarks.pages import diffusion
from draftwood.testing.models import TableModel
from draftwood_diffusion.rules.local_leap import LocalLeap
from draftwood_diffusion.unmasking import parse
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
    ahead = [way("threshold,tau=0.5", 2.6, 40), way("threshold,tau=0.5+freedave,d=8", 2.41, 30)]
    assert families(ahead, BASE)[1]["rule"] == "threshold+freedave"  # beside one by one
    assert families(ahead, BASE)[1]["for nothing"].startswith("3.20 ")
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


def test_texts_of_other_seeds_do_not_stand_beside_each_other():
    new = [each | {"first_seed": 7} for each in (BASE, way("threshold", 2.41, 60))]
    old = [way("plain", 2.3, 96, model="source"), way("entropy", 2.4, 48), BASE]
    ((_, rows), _) = tables([*old, *new], "source")
    assert [each["way"] for each in rows] == ["one-by-one", "threshold"]
    ((_, rows), _) = tables(old, "source")
    assert [each["way"] for each in rows] == ["plain", "entropy", "one-by-one"]


def test_a_folder_keeps_stories_of_its_seeds_and_every_rule_writes(tmp_path, monkeypatch):
    told = {"nats": 1.0, "distinct_2": 1.0}
    load = draftwood.load
    monkeypatch.setattr(
        stories.draftwood, "load", lambda name, **given: load("stories-diffusion", **given)
    )
    monkeypatch.setattr(stories, "judged", lambda judge, text: told)
    kept = tmp_path / "stories-8.jsonl"
    old = {"model": "stories-diffusion", "way": "threshold+edit", "story": 0, "passes": 99}
    json_lines.append(kept, old | told | {"tokens": 99, "text": "of another seed"})
    made = stories.Stories(tmp_path, texts=1, longest=8)
    for rule in stories.RULES:
        found = made.way("stories-diffusion", rule)
        assert found["nats"] == [1.0]
        assert 1 <= found["passes"][0] <= 8
    assert made.way("stories-diffusion", "learned") == found
    assert len(json_lines.read(kept)) == 1 + len(stories.RULES)
    with pytest.raises(ValueError, match="this one keeps finished blocks, which is exact"):
        made.way("stories-diffusion", "threshold+prefix-cache")


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
    monkeypatch.setattr(
        claims, "behind_delimiters", lambda lm, judge, seeds, *given: drawn.extend(seeds) or []
    )
    claims.run(argparse.Namespace(model="", texts=3, longest=8, output=None))
    assert drawn == 3 * [1_000_000, 1_000_001, 1_000_002]
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


def test_errors_behind_delimiters_are_those_of_the_next_three_tokens():
    behind = delimiters.places_behind([0, 9, 1, 2, 3, 4, 9, 5], {9})
    assert np.flatnonzero(behind).tolist() == [2, 3, 4, 7]
    law = np.log(np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.5, 0.25, 0.25]]))

    def encode(text, **options):
        return {"input_ids": [int(letter) for letter in text]}

    judge = SimpleNamespace(model=TableModel(law.astype(np.float32)), tokenizer=encode)
    near, far = delimiters.errors(judge, "0121000", {2})
    # behind the first token stand 1, the delimiter 2, then 1, 0, 0 and one token more
    assert near == pytest.approx(-np.log([0.25, 0.125, 0.5]).mean(), abs=1e-4)
    assert far == pytest.approx(-np.log([0.25, 0.125, 0.5]).mean(), abs=1e-4)
    assert delimiters.errors(judge, "011", {2})[0] is None
    assert delimiters.errors(judge, "0", {2}) == (None, None)


def test_the_claim_holds_where_errors_behind_delimiters_alone_are_fewer():
    draw = np.random.default_rng(0)
    texts, noise = 60, 0.2

    def way(behind, elsewhere):
        near, far = (mean + noise * draw.normal(size=texts) for mean in (behind, elsewhere))
        return {
            "behind": [None, *near[1:]],
            "elsewhere": list(far),
            "passes": [9] * texts,
            "tokens": [10] * texts,
        }

    told = {"delimiters": "lines", "tau": 0.9}
    holds = told | {"adaptive": way(1.0, 2.0), "fixed": way(1.5, 2.0)}
    assert delimiters.claimed(holds).high < 0
    assert delimiters.claimed(holds).prompts == texts - 1
    for adaptive in (way(1.5, 2.0), way(1.0, 1.5)):  # nothing less, and as much less elsewhere
        found = delimiters.claimed(told | {"adaptive": adaptive, "fixed": way(1.5, 2.0)})
        assert found.low < 0 < found.high
    assert delimiters.row(holds)["equal"] == "yes"
    slower = holds | {"fixed": way(1.5, 2.0) | {"passes": [8] * texts}}
    assert delimiters.row(slower)["equal"] == "no"


def test_fixed_blocks_take_as_many_passes_as_those_they_stand_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(delimiters, "TRIED", 3)
    lm = draftwood.load("stories-diffusion", method="plain")
    judge = SimpleNamespace(name="itself", model=lm.model, tokenizer=lm.tokenizer)
    seeds = range(12)
    wanted = parse("threshold,tau=0.5")
    texts = [
        stories.texts_of(lm, each, seeds, 24)
        for each in (wanted, delimiters.as_fast(lm, wanted, seeds, 24), parse("threshold"))
    ]
    rates = [delimiters.passes(each) for each in texts]
    assert rates[1] == pytest.approx(rates[0], rel=delimiters.EQUAL)
    assert rates[2] > rates[0] * (1 + delimiters.EQUAL)
    kept = tmp_path / "delimiters.jsonl"
    made = list(claims.behind_delimiters(lm, judge, range(2), 16, kept))
    assert [each["delimiters"] for each in made] == list(delimiters.DELIMITERS)
    assert [len(each["fixed"]["passes"]) for each in made] == [2, 2]
    assert list(claims.behind_delimiters(lm, judge, range(2), 16, kept)) == json_lines.read(kept)
    assert len(json_lines.read(kept)) == len(made)
