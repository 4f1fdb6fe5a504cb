"""`draftwood check --bisect` names the part in which a fault was planted, and none without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftwood
from adapters import save_adapter
from command import refused, run
from draftwood.heads import folder
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import load_model
from draftwood.models import description
from draftwood.models.decoder import Rotary
from draftwood.models.native import weights
from draftwood.native import library
from draftwood.native.matrix import Matrix
from draftwood.native.step import NativeStep, StepCaller
from draftwood.testing import bisect
from draftwood.testing.bisect import AUTOMATIC, INSTEAD, NEVER
from draftwood_torch.heads.texts import EagleText
from draftwood_torch.models import reading
from tiny_heads import tiny_eagle

PROMPT = "Repeat: abc abc abc"
pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")


def bisected(*arguments: str) -> tuple[dict[str, Any], int]:
    given = ("--bisect", PROMPT, "--max-new-tokens", "24", *arguments)
    result = run("check", *given, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout), result.exit_code


def changes(report: dict[str, Any]) -> dict[str, bool | None]:
    return {each["name"]: each["changed"] for each in report["switches"]}


def test_no_part_is_named_where_none_changes_the_text(target: str) -> None:
    report, code = bisected("--model", target)
    assert code == 0
    assert report["named"] is None
    assert report["method"] == "auto"
    found = changes(report)
    assert list(found) == list(INSTEAD)
    made = {name for name, changed in found.items() if changed is False}
    assert {"native steps", "drafting", "packing", "native attention", "own layers"} <= made
    assert True not in found.values()


def wrong_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps end with another token."""
    right = StepCaller.result

    def wrong(caller: StepCaller, vocabulary: int, number: int = 0) -> NativeStep:
        step = right(caller, vocabulary, number)
        return step._replace(next_token=(step.next_token + 1) % 40)

    monkeypatch.setattr(StepCaller, "result", wrong)


def wrong_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices in bfloat16 give their outputs in another order."""
    right = Matrix.pack

    def wrong(rows: Any, bias: Any, products: str, *more: Any) -> Matrix:
        rows = np.roll(rows, 1, 0) if products == "bfloat16" else rows
        return right(rows, bias, products, *more)

    monkeypatch.setattr(Matrix, "pack", wrong)


def wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores in C++ are eight times as large."""
    right = weights._usual_scale
    monkeypatch.setattr(weights, "_usual_scale", lambda sizes: 8 * right(sizes))


def wrong_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault that C++ and PyTorch share: larger positions than in the model's own code."""
    for reader, name in ((reading, "_rotary"), (description, "rotary_of")):
        right = getattr(reader, name)

        def wrong(*told: Any, right: Any = right) -> Rotary:
            rotary = right(*told)
            return Rotary(rotary.frequencies * 3, rotary.scale)

        monkeypatch.setattr(reader, name, wrong)


@pytest.mark.parametrize(
    ("plant", "dtype", "named"),
    [
        (wrong_steps, "float32", "native steps"),
        (wrong_packing, "bfloat16", "packing"),
        (wrong_attention, "float32", "native attention"),
        (wrong_rotations, "float32", "own layers"),
    ],
)
def test_the_part_with_a_planted_fault_is_named(
    target: str, monkeypatch: pytest.MonkeyPatch, plant: Any, dtype: str, named: str
) -> None:
    plant(monkeypatch)
    report, code = bisected("--model", target, "--dtype", dtype)
    assert code == 1
    assert report["named"] == named
    (part,) = (each for each in report["switches"] if each["name"] == named)
    assert part["divergence"]["plain_token"] != part["divergence"]["other_token"]
    assert part["instead"] == INSTEAD[named]
    # the model's own logits are right where steps are wrong
    assert (part["logits_apart"] == 0) == (plant is wrong_steps)
    assert all(each["logits_apart"] is None for each in report["switches"] if not each["changed"])


