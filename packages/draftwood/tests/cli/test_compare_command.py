import json

import pytest

from command import refused, run


def options(target: str) -> tuple[str, ...]:
    return ("--model", target, "--dtype", "float32", "--max-new-tokens", "20")


def test_table(target):
    result = run("compare", "hello", "abcabc", "--methods", "lookup,recycling", *options(target))
    assert result.exit_code == 0
    assert result.stderr == ""
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert rows["plain"].split()[2:4] == ["1.00x", "1.00"]
    assert all("✓" in rows[name] for name in ("plain", "lookup", "recycling"))


def test_json(target, draft):
    chosen = ("--methods", "recycling,rsd-s,plain,recycling", "--draft-model", draft)
    result = run("compare", "hello", "abcabc", *chosen, *options(target), "--json")
    report = json.loads(result.stdout)
    assert report["prompts"] == ["hello", "abcabc"]
    assert list(report["results"]) == ["plain", "recycling", "rsd-s"]
    for numbers in report["results"].values():
        assert numbers["identical_to_plain"] is True
        assert numbers["tokens"] == 40
    assert report["results"]["plain"]["block_efficiency"] == 1.0


def test_methods_that_draft_ahead_write_the_same(target, draft, monkeypatch):
    monkeypatch.setattr("draftwood.drafters.overlap.cpus", lambda: 2)
    monkeypatch.setattr("draftwood.drafters.overlap.of_quota", lambda: 2)
    chosen = ("hello", "--draft-model", draft, *options(target), "--overlap")
    found = json.loads(run("compare", *chosen, "--methods", "rsd-c", "--json").stdout)["results"]
    assert found["rsd-c"]["identical_to_plain"] is True
    assert found["rsd-c"]["drafting"]["ahead"] > 0
    assert "drafting" not in found["plain"]
    alone = ("hello", *options(target), "--overlap", "--methods", "recycling")
    assert "method 'recycling' has drafts" in refused("compare", *alone)
    beside = json.loads(run("compare", *chosen, "--methods", "lookup,rsd-c", "--json").stdout)
    assert beside["results"]["rsd-c"]["drafting"]["ahead"] > 0


def test_drawn_texts_are_not_compared(target):
    arguments = ("hello", "--methods", "lookup", "--temperature", "1", *options(target))
    result = run("compare", *arguments, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["results"]["lookup"]["identical_to_plain"] is None
    assert "drawn" in run("compare", *arguments).stdout


@pytest.mark.usefixtures("wrong")
def test_a_text_that_differs_is_shown_and_ends_with_exit_code_1(target):
    result = run("compare", "hello", "--methods", "lookup,recycling", *options(target))
    assert result.exit_code == 1
    assert "recycling, prompt 1: differs first at token" in result.stdout
    assert "no tie within rounding" in result.stdout
    result = run("compare", "hello", "--methods", "recycling", *options(target), "--json")
    assert result.exit_code == 1
    numbers = json.loads(result.stdout)["results"]["recycling"]
    assert numbers["identical_to_plain"] is False
    assert numbers["divergences"][0]["margin"] > 0


def test_prompts_from_files(target, tmp_path):
    lines, objects = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    lines.write_text("one\n\ntwo\n")
    objects.write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n')
    for file in (lines, objects):
        result = run(
            "compare",
            "--prompts-file",
            str(file),
            "--methods",
            "lookup",
            *options(target),
            "--json",
        )
        assert json.loads(result.stdout)["prompts"] == ["one", "two"]
    asked = "compare", "--prompts-file", str(objects), "--methods", "lookup", *options(target)
    for wrong in ('{"text": "two"}', '{"prompt": null}', '{"prompt": ["a"]}', '{"turns": "abc"}'):
        objects.write_text(f'{{"prompt": "one"}}\n{wrong}\n')
        assert "prompts.jsonl:2 is no JSON object with the field prompt" in refused(*asked)
    objects.write_bytes(b'{"prompt": "\xff"}')
    assert refused(*asked).endswith(f"{objects} is not UTF-8 text")


def test_only_the_ends_of_lines_part_prompts(target, tmp_path):
    prompt = "a\x0cb\x85c\u2028d"
    lines, objects = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    lines.write_text(f"{prompt}\n", encoding="utf-8")
    told = json.dumps({"prompt": prompt}, ensure_ascii=False)
    objects.write_text(f"{told}\n", encoding="utf-8")
    for file in (lines, objects):
        asked = ("--prompts-file", str(file), "--methods", "lookup", *options(target), "--json")
        assert json.loads(run("compare", *asked).stdout)["prompts"] == [prompt]


def test_prompts_name_files_and_standard_input(target, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    asked = ("compare", f"@{file}", "-", "@@b", "--methods", "lookup", *options(target), "--json")
    assert json.loads(run(*asked, given="two\n").stdout)["prompts"] == ["one", "two", "@b"]
    assert "there is no file" in refused("compare", "x @/no/file.txt", "--methods", "lookup")
    assert "give - once" in refused("compare", "-", "-", "--methods", "lookup")


def test_bad_input(target, draft):
    assert "at least one prompt" in refused("compare", "--methods", "lookup")
    assert "prompt 2 is empty" in refused("compare", "a", "", "--methods", "lookup")
    assert "--methods" in refused("compare", "hi")
    assert "at least one method" in refused("compare", "hi", "--methods", ",")
    assert "did you mean lookup" in refused(
        "compare", "hi", "--methods", "plain,lokup", *options(target)
    )
    told = refused("compare", "hi", "--methods", "plain,freedave", *options(target))
    assert "--method freedave,d=4,w=1' runs it alone" in told
    assert "--draft-model" in refused(
        "compare", "hi", "--methods", "lookup,rsd-s", *options(target)
    )
    assert "no draft model" in refused(
        "compare", "hi", "--methods", "lookup", "--draft-model", draft, *options(target)
    )
    assert "--inexact" in refused(
        "compare", "hi", "--methods", "typical", "--draft-model", draft, *options(target)
    )
    assert "gone.txt" in refused("compare", "--prompts-file", "gone.txt", "--methods", "lookup")
