import json
import random
import re
from pathlib import Path

import pytest

from draftwood_train.data.barred import RUN, Bars, is_held_out, words
from draftwood_train.data.composed import COUNT, composed, parts
from draftwood_train.data.jobs import goes_in_circles, is_usable
from draftwood_train.data.prompts import MEASURED, collect, licences, measured_prompts
from draftwood_train.data.sources import REFUSED, SOURCES, require_allowed
from draftwood_train.data.templates import AFTER_QUESTIONS, INSTRUCTIONS

ALPHABET = [f"word{number}" for number in range(400)]


def sentence(seed: int, count: int = 20) -> str:
    return " ".join(random.Random(seed).choices(ALPHABET, k=count))


def of_split(held_out: bool, count: int, start: int = 0) -> list[str]:
    """Sentences of one split."""
    found, seed = [], start
    while len(found) < count:
        if is_held_out(sentence(seed)) == held_out:
            found.append(sentence(seed))
        seed += 1
    return found


def in_training(text: str) -> str:
    """The text with some word before it, so that it belongs to the training split."""
    return next(f"{word} {text}" for word in ALPHABET if not is_held_out(f"{word} {text}"))


def test_a_planted_prompt_of_the_measurements_is_caught():
    measured = sentence(1)
    bars = Bars([measured])
    assert not bars.admits(measured)
    assert not bars.admits(measured.upper().replace(" ", ", ") + "!")
    run = " ".join(words(measured)[4 : 4 + RUN])
    assert not bars.admits(in_training(f"something else {run} and an end"))


def test_what_shares_less_passes():
    measured = sentence(1)
    bars = Bars([measured])
    shorter = " ".join(words(measured)[4 : 4 + RUN - 1])
    assert bars.admits(in_training(f"something else {shorter} and an end"))
    assert all(bars.admits(text) for text in of_split(False, 5, start=10))


def test_a_prompt_is_admitted_once():
    bars = Bars()
    text = sentence(3)
    assert bars.admits(text)
    assert not bars.admits(text)
    assert not bars.admits(text.upper())


def test_training_and_held_out_prompts_do_not_overlap_in_either_order():
    (held_out,) = of_split(True, 1)
    overlapping = in_training(held_out)
    for first, second in ((held_out, overlapping), (overlapping, held_out)):
        bars = Bars()
        assert bars.admits(first)
        assert not bars.admits(second)
    bars = Bars()  # two of the training split may overlap
    assert bars.admits(overlapping)
    assert bars.admits(in_training(overlapping))


def test_one_prompt_of_fifty_is_held_out():
    share = sum(is_held_out(sentence(seed)) for seed in range(5000)) / 5000
    assert 0.013 < share < 0.027


def test_wordings_are_shorter_than_the_runs_that_bar():
    wordings = [each for task in INSTRUCTIONS.values() for each in task] + list(AFTER_QUESTIONS)
    assert all(len(words(each)) < RUN for each in wordings)


@pytest.mark.parametrize("name", [*REFUSED, "something_new"])
def test_sets_that_may_not_be_used_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"not taken from '{name}'.*allowed are composed"):
        require_allowed(("gsm8k", name))


def test_licences_are_those_that_the_data_folder_states(data_folder: Path):
    readme = data_folder / "README.md"
    if not readme.is_file():
        pytest.skip(f"{readme} is not there, which states the licences of its files")
    table = readme.read_text(encoding="utf-8").splitlines()
    stated = {}
    for line in table:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7:
            stated[f"{cells[0]}/{cells[1]}"] = cells[6]
    unfit = ("not stated", "-NC", " NC", "research use", "CC-BY-SA")
    good = ("MIT", "Apache-2.0", "CC-BY-4.0", "CDLA-Sharing-1.0", "public-domain")
    for source in SOURCES.values():
        for file in source.files:
            assert any(each in stated[file] for each in good), file
            assert not any(each in stated[file] for each in unfit), file
    refused = {file: text for file, text in stated.items() if any(each in text for each in unfit)}
    assert len(refused) > 20  # the check above can fail


