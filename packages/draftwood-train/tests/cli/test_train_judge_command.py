"""`draftwood train judge`: figures of each kind of held-out text."""

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from shutil import copytree

import pytest

from command import refused, run
from data_by_command import SMALL, written
from draftwood.heads.folder import load, save
from draftwood.loading.models import load_model
from draftwood_train.by_kind import MEAN, KindFigures, mean_of
from draftwood_train.card import Promises
from draftwood_train.data.dataset import Dataset
from draftwood_train.data.manifest import Manifest

pytest.importorskip("accelerate", reason="an optional install")
pytest.importorskip("tensorboard", reason="an optional install")


@pytest.fixture(scope="module")
def folder(deep: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with two kinds of prompts, half of them held out, and a head of two steps."""
    place = tmp_path_factory.mktemp("judged")
    forms = {"sums": "what is {} and {}?", "tales": "tell me about {} or {}"}
    asked = {name: [form.format(n, n * 7) for n in range(20)] for name, form in forms.items()}
    options = ("--tokens", "900", "--batch", "4", "--states", "recomputed")
    written(place, deep, asked, 2, *options)
    trained = run(
        "train", "eagle", str(place / "data"), str(place / "head"), "--steps", "2", *SMALL
    )
    assert trained.exit_code == 0, trained.output
    return place


def test_each_kind_has_its_figures_and_there_is_a_mean(folder: Path) -> None:
    result = run("train", "judge", str(folder / "head"), str(folder / "data"), "--json")
    assert result.exit_code == 0, result.output
    assert "Print a JSON array and nothing else." in run("train", "judge", "--help").stdout
    rows = {row["kind"]: row for row in json.loads(result.stdout)}
    kinds = [str(folder / f"{name}.jsonl") for name in ("sums", "tales")]
    assert list(rows) == [*kinds, MEAN]
    for row in rows.values():
        assert row["texts"] >= 1
        assert row["places"] >= 1
        assert 0 <= row["depth_1"] <= 1
        assert 0 <= row["depth_3"] <= 1
        assert 0 < row["overlap"] <= 1
        assert 1 <= row["block_efficiency"] <= 5
    mean = sum(rows[kind]["block_efficiency"] for kind in kinds) / 2
    assert rows[MEAN]["block_efficiency"] == pytest.approx(mean)
    table = run("train", "judge", str(folder / "head"), str(folder / "data"), "--most", "1")
    assert "depth 2" in table.stdout
    assert MEAN in table.stdout


def test_a_head_that_reads_the_targets_cache_is_judged(folder: Path) -> None:
    head, small = str(folder / "long"), ("--draft-vocabulary", "30", "--rows", "2")
    trained = run("train", "longspec", str(folder / "data"), head, "--steps", "1", *small)
    assert trained.exit_code == 0, trained.output
    result = run("train", "judge", head, str(folder / "data"), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[-1]["block_efficiency"] >= 1


def test_prompts_that_the_data_do_not_tell_of_are_refused_before_training(folder: Path) -> None:
    out = str(folder / "prompted")
    line = refused("train", "eagle", str(folder / "data"), out, "--steps", "1", "--prompts", "true")
    assert "at answers alone; leave out --prompts" in line
    assert not list(folder.glob("prompted*"))


def test_figures_go_into_the_card_once(folder: Path) -> None:
    card = folder / "head" / "card.md"
    before = card.read_text().rstrip("\n")
    first = Promises.of(before)
    assert not first.kinds
    assert first.listed["coverage"] > 0
    options = ("train", "judge", str(folder / "head"), str(folder / "data"), "--card", "--json")
    assert run(*options, "--most", "1").exit_code == 0
    card.write_text(f"{card.read_text()}\n## Thanks\n\nTo all.\n")
    result = run(*options)
    after, told = card.read_text(), json.loads(result.stdout)
    assert after.startswith(before)
    assert after.endswith("\n\n## Thanks\n\nTo all.\n")
    assert after.count("Held-out texts by kind") == after.count(f"|{MEAN}|") == 1
    promises = Promises.of(after)
    assert promises.listed == first.listed
    assert [asdict(each) for each in promises.kinds.values()] == [
        {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in told
    ]
    record = json.loads((folder / "head" / "judged.json").read_text())
    assert record["kinds"] == told
    assert record["head"] == load(folder / "head").digest
    assert record["data_digest"] == Manifest.read(folder / "data").digest
    assert f"By `{record['command']}`.\nThe data are of the mix collected, seed 0:" in after
    assert record["data_options"]["mix"] == "collected"
    assert record["data_counts"]["texts"] > record["data_counts"]["held_out_texts"] > 0
    card.unlink()
    assert "--card takes the folder of a trained head" in refused(*options)
    card.write_text(after)


def test_data_that_are_held_out_as_a_whole_are_refused_before_training(folder: Path) -> None:
    held, out = folder / "whole", folder / "unlearned"
    copytree(folder / "data", held)
    manifest = Manifest.read(held)
    shards = [replace(facts, held_out_texts=facts.texts) for facts in manifest.shards]
    replace(manifest, shards=tuple(shards)).write(held)
    line = refused("train", "eagle", str(held), str(out), "--steps", "1")
    assert "made without --only-held-out" in line
    assert not list(folder.glob("unlearned*"))


def test_the_doctor_reads_the_table_that_judging_wrote(folder: Path) -> None:
    head, data = str(folder / "head"), str(folder / "data")
    assert run("train", "judge", head, data, "--card").exit_code == 0
    result = run("train", "doctor", head, "--data", data, "--texts", "4", "--json")
    assert result.exit_code in (0, 1), result.output  # of two steps, it may draft otherwise
    rows = {row["kind"]: row for row in json.loads(result.stdout)["acceptance"]}
    kinds = Promises.of((folder / "head" / "card.md").read_text()).kinds
    compared = [kind for kind in kinds if f"{kind}, every place / card" in rows]
    assert compared
    for kind in compared:
        promise = rows[f"{kind}, every place / card"]["depth 1"].split(" / ")[1]
        assert promise in ("-", f"{kinds[kind].depth_1:.2f}")
    assert "all, every place / card" in rows


def doctored(head: Path, data: Path) -> list[str]:
    """Findings of the doctor about a head's draft vocabulary."""
    result = run("train", "doctor", str(head), "--data", str(data), "--json")
    assert result.exit_code in (0, 1), result.output
    findings = json.loads(result.stdout)["findings"]
    return [each["says"] for each in findings if each["fault"] == "vocabulary"]


def test_rare_tokens_of_held_out_answers_are_no_damage(
    folder: Path, deep: str, tmp_path: Path
) -> None:
    """The card tells the share of held-out answers' tokens, and the doctor counts the same."""
    data = folder / "data"
    products = Manifest.read(data).target.products
    dataset = Dataset.open(data, load_model(deep, products, "cpu").model)
    train, held = (dataset.token_counts(split) for split in ("train", "held-out"))
    tokens = (train / train.sum() >= held / held.sum()).nonzero()[:, 0]
    gap = dataset.coverage(tokens, "train") - dataset.coverage(tokens, "held-out")
    assert gap > 0.1
    trained = load(folder / "head")
    begun = save(tmp_path / "begun", replace(trained, draft_tokens=tokens.numpy()), "")
    options = ("--from", str(begun), "--steps", "1", *SMALL[2:])
    done = run("train", "eagle", str(data), str(tmp_path / "head"), *options)
    assert done.exit_code == 0, done.output
    card = (tmp_path / "head" / "card.md").read_text()
    covered = dataset.coverage(tokens, "held-out")
    assert Promises.of(card).coverage(dataset.manifest.digest) == float(f"{covered:.4g}")
    assert doctored(tmp_path / "head", data) == []
    cut = replace(load(tmp_path / "head"), draft_tokens=tokens[: len(tokens) // 2].numpy())
    (said,) = doctored(save(tmp_path / "cut", cut, card), data)
    assert f"its card says {covered:.3f}; copy the head's folder again" in said


def test_a_card_of_the_training_answers_promises_nothing_of_others(
    folder: Path, tmp_path: Path
) -> None:
    """As heads have them that were trained before cards told of which data they are."""
    trained = load(folder / "head")
    assert doctored(save(tmp_path / "old", trained, "- coverage: 1\n"), folder / "data") == []


def test_the_command_of_figures_in_a_card_names_the_model(
    folder: Path, deep: str, tmp_path: Path
) -> None:
    head = copytree(folder / "head", tmp_path / "a head")
    given = ("train", "judge", str(head), str(folder / "data"), "--most", "1", "--model", deep)
    assert run(*given, "--card").exit_code == 0
    told = json.loads((head / "judged.json").read_text())["command"]
    assert shlex.split(told)[1:] == ["train", "judge", "a head", "data", *given[4:]]


def test_what_is_wrong_is_said_in_one_line(folder: Path, target: str) -> None:
    data, head = str(folder / "data"), str(folder / "head")
    for options, what in (
        ((head, str(folder / "none")), "no training data"),
        ((str(folder / "none"), data), "none"),
        ((head, data, "--model", target), "layers"),
    ):
        assert what in refused("train", "judge", *options)


def test_a_mean_leaves_out_prompts_of_the_targets_own() -> None:
    other, own = (KindFigures(kind, 1, 10, 0.4, 0.2, 0.1, 0.6, 2.0) for kind in ("a", "own"))
    better = replace(own, block_efficiency=4.0)
    assert mean_of([other, better]) == replace(other, kind=MEAN)
    assert mean_of([better]) == replace(better, kind=MEAN)


def test_a_mean_lacks_what_one_kind_lacks() -> None:
    whole = KindFigures("a", 1, 10, 0.4, 0.2, 0.1, 0.6, 2.0)
    lacking = KindFigures("b", 3, 30, 0.6, None, None, 0.4, 1.0)
    mean = mean_of([whole, lacking])
    assert (mean.texts, mean.places, mean.depth_1) == (4, 40, 0.5)
    assert (mean.depth_2, mean.overlap, mean.block_efficiency) == (None, 0.5, 1.5)
    assert mean.row()["depth 2"] == "-"
