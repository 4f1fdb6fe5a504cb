import json
import re
from dataclasses import replace

import pytest

import draftwood
from command import refused, run
from draftwood import methods
from draftwood.cli.main import COMMANDS
from draftwood.methods.listings import command_methods
from draftwood.methods.measured import measured_speeds, pays


def test_json_describes_every_method():
    described = json.loads(run("methods", "--json").stdout)
    assert "Print a JSON array and nothing else." in run("methods", "--help").stdout
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
    assert by_name["lookup"]["needs"] == by_name["plain"]["measured"] == []
    assert by_name["rsd-s"]["trees"] == ["beams", "chain"]
    assert (by_name["rsd-s"]["tree"], by_name["plain"]["tree"]) == ("2x3", None)
    greedy, drawn = by_name["auto"]["measured"]
    assert (greedy["temperature"], drawn["temperature"]) == (0, 1)
    assert greedy["interval"][0] <= greedy["decoding"] <= greedy["interval"][1]
    assert {"model", "dtype", "prompts", "source", "machine", "end_to_end"} <= greedy.keys()


def test_a_package_s_methods_say_what_they_do_and_how_to_call_them(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    own = run("methods", "--package", "methods").stdout
    assert "--method typical --draft-model --inexact" in own
    assert methods.listing("recycling").summary in own
    choices = run("methods", "--package", "choices").stdout
    for each in command_methods():
        assert (each.option in choices) == (each.summary in choices)
    assert "--rule random,share=0.5,length=10" in choices
    assert "--rules pause=1 --inexact" in choices
    # of two commands
    assert choices.count("\ndistinct ") == 2
    assert "draftwood generate --answers 3 --method distinct" in choices


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


def test_all_names_methods_of_installed_packages_commands_too():
    names = {line.partition(" ")[0] for line in run("methods", "--all").stdout.splitlines()}
    others = {each.name for each in command_methods()}
    assert others
    assert others <= names


def groups(*options: str) -> tuple[set[str], set[str]]:
    """Methods that are listed first, and those that were slower than plain decoding."""
    text = run("methods", *options).stdout
    first, _, slow = text.partition("\nSlower than plain decoding where they were measured:\n")

    def names(lines: str) -> set[str]:
        return {line.partition(" ")[0] for line in lines.splitlines()} & methods.known().keys()

    return names(first), names(slow)


def test_every_method_stands_with_its_figures_or_is_called_unmeasured():
    shown, text = listed(), " ".join(run("methods").stdout.split())
    speeds = {
        name: [f"{each.decoding:.2f}" for each in found]
        for name, found in measured_speeds().items()
    }
    first, slow = groups()
    assert {"auto", "plain", "suffix", "typical"} <= shown.keys()
    for name, recipe in methods.known().items():
        unmeasured = name not in speeds and name != "plain"
        needing = {"draft-model", "head"} & recipe.needs or not recipe.lossless
        assert (name in slow) == (name in speeds and not pays(name)), name
        assert (name in first) == (name not in slow and bool(not unmeasured or needing)), name
        if name not in shown:
            assert re.search(rf"Not measured yet: .*\b{name}\b", text), name
    for name in shown.keys() & speeds.keys():
        told = [each for each in measured_speeds()[name] if each.temperature in (0, 1)]
        figures = " ".join(f"{each.decoding:.2f}" for each in told)
        assert figures in " ".join(shown[name].split()), name


def test_models_and_prompts_of_the_figures_are_named_once():
    text = " ".join(run("methods").stdout.split())
    told = re.search(r"Measured with (.*?): --json tells these of each\.", text)
    assert told is not None
    pairs = {
        (each.model, each.source)
        for name, found in measured_speeds().items()
        if name in methods.known()
        for each in found
    }
    lines = told[1].split("; ")
    assert len(lines) == len(pairs)
    for model, source in pairs:
        assert len([line for line in lines if line.startswith(model) and source in line]) == 1
        shown = {
            str(each.prompts)
            for found in measured_speeds().values()
            for each in found
            if (each.model, each.source) == (model, source)
        }
        assert f"{max(shown, key=int)} prompts of {source}" in told[1]


def test_what_loses_everywhere_does_not_pay(monkeypatch):
    """Negative control: a method leaves the first list when its figures say so."""
    assert pays("auto")
    assert "auto" in groups()[0]
    (one, *others) = measured_speeds()["auto"]
    slow = tuple(replace(each, decoding=0.99) for each in (one, *others))
    figures = {**measured_speeds(), "auto": slow}
    monkeypatch.setattr("draftwood.methods.measured.measured_speeds", lambda: figures)
    assert not pays("auto")
    assert "auto" in groups()[1]
    assert "auto" in groups("--all")[0]
    figures["auto"] = (one, *slow[1:])
    assert pays("auto")


def test_help_and_errors_name_no_method_that_loses():
    losing = {name for name in measured_speeds() if not pays(name)} - {
        "stand",
        "lookup",
    }  # a word, too; the default in Transformers
    losing = {name for name in losing if not {"draft-model", "head"} & methods.spec(name).needs}
    losing |= {"recycling", "layer-skip"}
    helps = [run(name, "--help").stdout for name in COMMANDS]
    helps += [run("--help").stdout, draftwood.custom_generate.__doc__ or ""]
    told = [refused("generate", "hello", "--method", name) for name in ("rsd-s", "eagle", "medusa")]
    assert all("choose auto, which needs none" in line for line in told)
    told.append(refused("compare", "hello", "--methods", ","))
    for text in (*helps, *told):
        assert not losing & set(re.findall(r"[\w-]+", text)), text
