"""The suffix automaton against brute force, and what is guessed with it."""

import math
import random

import numpy as np
import pytest

from draftwood.drafters import DraftRequest, SuffixDecoding, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import ModelOutput
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import EarlierTexts, Suffix
from draftwood.sources.auto.suffix import DEEPEST
from draftwood.sources.source import Evidence, TargetUpdate
from draftwood.stats import Stats
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_serve.integrations.suffix_automaton import SuffixAutomaton
from reference import sessions


def ends(text: list[int], part: list[int]) -> list[int]:
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


def automaton_of(text: list[int], deepest: int = DEEPEST) -> SuffixAutomaton:
    automaton = SuffixAutomaton(deepest)
    for token in text:
        automaton.append(token)
    return automaton


def texts() -> list[list[int]]:
    random.seed(0)
    return [
        [random.randrange(kinds) for _ in range(length)]
        for kinds in (1, 2, 3, 9)
        for length in (1, 2, 7, 40)
    ]


@pytest.mark.parametrize("text", texts(), ids=lambda text: f"{len(text)} of {len(set(text))}")
def test_every_substring_has_its_places(text: list[int]) -> None:
    automaton = automaton_of(text)
    for start in range(len(text)):
        state = matched = 0
        for end in range(start + 1, min(len(text), start + 12) + 1):
            state, matched = automaton.step(state, matched, text[end - 1])
            places = ends(text, text[start:end])
            assert matched == end - start
            assert automaton.counts[state] == len(places)
            assert automaton.newest[state] == places[-1]
    assert len(automaton.links) <= 2 * len(text) + 1  # the bound of the automaton's size


@pytest.mark.parametrize("text", texts(), ids=lambda text: f"{len(text)} of {len(set(text))}")
def test_a_step_finds_the_longest_suffix(text: list[int]) -> None:
    automaton = automaton_of(text)
    random.seed(len(text))
    read, state, matched = [], 0, 0
    for _ in range(60):
        read.append(random.randrange(4))
        state, matched = automaton.step(state, matched, read[-1])
        longest = max(n for n in range(len(read) + 1) if n == 0 or ends(text, read[-n:]))
        assert matched == longest
        assert matched == 0 or automaton.counts[state] == len(ends(text, read[-longest:]))


@pytest.mark.parametrize("deepest", [1, 2, 3, 5])
@pytest.mark.parametrize("text", texts(), ids=lambda text: f"{len(text)} of {len(set(text))}")
def test_longer_matches_count_as_their_end(text: list[int], deepest: int) -> None:
    automaton = SuffixAutomaton(deepest)
    for place, token in enumerate(text):
        automaton.append(token)
        read = text[: place + 1]
        state, matched = automaton.repeated()
        assert matched == max(
            n for n in range(min(deepest, place) + 1) if n == 0 or len(ends(read, read[-n:])) > 1
        )
        for after in {*text, 99}:
            here, longer = automaton.step(state, matched, after)
            ending = [*read[len(read) - matched :], after]
            found = next(
                n
                for n in range(min(deepest, matched + 1), -1, -1)
                if n == 0 or ends(read, ending[-n:])
            )
            assert longer == found
            for token, continued in automaton.following[here].items():
                places = ends(read, [*ending[len(ending) - found :], token])
                assert (automaton.counts[continued], automaton.newest[continued]) == (
                    len(places),
                    places[-1],
                )


class Counting(list):
    """A list that counts how often it is read."""

    read = 0

    def __getitem__(self, place):
        Counting.read += 1
        return super().__getitem__(place)


@pytest.mark.parametrize(
    "pattern",
    [[7], [7, 8], [7, 7, 8], [*range(100)], [random.Random(0).randrange(2) for _ in range(999)]],
)
def test_a_text_that_repeats_itself_takes_steps_in_proportion_to_its_length(
    pattern: list[int],
) -> None:
    automaton, length = SuffixAutomaton(), 20_000
    automaton.links, Counting.read = Counting(automaton.links), 0
    for token in (pattern * length)[:length]:
        automaton.append(token)
    # as many as 2e8 where every suffix is walked along
    assert Counting.read < (DEEPEST + 8) * length


def started(source, tokens: list[int]):
    model = TableModel(np.zeros((64, 64), np.float32))
    session = sessions.start(source, DraftRequest(Sampling(), Rng(0), model.start()))
    session.learn(
        TargetUpdate(VerifiedTree(DraftTree.chain(tokens), range(len(tokens))), Sampling(1.0))
    )
    return session


