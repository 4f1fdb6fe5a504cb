"""Read sections, aligned paragraphs and lines of talk out of manuals and data files."""

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

SHORTEST = 8
"""Words of a paragraph that counts."""
_BLOCK = re.compile(r"<(h[1-6]|p)\b[^>]*>(.*?)</\1>", re.S)
_TAG = re.compile(r"<[^>]+>")
_PARAGRAPH = re.compile(r'<p id="(par_id\w+)"[^>]*>(.*?)</p>', re.S)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-ZÄÖÜÉÈÀ¿¡])")


@dataclass(frozen=True)
class Section:
    """Part of a book with a title.

    Attributes:
        title: heading; "" where it has none.
    """

    book: str
    title: str
    paragraphs: tuple[str, ...]

    @property
    def words(self) -> int:
        return sum(len(each.split()) for each in self.paragraphs)


def plain(markup: str) -> str:
    """Text of a piece of HTML."""
    return " ".join(html.unescape(_TAG.sub("", markup)).replace("¶", "").split())


def html_sections(book: str, page: str) -> Iterator[Section]:
    """Sections of a page of HTML, as its headings divide it; code is left out."""
    body = page.partition("<main>")[2].partition("</main>")[0] or page.partition("<body")[2]
    blocks = ((kind, plain(markup)) for kind, markup in _BLOCK.findall(body))
    yield from _divided(book, blocks)


def pod_sections(book: str, text: str) -> Iterator[Section]:
    """Sections of a page in Perl's plain old documentation; code is left out."""
    blocks = []
    for block in text.split("\n\n"):
        said = " ".join(_pod_text(block).split())
        if block.startswith("=head"):
            blocks.append(("h2", said.partition(" ")[2]))
        elif not block.startswith(("=", " ", "\t")):
            blocks.append(("p", said))
    yield from _divided(book, blocks)


def _pod_text(block: str) -> str:
    """Text without marks such as C<...> and L<text|place>."""
    for _ in range(3):
        block = re.sub(r"[BCEFILSXZ]<+\s?(?:[^<>|]*\|)?([^<>]*?)\s?>+", r"\1", block)
    return block


def prose_sections(book: str, text: str) -> Iterator[Section]:
    """Parts of running text of about 900 words; paragraphs are a few sentences each."""
    gathered: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        for paragraph in _paragraphs(" ".join(block.split())):
            gathered.append(paragraph)
            if sum(len(each.split()) for each in gathered) >= 900:
                yield Section(book, "", tuple(gathered))
                gathered = []


def sentences_of(text: str) -> list[str]:
    return _SENTENCE.split(text)


def _paragraphs(text: str) -> list[str]:
    """Text in paragraphs of some hundred words."""
    found, gathered = [], ""
    for sentence in sentences_of(text):
        gathered = f"{gathered} {sentence}".strip()
        if len(gathered.split()) >= 100:
            found.append(gathered)
            gathered = ""
    return [*found, gathered] if len(gathered.split()) >= SHORTEST else found


def _divided(book: str, blocks: Iterable[tuple[str, str]]) -> Iterator[Section]:
    title, gathered = "", list[str]()
    for kind, text in blocks:
        if kind != "p":
            if gathered:
                yield Section(book, title, tuple(gathered))
            title, gathered = re.sub(r"^[\dA-Z]*[\d.]+\.? +", "", text), []
        elif len(text.split()) >= SHORTEST:
            gathered.append(text)
    if gathered:
        yield Section(book, title, tuple(gathered))


def help_paragraphs(page: str) -> dict[str, str]:
    """Paragraphs of a page of LibreOffice's help by their mark, the same in all languages."""
    return {mark: plain(markup) for mark, markup in _PARAGRAPH.findall(page)}


def help_title(page: str) -> str:
    """Title of such a page."""
    found = re.search(r"<title>(.*?)</title>", page, re.S)
    return plain(found[1]) if found else ""


def talk(text: str) -> list[list[str]]:
    """Conversations of a file of ``chatterbot-corpus``."""
    import yaml

    found = yaml.safe_load(text)["conversations"]
    return [[str(line).strip() for line in each] for each in found if isinstance(each, list)]


def record(text: str) -> Any:
    """Content of a file of JSON."""
    return json.loads(text)
