"""Points of a curve: a rule at one value of its knob, a control, or a model alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.methods.knobs import made
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.rules import RULES, FirstTokens, RandomTurns

ALONE = {LEADER: FirstTokens(10**9), FOLLOWER: FirstTokens(0)}
"""Rules by which one writes all: lossless points, drafted by its own method."""


@dataclass(frozen=True)
class AnswerRecord:
    """One answer at one point.

    Attributes:
        point: its name.
        prompt: id of the prompt.
        score: name of the quality score.
        quality: value of the score.
        tokens: of the text.
        leader_tokens: of these, written by the leader.
        leader_dropped: that it wrote for nothing.
        caught_up: tokens that both read to catch up.
        leader_passes: forward passes of the leader.
        follower_passes: of the follower.
        seconds: of both.
        text: the answer.
        passages: its parts in order, each with its writer's name; empty in records of old runs.
    """

    point: str
    prompt: str
    score: str
    quality: float
    tokens: int
    leader_tokens: int
    leader_dropped: int
    caught_up: int
    leader_passes: int
    follower_passes: int
    seconds: float
    text: str
    passages: Sequence[Sequence[str]] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.point, self.prompt


def swept(rule: str, knob: str, values: Sequence[float]) -> dict[str, CollaborationRule]:
    """A rule at each value of a knob, by the names of the points.

    Raises:
        ValueError: for an unknown rule or knob, no value, and one out of range.
    """
    if rule not in RULES:
        raise ValueError(f"there is no rule {rule!r}; there are: {', '.join(RULES)}")
    if not values:
        raise ValueError(f"there is no value of {knob!r} to try; give one or more")
    told = [f"{value:g}" for value in values]
    return {f"{rule},{knob}={each}": made(RULES[rule], {knob: each}) for each in told}


def controls_of(point: str, records: Sequence[AnswerRecord]) -> dict[str, CollaborationRule]:
    """Controls at the leader's share of a point that was measured; none where one wrote all."""
    tokens = sum(each.tokens for each in records)
    share = sum(each.leader_tokens for each in records) / max(1, tokens)
    if not 0 < share < 1:
        return {}
    first = max(1, round(share * tokens / len(records)))
    return {
        f"random at {point}'s share": RandomTurns(round(share, 4)),
        f"first-n at {point}'s share": FirstTokens(first),
    }