def test_every_set_gives_prompts(data_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRAFTWOOD_DATA", str(data_folder))
    few = ("self_instruct", "mbpp", "svamp")
    measured = measured_prompts()
    bars = Bars(measured)
    prompts = collect(few, (), 0, bars)
    assert {prompt.source for prompt in prompts} == set(few)
    assert len({prompt.text for prompt in prompts}) == len(prompts) > 2000
    assert [p.source for p in prompts[:40]].count("self_instruct") > 8
    assert collect(few, (), 0, Bars(measured)) == prompts
    assert collect(few, (), 1, Bars(measured))[:20] != prompts[:20]
    for name, source in SOURCES.items():
        if source.is_passages:
            passages = list(source.read(data_folder / source.files[0]))
            assert len(passages) > 1000, name
            assert all(30 < len(each.split()) <= 300 for each in passages), name


def test_without_the_measured_set_there_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path))
    with pytest.warns(UserWarning, match="not compared") as given:
        assert measured_prompts() == []
    assert len(given) == 1
    path = tmp_path / MEASURED
    path.parent.mkdir()
    path.write_text(json.dumps({"turns": ["one", "two"]}) + "\n")
    assert measured_prompts() == ["one", "two"]


@pytest.mark.parametrize(
    ("named", "what"),
    [
        (None, r"no folder of data sets is named; set \$DRAFTWOOD_DATA to one, leave mbpp out"),
        ("nowhere", r"no folder .*nowhere, which \$DRAFTWOOD_DATA names; set it to the folder"),
        (".", r"mbpp/mbpp.jsonl is not in \$DRAFTWOOD_DATA .*, leave mbpp out with --sets, or"),
    ],
)
def test_a_set_that_is_not_there_names_the_variable(tmp_path, monkeypatch, named, what):
    monkeypatch.delenv("DRAFTWOOD_DATA", raising=False)
    if named:
        monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path / named))
    with pytest.raises(FileNotFoundError, match=what):
        collect(("composed", "mbpp"), (), 0, Bars())


def test_files_of_the_user_are_read_in_three_forms(tmp_path):
    path = tmp_path / "own.jsonl"
    rows = [
        {"prompt": "the first of them"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "second"}]},
        {"turns": ["the third", "and more"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    found = {prompt.text for prompt in collect((), (path,), 0, Bars())}
    assert found == {"the first of them", "second", "the third"}
    assert licences(("mbpp",), (path,), "CC0") == {
        "mbpp": {"licence": "CC-BY-4.0", "origin": SOURCES["mbpp"].origin},
        str(path): {"licence": "CC0", "origin": "a file of the user's own"},
    }


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", '{"text": "x"}', '{"prompt": " "}', '{"turns": []}'),
        pytest.param('{"prompt": "half \\ud800"}', id="surrogate"),
        pytest.param("[" * 200_000, id="deep"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"own.jsonl:2: no prompt"):
        collect((), (path,), 0, Bars())


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "{} is a folder"),
        ("none.jsonl", "there is no file {};"),
        ("empty.jsonl", "{} holds no prompts"),
    ],
)
def test_a_file_without_prompts_is_named(tmp_path, name, what):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises((OSError, ValueError), match=what.format(tmp_path / name)):
        collect((), [tmp_path / name], 0, Bars([]))


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_bytes('{"prompt": "café"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"own.jsonl is no text in UTF-8; save it as UTF-8"):
        collect((), (path,), 0, Bars())


def test_prompts_that_are_all_measured_are_told(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"prompt": sentence(1)}) + "\n")
    with pytest.raises(ValueError, match="all 1 prompts are among those that drafters"):
        collect((), (path,), 0, Bars([sentence(1)]))


def test_loops_and_scraps_are_no_prompts():
    circling = "tell me more about it " * 6
    assert goes_in_circles(circling)
    assert not goes_in_circles("What is the fastest way to learn how to play the guitar well?")
    assert not is_usable(circling)
    assert not is_usable("Why")
    assert not is_usable("What does this mean \ufffd here?")
    assert is_usable("What does this mean here?")


def test_composed_prompts_are_whole_different_and_the_same_again():
    found = list(composed(0))
    assert len(set(found)) == COUNT
    assert not any("{" in prompt or "  " in prompt for prompt in found)
    assert list(composed(0)) == found
    assert list(composed(1)) != found
    used = {slot for frame in parts()["frames"] for slot in re.findall(r"\{(\w+)\}", frame)}
    assert used - {"other", "count", "small"} == set(parts()["words"])


def test_composed_prompts_pass_the_bars_of_the_measurements(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DRAFTWOOD_DATA", str(data_folder))
    bars = Bars(measured_prompts())
    some = [prompt for prompt in composed(0) if not is_held_out(prompt)][:2000]
    assert sum(map(bars.admits, some)) > 0.99 * len(some)  # "C" and "C++" are one word there
