"""Proposals: answers to one task, which share the prompt's cache and each forward pass."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from draftwood_choices.search.checkers import Checker, Judgement

if TYPE_CHECKING:
    import regex

    from draftwood import Generation
    from draftwood.models.model import PrefixStore
    from draftwood.text.language_model import LanguageModel
    from draftwood_choices.search.value_head import ValueHead

NUMBER = re.compile(r"[-\u2212]?(?:\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+)")
MARKS = " \t.,;:!?\"'`*_“”‘’"  # noqa: RUF001
"""Characters around a last line, between which answers do not differ."""
LONGEST_LOOK = 10.0
"""Seconds that a pattern of the final answer may take for a text."""


@dataclass(eq=False)
class Proposal:
    """An answer, whole or under way, as a node of the search.

    Attributes:
        text: of the whole answer so far.
        token_ids: likewise.
        log_prob: mean log-probability of its own tokens, in nats; None where it was not asked for.
        logprobs: of its tokens one by one; empty likewise.
        judgement: of the checker; None where it was not asked.
        value: by which the method ranks it.
        above: that it goes on from; None for the task itself.
        step: text that it adds.
        is_whole: True if the answer has ended.
    """

    text: str
    token_ids: list[int] = field(default_factory=list)
    log_prob: float | None = None
    logprobs: list[float] = field(default_factory=list)
    judgement: Judgement | None = None
    value: float = 0.0
    above: "Proposal | None" = None
    step: str = ""
    is_whole: bool = True

    @property
    def depth(self) -> int:
        """Steps from the task on."""
        return 0 if self.above is None else 1 + self.above.depth

    def as_json(self) -> dict[str, object]:
        judged = self.judgement
        return {
            "text": self.text,
            "value": self.value,
            "log_prob": self.log_prob,
            "score": None if judged is None else judged.score,
            "note": "" if judged is None else judged.note,
            "passed": None if judged is None else judged.passed,
        }


@dataclass
class Spent:
    """Costs of a search.

    Attributes:
        tokens: written.
        passes: of the model, where answers that share one count once.
        judge_calls: of the checker, and of the value head.
        judge_faults: of these, how many gave no score.
        seconds: in all.
    """

    tokens: int = 0
    passes: int = 0
    judge_calls: int = 0
    judge_faults: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        return {**vars(self), "seconds": round(self.seconds, 6)}


@dataclass(eq=False)
class Proposer:
    """Writes answers with a model, and lets a checker judge them.

    The first request begins at the seed, each later one where the last one ended, so that a search
    is reproducible. Earlier answers are drafted along where the method drafts along predictions.

    Args:
        lm: writes.
        checker: judges; None where there is none.
        head: foretells what a checker would say; None where there is none.
        options: of each text, fields of ``SamplingParams``.
        asked: answers so far, from which seeds go on.
    """

    lm: "LanguageModel"
    checker: Checker | None = None
    options: dict[str, Any] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    faults: list[str] = field(default_factory=list)
    head: "ValueHead | None" = None
    asked: int = 0
    _judged: dict[str, Judgement] = field(default_factory=dict)
    _last: str = ""

    @cached_property
    def prefixes(self) -> "PrefixStore | None":
        """Keeps what earlier requests have computed; None where the model's cache has no blocks."""
        from draftwood.models.native.prefixes import Prefixes

        return Prefixes.of(self.lm.model)

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise ValueError where one of these options is given."""
        for name in names:
            if self.options.get(name):
                raise ValueError(f"--{name.replace('_', '-')} is not for this method: {why}")

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together; None for no limit."""
        limits = self.lm.model.context_length, self.options.get("context")
        return min((each for each in limits if each is not None), default=None)

    def room(self, prompt: Any) -> int | None:
        """Tokens that an answer to a prompt may have, below 1 for none; None for no limit."""
        most = self.context
        return None if most is None else most - len(self.lm.encode(prompt, self.raw))

    @property
    def raw(self) -> bool:
        """True if prompts are taken as they are, without a template."""
        return bool(self.options.get("raw"))

    def write(self, prompt: Any, count: int = 1, **options: Any) -> "tuple[Generation, ...]":
        """Answers to a prompt, all in each forward pass.

        Args:
            prompt: as ``LanguageModel.generate`` takes it.
            options: over those of each text.
        """
        wanted = {**self.options, **options}
        if self._last and self.lm.method.drafter.takes_prediction and not wanted.get("prediction"):
            wanted["prediction"] = self._last
        if wanted.get("seed") is not None:
            wanted["seed"] += self.asked
        self.asked += count
        since = time.perf_counter()
        made = self.lm.generate(prompt, n=count, prefixes=self.prefixes, **wanted).answers
        self.spent.seconds += time.perf_counter() - since
        self.spent.tokens += sum(each.stats.tokens for each in made)
        self.spent.passes += max(each.stats.target_runs + each.stats.prefills for each in made)
        self._last = max((each.text for each in made), key=len) or self._last
        return made

    def propose(self, prompt: Any, count: int, **options: Any) -> list[Proposal]:
        """Whole answers, judged where there is a checker."""
        return [self.judged(proposal_of(each)) for each in self.write(prompt, count, **options)]

    def judged(self, proposal: Proposal) -> Proposal:
        """Let the checker judge an answer, each text once; its value is the score."""
        if self.checker is None:
            return proposal
        proposal.judgement = self.judge(proposal.text)
        proposal.value = proposal.judgement.value
        return proposal

    def valued(self, prompt: Any, proposals: Sequence[Proposal]) -> list[float]:
        """Values of answers by the head, in common passes; their log-probabilities must be known.

        Raises:
            ValueError: without a head.
        """
        from draftwood_choices.search.value_head import valued

        if self.head is None:
            raise ValueError("this method asks a value head; give --judge")
        since = time.perf_counter()
        asked = self.lm.encode(prompt, self.raw)
        found, passes = valued(self.head, self.lm.model, asked, proposals, self.prefixes)
        self.spent.seconds += time.perf_counter() - since
        self.spent.passes += passes
        self.spent.judge_calls += len(proposals)
        return found

    def judge(self, text: str) -> Judgement:
        """The checker's judgement of a text, asked once for each.

        Raises:
            ValueError: without a checker.
        """
        if self.checker is None:
            raise ValueError("this method judges by a checker; give --checker")
        if text not in self._judged:
            since = time.perf_counter()
            found = self._judged[text] = self.checker(text)
            self.spent.seconds += time.perf_counter() - since
            self.spent.judge_calls += 1
            if found.score is None:
                self.spent.judge_faults += 1
                self.faults.append(found.note)
        return self._judged[text]


