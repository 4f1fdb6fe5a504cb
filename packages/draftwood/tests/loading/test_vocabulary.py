"""Draft and target must speak the same tokens."""

from dataclasses import dataclass

import pytest

from draftwood.loading.vocabulary import require_same_vocabulary


@dataclass
class Words:
    words: list[str]

    def get_vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}


HUNDRED = [f"w{number}" for number in range(100)]


@pytest.mark.parametrize("more", [0, 1, 10])
def test_the_same_words_with_a_few_more_at_the_end_pass(more: int) -> None:
    longer = Words(HUNDRED + [f"<extra{number}>" for number in range(more)])
    require_same_vocabulary(Words(HUNDRED), longer)
    require_same_vocabulary(longer, Words(HUNDRED))


def test_the_first_differing_tokens_are_named() -> None:
    swapped = list(HUNDRED)
    swapped[7], swapped[93] = swapped[93], swapped[7]
    with pytest.raises(
        ValueError, match=r"2 of 100 shared token ids differ \(7: 'w7' against 'w93', 93: 'w93'"
    ):
        require_same_vocabulary(Words(HUNDRED), Words(swapped))


def test_at_most_three_are_shown() -> None:
    with pytest.raises(ValueError, match="100 of 100") as refusal:
        require_same_vocabulary(Words(HUNDRED), Words(HUNDRED[::-1]))
    assert str(refusal.value).count(" against ") == 3


@pytest.mark.parametrize("count", [50, 89, 112, 200])
def test_vocabularies_of_very_different_size_are_refused(count: int) -> None:
    other = Words([f"w{number}" for number in range(count)])
    with pytest.raises(
        ValueError, match=f"the draft model knows {count} tokens and the target 100"
    ):
        require_same_vocabulary(Words(HUNDRED), other)


def test_ranges_that_hardly_meet_are_refused() -> None:
    @dataclass
    class Shifted:
        first: int

        def get_vocab(self) -> dict[str, int]:
            return {f"w{number}": number for number in range(self.first, self.first + 100)}

    with pytest.raises(ValueError, match="their ranges hardly meet"):
        require_same_vocabulary(Words(HUNDRED), Shifted(95))
    require_same_vocabulary(Words(HUNDRED), Shifted(5))
