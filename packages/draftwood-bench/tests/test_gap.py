"""First draft tokens on held-out texts beside Spec-Bench."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.json_lines import read
from benchmarks.training import gap
from command import run
from data_by_command import SMALL, written
from draftwood.heads.folder import load
from draftwood.loading.models import load_model
from draftwood_train.by_kind import MEAN, HeadJudge
from draftwood_train.data.dataset import Dataset
from draftwood_train.data.everyday.code_tasks import code_tasks
from draftwood_train.data.everyday.tasks import everyday_tasks
from draftwood_train.data.jobs import SECOND_TURN
from draftwood_train.data.manifest import Manifest

WRITING, CHAT = (gap.KINDS[kind] for kind in ("writing", "chat"))


def drawn(
    side: str, kind: str, share: float, count: int, seed: int, places: int = 40
) -> list[dict[str, Any]]:
    """Texts of prompts that differ: each has a share of its own."""
    rng = np.random.default_rng(seed)
    own = np.clip(share + 0.1 * rng.standard_normal(count), 0, 1)
    rights = rng.binomial(places, own).tolist()
    facts = {"side": side, "kind": kind, "places": places}
    return [{**facts, "prompt": str(n), "right": right} for n, right in enumerate(rights)]


def gap_of(held_out: float, measured: float, seed: int = 0) -> tuple[float, float]:
    """Interval of the gap between texts of these shares, of a kind by both its names."""
    records = [{"head": "a"}, *drawn(gap.HELD_OUT, "writing", held_out, 30, 2 * seed)]
    records += drawn(gap.SPEC_BENCH, "writing", measured, 25, 2 * seed + 1)
    (row,) = (row for row in gap.rows(records) if row["kind"] == "writing")
    low, high = row["gap"].split(" [")[1].rstrip("]").split(", ")
    return float(low), float(high)


def test_a_planted_gap_is_found_and_none_where_there_is_none() -> None:
    """The second half is the negative control: 95 of 100 intervals hold 0."""
    for seed in range(20):
        low, high = gap_of(0.6, 0.4, seed)
        assert low > 0
        assert high < 0.4
    missed = sum(not low <= 0 <= high for low, high in (gap_of(0.5, 0.5, n) for n in range(60)))
    assert missed <= 9  # 3 expected; chance of more is below one in a thousand


def test_kinds_are_pooled_by_places_and_the_mean_weighs_each_alike() -> None:
    def text(side: str, kind: str, right: int, places: int) -> dict[str, Any]:
        return {"side": side, "kind": kind, "prompt": "1", "right": right, "places": places}

    records = [
        text(gap.HELD_OUT, "writing", 5, 10),
        text(gap.HELD_OUT, "writing", 30, 30),
        text(gap.HELD_OUT, "writing", 0, 0),  # too short to judge by
        text(gap.SPEC_BENCH, "writing", 10, 40),
        text(gap.HELD_OUT, "sums", 8, 10),
        text(gap.SPEC_BENCH, "math", 6, 10),
        text(gap.SPEC_BENCH, "rag", 1, 10),
        {"side": gap.END},
    ]
    rows = {row["kind"]: row for row in gap.rows(records)}
    assert (rows["writing"]["held-out"][:4], rows["writing"]["held-out prompts"]) == ("0.88", "2")
    assert "[" in rows["writing"]["held-out"]
    assert rows["writing"]["gap"] == "0.62"  # one question has no interval
    assert (rows["rag"]["held-out"], rows["rag"]["gap"]) == ("-", "-")
    assert rows[MEAN]["gap"] == "0.41"  # of 0.625 and 0.2
    assert rows[MEAN]["Spec-Bench prompts"] == "2"


def test_kinds_are_those_of_the_mix_and_of_spec_bench() -> None:
    asked = {task.kind for task in (*everyday_tasks(), *code_tasks())} | {SECOND_TURN}
    named = [kind for own, _ in gap.KINDS.values() for kind in own]
    assert set(named) <= asked
    categories = [each for _, own in gap.KINDS.values() for each in own]
    assert len(categories) == len(set(categories)) == 14
    assert len(named) == len(set(named))


@pytest.fixture(scope="module")
def folder(deep: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with half of the prompts held out, a head of two steps, and four questions."""
    pytest.importorskip("accelerate", reason="an optional install")
    pytest.importorskip("tensorboard", reason="an optional install")
    place = tmp_path_factory.mktemp("gap")
    tales = [f"tell me about {one} or {one * 7}" for one in range(20)]
    written(place, deep, {"tales": tales}, 2, "--tokens", "600")
    head = ("train", "eagle", str(place / "data"), str(place / "head"), "--steps", "2", *SMALL)
    assert run(*head).exit_code == 0
    (place / "spec_bench").mkdir()
    turns = {"writing": ["write", "shorter"], "qa": ["who"], "rag": ["read"]}
    turns["summarization"] = ["a" * 250]  # the target reads 256 tokens
    questions = [
        {"question_id": number, "category": category, "turns": own}
        for number, (category, own) in enumerate(turns.items())
    ]
    text = "".join(json.dumps(each) + "\n" for each in questions)
    (place / "spec_bench" / "question.jsonl").write_text(text)
    return place


