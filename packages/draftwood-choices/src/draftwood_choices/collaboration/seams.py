"""Seams between vocabularies: a text goes on in tokens that did not write its end."""

from collections.abc import Sequence

from draftwood.text import prompts
from draftwood.tokenizer.protocol import AnyTokenizer


def continued(tokenizer: AnyTokenizer, tokens: Sequence[int], text: str) -> list[int]:
    """Tokens of an answer that goes on with a text; its last word is encoded again.

    Words that both sides of the seam have a part in become what the tokenizer makes of whole ones.
    Where tokens before the last whitespace do not give the same text so, all of it is encoded.

    Args:
        tokens: of the answer before.
        text: that comes behind them.
    """
    before = _decoded(tokenizer, tokens)
    kept = len(tokens)
    while kept and not _opens_word(before[len(_decoded(tokenizer, tokens[:kept])) :] + text):
        kept -= 1
    piece = before[len(_decoded(tokenizer, tokens[:kept])) :] + text
    for each in dict.fromkeys((piece, piece.removeprefix(" "))):  # some tokenizers add a space
        found = [*tokens[:kept], *_encoded(tokenizer, each)]
        if _decoded(tokenizer, found) == before + text:
            return found
    return _encoded(tokenizer, before + text)


def _opens_word(text: str) -> bool:
    return not text or text[0].isspace()


def _encoded(tokenizer: AnyTokenizer, text: str) -> list[int]:
    return prompts.encode_text(tokenizer, text, add_special_tokens=False) if text else []


def _decoded(tokenizer: AnyTokenizer, tokens: Sequence[int]) -> str:
    return str(
        tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )
