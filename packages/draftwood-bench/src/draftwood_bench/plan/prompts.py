"""Prompts: draftwood's own, data sets where present, and any JSONL file."""

import html
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from draftwood.storage.data_sets import DataFile

Message = dict[str, str]
BUILT_IN = "built-in"
OTHERWISE = f"or take --prompts {BUILT_IN}"
WIKITEXT = "wikitext2"
STORY_TOKENS = 14


@dataclass(frozen=True)
class Instruction:
    """Rule for an answer that a program can check (IFEval, arXiv 2311.07911).

    Attributes:
        name: of its kind, ``punctuation:no_comma`` for instance.
        options: of the kind.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer.

    Attributes:
        id: unique within its set.
        category: results are grouped by category.
        turns: messages of the user, in order.
        before: messages before the first turn.
        reference: an answer by hand, which the quality score compares with.
        answer: the number that a right answer ends with.
        instructions: that a right answer follows.
        first_tokens: not a question but the beginning of a text, cut to so many tokens and
            continued as it is.
        next_word: with which the beginning of a text goes on, that is continued as it is.
        tests: Python that runs behind the code of a right answer.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()
    reference: str | None = None
    answer: str | None = None
    instructions: tuple[Instruction, ...] = ()
    first_tokens: int | None = None
    next_word: str | None = None
    tests: str | None = None

    @property
    def is_beginning(self) -> bool:
        """True for the beginning of a text, which is continued without a chat template."""
        return self.first_tokens is not None or self.next_word is not None

    def messages(self, answers: Sequence[str]) -> list[Message]:
        """The conversation up to the turn after these answers."""
        found = [{"role": role, "content": content} for role, content in self.before]
        for turn, answer in zip(self.turns, answers, strict=False):
            found += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return [*found, {"role": "user", "content": self.turns[len(answers)]}]


@dataclass(frozen=True)
class PromptSet:
    """Prompts and where they come from.

    Attributes:
        source: as given to ``--prompts``.
        prompts: at least one.
        note: note to print beside every figure.
    """

    source: str
    prompts: tuple[Prompt, ...]
    note: str = ""


def load_prompts(
    source: str,
    per_category: int | None = None,
    categories: Sequence[str] = (),
    limit: int | None = None,
    leave_out: Collection[str] = (),
) -> PromptSet:
    """A set by name, or the prompts of a JSONL file; several with commas between.

    Args:
        source: ``built-in``, names of ``DATA_SETS``, paths.
        per_category: most prompts of each category, the first of the file.
        categories: only these.
        limit: most prompts in all.
        leave_out: ids of prompts that do not count.

    Raises:
        OSError: for a file or data folder that is not there.
        ValueError: for an unknown name, a broken line, or a category without prompts.
    """
    names = [source] if Path(source).is_file() else source.split(",")
    sets = [_one_set(each.strip()) for each in names]
    notes = dict.fromkeys(each.note for each in sets if each.note)
    every = (prompt for each in sets for prompt in each.prompts)
    prompts = tuple(prompt for prompt in every if prompt.id not in leave_out)
    found = PromptSet(source, prompts, "; ".join(notes))
    return _chosen(found, per_category, categories, limit)


def _one_set(source: str) -> PromptSet:
    if source == BUILT_IN:
        text = (
            resources.files("draftwood_bench.plan")
            .joinpath("prompts.jsonl")
            .read_text(encoding="utf-8")
        )
        return PromptSet(
            source, tuple(_from_lines(text.splitlines(), "prompts.jsonl")), "written for draftwood"
        )
    if source in DATA_SETS:
        known = DATA_SETS[source]
        return PromptSet(
            source, tuple(known.read(DataFile.named(known.file, OTHERWISE).path)), known.note
        )
    return PromptSet(source, tuple(_from_file(Path(source))))


def load_text(source: str) -> str:
    """A running text: ``wikitext2``, the test part of WikiText-2, or a file in UTF-8.

    Raises:
        OSError: for a file or data folder that is not there.
        ValueError: for a file that is no text.
    """
    if source == WIKITEXT:
        return DataFile.named(
            "wikitext2_raw/wiki.test.raw.gz", "or name a file of text with --text"
        ).text()
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; --text takes a file or {WIKITEXT}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; give a plain text") from None


def _chosen(
    found: PromptSet, per_category: int | None, categories: Sequence[str], limit: int | None
) -> PromptSet:
    there = list(dict.fromkeys(prompt.category for prompt in found.prompts))
    for category in categories:
        if category not in there:
            raise ValueError(
                f"{found.source} has no prompts of category {category!r}; it has {', '.join(there)}"
            )
    taken: Counter[str] = Counter()
    chosen: list[Prompt] = []
    for prompt in found.prompts:
        room = per_category is None or taken[prompt.category] < per_category
        if room and (not categories or prompt.category in categories):
            taken[prompt.category] += 1
            chosen.append(prompt)
    prompts = tuple(chosen[:limit])
    if not prompts:
        raise ValueError(f"{found.source} holds no prompts; give at least one")
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise ValueError(f"{found.source} has two prompts with the id {twice!r}; ids must differ")
    return replace(found, prompts=prompts)


def _from_file(path: Path) -> Iterator[Prompt]:
    if not path.is_file():
        known = ", ".join((BUILT_IN, *DATA_SETS))
        raise FileNotFoundError(
            f"there is no file {path}; --prompts takes a JSONL file or one of {known}"
        )
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8 text; give JSON Lines, one prompt per line"
        ) from None
    return _from_lines(lines, str(path))


def _from_lines(lines: Sequence[str], name: str) -> Iterator[Prompt]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _from_json(line, f"{name}:{number}", str(number))


def _from_json(line: str, place: str, number: str) -> Prompt:
    """One prompt from an object with ``prompt``, ``messages`` or ``turns``."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
        before, turns = _conversation(fields)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"{place}: no prompt ({reason}); a line is an object with prompt, messages or turns"
        ) from None
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError(
            f"{place}: a turn is empty or no text; every prompt needs at least one turn of text"
        )
    id, category = (
        fields.get("id", fields.get("question_id", number)),
        fields.get("category", "all"),
    )
    reference, answer, word = (
        None if fields.get(n) is None else str(fields[n])
        for n in ("reference", "answer", "next_word")
    )
    found = Prompt(str(id), str(category), tuple(turns), before, reference, answer)
    return replace(found, next_word=word)


