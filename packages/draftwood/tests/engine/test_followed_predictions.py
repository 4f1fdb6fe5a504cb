"""Tokens of a prediction in a text are those that its session counts, the newest included."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from draftwood.engine.sequence import Sequence
from draftwood.models.verified import PredictedText
from draftwood.sources.prediction import PredictionSource
from draftwood.sources.source import TargetUpdate
from reference.prediction import PredictionSession

PROMPT = [7, 7]


def followed(text: Any) -> int:
    return Sequence.followed.fget(text)  # type: ignore[attr-defined]


def told(prediction: list[int], answer: list[int]) -> Iterator[tuple[int, int]]:
    """After each token of an answer: those counted, and those that its session counts later."""
    predicted = PredictedText(prediction)
    session = PredictionSession(PredictionSource(predicted))
    session.begin(-1)
    for length, root in enumerate(answer, start=1):
        text: Any = SimpleNamespace(
            options=SimpleNamespace(predicted=predicted),
            context=SimpleNamespace(tokens=[*PROMPT, *answer[: length - 1]], prompt=len(PROMPT)),
            root=root,
            emitted=length,
        )
        found = followed(text)
        accepted: Any = SimpleNamespace(tokens=[root])
        session.learn(TargetUpdate(accepted, None))  # type: ignore[arg-type]
        yield found, predicted.followed


def test_a_text_that_follows_it_counts_every_token() -> None:
    prediction = [*range(30)]
    assert [count for count, _ in told(prediction, prediction)] == [*range(1, 31)]
    assert [count for count, _ in told(prediction, [*prediction, 50, 51])][-2:] == [30, 30]
    assert [count for count, _ in told(prediction, [50, 51, 52])] == [0, 0, 0]
    assert [count for count, _ in told(prediction, [50, 0, 1])] == [0, 1, 2]


def test_behind_edits_the_count_is_the_sessions() -> None:
    chance, right, all_of_them = random.Random(0), 0, 0
    for _ in range(40):
        prediction = [chance.randrange(200) for _ in range(120)]
        place, length = chance.randrange(5, 80), chance.randrange(1, 20)
        new = [chance.randrange(200, 240) for _ in range(chance.randrange(6))]
        answer = [*prediction[:place], *new, *prediction[place + length :]]
        pairs = [*told(prediction, answer)]
        right += sum(found == later for found, later in pairs)
        all_of_them += len(pairs)
    assert right > 0.98 * all_of_them


def test_a_root_beyond_the_end_of_the_text_counts_nothing() -> None:
    predicted = PredictedText([3, 4, 5])
    predicted.counts[:] = 2, 3, 5  # a stop string has cut the text behind its first token
    text: Any = SimpleNamespace(
        options=SimpleNamespace(predicted=predicted),
        context=SimpleNamespace(tokens=[*PROMPT, 3, 4], prompt=len(PROMPT)),
        root=5,
        emitted=1,
    )
    assert followed(text) == 1
    text.options.predicted = None
    assert followed(text) == 0