def proposal_of(made: "Generation") -> Proposal:
    """A whole answer as a proposal."""
    told = [each.logprob for each in made.logprobs or ()]
    mean = sum(told) / len(told) if told else None
    return Proposal(made.text, made.token_ids, mean, told)


def final_answer(text: str, pattern: "regex.Pattern[str] | None" = None) -> str:
    """Find what an answer says in the end, by which answers are compared.

    Args:
        pattern: its last match, or the first group of that; None takes the last number, as 18 of
            $18.00, or without one the last line, between marks and without case.

    Raises:
        ValueError: for a pattern that takes too long.
    """
    try:
        found = list(
            NUMBER.finditer(text)
            if pattern is None
            else pattern.finditer(text, timeout=LONGEST_LOOK)
        )
    except TimeoutError:
        raise ValueError(
            f"--final looked at an answer for {LONGEST_LOOK:g} s; give a simpler pattern"
        ) from None
    if found:
        last = found[-1]
        said = last[1] if pattern is not None and pattern.groups else last[0]
        return (said or "").strip() if pattern is not None else _plain(said)
    line = text.strip().rpartition("\n")[2].strip().lower()
    return line.strip(MARKS) or line


def _plain(number: str) -> str:
    """A number as equal ones are all written: without commas and zeros that say nothing."""
    signed = number.replace("\u2212", "-")
    whole, _, rest = signed.lstrip("-").replace(",", "").partition(".")
    found = f"{whole.lstrip('0') or '0'}.{rest}".rstrip("0").rstrip(".")
    return f"-{found}" if signed.startswith("-") and found != "0" else found


def best_of(proposals: Sequence[Proposal]) -> Proposal:
    """The proposal of the greatest value, the first of equals."""
    return max(proposals, key=lambda each: each.value)


def with_more(prompt: Any, text: str) -> Any:
    """A prompt with a text behind it; of a chat its last message goes on."""
    if isinstance(prompt, str):
        return prompt + text
    *before, last = prompt
    return [*before, {**last, "content": last["content"] + text}]