def _conversation(fields: dict[str, Any]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    if "turns" in fields:
        if not isinstance(fields["turns"], list):
            raise ValueError("turns is no list")
        return (), fields["turns"]
    if "messages" in fields:
        *before, last = [(message["role"], message["content"]) for message in fields["messages"]]
        if last[0] != "user":
            raise ValueError("the last message is not the user's")
        return tuple(before), [last[1]]
    if "prompt" in fields:
        return (), [fields["prompt"]]
    raise ValueError(f"it has the fields {', '.join(fields) or 'none'}")


@dataclass(frozen=True)
class DataSet:
    """A file of the data folder and how it is read."""

    file: str
    read: Callable[[Path], Iterator[Prompt]]
    note: str = ""


def _spec_bench(path: Path) -> Iterator[Prompt]:
    for row in DataFile(path).rows():
        yield Prompt(str(row["question_id"]), row["category"], tuple(row["turns"]))


def _gsm8k(path: Path) -> Iterator[Prompt]:
    for number, row in enumerate(DataFile(path).rows()):
        answer = row["answer"].rpartition("####")[2].strip().replace(",", "")
        yield Prompt(
            f"gsm8k-{number}", "math", (row["question"] + " End with the number.",), answer=answer
        )


def _svamp(path: Path) -> Iterator[Prompt]:
    for row in DataFile(path).rows():
        body = row["Body"].strip()
        asked = f"{body}{'' if body.endswith('.') else '.'} {row['Question'].strip()}"
        yield Prompt(
            *(f"svamp-{row['idx']}", "math", (f"{asked} End with the number.",)),
            answer=str(row["Answer"]),
        )


def _xsum(path: Path) -> Iterator[Prompt]:
    for number, row in enumerate(DataFile(path).rows()):
        yield Prompt(
            f"xsum-{number}", "summarization", (row["prompt"],), reference=row["completion"].strip()
        )


def _multi30k(path: Path) -> Iterator[Prompt]:
    english = path.with_name(path.name.replace(".de.", ".en."))
    for number, (source, reference) in enumerate(
        zip(DataFile(path).lines(), DataFile(english).lines(), strict=True)
    ):
        yield Prompt(
            f"de-en-{number}",
            "translation",
            (f"Translate into English: {source}",),
            reference=reference,
        )


def _en_de(path: Path) -> Iterator[Prompt]:
    german = path.with_name(path.name.replace("src", "tgt"))
    pairs = zip(DataFile(path).lines(), DataFile(german).lines(), strict=True)
    for number, (source, reference) in enumerate(pairs):
        question = f"Translate into German: {_as_written(source)}"
        yield Prompt(
            f"en-de-{number}", "translation", (question,), reference=_as_written(reference)
        )


def _as_written(tokenised: str) -> str:
    """A sentence as people write it: no spaces before marks, none of HTML's names."""
    closed = re.sub(r"\s+([.,;:!?%)\]])", r"\1", html.unescape(tokenised))
    return re.sub(r"([(\[])\s+|\s+(?='[a-z]{1,2}\b)", r"\1", closed)


def _mbpp(path: Path) -> Iterator[Prompt]:
    for row in DataFile(path).rows():
        test = row["test_list"][0].strip()
        question = f"{row['text'].strip()} It must pass this test:\n\n{test}"
        yield Prompt(f"mbpp-{row['task_id']}", "coding", (question,))


def _mbpp_run(path: Path) -> Iterator[Prompt]:
    rows = DataFile(path).rows()
    for prompt, row in zip(_mbpp(path), rows, strict=True):
        yield replace(prompt, tests="\n".join([row["test_setup_code"], *row["test_list"]]))


def _ifeval(path: Path) -> Iterator[Prompt]:
    for row in DataFile(path).rows():
        pairs = zip(row["instruction_id_list"], row["kwargs"], strict=True)
        told = tuple(
            Instruction(name, {key: value for key, value in options.items() if value})
            for name, options in pairs
        )
        yield Prompt(f"ifeval-{row['key']}", "instructions", (row["prompt"],), instructions=told)


def _lambada(path: Path) -> Iterator[Prompt]:
    """Passages without their last word, which can be told from the whole passage alone."""
    for number, row in enumerate(DataFile(path).rows()):
        parts = re.fullmatch(r"(.*?)\s?(\w[\w'\u2019-]*)", row["text"], re.DOTALL)
        if parts is None:
            raise ValueError(f"{path}:{number + 1}: the passage does not end with a word")
        yield Prompt(f"lambada-{number}", "last word", (parts[1],), next_word=parts[2])


def _stories(path: Path) -> Iterator[Prompt]:
    """Beginnings of stories, all of one length in tokens, in a fixed random order."""
    stories = [
        line.strip() for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 200
    ]
    for number, story in enumerate(random.Random(0).sample(stories, 40)):
        yield Prompt(f"story-{number}", "story", (story,), first_tokens=STORY_TOKENS)


DATA_SETS = {
    "spec-bench": DataSet(
        "spec_bench/question.jsonl",
        _spec_bench,
        "the even half of Spec-Bench: the 240 questions with an even id",
    ),
    "gsm8k": DataSet("gsm8k/train.jsonl.gz", _gsm8k, "training questions of GSM8K"),
    "svamp": DataSet("math_eval/svamp.jsonl", _svamp, "questions of SVAMP"),
    "xsum": DataSet(
        "p3_summarize/xsum_summarize_DOC.jsonl", _xsum, "200 articles of XSum as P3 words them"
    ),
    "de-en": DataSet(
        "multi30k/test_2016_flickr.de.gz", _multi30k, "captions of Multi30k, German to English"
    ),
    "en-de": DataSet(
        "opennmt_ende/src-val.txt", _en_de, "WMT sentences of OpenNMT's example, English to German"
    ),
    "mbpp": DataSet("mbpp/mbpp.jsonl", _mbpp, "tasks of MBPP with their first test"),
    "mbpp-run": DataSet(
        "mbpp/mbpp.jsonl", _mbpp_run, "tasks of MBPP; answers' code runs here, with all tests"
    ),
    "ifeval": DataSet(
        "ifeval/ifeval.jsonl", _ifeval, "prompts of IFEval, whose instructions a program checks"
    ),
    "lambada": DataSet(
        "lambada/lambada_test.jsonl.gz",
        _lambada,
        "passages of LAMBADA, whose last word is asked for, continued without a chat template",
    ),
    "stories": DataSet(
        "tinystories_sample/tiny_stories.txt",
        _stories,
        f"the first {STORY_TOKENS} tokens of 40 stories of tinystories_sample, continued without a"
        " chat template",
    ),
}
