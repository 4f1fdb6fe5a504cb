"""Solve prompts by several ways to search; records are appended as they are made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.run.instructions import follows
from draftwood_bench.run.quality import score
from draftwood_bench.run.record_folder import RecordFolder, folders_of
from draftwood_choices.asking import asked_of
from draftwood_choices.search.checkers import Checker, Judgement
from draftwood_choices.search.methods import SearchMethod, SearchOptions, Solution
from draftwood_choices.search.nodes import nodes_of
from draftwood_choices.search.proposals import Proposer, proposal_of
from draftwood_choices.search.value_head import ValueHead

PROTOCOL = "solve"
"""Names the files of its records."""
PLAIN = "one greedy answer"
REFERENCE = "reference"
HALF = "half"
"""Judges that know what is right, or half of it."""
APART = 10_000
"""Seeds from one prompt's first to the next one's."""


@dataclass(frozen=True)
class SolvedRecord:
    """One prompt at one point.

    Attributes:
        point: way to search, or ``PLAIN``.
        prompt: its id.
        solved: 1 where the answer that was chosen is right, else 0.
        mean_solved: share of the whole answers that are right, as of one at random.
        any_solved: 1 where one of these is right, else 0.
        tokens, passes, judge_calls, seconds: see ``Spent``.
        text: the answer that was chosen.
        nodes: of the search, fields of ``SearchNode``; empty in records of old runs.
    """

    point: str
    prompt: str
    solved: float
    mean_solved: float
    any_solved: float
    tokens: int
    passes: int
    judge_calls: int
    seconds: float
    text: str
    nodes: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Reference:
    """A checker that knows the right answer, which no user has: it tells what search could gain."""

    prompt: Prompt

    def __call__(self, answer: str) -> Judgement:
        return Judgement(is_right(self.prompt, answer))


@dataclass(frozen=True)
class Half:
    """A checker that sees half of a prompt's instructions, rounded down, as users' checkers do."""

    prompt: Prompt

    def __call__(self, answer: str) -> Judgement:
        seen = self.prompt.instructions[: len(self.prompt.instructions) // 2]
        followed = follows(replace(self.prompt, instructions=seen), answer)
        return Judgement(sum(followed) / len(followed) if followed else 0.0)


def judge_for(prompt: Prompt, judge: Checker | str | None) -> Checker | None:
    """The checker of a prompt's answers.

    Raises:
        ValueError: for half of the instructions of a prompt that has none.
    """
    if judge == HALF and not prompt.instructions:
        raise ValueError(
            f"prompt {prompt.id!r} has no instructions, of which {HALF!r} would see half; take"
            " prompts that have, as ifeval"
        )
    known: Any = {REFERENCE: Reference, HALF: Half}
    return known[judge](prompt) if isinstance(judge, str) else judge


def is_right(prompt: Prompt, text: str) -> float:
    """1 for the right answer, else 0.

    Raises:
        ValueError: for a prompt that no answer solves.
    """
    solvable = prompt.answer is not None or prompt.next_word or prompt.instructions
    found = score(prompt, text) if solvable else None
    if found is None:
        raise ValueError(
            f"prompt {prompt.id!r} has no right answer, so nothing solves it; take prompts that end"
            " in a number, as gsm8k, or a word, as lambada, or hold instructions, as ifeval, or a"
            " JSONL file with 'answer' or 'next_word'"
        )
    return found["value"]


@dataclass(frozen=True)
class Solving:
    """Ways to search on prompts, beside one greedy answer.

    Attributes:
        lm: writes.
        methods: by name.
        answers: in all or in a round.
        rounds: None takes each method's own.
        judge: of answers; ``REFERENCE`` knows the right one, ``HALF`` half of the instructions,
            None leaves methods to themselves.
        prompts: that every point answers.
        decoding: options of texts.
        folder: of the records.
        head: values beginnings of answers for methods that ask it; None where there is none.
    """

    lm: LanguageModel
    methods: Mapping[str, SearchMethod]
    answers: int
    rounds: int | None
    judge: Checker | str | None
    prompts: Sequence[Prompt]
    decoding: Mapping[str, Any]
    folder: Path
    head: ValueHead | None = None

    def run(self, settings: Mapping[str, Any]) -> list[SolvedRecord]:
        """Measure what is not in the folder yet; gives all records.

        Args:
            settings: that the folder must have been begun with, or has from now on.

        Raises:
            ValueError: for a folder of other settings, and for prompts without a right answer.
        """
        for prompt in self.prompts:
            is_right(prompt, "")
            judge_for(prompt, self.judge)
        folder = RecordFolder(self.folder, PROTOCOL, SolvedRecord)
        folder.begin(settings, {each.id: each for each in self.prompts}, folders_of(self.lm))
        records = folder.read()
        for record in self._measure({(each.point, each.prompt) for each in records}):
            folder.append(record)
            records.append(record)
        return records

    def _measure(self, done: set[tuple[str, str]]) -> Iterator[SolvedRecord]:
        for number, prompt in enumerate(self.prompts):
            for point in (PLAIN, *self.methods):
                if (point, prompt.id) not in done:
                    yield self._solve(point, prompt, number)

    def _solve(self, point: str, prompt: Prompt, number: int) -> SolvedRecord:
        asked = asked_of(prompt, self.lm)
        judge = judge_for(prompt, self.judge)
        decoding = {**self.decoding, "seed": self.decoding["seed"] + APART * number}
        decoding["raw"] = prompt.next_word is not None
        if point == PLAIN:
            proposer = Proposer(self.lm, None, {**decoding, "temperature": 0.0})
            (made,) = proposer.write(asked)
            only = proposal_of(made)
            found = Solution(only, [only])
        else:
            proposer = Proposer(self.lm, judge, decoding, head=self.head)
            way = self.methods[point]
            options = SearchOptions(self.answers, self.rounds or way.rounds)
            found = way.search(proposer, asked, options)
        spent = proposer.spent
        answers = [each for each in found.proposals if each.is_whole] or [found.best]
        right = [is_right(prompt, each.text) for each in answers]
        return SolvedRecord(
            *(point, prompt.id, is_right(prompt, found.best.text)),
            *(sum(right) / len(right), max(right)),
            *(spent.tokens, spent.passes, spent.judge_calls, round(spent.seconds, 6)),
            found.best.text,
            [asdict(each) for each in nodes_of(found)],
        )
