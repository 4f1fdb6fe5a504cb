"""Files whose text users put into prompts: with ``--file``, or as a word ``@FILE``."""

import os
import re

from draftwood.storage.home import expanded

WORD = re.compile(r'(?<!\S)@("[^"\n]+"|\S+)')
"""A word that begins with @, or what stands in quotes behind it."""
PATH = re.compile(r"[\w.~/\\+-]*(?:/[\w.~/\\+-]*|\.\w{1,5})")
"""A word that can mean nothing but a path: it has a slash or an ending."""
CLOSING = ".,;:!?)]}'\""
"""Characters that may follow a file's name in a sentence."""


def read_text(name: str) -> str:
    """Text of a file, without the mark that some editors put first.

    Raises:
        ValueError: for one that cannot be read or is no UTF-8.
    """
    try:
        return expanded(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text") from None


def with_files(prompt: str) -> str:
    """Put the text of files into a prompt, for each word ``@FILE`` that names one.

    ``@"FILE"`` names one with spaces, and ``@@`` stands for an @. A word behind an @ that names no
    file stays, unless it can only be a path. What files say is taken as it is.

    Raises:
        ValueError: for a path where no text is, with the cure.
    """
    return WORD.sub(_text_of, prompt)


def _text_of(found: "re.Match[str]") -> str:
    word = found[1]
    if word.startswith("@"):
        return word
    quoted = len(word) > 2 and word[0] == word[-1] == '"'
    bare = word[1:-1] if quoted else word.rstrip(CLOSING)
    for name in [bare] if quoted else dict.fromkeys([word, bare]):
        if os.path.isfile(expanded(name)):
            return read_text(name).removesuffix("\n") + ("" if quoted else word[len(name) :])
    if quoted or PATH.fullmatch(bare):
        folder = os.path.isdir(expanded(bare))
        told = f"{bare} is a folder" if folder else f"there is no file {bare}"
        raise ValueError(f"{told}; @ takes a file, and @@{word} stands for the word itself")
    return found[0]
