"""Sets that prompts may come from, and sets that they may not come from.

Their licences let anybody train on them and pass the result on. The licence of each is written
into the data set.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from draftwood.storage.data_sets import DataFile


@dataclass(frozen=True)
class PromptSource:
    """Set of prompts in the data folder, or a composed one.

    Attributes:
        files: of it; none where its prompts are composed.
        licence: as its makers state it.
        origin: who to credit.
        read: the prompts of a file, or passages of running text; None where they are composed.
        is_passages: whether a template must ask for something to be done with each.
        weight: share among all prompts, relative to the others', as long as it lasts.
    """

    files: tuple[str, ...]
    licence: str
    origin: str
    read: Callable[[Path], Iterator[str]] | None
    is_passages: bool = False
    weight: float = 1.0


SHORTEST_PASSAGE, LONGEST_PASSAGE = 50, 150
"""Words."""


def _gsm8k(path: Path) -> Iterator[str]:
    return (row["question"].strip() for row in DataFile(path).rows())


def _svamp(path: Path) -> Iterator[str]:
    for row in DataFile(path).rows():
        body = row["Body"].strip()
        yield f"{body}{'' if body.endswith(('.', '?', '!')) else '.'} {row['Question'].strip()}"


def _mbpp(path: Path) -> Iterator[str]:
    for row in DataFile(path).rows():
        yield f"{row['text'].strip()} Your code should pass this test:\n{row['test_list'][0]}"


def _self_instruct(path: Path) -> Iterator[str]:
    for row in DataFile(path).rows():
        for instance in row["instances"]:
            yield "\n\n".join(
                part.strip() for part in (row["instruction"], instance["input"]) if part.strip()
            )


def _passages(path: Path, shortest_paragraph: int = 1) -> Iterator[str]:
    """Join neighbouring paragraphs until they are long enough; split long ones."""
    text = DataFile(path).text().replace("\r\n", "\n")
    gathered: list[str] = []
    words = 0
    for paragraph in text.split("\n\n"):
        if len(paragraph.split()) < shortest_paragraph or _is_index(paragraph):
            continue
        for piece in _divided(paragraph.strip("\n")):
            count = len(piece.split())
            if words + count > LONGEST_PASSAGE:
                gathered, words = [], 0
            gathered.append(piece)
            words += count
            if words >= SHORTEST_PASSAGE:
                yield "\n\n".join(gathered)
                gathered, words = [], 0


def _divided(paragraph: str) -> Iterator[str]:
    """Its sentences, as many at a time as a passage may hold, without longer ones."""
    gathered, words = "", 0
    for sentence in re.split(r"(?<=[.!?])(?=\s)", paragraph):
        count = len(sentence.split())
        if words + count > LONGEST_PASSAGE and gathered:
            yield gathered.strip()
            gathered, words = "", 0
        if count <= LONGEST_PASSAGE:
            gathered, words = gathered + sentence, words + count
    if gathered.strip():
        yield gathered.strip()


def _is_index(paragraph: str) -> bool:
    """True if a paragraph is an index of entries and pages."""
    digits = sum(letter.isdigit() for letter in paragraph)
    return digits > 0.02 * len(paragraph) or 2 * paragraph.count(";\n") > paragraph.count("\n") > 1


SOURCES: Mapping[str, PromptSource] = MappingProxyType(
    {
        "composed": PromptSource(
            (), "Apache-2.0", "put together by draftwood from words of its own", None, weight=6.0
        ),
        "gsm8k": PromptSource(
            ("gsm8k/train.jsonl.gz",),
            "MIT",
            "GSM8K (Cobbe et al. 2021, arXiv:2110.14168), training part",
            _gsm8k,
            weight=2.5,
        ),
        "svamp": PromptSource(
            ("math_eval/svamp.jsonl",),
            "MIT",
            "SVAMP (Patel et al. 2021, arXiv:2103.07191)",
            _svamp,
        ),
        "mbpp": PromptSource(
            ("mbpp/mbpp.jsonl",),
            "CC-BY-4.0",
            "MBPP, Google Research (Austin et al. 2021, arXiv:2108.07732)",
            _mbpp,
            weight=1.5,
        ),
        "self_instruct": PromptSource(
            (
                "self_instruct/seed_tasks.jsonl",
                "self_instruct/user_oriented_instructions.jsonl",
            ),
            "Apache-2.0",
            "Self-Instruct (Wang et al. 2022, arXiv:2212.10560)",
            _self_instruct,
            weight=1.5,
        ),
        "bronte": PromptSource(
            ("books/bronte.txt.gz",),
            "public domain (file: MIT)",
            "novels of Charlotte Bronte",
            _passages,
            is_passages=True,
        ),
        "darwin": PromptSource(
            ("books/darwin.txt.gz",),
            "public domain (file: MIT)",
            "books of Charles Darwin",
            partial(_passages, shortest_paragraph=25),  # their indices have shorter ones
            is_passages=True,
            weight=1.5,
        ),
        "tinyshakespeare": PromptSource(
            ("tinyshakespeare/input.txt.gz",),
            "public domain",
            "plays of William Shakespeare, put together by Andrej Karpathy",
            _passages,
            is_passages=True,
            weight=0.5,
        ),
        "tinystories": PromptSource(
            ("tinystories_sample/tiny_stories.txt",),
            "CDLA-Sharing-1.0",
            "TinyStories (Eldan and Li 2023, arXiv:2305.07759)",
            _passages,
            is_passages=True,
        ),
    }
)

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "spec_bench": "it is what drafters are measured on",
        "ifeval": "it is a test set",
        "lambada": "it is a test set",
        "alpaca_eval": "its licence forbids commercial use",
        "asdiv": "its licence forbids commercial use",
        "opennmt_ende": "its text is for research only",
        "wikitext2_raw": "its licence asks the same of what is made from it",
        "multi30k": "its licence is not stated",
        "p3_summarize": "the licence of its articles is not stated",
        "math_eval": "the licence of most of its problems is not stated; take svamp",
    }
)


def require_allowed(names: tuple[str, ...]) -> None:
    """Raise ValueError for a set that may not be trained on or is not known, saying why."""
    for name in names:
        if name not in SOURCES:
            why = REFUSED.get(name, "its licence is not known here")
            raise ValueError(
                f"prompts are not taken from {name!r}: {why}; allowed are {', '.join(SOURCES)},"
                " and a file of your own with --prompts"
            )
