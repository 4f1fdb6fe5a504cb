"""Figures of momentum decoding: repeats, bits of a text, and tables of made-up records."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import momentum
from benchmarks.common.json_lines import append


def test_repeats_and_diversity_are_those_of_the_paper() -> None:
    assert momentum.repeated("a b a b a", 2) == 0.5
    assert momentum.repeated("a b c d", 2) == momentum.repeated("a", 2) == 0.0
    assert momentum.diversity("a b a b a") == pytest.approx(1 / 2 * 2 / 3 * 1)
    assert momentum.diversity("a b c d e") == 1.0


def test_marks_stand_where_people_put_them() -> None:
    line = 'the 5 @-@ foot wall , built ( in 2000 ) by " Ann \'s men " .'
    assert momentum.cleaned(line) == 'the 5-foot wall, built (in 2000) by "Ann\'s men".'


class Letters:
    """A model with a token for two letters, so that prompt and text may share one."""

    model = None

    def encode(self, text: str, raw: bool) -> list[str]:
        assert raw
        return [text[at : at + 2] for at in range(0, len(text), 2)]


@pytest.mark.parametrize(("prompt", "shared"), [("abcd", False), ("abc", True)])
def test_bits_are_of_the_text_behind_its_prompt(
    prompt: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[list[str]]()

    def one_bit(model: Any, before: list[str], after: list[str]) -> float:
        asked.append(after)
        return -momentum.math.log(2)

    monkeypatch.setattr(momentum, "log_likelihood", one_bit)
    lm: Any = Letters()
    bits, size = momentum.bits_of(lm, prompt, "wxyz\u00e9")
    assert size == 6
    assert bits == pytest.approx(3 - shared)  # the prompt's own last token is no part of it
    assert asked[1:] == ([["c"]] if shared else [])


def test_tables_are_paired_by_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {momentum.HUMAN: "a b c d e f", momentum.GREEDY: "a b a b a b", "momentum 0.2": "a b c"}
    for arm, text in words.items():
        for prompt in "123":
            about = {"arm": arm, "prompt": prompt}
            append(tmp_path / momentum.TEXTS, {**about, "asked": "so", "text": text})
            bits = {momentum.GREEDY: 4.0}.get(arm, 8.0)
            append(tmp_path / momentum.READ, {**about, "judge": "m", "bits": bits, "bytes": 4})
            for method in momentum.METHODS * (arm != momentum.HUMAN):
                cost = {"tokens": 10, "passes": 5, "seconds": 1.0 + (arm != momentum.GREEDY)}
                append(tmp_path / momentum.TIMED, {**about, "method": method, **cost})
    momentum.show(SimpleNamespace(folder=tmp_path))  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert "2.00 [2.00, 2.00], +1.00 [+1.00, +1.00] |" in told  # bits per byte of momentum
    assert "| momentum 0.2 | auto | 5.0 [5.0, 5.0] | 0.50 [0.50, 0.50] | 1.00 [1.00, 1.00]" in told
    assert "bits per byte, m, 3 texts |" in told
    with pytest.raises(SystemExit, match="run `write` first"):
        momentum.texts_of(tmp_path / "none")
