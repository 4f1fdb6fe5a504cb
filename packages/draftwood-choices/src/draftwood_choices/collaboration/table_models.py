"""Language models of tables, whose tokens are letters."""

from collections.abc import Sequence
from typing import Any, ClassVar

from draftwood import methods
from draftwood.testing.models import TableModel
from draftwood.text.language_model import LanguageModel


class LetterTokenizer:
    """A tokenizer whose tokens are letters, as far as decoding needs one; it skips all others.

    Args:
        letters: in the order of their tokens.
    """

    chat_template: ClassVar[Any] = None
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __init__(self, letters: str) -> None:
        self.letters = letters

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        known = (letter for letter in text if letter in self.letters)
        return {"input_ids": [self.letters.index(letter) for letter in known]}

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return "".join(self.letters[token] for token in tokens)

    def get_vocab(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.letters)}


def table_language_model(table: TableModel, letters: str) -> LanguageModel:
    """Make a language model of a table, drafted by prompt lookup.

    Args:
        table: of the next token.
        letters: text of each token.
    """
    tokenizer: Any = LetterTokenizer(letters)
    return LanguageModel(table, tokenizer, methods.build("lookup", table), "table")
