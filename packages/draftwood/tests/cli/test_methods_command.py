import json
import re
from dataclasses import replace

import pytest

import draftwood
from command import refused, run
from draftwood import methods
from draftwood.cli.main import main
from draftwood.methods.measured import measured_speeds, pays


def test_json_describes_every_method():
    described = json.loads(run("methods", "--json").stdout)
    assert [row["name"] for row in described] == list(methods.known())
    by_name = {row["name"]: row for row in described}
    assert by_name["rsd-s"]["needs_draft_model"] is True
    assert by_name["rsd-s"]["needs_drafter"] is False
    assert by_name["eagle"]["needs_drafter"] is True
    assert by_name["typical"]["lossless"] is False
    assert by_name["typical"]["promise"] == "trades quality"
    assert by_name["rsd-s"]["promise"] == "lossless"
    assert by_name["lookup"]["shape"] is None
    assert by_name["typical"]["needs"] == ["--draft-model", "--inexact"]
    assert by_name["lookup"]["needs"] == by_name["rsd-s"]["measured"] == []
    greedy, drawn = by_name["auto"]["measured"]
    assert (greedy["temperature"], drawn["temperature"]) == (0, 1)
    assert greedy["interval"][0] <= greedy["decoding"] <= greedy["interval"][1]
    assert {"model", "dtype", "prompts", "source", "machine", "end_to_end"} <= greedy.keys()


def listed(*options: str) -> dict[str, str]:
    """The first line on each method."""
    lines = run("methods", *options).stdout.splitlines()
    found = [line for line in lines if line.partition(" ")[0] in methods.known()]
    return {line.partition(" ")[0]: line for line in reversed(found)}


@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_all_methods_their_parts_and_sources_fit_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert listed("--all").keys() == methods.known().keys()
    for options in (("--all",), ()):
        shown = run("methods", *options).stdout
        assert ("2402.14160" in shown) == bool(options)
        assert "…" not in shown
        assert all(len(line) <= int(columns) for line in shown.splitlines())


def test_those_that_pay_or_need_something_are_shown_first_with_their_figures():
    shown = listed()
    speeds = {
        name: [f"{each.decoding:.2f}" for each in found]
        for name, found in measured_speeds().items()
    }
    assert {"auto", "plain", "suffix", "rsd-s", "eagle", "typical"} <= shown.keys()
    for name, recipe in methods.known().items():
        if recipe.lossless and not {"draft-model", "head"} & recipe.needs:
            assert (name in shown) == (name == "plain" or pays(name)), name
    for name in shown.keys() & speeds.keys():
        assert " ".join(speeds[name]) in " ".join(shown[name].split()), name
    assert f"{len(methods.known()) - len(shown)} more with --all" in run("methods").stdout
    assert "more with --all" not in run("methods", "--all").stdout


def test_what_loses_everywhere_does_not_pay(monkeypatch):
    """Negative control: a method leaves the list when its figures say so."""
    assert pays("auto")
    assert "auto" in listed()
    (one, *others) = measured_speeds()["auto"]
    slow = tuple(replace(each, decoding=0.99) for each in (one, *others))
    figures = {**measured_speeds(), "auto": slow}
    monkeypatch.setattr("draftwood.methods.measured.measured_speeds", lambda: figures)
    assert not pays("auto")
    assert "auto" not in listed()
    assert "auto" in listed("--all")
    figures["auto"] = (one, *slow[1:])
    assert pays("auto")


def test_help_and_errors_name_no_method_that_loses():
    losing = {name for name in measured_speeds() if not pays(name)} - {
        "stand",
        "lookup",
    }  # a word, too; the default in Transformers
    losing |= {"recycling", "layer-skip"}
    helps = [run(name, "--help").stdout for name in main.commands]
    helps += [run("--help").stdout, draftwood.custom_generate.__doc__ or ""]
    told = [refused("generate", "hello", "--method", name) for name in ("rsd-s", "eagle", "medusa")]
    assert all("choose auto, which needs none" in line for line in told)
    told.append(refused("compare", "hello", "--methods", ","))
    for text in (*helps, *told):
        assert not losing & set(re.findall(r"[\w-]+", text)), text
