"""Names of pictures in a model's words."""

from difflib import get_close_matches
from unicodedata import normalize

from draftwood_images.picture_model import PictureSettings

OUTER = ".,:;!?()[]\"'\u201c\u201d\u2019"
"""Characters that are no part of a word at its ends."""


def words_in(name: str) -> list[str]:
    """Words of a name, in lower case, composed, and without what stands around them."""
    parts = (each.strip(OUTER) for each in normalize("NFC", name).casefold().split())
    return [each for each in parts if each]


def prompt_of(settings: PictureSettings, name: str) -> list[int]:
    """Tokens of a name and of what opens its picture; without words, of any picture's.

    Raises:
        ValueError: for a word that the model does not know, with the nearest ones.
    """
    places = {word: place for place, word in enumerate(settings.words)}
    found = list[int]()
    for word in words_in(name):
        parts = [word] if word in places else word.split("-")
        for part in parts:
            if part not in places:
                raise ValueError(_unknown(part, settings.words))
            found.append(settings.first_word + places[part])
    return [*(found or [settings.unconditional]), settings.begin]


def _unknown(word: str, words: tuple[str, ...]) -> str:
    near = get_close_matches(word, words, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it knows {len(words)} others"
    return f"the model knows no word {word!r}; {hint}"