@pytest.mark.usefixtures("wrong")
def test_a_verifier_that_accepts_everything_is_named_as_drafting(target: str) -> None:
    result = run("check", "--bisect", PROMPT, "--methods", "recycling", "--model", target)
    assert result.exit_code == 1
    assert "drafting changes the text first; docs/wrong-token.md" in result.stdout
    assert "✗" in result.stdout


def test_tiles_are_switched_off_and_on_again(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any CPU: a library that says it has tiles."""
    own, forced = library.library(), list[int]()

    class WithTiles:
        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

        def draftwood_has_tiles(self) -> int:
            return 1

        def draftwood_force_tiles(self, number: int) -> None:
            forced.append(number)

    monkeypatch.setattr(bisect, "library", WithTiles)
    report, code = bisected("--model", target)
    assert code == 0
    assert changes(report)["AMX tiles"] is False
    assert forced == [NEVER, AUTOMATIC]


def test_heads_of_the_library_are_switched_off(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = tiny_eagle(load_model(target, "float32").model)
    head = str(folder.save(tmp_path / "eagle", trained, "# Learnt nothing"))
    drafted, begin = list[int](), EagleText._begin

    def counted(text: EagleText, root: int) -> Any:
        drafted.append(root)
        return begin(text, root)

    monkeypatch.setattr(EagleText, "_begin", counted)
    given = ("--model", target, "--dtype", "float32", "--methods", "eagle", "--draft-model", head)
    report, code = bisected(*given)
    assert code == 0
    assert changes(report)["native heads"] is False
    assert drafted  # by PyTorch, in one of the texts
    report, _ = bisected("--model", target)
    assert changes(report)["native heads"] is None  # auto has no other


def test_an_adapter_is_added_to_the_weights_in_float32_too(target: str, tmp_path: Path) -> None:
    base, adapter = load_pretrained(target, dtype="float32").model, str(tmp_path / "adapter")
    save_adapter(tmp_path / "adapter", base, ["q_proj", "v_proj", "down_proj"], r=4)
    report, code = bisected("--model", target, "--adapter", adapter, "--dtype", "float32")
    assert (code, report["named"]) == (0, None)
    assert {"packing", "native attention", "own layers"} <= {
        name for name, changed in changes(report).items() if changed is False
    }
    lm = draftwood.load(target, adapter=adapter, dtype="float32", method="lookup")
    found = {each.name: each for each in bisect.bisect(lm, lm.encode(PROMPT), 24)}
    assert found["native steps"].changed is False
    for name in ("packing", "native attention", "own layers"):
        assert found[name].changed is None
        assert "the model's name tells nothing of its adapter" in found[name].detail


def test_a_prompt_is_read_from_a_file_or_from_standard_input(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()

    def noted(lm: Any, prompt: str, *more: Any) -> bool:
        seen.append(prompt)
        return True

    monkeypatch.setattr("draftwood.cli.bisect.bisect_text", noted)
    (tmp_path / "prompt.txt").write_text("of a file\n")
    monkeypatch.chdir(tmp_path)
    for typed, given in (("@prompt.txt", None), ("-", "piped\n"), ("typed", None)):
        assert run("check", "--bisect", typed, "--model", target, given=given).exit_code == 0
    assert seen == ["of a file", "piped", "typed"]


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*names: Any, **how: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("draftwood.cli.options.load", loaded)


@pytest.mark.usefixtures("nothing_loads")
def test_bad_prompts_are_refused_before_anything_loads() -> None:
    assert "the prompt is empty" in refused("check", "--bisect", " ")
    assert "there is no file nowhere.txt" in refused("check", "--bisect", "@nowhere.txt")
    texts = ("check", "--bisect", PROMPT, "--texts", "3")
    assert "--texts is for checks on a model that fills masks; leave it out" in refused(*texts)


def test_one_method_at_a_time() -> None:
    assert "name one with --methods" in refused(
        "check", "--bisect", PROMPT, "--methods", "lookup,auto"
    )
