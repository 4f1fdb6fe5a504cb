"""Tasks whose every right answer is listed, in the spirit of ParallelBench.

Kang et al. 2025, arXiv:2510.04767, ask what writing in parallel costs on lists, sentences and
puzzles. Our tasks are of these kinds; no item is theirs.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial

from draftwood_diffusion.lists.listed_texts import ListedTexts

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jan")
BREAK = "\n"
SHUFFLE, MOST_SHUFFLED = "shuffle", 7
"""The task whose every order of a list is an answer, and most items of its lists."""


@dataclass(frozen=True)
class Exercise:
    """One item of a task.

    Attributes:
        question: what is given, in words.
        answers: every right one, as words; all of one length and equally likely.
    """

    question: str
    answers: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> list[str]:
        """Words of the answers; their places are their tokens."""
        return sorted({word for each in self.answers for word in each})

    @property
    def prompt(self) -> tuple[int]:
        """The token that stands for the question."""
        return (len(self.words),)

    @property
    def delimiters(self) -> frozenset[int]:
        """Tokens that break lines."""
        return frozenset(place for place, word in enumerate(self.words) if word == BREAK)

    def listed(self) -> ListedTexts:
        """The answers behind the question, as tokens."""
        number = {word: place for place, word in enumerate(self.words)}
        texts = [[*self.prompt, *(number[word] for word in each)] for each in self.answers]
        return ListedTexts.of(texts)


Task = Callable[[random.Random, int], Exercise]
"""Makes an exercise by chance, with so many items where it is about a list."""


def _of_list(answers: Callable[[list[str], str, int], list[list[str]]], what: str) -> Task:
    """A task about a list.

    Args:
        answers: right ones, given the list, a new name and an index.
        what: it asks, with places for these.
    """

    def make(chance: random.Random, count: int) -> Exercise:
        *items, new = chance.sample(list[str](NAMES), count + 1)
        index = chance.randrange(count)
        question = f"{' '.join(items)}: {what.format(new=new, index=index + 1)}"
        return Exercise(question, tuple(map(tuple, answers(items, new, index))))

    return make


def _copies(items: list[str], new: str, index: int) -> list[list[str]]:
    return [items]


def _reversals(items: list[str], new: str, index: int) -> list[list[str]]:
    return [items[::-1]]


def _sorted_lists(items: list[str], new: str, index: int) -> list[list[str]]:
    return [sorted(items)]


def _orders(items: list[str], new: str, index: int) -> list[list[str]]:
    return [list(each) for each in permutations(items)]


def _inserted(items: list[str], new: str, index: int) -> list[list[str]]:
    return [[*items[:index], new, *items[index:]]]


def _inserted_anywhere(items: list[str], new: str, index: int) -> list[list[str]]:
    return [_inserted(items, new, place)[0] for place in range(len(items) + 1)]


def _removed(items: list[str], new: str, index: int) -> list[list[str]]:
    return [[*items[:index], *items[index + 1 :]]]


def _one_removed(items: list[str], new: str, index: int) -> list[list[str]]:
    return [_removed(items, new, place)[0] for place in range(len(items))]


def _replaced(items: list[str], new: str, index: int) -> list[list[str]]:
    return [[*items[:index], new, *items[index + 1 :]]]


def _one_replaced(items: list[str], new: str, index: int) -> list[list[str]]:
    return [_replaced(items, new, place)[0] for place in range(len(items))]


SLOTS = {
    "adjective": ("old", "small", "quick", "tired"),
    "noun": ("fox", "dog", "bear", "child"),
    "verb": ("sees", "follows", "helps"),
    "adverb": ("today", "often", "again"),
}
ORDER = ("adjective", "noun", "verb", "adjective", "noun", "adverb")


def _of_words(count: int) -> Task:
    """A task that asks for a sentence with so many given words; fewer leave more sentences."""

    def make(chance: random.Random, items: int) -> Exercise:
        del items
        nouns, adjectives = (chance.sample(SLOTS[name], 2) for name in ("noun", "adjective"))
        verb, adverb = (chance.choice(SLOTS[name]) for name in ("verb", "adverb"))
        given = [*nouns, *adjectives, verb, adverb][:count]
        sentences = product(*(SLOTS[name] for name in ORDER))
        right = [
            each
            for each in sentences
            if each[0] != each[3] and each[1] != each[4] and set(given) <= set(each)
        ]
        return Exercise(f"a sentence with {', '.join(given)}", tuple(right))

    return make


def latin_rows() -> list[tuple[tuple[int, ...], ...]]:
    """All Latin squares of four digits, as rows."""
    rows = list(permutations(range(1, 5)))
    found = [(row,) for row in rows]
    for _ in range(3):
        found = [
            (*square, row)
            for square in found
            for row in rows
            if all(a != b for above in square for a, b in zip(above, row, strict=True))
        ]
    return found  # type: ignore[return-value]


def _written(square: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    """Digits of the rows, a line each."""
    return tuple(word for row in square for word in (*map(str, row), BREAK))


def _latin_square(chance: random.Random, items: int) -> Exercise:
    """Squares that go on below a given first row."""
    del items
    squares = latin_rows()
    first = chance.choice(squares)[0]
    right = [_written(each[1:]) for each in squares if each[0] == first]
    return Exercise(f"a Latin square below {first}", tuple(right))


def _sudoku(chance: random.Random, items: int) -> Exercise:
    """The one square with given digits, 12 of which are told, whose quarters hold every digit."""
    del items
    squares = [each for each in latin_rows() if _has_quarters(each)]
    square = chance.choice(squares)
    while True:
        open_places = set(chance.sample(range(16), 4))
        cells = [digit for row in square for digit in row]
        same = [each for each in squares if _agree(each, cells, open_places)]
        if len(same) == 1:
            told = "".join("." if at in open_places else str(cells[at]) for at in range(16))
            return Exercise(f"sudoku {told}", (_written(square),))


def _has_quarters(square: tuple[tuple[int, ...], ...]) -> bool:
    return all(
        len({square[row + i][column + j] for i in (0, 1) for j in (0, 1)}) == 4
        for row in (0, 2)
        for column in (0, 2)
    )


def _agree(square: tuple[tuple[int, ...], ...], cells: list[int], open_places: set[int]) -> bool:
    own = [digit for row in square for digit in row]
    return all(own[place] == cells[place] for place in range(16) if place not in open_places)


TASKS: Mapping[str, Task] = {
    "copy": _of_list(_copies, "copy"),
    "reverse": _of_list(_reversals, "reverse"),
    "sort": _of_list(_sorted_lists, "sort"),
    "insert": _of_list(_inserted, "insert {new} at {index}"),
    "remove": _of_list(_removed, "remove item {index}"),
    "replace": _of_list(_replaced, "replace item {index} by {new}"),
    "insert-anywhere": _of_list(_inserted_anywhere, "insert {new} anywhere"),
    "remove-one": _of_list(_one_removed, "remove any one item"),
    "replace-one": _of_list(_one_replaced, "replace any one item by {new}"),
    SHUFFLE: _of_list(_orders, "shuffle"),
    "words-easy": _of_words(5),
    "words-medium": _of_words(4),
    "words-hard": _of_words(2),
    "latin-square": _latin_square,
    "sudoku": _sudoku,
}
"""Tasks by name: one answer first, then those of several, sentences, puzzles."""


def exercises(task: str, items: int, count: int, seed: int) -> list[Exercise]:
    """Exercises of a task; the same ones for the same numbers.

    Raises:
        ValueError: for an unknown task, and for too many items.
    """
    if task not in TASKS:
        raise ValueError(f"there is no task {task!r}; there are: {', '.join(TASKS)}")
    if not 2 <= items < len(NAMES):
        raise ValueError(f"lists have 2 to {len(NAMES) - 1} items, got {items}")
    if task == SHUFFLE and items > MOST_SHUFFLED:
        raise ValueError(
            f"'shuffle' goes through every order of a list, {factorial(items):,} of {items} items,"
            f" which takes hours; give at most {MOST_SHUFFLED} items, or other tasks"
        )
    return [TASKS[task](random.Random(f"{task} {seed + i}"), items) for i in range(count)]