def test_spec_bench_is_read_once_for_a_head(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tales = str(folder / "tales.jsonl")
    monkeypatch.setenv("DRAFTWOOD_DATA", str(folder))
    monkeypatch.setattr(gap, "KINDS", {**gap.KINDS, "writing": ((tales,), ("writing",))})
    given = str(folder / "head"), folder / "data"

    def judged(again: bool = False, tokens: int = 16) -> Path:
        return gap.run(*given, tokens, None, again, folder / "results")

    path = judged()
    kept = read(path)
    digest = load(folder / "head").digest
    assert path.name == f"{digest[:16]}.jsonl"
    assert kept[0]["weights"] == digest
    measured = [(each["kind"], each["prompt"]) for each in kept if each.get("side") == "Spec-Bench"]
    assert measured == [("writing", "0"), (SECOND_TURN, "0"), ("qa", "1"), ("rag", "2")]
    held_out = [each for each in kept if each.get("side") == "held-out"]
    assert held_out
    assert all(0 <= each["right"] <= each["places"] for each in kept[1:-1])
    # a stored greedy answer is what the target writes now, and is judged alike
    manifest = Manifest.read(folder / "data")
    model = load_model(manifest.target.name, manifest.target.products, "cpu").model
    judge = HeadJudge.of(load(folder / "head"), model, manifest.target.name)
    texts = Dataset.open(folder / "data", model).texts("held-out")
    greedy = {
        str(n): judge.text(texts[n], texts.layers) for n in range(len(texts)) if texts[n].is_greedy
    }
    counts = {each["prompt"]: (each["places"], each["right"]) for each in held_out}
    assert len(counts) == len(texts) > len(greedy) > 0
    for number, figures in greedy.items():
        assert figures is not None
        assert counts[number] == (figures.places, round(figures.places * (figures.depth_1 or 0)))
    gap.show(path)
    assert "| writing |" in capsys.readouterr().out

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the kept record is shown")

    with monkeypatch.context() as patched:
        patched.setattr(gap.draftwood, "load", never)
        assert judged() == path
        assert read(path) == kept
        with pytest.raises(ValueError, match=r"is of tokens 16, not 9; .* --again"):
            judged(tokens=9)
        with pytest.raises(AssertionError, match="is shown"):
            judged(again=True)
    assert read(path) == kept  # nothing is lost before the target is there
    judged(again=True)
    assert sorted(map(str, read(path))) == sorted(map(str, kept))
    half = "".join(json.dumps(each) + "\n" for each in kept[:-3])
    path.write_text(half)
    assert sorted(map(str, read(judged()))) == sorted(map(str, kept))  # it goes on, to the same
