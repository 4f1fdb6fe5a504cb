"""Figures in sentences are those of the tables that the generator writes from records."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GENERATED = re.compile(r"<!-- [\w -]+, written by `make docs` -->\n(.*?)<!-- end -->\n", re.S)
NO_FIGURES = (  # decimals and shares that say nothing of a measurement
    *(r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)", r"arXiv:\d+\.\d+", r"^\|[^\n]*$", r"^#[^\n]*$"),
    r"Apache-2\.0|Python 3\.\d+ to 3\.\d+|\w+-\d\.\d[BM]\b|\b\d\.\dB\b|\d[\d.]* kB",
    r"(?i)(?:temperatures?|T =) 0\.\d|at 0\.[36]\b",
    r"95 % intervals?|Intervals are 95 %",
    r"(?i)asked (?:were|was) [\d.]+(?: %| times)?|[\d.]+(?: %)? (?:was|were) asked",
    r"(?i)bar of [\d.]+ times|\([^()]*asked[^()]*\)",
)
FIGURE = re.compile(r"(?<![\w.])[-+]?(\d+\.\d+)( ?%| M\b)?|(?<![\w.])(\d+)( ?%)")
INTERVAL = re.compile(r"(-?\d+\.\d+)\s\[(-?\d+\.\d+),\s(-?\d+\.\d+)\]")
HELD = {"0.02"}  # what tests hold: the distance from a law that a test finds
PAGES = ("README.md", "docs/self-speculation.md", "docs/training.md")


def sections(text: str) -> dict[str, str]:
    """A page by the titles of its chapters."""
    parts = re.split(r"^## (.*)$", text, flags=re.M)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def sentences(text: str) -> str:
    """A text without its generated parts, tables, code and what is no figure."""
    text = GENERATED.sub(" ", text)
    for pattern in NO_FIGURES:
        text = re.sub(pattern, " ", text, flags=re.S | re.M)
    return text


def numbers(text: str) -> list[tuple[float, int, bool]]:
    """Value, digits behind the point and whether it is a share in per cent, of all figures."""
    found = []
    for decimal, unit, whole, percent in FIGURE.findall(text):
        digits = decimal or whole
        found.append((float(digits), len(digits.partition(".")[2]), "%" in unit + percent))
    return found


def unbacked(text: str, sources: str) -> list[str]:
    """Figures in sentences that no table has, as they are or in per cent beside 1."""
    plain = [value for value, _, _ in numbers(sources)]
    shares = [way for each in plain for way in (each, 100 * each, abs(100 * (each - 1)))]
    missing = []
    for value, digits, share in numbers(sentences(text)):
        near = 0.501 * 10**-digits
        backed = any(abs(value - each) <= near for each in (shares if share else plain))
        if not backed and f"{value:g}" not in HELD:
            missing.append(f"{value:g}{' %' if share else ''}")
    cells = set(INTERVAL.findall(sources.replace("+", "")))
    found = INTERVAL.findall(sentences(text).replace("+", ""))
    return missing + ["{} [{}, {}]".format(*each) for each in found if each not in cells]


@pytest.mark.parametrize("page", PAGES)
def test_figures_in_sentences_are_those_of_the_tables_beside_them(page: str) -> None:
    for title, text in sections((ROOT / page).read_text()).items():
        assert not unbacked(text, "\n".join(GENERATED.findall(text))), title


def test_the_page_of_results_has_no_figure_of_its_own() -> None:
    """Its numbers come from records; its frame describes settings alone."""
    frame = re.sub(r"{{.*?}}", " ", (ROOT / "docs" / "results.md.in").read_text())
    assert not unbacked(frame, "")
    assert unbacked(frame + "\nIt is 1.05 times as fast.\n", "") == ["1.05"]  # negative control


TABLE = "<!-- t, written by `make docs` -->\n\n| a | 1.03 [0.98, 1.09] |\n\n<!-- end -->\n"


@pytest.mark.parametrize(
    ("sentence", "missing"),
    [
        ("It is 1.03 [0.98, 1.09] times as fast, a gain of 3 %; 0.5 were asked.", []),
        ("It is 1.05 times as fast.", ["1.05"]),
        ("It is 1.03 [0.98, 1.03] times as fast.", ["1.03 [0.98, 1.03]"]),
        ("It gains 5 %, as `x = 0.5` says.", ["5 %"]),
    ],
)
def test_a_figure_that_no_table_has_is_found(sentence: str, missing: list[str]) -> None:
    """Negative control."""
    text = f"{TABLE}\n{sentence}\n"
    assert unbacked(text, "\n".join(GENERATED.findall(text))) == missing


def test_every_page_can_be_reached_from_the_first() -> None:
    seen, left = set(), [ROOT / "README.md"]
    while left:
        path = left.pop().resolve()
        if path in seen or path.suffix != ".md":
            continue
        seen.add(path)
        links = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", path.read_text())
        left += [path.parent / link for link in links if not link.startswith("http")]
    assert not {path.resolve() for path in (ROOT / "docs").glob("*.md")} - seen


def test_a_card_tells_no_figure_of_spec_bench() -> None:
    """These stand on the page of results, from records."""
    cards = sorted((ROOT / "packages").glob("*/src/*/**/card.md"))
    assert cards
    for card in cards:
        told = " ".join(card.read_text().split())
        assert not re.search(r"Spec-Bench[^.]*\d", told.replace("`make", "")), card
