"""Ends of sentences and steps in decoded text, and texts that go on in another vocabulary."""

from types import SimpleNamespace
from typing import Any

import pytest

from draftwood.engine import Options
from draftwood.text.builder import TextBuilder
from draftwood_bench.run.quality import read_behind
from draftwood_choices.answers import written
from draftwood_choices.collaboration.ends import sentence_end, step_end, until
from draftwood_choices.collaboration.passages import Passage, WrittenToken
from draftwood_choices.collaboration.seams import continued


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("It is late. Go", 0, 11),
        ("It is late.", 0, 11),
        ("It is 3.5 m. Wide", 0, 12),
        ("It is 3.", 0, None),  # a number may go on
        ("It is 3.5", 0, None),
        ("It is 3. Then", 0, 8),
        ("2. Whisk", 0, None),  # the number of a list
        ("Eggs\n2. Whisk", 5, None),
        ("Eggs\n2. Whisk. Fold", 5, 14),
        ("Eggs\n", 0, 5),
        ("\n\nEggs", 0, None),  # nothing stands before the breaks
        ("\n\nEggs?", 0, 7),
        ('He said "no." Then', 0, 13),
        ("see draftwood.org now", 0, None),
        ("Wait... what", 0, 7),
        ("Ja! Nein!", 3, 9),
        ("好。再", 0, 2),
    ],
)
def test_ends_of_sentences(text: str, start: int, end: int | None) -> None:
    found = sentence_end(text, start)
    # behind the Chinese mark no space follows
    assert found == (None if text.startswith("好") else end)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2 + 2 = 4\n\nSo", 0, 11),
        ("2 + 2 = 4\nSo", 0, None),
        ("\n\n2 + 2", 0, None),
        ("\n\n2 + 2\n \n", 0, 10),
        ("a\n\nb\n\n", 3, 6),
    ],
)
def test_ends_of_steps(text: str, start: int, end: int | None) -> None:
    assert step_end(text, start) == end


def passage_of(before: str, *pieces: str) -> Passage:
    return Passage("leader", before, None, [WrittenToken(piece) for piece in pieces])


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        (("It", " is", " late", "."), 4),
        (("It", " is", " late", ".\n\nGo"), 4),  # an end inside a token, which stays whole
        (("It", " is", " 3", "."), None),
        (("It", " is", " 3", ".", "5"), None),
        (("It", " is", " 3", ".", " So"), 4),  # found a token later, which goes
    ],
)
def test_a_turn_ends_with_the_token_that_ends_the_sentence(
    pieces: tuple[str, ...], kept: int | None
) -> None:
    assert until(sentence_end, 3)(passage_of("Ah.", *pieces)) == kept


def test_an_end_that_the_next_writer_reveals_leaves_it_nothing() -> None:
    assert until(sentence_end, 0)(passage_of("It is 3.", " So")) == 0


class Words:
    """A tokenizer of words with their space, and of letters for words that it does not know."""

    chat_template = None
    known = ("Hel", "lo", "Hello", " world", " wor", "ld", " a")
    letters = tuple(chr(code) for code in range(32, 127))

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        found, vocabulary = list[int](), [*self.known, *self.letters]
        while text:
            piece = max((each for each in vocabulary if text.startswith(each)), key=len)
            found.append(vocabulary.index(piece))
            text = text.removeprefix(piece)
        return {"input_ids": found}

    def decode(self, tokens: list[int], **options: object) -> str:
        return "".join([*self.known, *self.letters][token] for token in tokens)


class AddsSpace(Words):
    """As some tokenizers do, it puts a space before every text that it encodes."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return super().__call__(f" {text}")

    def decode(self, tokens: list[int], **options: object) -> str:
        return super().decode(tokens).removeprefix(" ")


def test_the_last_word_is_encoded_again_and_no_other() -> None:
    tokenizer = Words()
    odd = [0, 1, tokenizer("h")["input_ids"][0]]  # Hel lo h: not how it would be encoded
    assert continued(tokenizer, odd, "a") == tokenizer("Helloha")["input_ids"]  # type: ignore[arg-type]
    begun = [0, 1, 4]  # Hel lo " wor"
    assert continued(tokenizer, begun, "ld") == [0, 1, 3]  # type: ignore[arg-type]
    assert continued(tokenizer, begun, " a") == [0, 1, 4, 6]  # type: ignore[arg-type]
    assert continued(tokenizer, [], "Hello") == [2]  # type: ignore[arg-type]
    assert continued(tokenizer, begun, "") == [0, 1, 4]  # type: ignore[arg-type]


def test_an_answer_goes_on_with_what_was_asked() -> None:
    tokenizer = AddsSpace()
    lm: Any = SimpleNamespace(
        name="words",
        tokenizer=tokenizer,
        encode=lambda text, raw: tokenizer(text)["input_ids"],
        text_before=lambda tokens, raw: tokens if raw else (),
    )
    before, own = read_behind(lm, "Hello", " world a", True)
    assert (before, own) == (tokenizer("Hello")["input_ids"], [3, 6])
    assert read_behind(lm, "Hello", "world a", False) == (before, own)  # begins a text
    assert read_behind(lm, "Hel", "lo a", True) == (before[:1], [2, 6])
    (made,) = written(lm, "distinct", [own], Options(), before, 1, 0.0, 0.0)
    assert (made.text, TextBuilder.whole(tokenizer, own)) == (" world a", "world a")


def test_a_tokenizer_that_adds_a_space_says_the_same_text() -> None:
    tokenizer = AddsSpace()
    before = tokenizer("Hello")["input_ids"]
    found = continued(tokenizer, before, " world a")  # type: ignore[arg-type]
    assert tokenizer.decode(found) == "Hello world a"
    assert found[: len(before)] == before
