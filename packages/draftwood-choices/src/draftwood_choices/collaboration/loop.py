"""The loop: a rule says who writes next, the writer catches up and writes."""

import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from draftwood_choices.collaboration.cost import WriterCost
from draftwood_choices.collaboration.passages import (
    FOLLOWER,
    LEADER,
    JudgeRequest,
    Passage,
    TurnRequest,
    count_of,
    text_of,
)
from draftwood_choices.collaboration.rule import CollaborationRule, Course
from draftwood_choices.collaboration.writer import PassageWriter, WriterLostError


@dataclass
class CollaborationResult:
    """A text that several models wrote.

    Attributes:
        rule: its name.
        passages: in order.
        costs: by writer.
        finish_reason: ``stop`` where a writer ended the text, else ``length``.
        lost: why a writer could not go on, by its name.
    """

    rule: str
    passages: list[Passage] = field(default_factory=list)
    costs: dict[str, WriterCost] = field(default_factory=dict)
    finish_reason: Literal["stop", "length"] = "length"
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return text_of(self.passages)

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return sum(each.count for each in self.passages)

    @property
    def leader_share(self) -> float:
        """Share of the text's tokens that the leader wrote."""
        return self.costs[LEADER].kept / self.tokens if self.tokens else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "text": self.text,
            "rule": self.rule,
            "promise": "trades quality",
            "finish_reason": self.finish_reason,
            "leader_share": round(self.leader_share, 4),
            "writers": {name: cost.as_json() for name, cost in self.costs.items()},
            "passages": [
                {"writer": each.writer, "text": each.text, "tokens": each.count}
                for each in self.passages
            ],
            "lost": self.lost,
        }


class Collaboration:
    """A text under way: iterate for its passages as they stand, then read ``result``.

    A writer that fails before its first token ends it with WriterLostError. Where one fails later,
    or ends a turn without a token, it is lost and the follower goes on.

    Args:
        rule: says who writes next.
        writers: by the names that the rule gives them.
        most: tokens of the answer.
        seed: of all choices; None takes one from the system.

    Raises:
        ValueError: for a rule whose writers must have one vocabulary, and have not, or that reads
            what a writer does not tell.
    """

    def __init__(
        self,
        rule: CollaborationRule,
        writers: Mapping[str, PassageWriter],
        most: int,
        seed: int | None = None,
    ) -> None:
        vocabularies = {each.vocabulary for each in writers.values()}
        if rule.meets_at_tokens and (None in vocabularies or len(vocabularies) > 1):
            raise ValueError(
                f"rule {rule.name!r} changes writers inside words, so leader and follower must be"
                " models of one vocabulary here; take a model of the follower's family, or foreal"
                " or step-router, whose writers meet at text"
            )
        if rule.reads_leader and not writers[LEADER].tells:
            raise ValueError(
                f"rule {rule.name!r} reads the leader's distributions, which no address sends; give"
                " --leader a model, or take another rule"
            )
        self.rule, self.writers, self.most = rule, writers, most
        # of a negative number Python takes the absolute value
        self.chance = random.Random(seed if seed is None or seed >= 0 else str(seed))
        self.is_full = False  # a writer's context
        self.result = CollaborationResult(
            rule.name, costs={name: each.cost for name, each in writers.items()}
        )

    def __iter__(self) -> Iterator[Passage]:
        result, told = self.result, 0
        try:
            with closing(self.rule.course(self.chance)) as course:
                asked = next(course, None)
                while asked is not None:
                    replaces = not isinstance(asked, TurnRequest) or asked.instead
                    if not replaces:  # what stands so far stays
                        yield from result.passages[told:]
                        told = len(result.passages)
                        if self._ended():
                            return
                    asked = _sent(course, self._answer(asked))
            yield from result.passages[told:]
            self._ended()
        finally:
            for each in self.writers.values():
                each.close()

    def run(self) -> CollaborationResult:
        """Write the whole text."""
        for _ in self:
            pass
        return self.result

    def _ended(self) -> bool:
        passages = self.result.passages
        if passages and passages[-1].ends_text:
            self.result.finish_reason = "stop"
            return True
        return self.is_full or self.result.tokens >= self.most

    def _answer(self, asked: TurnRequest | JudgeRequest | Passage) -> Passage | float:
        passages = self.result.passages
        if isinstance(asked, JudgeRequest):
            is_told = asked.writer not in self.result.lost and self._room(asked.writer) != 0
            return self.writers[asked.writer].judge(passages) if is_told else 0.0
        if isinstance(asked, Passage):
            self._take_back()
            passages.append(asked)
            self._count(asked, 1)
            return asked
        replaced = self._take_back() if asked.instead else None
        passage = self._written(asked)
        if passage is None:  # the leader is lost
            passage = replaced or self._written(_without_leader(asked))
        if passage is None:
            raise WriterLostError(f"the follower is lost: {self.result.lost[FOLLOWER]}")
        if passage is replaced:
            self._count(passage, 1)
        passages.append(passage)
        return passage

    def _take_back(self) -> Passage:
        passage = self.result.passages.pop()
        self._count(passage, -1)
        return passage

    def _count(self, passage: Passage, sign: int) -> None:
        """Move a passage into the text, or out of it."""
        cost = self.writers[passage.writer].cost
        cost.kept += sign * passage.count
        cost.dropped -= sign * passage.count

    def _written(self, asked: TurnRequest) -> Passage | None:
        """Let a writer write; None where it could not write anything."""
        if asked.writer in self.result.lost:
            return None
        writer, passages = self.writers[asked.writer], self.result.passages
        passage = Passage(asked.writer, text_of(passages), writer.vocabulary)
        room = self.most - self.result.tokens
        most = room if asked.most is None else min(room, asked.most)
        fits = self._room(asked.writer)
        if fits == 0 and asked.writer != FOLLOWER:
            return None
        if fits is not None:
            self.is_full = fits == 0
            most = min(most, fits)
        written, kept, count = passage.tokens, None, 0
        if most > 0:
            writer.cost.turns += 1
            seed = self.chance.getrandbits(62)
            try:
                with closing(writer.write(passages, most, seed, asked.reads)) as writing:  # type: ignore[arg-type]
                    for token in writing:
                        if count >= most and token.count and not token.is_end:
                            writer.cost.dropped += token.count
                            break
                        written.append(token)
                        count += token.count
                        kept = None if asked.until is None else asked.until(passage)
                        if kept is not None:
                            break
            except WriterLostError as error:
                if not written and not writer.cost.written:
                    raise WriterLostError(
                        f"the {asked.writer} is lost before its first token: {error}; name one that"
                        " answers"
                    ) from None
                self.result.lost[asked.writer] = str(error)
            else:
                if not written:
                    self.result.lost[asked.writer] = "it sent no tokens"
            if not written:
                return None
        if kept is not None:
            writer.cost.dropped += count_of(written[kept:])
            del written[kept:]
        writer.cost.kept += passage.count
        return passage

    def _room(self, name: str) -> int | None:
        """Tokens that a writer's context holds still; a leader without any is lost."""
        fits = self.writers[name].room(self.result.passages)
        if fits is None or fits > 0:
            return fits
        if name != FOLLOWER:
            self.result.lost[name] = "its context is full"
        return 0


def _sent(course: Course, value: Passage | float) -> TurnRequest | JudgeRequest | Passage | None:
    try:
        return course.send(value)
    except StopIteration:
        return None


def _without_leader(asked: TurnRequest) -> TurnRequest:
    return TurnRequest(FOLLOWER, asked.most, asked.until, asked.reads)
