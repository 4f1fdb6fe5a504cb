import json
from pathlib import Path

import pytest

from command import refused, run
from draftwood.heads.folder import load

pytest.importorskip("accelerate", reason="an optional install")
pytest.importorskip("tensorboard", reason="an optional install")

SMALL = ("--draft-vocabulary", "30", "--rows", "2", "--places", "64", "--judge-every", "2")


@pytest.fixture(scope="module")
def data(deep: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Some texts of the target, every third held out."""
    folder = tmp_path_factory.mktemp("data")
    rows = [{"prompt": f"what is {one} and {one * 7}?"} for one in range(40)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--tokens", "700", "--max-answer", "16", "--max-prompt", "60")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("draftwood_train.data.make.measured_prompts", list)
        held_out = "draftwood_train.data.make.is_held_out"
        patched.setattr(held_out, lambda prompt: sum(map(ord, prompt)) % 3 == 0)
        made = run(
            *("train", "data", str(folder / "set"), "--model", deep, "--sets", ""),
            *("--prompts", str(folder / "prompts.jsonl")),
            *("--self-written", "0", "--shard", "4", "--batch", "4", *options),
        )
    assert made.exit_code == 0, made.output
    return str(folder / "set")


def test_a_drafter_is_trained_resumed_and_trained_on(data: str, tmp_path: Path) -> None:
    first = str(tmp_path / "first")
    result = run("train", "eagle", data, first, "--steps", "4", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["steps"], told["ended"]) == (4, "done")
    trained = load(Path(first))
    assert len(trained.draft_tokens) == 30
    card = (tmp_path / "first" / "card.md").read_text()
    assert "licence" in card
    assert "block_efficiency" in card
    assert list((tmp_path / "first.training" / "tensorboard").iterdir())

    line = refused("train", "eagle", data, first, "--steps", "4", *SMALL)
    assert "go on with --resume" in line
    line = refused("train", "eagle", data, first, "--steps", "6", *SMALL, "--resume")
    assert "had amount 4, not 6" in line

    second = str(tmp_path / "second")
    result = run("train", "eagle", data, second, "--steps", "2", *SMALL, "--from", first)
    assert result.exit_code == 0, result.output
    assert "held-out after step 0" in result.stderr
    assert f"{second}: block efficiency" in result.stdout
    line = refused("train", "eagle", data, second + "b", "--layers", "2", "--from", first)
    assert "layers 1, not 2" in line


def test_an_acceptance_head_goes_on_from_a_draft_lm(data: str, tmp_path: Path) -> None:
    first, told = str(tmp_path / "lm"), str(tmp_path / "told")
    options = ("--steps", "2", *SMALL)
    assert run("train", "lm", data, first, *options).exit_code == 0
    line = refused("train", "acceptance", data, told, *options)
    assert "acceptance goes on from a draft LM, made with 'draftwood train lm'; name it" in line
    result = run("train", "acceptance", data, told, *options, "--from", first)
    assert result.exit_code == 0, result.output
    assert "skill" in (tmp_path / "told" / "card.md").read_text()
    before, after = (load(Path(folder)).head.state_dict() for folder in (first, told))
    assert all((after[name] == weight).all() for name, weight in before.items())
    assert {name.split(".")[0] for name in set(after) - set(before)} == {"acceptance"}


def test_what_is_wrong_is_said_in_one_line(data: str, target: str, tmp_path: Path) -> None:
    output = str(tmp_path / "drafter")
    for options, what in (
        ((data, output, "--steps", "2", "--minutes", "3"), "give one of --steps and --minutes"),
        ((str(tmp_path), output), "no training data"),
        ((data, output, "--model", target), "load the model that wrote them"),
        ((data, output, "--from", str(tmp_path)), "is no whole drafter"),
        ((data, output, "--loss", "best"), "is not one of"),
        ((data, output, "--tokens", "many"), "needs a number such as 500k or 2m"),
    ):
        assert what in refused("train", "eagle", *options)
    assert not Path(output).exists()


def test_damaged_shards_are_refused(data: str, tmp_path: Path) -> None:
    for torn in (b"", b"\x08\0\0\0"):
        folder = tmp_path / str(len(torn))
        folder.mkdir()
        for path in Path(data).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "shard-00001.safetensors").write_bytes(torn)
        assert "shard-00001" in refused("train", "eagle", str(folder), str(tmp_path / "out"))


def test_layers_that_the_data_lack_are_named(data: str, tmp_path: Path) -> None:
    manifest = json.loads((Path(data) / "manifest.json").read_text())
    manifest["options"]["layers"] = [1, 3, 6]
    folder = tmp_path / "other"
    folder.mkdir()
    for path in Path(data).glob("shard*"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    line = refused("train", "eagle", str(folder), str(tmp_path / "out"))
    assert "reads layers 2, 3" in line
    assert "--layers 1,2,3,6" in line


def test_help_names_the_recipes_own_options() -> None:
    text = run("train", "eagle", "--help").stdout
    assert "--loss [kl|tv|nla|lk-hybrid]" in text
    assert "--unroll" in text
