"""A prediction is found again behind lines that were put in, taken out and replaced."""

import random
from collections.abc import Callable

import pytest

from draftwood.models.verified import PredictedText
from draftwood.sources.prediction import LEAST, PredictionSource, kinds
from draftwood.sources.source import TargetUpdate
from reference.prediction import PredictionSession

END, WORDS = 0, 60
Lines = list[list[int]]
Edit = Callable[[Lines, random.Random], tuple[Lines, int]]


def line(chance: random.Random) -> list[int]:
    """An indented line as code has it: its first and last tokens say little."""
    words = [chance.randrange(4, WORDS) for _ in range(chance.randint(2, 9))]
    return [chance.choice([1, 2]), *words, chance.choice([END, 3, END])]


def file(seed: int) -> Lines:
    chance = random.Random(seed)
    return [line(chance) for _ in range(60)]


def put_in(lines: Lines, chance: random.Random) -> tuple[Lines, int]:
    place, new = chance.randrange(5, 50), [line(chance) for _ in range(3)]
    return [*lines[:place], *new, *lines[place:]], sum(map(len, new))


def taken_out(lines: Lines, chance: random.Random) -> tuple[Lines, int]:
    place = chance.randrange(5, 30)
    return [*lines[:place], *lines[place + chance.choice([1, 3, 20]) :]], 0


def replaced(lines: Lines, chance: random.Random) -> tuple[Lines, int]:
    place, new = chance.randrange(5, 50), line(chance)
    return [*lines[:place], new, *lines[place + 1 :]], len(new)


def one_token(lines: Lines, chance: random.Random) -> tuple[Lines, int]:
    place = chance.randrange(5, 50)
    changed = [*lines[place]]
    changed[len(changed) // 2] = WORDS + 1
    return [*lines[:place], changed, *lines[place + 1 :]], 1


class Follower:
    """A session that is told a text token by token."""

    def __init__(self, prediction: list[int]) -> None:
        self.told = PredictedText(prediction)
        self.session = PredictionSession(PredictionSource(self.told))
        self.session.begin(-1)

    def missed(self, text: list[int]) -> int:
        """Tokens of a text that were not the ones expected first."""
        return sum(not self.expects(token) for token in text)

    def expects(self, token: int) -> bool:
        expected = self.session._expected(self.session.cursor)
        self.session.learn(TargetUpdate(Told([token]), None))  # type: ignore[arg-type]
        return expected[:1] == [token]


class Told:
    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens


def flat(lines: Lines) -> list[int]:
    return [token for each in lines for token in each]


@pytest.mark.parametrize("edit", [put_in, taken_out, replaced, one_token])
def test_few_tokens_are_missed_behind_an_edit(edit: Edit) -> None:
    more = 0
    for seed in range(30):
        lines = file(seed)
        edited, new = edit(lines, random.Random(seed))
        follower = Follower(flat(lines))
        missed = follower.missed(flat(edited))
        assert missed <= new + 20
        more += max(0, missed - new)
        kept = len(flat(edited)) - new
        assert kept - 8 <= follower.told.followed <= kept + 8
    assert more / 30 < 4


def test_an_opening_before_the_text_is_passed_over() -> None:
    lines = file(1)
    for opening in ([WORDS + 1], [WORDS + 1] * 9, lines[40]):
        follower = Follower(flat(lines))
        assert follower.missed([*opening, *flat(lines)]) <= len(opening) + 4


def test_a_text_that_never_comes_is_left_alone() -> None:
    """Each level is trusted less and less, until nothing is said."""
    follower = Follower(flat(file(1)))
    strange = [WORDS + 2 + number % 50 for number in range(400)]
    assert follower.missed(strange) == 400
    assert follower.session.candidates(follower.session.cursor) == []
    assert follower.told.followed == 0
    assert 0 < LEAST < 1
    assert len(kinds()) == 8
