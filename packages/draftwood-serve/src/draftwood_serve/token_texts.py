"""Text and bytes of single tokens."""

from functools import lru_cache
from typing import Any

HALF = "\ufffd"  # stands for bytes that make no character by themselves
SPACE = "▁"  # SentencePiece's


class TokenTexts:
    """Texts of single tokens, for log-probabilities.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._byte_level = "ByteLevel" in repr(decoder)
        self.of = lru_cache(maxsize=65536)(self._of)

    def _of(self, token: int) -> tuple[str, list[int]]:
        """Text and bytes of a token, spaces included; a special token's text is its name."""
        text = str(
            self.tokenizer.decode(
                [token], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        name = self.tokenizer.convert_ids_to_tokens(token)
        if isinstance(name, str) and SPACE in name and SPACE not in text:
            text = name.replace(SPACE, " ")  # decoding it alone drops the first
        if HALF not in text:
            return text, list(text.encode("utf-8", "replace"))
        found = self._bytes(name)
        return (text, list(text.encode())) if found is None else (text, found)

    def key(self, token: int) -> str:
        """Unique text of a token: parts of characters are written as bytes, and so are bytes whose
        character is another token.
        """
        text, found = self.of(token)
        if HALF not in text:
            named = self.tokenizer.convert_tokens_to_ids(text.replace(" ", SPACE))
            if named in (None, token) or self.of(named)[0] != text:
                return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def _bytes(self, name: Any) -> list[int] | None:
        """The bytes of a token that is a part of a character, as its vocabulary writes them."""
        if not isinstance(name, str):
            return None
        if self._byte_level:
            known = _byte_of_letter()
            return [known[letter] for letter in name] if set(name) <= set(known) else None
        if name.startswith("<0x") and name.endswith(">") and len(name) == 6:
            return [int(name[3:5], 16)]
        return None


@lru_cache(maxsize=1)
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's alphabet of bytes: visible letters stand for themselves, the others come later."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(256 + place): byte for place, byte in enumerate(hidden)}
