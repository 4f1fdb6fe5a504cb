"""`draftwood embed`: the vectors of the library, in lines of JSON or in part for people."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftwood
from command import refused, run

TEXTS = ("hello", "hello there", "why")


def lines(*arguments: str, given: str | None = None) -> list[dict[str, Any]]:
    result = run("embed", *arguments, "--json", given=given)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_lines_hold_the_vectors_of_the_library(target: str, pooling: str) -> None:
    lm = draftwood.load(target, method="plain")
    found = lines(*TEXTS, "--model", target, "--pooling", pooling)
    assert [set(each) for each in found] == [{"index", "tokens", "embedding"}] * 3
    assert [each["index"] for each in found] == [0, 1, 2]
    assert [each["tokens"] for each in found] == [len(lm.encode(each, raw=True)) for each in TEXTS]
    vectors = np.array([each["embedding"] for each in found], np.float32)
    assert np.allclose(vectors, lm.embed(TEXTS, pooling=pooling), atol=1e-6)
    other = lm.embed(TEXTS, pooling="last" if pooling == "mean" else "mean")
    assert np.abs(vectors - other).max() > 1e-3


def test_texts_come_from_files_and_standard_input(target: str, tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text(TEXTS[0] + "\n")
    wanted = lines(*TEXTS, "--model", target)
    found = lines(f"@{file}", "-", TEXTS[2], "--model", target, given=TEXTS[1] + "\n")
    assert found == wanted
    files = ("--file", str(file), "--file", str(file), "--model", target)
    assert [each["embedding"] for each in lines(*files)] == [wanted[0]["embedding"]] * 2
    file.write_text("-")  # a text, and no standard input
    assert lines("--file", str(file), "--model", target)[0]["tokens"] == 1
    assert lines(f"@{file}", "--model", target, given=TEXTS[1])[0]["tokens"] == 1


def test_people_see_numbers_in_part_and_how_similar_texts_are(target: str) -> None:
    lm = draftwood.load(target, method="plain")
    vectors = lm.embed(TEXTS)
    head, *rows, last = run("embed", *TEXTS, "--model", target).stdout.splitlines()
    assert f"first 4 of {vectors.shape[1]} numbers" in head
    for row, text, vector in zip(rows, TEXTS, vectors, strict=True):
        assert text in row
        first = [f"{each:.4f}" for each in vector[:4]]
        cosines = [f"{each:.3f}" for each in vectors @ vector]
        assert row.split()[-7:] == [*first, *cosines]
    assert f"{vectors.shape[1]} dimensions, mean" in last
    alone = run("embed", TEXTS[0], "--model", target).stdout
    assert "cos" not in alone


def test_of_many_texts_each_ones_nearest_is_told(target: str) -> None:
    texts = [letter * 3 for letter in "abcdefghi"]
    lm = draftwood.load(target, method="plain")
    vectors = lm.embed(texts)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    head, *rows, _ = run("embed", *texts, "--model", target).stdout.splitlines()
    assert head.split()[-1] == "nearest"
    for row, own in zip(rows, cosines, strict=True):
        number, cosine = row.split()[-2:]
        assert own[int(number.rstrip(":"))] == pytest.approx(own.max(), abs=1e-6)
        assert cosine == f"{own.max():.3f}"


def test_what_is_no_text_is_refused_in_a_line(target: str) -> None:
    assert "Missing argument 'TEXT'" in refused("embed")
    assert "text 1 is empty" in refused("embed", "a", " ")
    assert "text 0 is empty" in refused("embed", "-", given="")
    assert "give - once" in refused("embed", "-", "-")
    assert "'bogus' is not one of 'mean', 'last'" in refused("embed", "a", "--pooling", "bogus")
    assert "no model is named 'nosuch'" in refused("embed", "a", "--model", "nosuch")
    assert "there is no file nowhere.txt" in refused("embed", "@nowhere.txt")
    assert "cannot read nowhere" in refused("embed", "--file", "nowhere")
    assert "No such option '--draft-model'" in refused("embed", "a", "--draft-model", target)
    assert "shorten it" in refused("embed", "word " * 100_000, "--model", target)
