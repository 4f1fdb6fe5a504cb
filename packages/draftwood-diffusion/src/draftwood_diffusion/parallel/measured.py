"""Methods on a model that was trained: tokens per pass beside right answers, or a judge's nats."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood.sampling_params import SamplingParams
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.run.quality import log_likelihood, read_behind
from draftwood_bench.run.record_folder import RecordFolder, folders_of
from draftwood_diffusion.generating import Writing, for_model
from draftwood_diffusion.lists.tasks import BREAK, exercises
from draftwood_diffusion.unmasking import parse

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

PROTOCOL = "parallel"
"""Names the files of its records."""


@dataclass(frozen=True)
class TextRecord:
    """A text that a method wrote.

    Attributes:
        method: as the user typed it.
        prompt: its name: of a task and an exercise, or of a line.
        tokens, passes: of the text.
        score: 1 for a right answer and 0 for another one, or nats per token under a judge; None for
            a text without tokens that a judge reads.
        text: itself.
        file: digest of the file that the method's rule read; None without one.
    """

    method: str
    prompt: str
    tokens: int
    passes: int
    score: float | None
    text: str
    file: str | None = None


@dataclass(frozen=True)
class Asked:
    """A prompt, and how its text is judged.

    Attributes:
        name: of the prompt.
        text: itself.
        answers: right ones, as words; none where a judge reads the text.
    """

    name: str
    text: str
    answers: tuple[tuple[str, ...], ...] = ()


def of_tasks(tasks: Sequence[str], items: int, count: int, seed: int) -> list[Asked]:
    """Exercises of tasks as prompts: the question on a line, the answer on those behind it.

    Raises:
        ValueError: as ``exercises``.
    """
    return [
        Asked(f"{task} {number}", f"{each.question}\n", each.answers)
        for task in tasks
        for number, each in enumerate(exercises(task, items, count, seed))
    ]


def of_lines(lines: Sequence[str]) -> list[Asked]:
    """Lines as prompts that a judge's likelihood is asked for."""
    return [Asked(f"line {number}", each) for number, each in enumerate(lines, start=1)]


def is_right(text: str, answers: Sequence[Sequence[str]]) -> bool:
    """True for a text that begins with the words of a right answer, whatever stands behind them."""
    words = text.split()
    wanted = [[word for word in each if word != BREAK] for each in answers]
    return any(words[: len(each)] == each for each in wanted)


def in_words(answer: Sequence[str]) -> str:
    """An answer as a text: words, and lines where the task breaks them."""
    lines = " ".join(answer).split(BREAK)
    return "\n".join(line.strip() for line in lines)


@dataclass(frozen=True)
class Measured:
    """Texts of methods on the prompts of a model.

    Attributes:
        lm: a loaded model that fills masks.
        judge: that says how likely texts are; None where every prompt has answers.
        methods: as users type them; others stand beside the first.
        prompts: that each method answers.
        params: options of the texts; text i has the seed of the first plus i.
        settings: of the model, by the options that give them.
        folder: of records; None keeps none.
    """

    lm: "LanguageModel"
    judge: "LanguageModel | None"
    methods: Sequence[str]
    prompts: Sequence[Asked]
    params: SamplingParams
    settings: Mapping[str, int]
    folder: Path | None

    @property
    def texts(self) -> int:
        return len(self.methods) * len(self.prompts)

    def run(self, told: Mapping[str, Any]) -> Iterator[TextRecord]:
        """Write what the folder lacks; methods take turns on each prompt.

        Args:
            told: settings that the folder must have been begun with, or has from now on.

        Raises:
            ValueError: for a folder of other settings, a method that is not there, and as
                ``Writing``.
        """
        parsed = {each: parse(each) for each in self.methods}
        writings = {name: Writing(name, each, self.settings) for name, each in parsed.items()}
        files = {n: for_model(each, self.lm).rule.digest for n, each in parsed.items()}
        kept, records = None, list[TextRecord]()
        if self.folder is not None:
            kept = RecordFolder(self.folder, PROTOCOL, TextRecord, "give another --output")
            models = [self.lm] if self.judge is None else [self.lm, self.judge]
            texts = {each.name: each.text for each in self.prompts}
            kept.begin(told, texts, folders_of(*models))
            records = kept.read()
        known = {(each.method, each.prompt, each.file): each for each in records}
        for number, asked in enumerate(self.prompts):
            for method, writing in writings.items():
                found = known.get((method, asked.name, files[method]))
                if found is None:
                    made = self._record(method, writing, asked, number)
                    found = replace(made, file=files[method])
                    if kept is not None:
                        kept.append(found)
                yield found

    def _record(self, method: str, writing: Writing, asked: Asked, number: int) -> TextRecord:
        length = self._length(asked)
        seed = (self.params.seed or 0) + number
        params = replace(self.params, seed=seed, max_new_tokens=length)
        (made,) = writing(self.lm, asked.text, 1, params)
        passes: Any = made.details["passes"]
        score = self._score(asked, made.text)
        return TextRecord(method, asked.name, len(made.token_ids), passes, score, made.text)

    def _length(self, asked: Asked) -> int:
        """Tokens of the longest right answer, or as many as were asked for."""
        if not asked.answers:
            return self.params.max_new_tokens
        texts = [in_words(each) for each in asked.answers]
        return max(len(read_behind(self.lm, asked.text, each, True)[1]) for each in texts)

    def _score(self, asked: Asked, text: str) -> float | None:
        if asked.answers:
            return float(is_right(text, asked.answers))
        assert self.judge is not None
        before, own = read_behind(self.judge, asked.text, text, True)
        return round(log_likelihood(self.judge.model, before, own), 4) if own else None


@dataclass(frozen=True)
class MethodRow:
    """A method over all prompts, with 95 % intervals over prompts.

    Attributes:
        method: as the user typed it.
        tokens_per_pass: mean over prompts.
        score: share of right answers, or nats per token; None without a text that has one.
        more_tokens, more_score: the same less the first method's, prompt by prompt.
    """

    method: str
    tokens_per_pass: Estimate
    score: Estimate | None
    more_tokens: Estimate
    more_score: Estimate | None


def rows_of(records: Sequence[TextRecord]) -> list[MethodRow]:
    """Figures of each method; the first one is what others stand beside."""
    by_method: dict[str, dict[str, TextRecord]] = {}
    for each in records:
        by_method.setdefault(each.method, {})[each.prompt] = each
    first = next(iter(by_method.values()))
    return [_row(method, own, first) for method, own in by_method.items()]


def _row(method: str, own: Mapping[str, TextRecord], first: Mapping[str, TextRecord]) -> MethodRow:
    def rate(each: TextRecord) -> float:
        return each.tokens / max(1, each.passes)

    scores = [each.score for each in own.values() if each.score is not None]
    pairs = [(own[name], first[name]) for name in own]
    scored = [
        one.score - other.score
        for one, other in pairs
        if one.score is not None and other.score is not None
    ]
    return MethodRow(
        method,
        difference(np.array([rate(each) for each in own.values()])),
        difference(np.array(scores)) if scores else None,
        difference(np.array([rate(one) - rate(other) for one, other in pairs])),
        difference(np.array(scored)) if scored else None,
    )
