import json
import math
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from command import refused, run
from data_by_command import SMALL, written
from draftwood.heads.folder import load, save
from draftwood.testing import tiny_llama
from draftwood_train.cli.recipe import RecipeCommand, recipe_names
from draftwood_train.loop import Trainer, TrainingSettings, require_finite
from draftwood_train.places import alone_in
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.run import Training
from gguf_writing import TOKENS, write_gguf

pytest.importorskip("accelerate", reason="an optional install")
pytest.importorskip("tensorboard", reason="an optional install")


def made(folder: Path, model: str, *more: str) -> str:
    """Some texts of a target, every third held out."""
    prompts = [f"what is {one} and {one * 7}?" for one in range(40)]
    options = ("--tokens", "700", "--batch", "4", *more)
    return str(written(folder, model, {"prompts": prompts}, 3, *options))


@pytest.fixture(scope="module")
def data(deep: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return made(tmp_path_factory.mktemp("data"), deep)


@pytest.fixture(scope="module")
def tuned(deep: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target after a fine-tune: other weights of the same shapes."""
    folder = tmp_path_factory.mktemp("models") / "tuned"
    shutil.copytree(deep, folder)
    (weights,) = folder.glob("*.safetensors")
    drawn = torch.Generator().manual_seed(0)
    moved = {
        name: weight + 0.3 * weight.std() * torch.randn(weight.shape, generator=drawn)
        for name, weight in load_file(weights).items()
    }
    save_file(moved, weights, {"format": "pt"})
    return str(folder)


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
    assert "had the length --steps 4, not --steps 6" in line

    options = ("--steps", "4", *SMALL[2:], "--resume")
    copy = str(shutil.copytree(first, tmp_path / "copy"))
    for other, what in (
        (("--draft-vocabulary", "20"), "draft vocabulary of digest"),
        (("--draft-vocabulary", "30", "--from", copy), "--from no head, not a head of digest"),
    ):
        line = refused("train", "eagle", data, first, *options, *other)
        assert f"the training to resume had {what}" in line
    checkpoint = torch.load(tmp_path / "first.training" / "checkpoint.pt", weights_only=True)
    smaller = shutil.copytree(data, tmp_path / "smaller")
    manifest = json.loads((smaller / "manifest.json").read_text())
    del manifest["shards"][-1]
    (smaller / "manifest.json").write_text(json.dumps(manifest))
    again = (first, "--steps", "4", *SMALL, "--resume")
    assert "had data of digest" in refused("train", "eagle", str(smaller), *again)
    for name in ("target", "data", "draft vocabulary", "--from"):
        del checkpoint["settings"][name]  # as before they were told
    torch.save(checkpoint, tmp_path / "first.training" / "checkpoint.pt")
    assert run("train", "eagle", data, *again).exit_code == 0

    for resumed in ((), ("--resume",)):
        line = refused("train", "eagle", data, copy, "--steps", "2", *SMALL, *resumed)
        assert f"there is a drafter in {copy} already; name a new folder, delete it, or" in line
    result = run("train", "eagle", data, copy, "--steps", "2", *SMALL, "--from", copy)
    assert result.exit_code == 0, result.output

    second = str(tmp_path / "second")
    result = run("train", "eagle", data, second, "--steps", "2", *SMALL, "--from", first)
    assert result.exit_code == 0, result.output
    assert "held-out after step 0" in result.stderr
    assert f"{second}: block efficiency" in result.stdout
    for further, size in ((("--draft-vocabulary", "20"), 20), ((), 30)):
        third, options = str(tmp_path / f"third-{size}"), (*SMALL[2:], *further)
        result = run("train", "eagle", data, third, "--steps", "1", *options, "--from", first)
        assert result.exit_code == 0, result.output
        assert len(load(Path(third)).draft_tokens) == size
    line = refused("train", "eagle", data, second + "b", "--layers", "2", "--from", first)
    assert "layers 1, not 2" in line


def test_a_training_in_place_is_resumed_however_its_folder_is_spelled(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("train", "eagle", data, "mine", "--steps", "1", *SMALL).exit_code == 0
    shutil.rmtree("mine.training")
    options = ("--steps", "14", *SMALL[2:], "--judge-every", "2", "--learning-rate", "0.02")
    step, stops = Trainer._step, [True]

    def stopped(trainer: Trainer, batches: object, progress: float) -> dict[str, float]:
        if trainer.state.step == 13 and stops.pop():
            raise KeyboardInterrupt
        return step(trainer, batches, progress)

    in_place = ("train", "eagle", data, "mine", "--from", str(tmp_path / "mine"), *options)
    before = load(Path("mine")).digest
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopped)
        assert "stopped" in run(*in_place).output
    assert load(Path("mine")).digest != before
    resumed = run(*in_place, "--resume")
    assert resumed.exit_code == 0, resumed.output


def test_what_no_option_changes_is_told(data: str, tmp_path: Path) -> None:
    lm, head = str(tmp_path / "lm"), str(tmp_path / "head")
    options = ("--steps", "1", *SMALL)
    told = run("train", "lm", data, lm, *options, "--layers", "8").stderr
    assert "has 6 layers, so the lowest 2 of the 8 that were to start from its own have" in told
    assert "--learning-rate changes none" not in told
    told = run("train", "acceptance", data, head, *options, "--from", lm, "--layers", "8")
    assert told.exit_code == 0, told.output
    line = refused("train", "lm", data, lm + "2", *options, "--from", head, "--layers", "8")
    assert "has an acceptance head beside its draft LM; go on with 'draftwood train" in line
    frames = ("--form", "linear", "--loss-name", "kl", "--reads-root", "false")
    told = run("train", "ctc", data, str(tmp_path / "frames"), *options, *frames).stderr
    assert "all weights learn with AdamW, at --other-rate; --learning-rate changes none" in told


def test_a_head_with_output_rows_of_its_own_is_not_trained_on(data: str, tmp_path: Path) -> None:
    first = str(tmp_path / "first")
    options = ("--steps", "1", *SMALL)
    assert run("train", "eagle", data, first, *options).exit_code == 0
    trained = load(Path(first))
    rows = np.zeros((len(trained.draft_tokens), trained.config.sizes.hidden), np.float32)
    config = replace(trained.config, own_head=len(rows))
    weights = {**trained.weights, "lm_head.weight": rows}
    save(tmp_path / "own", replace(trained, config=config, weights=weights), "")
    line = refused("train", "eagle", data, first + "2", *options, "--from", str(tmp_path / "own"))
    assert "has output rows of its own, and training reads the target's; train without" in line


def test_a_broken_loss_says_how_to_go_on(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, broken = Trainer._step, 1

    def breaking(trainer: Trainer, batches: object, progress: float) -> dict[str, float]:
        if trainer.state.step + 1 == broken:
            require_finite("the loss", math.nan, trainer.state.step)
        return step(trainer, batches, progress)

    monkeypatch.setattr(Trainer, "_step", breaking)
    mine = tmp_path / "mine"
    options = ("--steps", "40", *SMALL, "--judge-every", "5", "--learning-rate", "0.02")
    told = run("train", "eagle", data, str(mine), *options).stderr
    assert "the loss is nan at step 1, so training ends; no step had made the drafter" in told
    assert not mine.exists()
    broken = 40
    then = run("train", "eagle", data, str(mine), *options).stderr
    assert f"the best drafter until then is in {mine}; go on with --from {mine}, a lower" in then
    again = (str(tmp_path / "again"), "--steps", "1", *SMALL, "--from", str(mine))
    result = run("train", "eagle", data, *again, "--learning-rate", "0.001")
    assert result.exit_code == 0, result.output


def test_other_drafters_and_data_are_refused_by_their_kind(data: str, tmp_path: Path) -> None:
    first, other = str(tmp_path / "lm"), str(tmp_path / "other")
    options = ("--steps", "1", *SMALL)
    assert run("train", "lm", data, first, *options).exit_code == 0
    line = refused("train", "eagle", data, other, *options, "--from", first)
    assert "holds a drafter of the kind lm, not eagle; go on with the recipe that trained" in line
    line = refused("train", "ctc", data, first, *options, "--resume")
    assert "the training to resume had recipe lm, not ctc" in line
    alone = shutil.copytree(data, tmp_path / "alone")
    manifest = json.loads((alone / "manifest.json").read_text())
    for shard in manifest["shards"]:
        shard["held_out_texts"] = 0
    (alone / "manifest.json").write_text(json.dumps(manifest))
    line = refused("train", "eagle", str(alone), other, *options)
    assert "is held out, so no drafter can be judged" in line


def test_an_acceptance_head_goes_on_from_a_draft_lm(data: str, tmp_path: Path) -> None:
    first, told = str(tmp_path / "lm"), str(tmp_path / "told")
    options = ("--steps", "2", *SMALL)
    assert run("train", "lm", data, first, *options).exit_code == 0
    line = refused("train", "acceptance", data, told, *options)
    assert "acceptance goes on from a draft LM, made with 'draftwood train lm'; name it" in line
    result = run("train", "acceptance", data, told, *options, "--from", first)
    assert result.exit_code == 0, result.output
    assert "skill" in (tmp_path / "told" / "card.md").read_text()
    before, after = (load(Path(folder)).network.state_dict() for folder in (first, told))
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
        ((data, output, "--seed", "-1"), "-1 is not in the range"),
        ((data, output, "--seed", str(2**32)), "is not in the range"),
        ((data, output, "--flattest", "0"), "is not in the range"),
        ((data, output, "--learning-rate", "inf"), "inf is not in the range"),
        ((data, output, "--other-rate", "inf"), "inf is not in the range"),
        ((data, output, "--minutes", "inf"), "inf is not in the range"),
        ((data, output, "--resume"), "to resume from; train first, without --resume"),
        (
            (data, output, "--from", str(tmp_path), "--start-from", "last-layer"),
            "has all weights already; leave out --start-from",
        ),
    ):
        assert what in refused("train", "eagle", *options)
    assert not Path(output).exists()
    gains = ("--from", str(tmp_path), "--start-from", "random")
    assert "is no whole drafter" in refused("train", "ctc", data, output, *gains)


def test_a_training_without_a_checkpoint_is_resumed_from_its_beginning(
    data: str, tmp_path: Path
) -> None:
    (tmp_path / "out.training").mkdir()
    result = run("train", "eagle", data, str(tmp_path / "out"), "--steps", "1", *SMALL, "--resume")
    assert result.exit_code == 0, result.output
    assert "out.training, so this training starts at step 0" in result.stderr


def test_an_output_folder_that_cannot_be_used_is_refused_before_training(
    data: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("")
    place = alone_in(tmp_path / "file" / "out.training")
    with pytest.raises(OSError, match=r"not a folder; name another output$"), place:
        pass
    for output, what in (
        (full, "holds something else than a drafter"),
        (tmp_path / "file", "is a file, not a folder"),
        (tmp_path / "file" / "drafter", "is a file, not a folder"),
    ):
        assert what in refused("train", "eagle", data, str(output), "--steps", "1", *SMALL)
    assert not list(tmp_path.rglob("*.training"))


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


def test_no_option_of_a_recipe_hides_one_that_all_have() -> None:
    for name in recipe_names():
        command = RecipeCommand(name)
        with click.Context(command) as context, warnings.catch_warnings():
            warnings.simplefilter("error")  # click warns of an option given twice
            names = [each.name for each in command.get_params(context)]
        assert len(set(names)) == len(names), name


def test_two_trainings_of_one_output_do_not_run_at_once(data: str, tmp_path: Path) -> None:
    asked = ("train", "eagle", data, str(tmp_path / "out"), "--steps", "1", *SMALL)
    with alone_in(tmp_path / "out.training"):
        told = refused(*asked)
    assert f"another process trains in {tmp_path / 'out.training'}; wait for it, or name" in told
    assert not (tmp_path / "out").exists()
    assert run(*asked).exit_code == 0


def test_of_one_training_s_processes_the_first_holds_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone_in(tmp_path):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        with alone_in(tmp_path):
            monkeypatch.setenv("RANK", "0")
            with pytest.raises(OSError, match="another process trains in"), alone_in(tmp_path):
                pass


def test_a_plan_is_told_before_anything_runs(data: str, tmp_path: Path) -> None:
    output = str(tmp_path / "drafter")
    result = run("train", "eagle", data, output, "--tokens", "1k", *SMALL)
    assert result.exit_code == 0, result.output
    plan, *rest = result.stderr.splitlines()
    assert plan.startswith("plan: ")
    for fact in ("states stored", "of the answers in the draft vocabulary", "MB on disk"):
        assert fact in plan
    assert any("held-out after step 0" in line for line in rest)
    assert "- coverage: " in (tmp_path / "drafter" / "card.md").read_text()


def test_a_plan_counts_the_texts_that_are_kept(data: str, tmp_path: Path) -> None:
    options = ("--steps", "1", *SMALL)
    told = []
    for share in ("1.0", "0.5"):
        result = run("train", "eagle", data, str(tmp_path / share), *options, "--flattest", share)
        assert result.exit_code == 0, result.output
        plan = result.stderr.splitlines()[0]
        told.append(int(plan.removeprefix("plan: ").split()[0].replace(",", "")))
    assert 0.3 * told[0] < told[1] < 0.7 * told[0]


def test_prompts_teach_in_pieces_without_an_answer_too(data: str, tmp_path: Path) -> None:
    settings = TrainingSettings(1.0, places=4)
    counts = []
    for prompts in (False, True):
        recipe = EagleRecipe(prompts=prompts)
        training = Training(recipe, Path(data), tmp_path / "out", settings)
        packing = training._chosen(training.target(torch.arange(30)))
        counts.append(sum(len(piece) for rows in packing.plan(0) for row in rows for piece in row))
    assert counts[0] < counts[1] == packing.tokens


def test_a_disk_without_room_is_refused_before_anything_is_written(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000)  # type: ignore[attr-defined]
    monkeypatch.setattr("shutil.disk_usage", lambda path: full)
    line = refused("train", "eagle", data, str(tmp_path / "out"), "--steps", "2", *SMALL)
    assert "0 MB are free; free some space" in line
    assert not list(tmp_path.iterdir())


def test_a_head_of_the_model_before_its_fine_tune_is_where_training_starts(
    data: str, tuned: str, target: str, tmp_path: Path
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert run("train", "eagle", data, first, "--steps", "4", *SMALL).exit_code == 0
    own = made(tmp_path, tuned)
    still = ("--learning-rate", "1e-12", "--other-rate", "1e-12")
    options = ("--steps", "1", *SMALL[2:], *still, "--from", first)
    result = run("train", "eagle", own, second, *options)
    assert result.exit_code == 0, result.output
    assert "whose weights are not those of" in result.stderr
    before, after = load(Path(first)), load(Path(second))
    assert before.draft_tokens.tolist() == after.draft_tokens.tolist()
    pairs = zip(before.network.parameters(), after.network.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    assert after.target.difference(before.target) > 0.05
    assert f"Started from {first}." in (tmp_path / "second" / "card.md").read_text()
    strange = tmp_path / "strange"
    strange.mkdir()
    line = refused("train", "eagle", made(strange, target), second + "b", "--from", first)
    assert "decoder layers" in line


def test_a_target_that_changed_under_its_data_is_refused(
    data: str, tuned: str, tmp_path: Path
) -> None:
    line = refused("train", "eagle", data, str(tmp_path / "out"), "--model", tuned)
    assert "whose weights differ" in line
    assert not list(tmp_path.iterdir())


def test_the_doctor_replays_a_head(data: str, tmp_path: Path) -> None:
    head = str(tmp_path / "drafter")
    assert run("train", "eagle", data, head, "--steps", "2", *SMALL).exit_code == 0
    result = run("train", "doctor", head, "--data", data, "--texts", "4", "--json")
    told = json.loads(result.stdout)
    assert told["sound"], told["findings"]
    assert result.exit_code == 0
    kinds = [row["kind"] for row in told["acceptance"]]
    assert kinds[-2:] == ["all", "all, every place / card"]
    assert "/" in told["acceptance"][0]["depth 1"]
    config = Path(head) / "config.json"
    says = json.loads(config.read_text())
    says["target"]["name"] = "no-such-model"
    config.write_text(json.dumps(says))
    assert "no-such-model" in refused("train", "doctor", head, "--data", data)


def test_the_doctor_reads_data_of_any_type(deep: str, tmp_path: Path) -> None:
    own, head = made(tmp_path, deep, "--dtype", "int8"), str(tmp_path / "head")
    assert run("train", "eagle", own, head, "--steps", "1", *SMALL).exit_code == 0
    result = run("train", "doctor", head, "--data", own, "--texts", "2", "--json")
    assert json.loads(result.stdout)["acceptance"], result.output


def test_a_file_of_ones_own_gets_a_head_in_two_commands(tmp_path: Path) -> None:
    file, head = tmp_path / "own.gguf", str(tmp_path / "head")
    write_gguf(file, tiny_llama(seed=5, layers=6, vocab=len(TOKENS)))
    own = made(tmp_path, str(file))
    result = run("train", "eagle", own, head, "--steps", "2", *SMALL)
    assert result.exit_code == 0, result.output
    asked = ("generate", "abc", "--model", str(file), "--max-new-tokens", "8")
    plain = run(*asked, "--method", "plain")
    drafted = run(*asked, "--method", "eagle", "--draft-model", head)
    assert drafted.exit_code == 0, drafted.output
    assert drafted.stdout == plain.stdout


def test_a_mask_adapter_is_trained_resumed_and_drafts(
    data: str, deep: str, tuned: str, tmp_path: Path
) -> None:
    head = str(tmp_path / "masked")
    options = (*SMALL, "--rank", "2")
    result = run("train", "masked", data, head, "--steps", "3", *options)
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "masked" / "config.json").read_text())
    assert (told["kind"], told["head"]["layers"]) == ("masked", 6)
    assert "Samragh" in (tmp_path / "masked" / "card.md").read_text()
    line = refused("train", "masked", data, head, "--steps", "3", *options)
    assert "go on with --resume" in line
    result = run("train", "masked", data, head, "--steps", "3", *options, "--resume")
    assert result.exit_code == 0, result.output
    asked = ("generate", "abc", "--model", deep, "--max-new-tokens", "12", "--dtype", "float32")
    plain = run(*asked, "--method", "plain")
    for method in ("masked-block", "masked-in-pass"):
        drafted = run(*asked, "--method", method, "--draft-model", head)
        assert drafted.exit_code == 0, drafted.output
        assert drafted.stdout == plain.stdout
        line = refused(
            "generate", "abc", "--model", tuned, "--method", method, "--draft-model", head
        )
        assert "other weights" in line
        line = refused(*asked, "--method", method, "--draft-model", head, "--tree", "4")
        assert "the tree has 4 levels and the head drafts 3" in line