def test_the_longest_match_states_the_opinion() -> None:
    session = started(Suffix(), [1, 2, 3, 10, 11, 9, 2, 3, 20, 21, 8, 1, 2])
    [(kind, guesses)] = session.candidates(session.begin(3))
    assert (kind, list(guesses)) == (Evidence("suffix", 3), [10])  # 1 2 3 counts, not the newer 2 3
    assert session.candidates(session.advance(session.begin(3), 10))[0][0] == Evidence("suffix", 4)
    assert session.candidates(session.begin(50)) == []


def test_frequent_and_recent_continuations_weigh_most() -> None:
    session = started(Suffix(), [5, 1, 5, 1, 5, 2, 9])
    [(_, guesses)] = session.candidates(session.begin(5))
    assert guesses[1] == pytest.approx(2 / 4.2)
    assert guesses[2] == pytest.approx(2 / 4.2)  # seen once, but last
    assert sum(guesses.values()) < 1.0


def test_the_root_is_not_matched_with_itself() -> None:
    session = started(Suffix(), [7, 8])
    assert session.candidates(session.begin(9)) == []
    # 8 stands at the end of the text, and nothing followed it there
    assert session.candidates(session.begin(8)) == []


def test_matches_that_anything_follows_and_short_ones_say_nothing() -> None:
    assert started(Suffix(), [t for n in range(40) for t in (50, n)]).candidates((0, 0)) == []
    session = started(Suffix(), [t for n in range(40) for t in (50, n)])
    assert session.candidates(session.begin(50)) == []
    session = started(Suffix(shortest=2), [1, 2, 1])
    assert session.candidates(session.begin(2)) != []
    assert session.candidates(session.advance(session.begin(9), 1)) == []


def test_earlier_texts_are_remembered_within_their_bound() -> None:
    source = EarlierTexts(max_tokens=8)
    first = started(source, [1, 2, 3, 4])
    assert first.candidates(first.begin(5)) == []  # its own text is for ``Suffix``
    second = started(source, [9, 1, 2])
    [(kind, guesses)] = second.candidates(second.begin(3))
    assert (kind.source, list(guesses)) == ("earlier-texts", [4])
    assert second.candidates(second.advance(second.begin(3), 4)) == []  # the first text ended here
    for start in (20, 30, 40):
        started(source, [start, start + 1, start + 2])
    latest = started(source, [1, 2])
    assert latest.candidates(latest.begin(3)) == []  # forgotten
    [(_, guesses)] = latest.candidates(latest.advance(latest.begin(40), 41))
    assert list(guesses) == [42]


def test_a_request_reads_earlier_texts_as_they_were_when_it_started() -> None:
    source = EarlierTexts(max_tokens=6)
    started(source, [1, 2, 3])
    early = started(source, [1])
    before = early.candidates(early.begin(2))
    for start in (10, 20, 30, 40):
        started(source, [start, start + 1, start + 2])
    assert early.candidates(early.begin(2)) == before
    assert list(before[0][1]) == [3]


def test_copying_is_a_method_that_reads_no_logits() -> None:
    model = TableModel(9 * np.roll(np.eye(12, dtype=np.float32), 1, 1))  # counts round in circles
    steps = list(
        generate(model, SuffixDecoding(), Match(), list(range(12)), Options(max_new_tokens=40))
    )
    request = DraftRequest(Sampling(), Rng(0), model.start())
    assert not SuffixDecoding().start(request).reads
    assert Stats.of(steps).block_efficiency > 3
    again = SuffixDecoding(earlier=EarlierTexts())
    runs = [
        Stats.of(generate(model, again, Match(), [3], Options(max_new_tokens=10))) for _ in range(2)
    ]
    assert runs[1].target_runs < runs[0].target_runs
    assert runs[1].as_json()["sources"]["earlier-texts"]["accepted"] > 0


@pytest.mark.parametrize(
    "make",
    [lambda: Suffix(longest=0), lambda: Suffix(shortest=0), lambda: EarlierTexts(max_tokens=0)],
)
def test_impossible_settings(make) -> None:
    with pytest.raises(ValueError, match="above 0"):
        make()


def test_news_tells_the_likeliest_tokens_in_the_requests_own_sampling() -> None:
    logits = np.zeros((1, 64), np.float32)
    logits[0, [3, 5]] = 4.0, 2.0
    tree = DraftTree.of([1], [-1])
    [row] = TargetUpdate(VerifiedTree(tree, [0], ModelOutput(logits)), Sampling(0.5)).rows
    assert list(row)[:2] == [3, 5]
    assert row[3] / row[5] == pytest.approx(math.exp(4.0), rel=1e-5)
    [row] = TargetUpdate(
        VerifiedTree(tree, [0], ModelOutput(logits)), Sampling(1.0, top_p=0.5)
    ).rows
    assert row[3] == pytest.approx(1.0)
