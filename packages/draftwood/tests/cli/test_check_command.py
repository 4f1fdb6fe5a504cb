"""``draftwood check``: what it runs, what it catches, and what it says."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from command import refused, run
from draftwood import load, methods
from draftwood.heads import folder
from draftwood.methods import Method
from draftwood.shapes import Widths
from draftwood.testing import acceptance, tiny_llama
from draftwood.testing import promises as checking
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters import LayerSkip
from draftwood_torch.lean.model import LeanModel
from thinning import thinned
from tiny_heads import tiny_eagle

options = ("--max-new-tokens", "8")
pytestmark = pytest.mark.usefixtures("unchecked")  # thousands of tiny trees
# on a table trained heads are a draft model's stand-ins, which other methods try too
without_a_head = [
    name for name in methods.lossless_names() if "head" not in methods.spec(name).needs
]


@pytest.fixture
def hardly_any(monkeypatch):
    """Text and prompts for tests that look at something else; no wrong rules."""
    monkeypatch.setattr(checking, "TEXTS", 3)
    monkeypatch.setattr(checking, "PROMPTS", checking.PROMPTS[:1])
    monkeypatch.setattr(checking, "check_controls", lambda: iter(()))
    monkeypatch.setattr(acceptance, "check_wrong_rules", lambda: iter(()))


@pytest.fixture
def fewer(monkeypatch):
    """Half as many texts."""
    monkeypatch.setattr(checking, "TEXTS", checking.TEXTS // 2)


def test_everything_passes(target, draft):
    chosen = ("--methods", "recycling,rsd-s")
    result = run("check", *chosen, "--model", target, "--draft-model", draft, *options)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "all 11 checks passed" in result.stdout
    assert "✗" not in result.stdout


@pytest.mark.usefixtures("hardly_any")
def test_json_and_methods_left_out(target):
    result = run("check", "--methods", "rsd-s,lookup", "--model", target, *options, "--json")
    report = json.loads(result.stdout)
    assert report["passed"] is True
    assert (report["model"], report["dtype"]) == (target, "float32")
    found = {(finding["check"], finding["name"]): finding for finding in report["findings"]}
    assert found["identity", "rsd-s"]["passed"] is None
    assert found["identity", "rsd-s"]["detail"] == "needs --draft-model"
    assert found["identity", "lookup"]["passed"] is True
    assert [name for check, name in found if check == "rule"] == ["rejection", "match"]
    assert found["law", "rsd-s"]["p_value"] > checking.SIGNIFICANCE


@pytest.mark.usefixtures("hardly_any")
def test_too_few_layers_are_explained(draft):
    result = run("check", "--methods", "layer-skip", "--model", draft, *options)
    assert result.exit_code == 0
    assert "not run: layer-skip (layer-skip needs a model of at least 4 layers" in result.stdout


@pytest.mark.usefixtures("hardly_any")
def test_a_broken_method_fails(target, monkeypatch):

    class Wrong:
        name = "wrong"
        exact_for = frozenset({"chosen"})

        def __call__(self, tree, target_probs, rng):
            rows = [np.roll(target_probs[node], 1) for node in range(len(tree))]
            return Match()(tree, rows, rng)

    build = methods.build

    def wrongly(method, *rest, **named):
        made = build(method, *rest, **named)
        return Method(made.drafter, Wrong(), made.name) if made.name == "lookup" else made

    monkeypatch.setattr(methods, "build", wrongly)
    result = run("check", "--methods", "lookup,recycling", "--model", target, *options)
    assert result.exit_code == 1
    assert "2 of 5 checks failed" in result.stdout


@pytest.mark.usefixtures("hardly_any")
@pytest.mark.parametrize("wrong", acceptance.WRONG_RULES.values(), ids=acceptance.WRONG_RULES)
def test_a_rule_that_few_texts_do_not_catch_fails(target, monkeypatch, wrong):
    recipe = methods.recipe

    def wrongly(name):
        found = recipe(name)
        return replace(found, verifier=wrong) if name == "lookup" else found

    monkeypatch.setattr(methods, "recipe", wrongly)
    result = run("check", "--methods", "lookup", "--model", target, *options, "--json")
    assert result.exit_code == 1
    found = {each["check"]: each for each in json.loads(result.stdout)["findings"]}
    assert found["rule"]["passed"] is False
    assert "the distribution of the first" in found["rule"]["detail"]


@pytest.mark.usefixtures("hardly_any")
def test_drafts_of_layers_are_a_table_s_in_one_check_and_real_in_another(target):
    chosen = ("--methods", "layer-skip,eagle", "--model", target, *options)
    result = run("check", *chosen, "--json")
    found = {(each["check"], each["name"]): each for each in json.loads(result.stdout)["findings"]}
    assert found["law", "layer-skip"]["detail"] == checking.OVER_A_TABLE
    assert found["law", "eagle"]["detail"] == checking.OVER_A_TABLE
    assert found["drafts", "layer-skip"]["passed"] is True
    assert ("drafts", "eagle") not in found
    assert found["identity", "eagle"]["passed"] is None
    shown = run("check", *chosen).stdout
    assert shown.count(f"as the model's own: {checking.OVER_A_TABLE}") == 2
    assert "Sampled text on" in shown


class Failing(LayerSkip):
    name = "failing"

    def start(self, request):
        raise RuntimeError("my drafter ran")


def real(target, drafter, shape):
    """The tiny model with a drafter that takes layers."""
    recipe = methods.MethodSpec("mine", "x", "me", drafter, shape, Rejection())
    return recipe, load(target, dtype="float32").with_method(recipe)


def test_a_drafter_that_fails_does_not_pass(target):
    recipe, mine = real(target, Failing, Widths((1, 1)))
    assert checking.check_law(recipe).detail == checking.OVER_A_TABLE
    with pytest.raises(RuntimeError, match="my drafter ran"):
        acceptance.check_drafts(mine)


def test_few_draws_are_judged_exactly():
    rows = np.array([[0.5, 0.3, 0.2]] * 20)
    assert acceptance.likeliest_p_value([0] * 20, rows) == pytest.approx(2 * 0.5**20)
    assert acceptance.likeliest_p_value([0, 1] * 10, rows) == 1.0


def test_drafts_that_were_not_drawn_as_they_say_are_caught(target):
    shape = Widths((8,), "greedy-plus-one")
    _, right = real(target, LayerSkip, Widths((8,)))
    assert acceptance.check_drafts(right).passed
    _, wrong = real(target, LayerSkip, checking.Mislabelled(shape, "distinct"))
    assert acceptance.check_drafts(wrong).passed is False


def test_a_check_that_sees_nothing_fails(target, monkeypatch):
    monkeypatch.setattr(checking, "chi_square", lambda counts, law: 0.5)
    monkeypatch.setattr(checking, "TEXTS", 1)
    result = run("check", "--methods", "lookup", "--model", target, *options)
    assert result.exit_code == 1
    assert "not caught" in result.stdout


def test_bad_input(target, draft):
    assert "did you mean lookup" in refused("check", "--methods", "lokup")
    assert "nothing to check" in refused("check", "--methods", "typical")
    assert "no draft model" in refused(
        "check", "--methods", "lookup", "--draft-model", draft, "--model", target
    )
    assert "max-new-tokens" in refused("check", "--max-new-tokens", "0")


def test_a_head_of_another_model_is_refused(target, tmp_path):
    other = LeanModel(tiny_llama(7, layers=4))
    head = folder.save(tmp_path / "head", tiny_eagle(other), "")
    given = ("check", "--methods", "auto", "--draft-model", str(head), "--model", target)
    assert "the drafter was trained for" in refused(*given)


def test_only_coarse_types_know_ties():
    assert checking.tie_tolerance(20.0, "float32") == 0.0
    assert checking.tie_tolerance(20.0, "bfloat16") == 4 * 0.125
    assert checking.tie_tolerance(-20.0, "float16") == 4 * 2.0**-6
    assert checking.tie_tolerance(0.0, "bfloat16") > 0


def test_divergences():
    target, _ = checking.tables()
    assert checking.first_divergence(target, [0], [1, 2], [1, 2]) is None
    found = checking.first_divergence(target, [0], [0, 0, 3], [0, 1, 3])
    assert found is not None
    assert (found.position, found.plain_token, found.other_token, found.tie) == (1, 0, 1, False)
    assert found.margin == pytest.approx(float(target.logits[0, 0] - target.logits[0, 1]))
    ended = checking.first_divergence(target, [0], [0, 0], [0, 0, 3])
    assert ended is not None
    assert (ended.position, ended.plain_token, ended.other_token) == (2, None, 3)


@pytest.mark.parametrize(("apart", "tie"), [(0.25, True), (1.0, False)])
def test_a_tie_in_bfloat16(apart, tie):
    row = torch.tensor([20.0, 20.0 - apart, 1.0, 0.0]).bfloat16()
    found = checking.first_divergence(checking.TableModel(row.expand(4, 4)), [0], [0], [1])
    assert found is not None
    assert found.tie is tie
    third = checking.first_divergence(checking.TableModel(row.expand(4, 4)), [0], [0], [2])
    assert third is not None
    assert third.tie is False


@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize("name", thinned(["plain", *without_a_head], 12))
def test_every_lossless_method_keeps_the_law(name):
    assert checking.check_law(methods.recipe(name)).passed
