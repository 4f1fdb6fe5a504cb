"""Pictures of a font, with the names that Unicode gives their characters."""

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.optional import install_command
from draftwood_images.training.named import NamedPicture

if TYPE_CHECKING:
    from fontTools.ttLib import TTFont

PNG = b"\x89PNG"
JOINERS = {0x200D, 0xFE0F, 0xE007F}
"""Characters that only join others or ask for colour."""
SKINS = {
    0x1F3FB: "light-skin",
    0x1F3FC: "medium-light-skin",
    0x1F3FD: "medium-skin",
    0x1F3FE: "medium-dark-skin",
    0x1F3FF: "dark-skin",
}
GENDERS = {0x2640: "woman", 0x2642: "man"}
PEOPLE = {0x1F468, 0x1F469, 0x1F9D1}
"""Man, woman and adult: a base they begin is the same for each."""
LETTERS, TAGS = 0x1F1E6, 0xE0061
"""The first of the letters of flags, and of the letters of tags."""

Sequence = tuple[int, ...]


def read_font(file: Path) -> list[NamedPicture]:
    """Read the pictures of a font that have a name.

    Raises:
        ValueError: for what is no font, or has no coloured bitmaps.
    """
    try:
        from fontTools.ttLib import TTFont, TTLibError
    except ImportError:
        raise ImportError(
            f"reading a font needs fontTools: {install_command('draftwood-images[train]')}"
        ) from None
    try:
        font = TTFont(file)
    except (TTLibError, OSError) as error:
        raise ValueError(f"{file} is no font that can be read ({error}); name another") from None
    if "CBDT" not in font:
        raise ValueError(
            f"{file} has no bitmaps in colour (no table CBDT); name a font like Noto Color Emoji"
        )
    bitmaps: dict[str, Any] = font["CBDT"].strikeData[0]
    best: dict[str, Sequence] = {}
    for sequence, glyph in sorted(_sequences(font).items(), key=lambda each: _order(each[0])):
        best.setdefault(glyph, sequence)
    found = []
    for glyph, sequence in best.items():
        content, words = getattr(bitmaps.get(glyph), "imageData", b""), words_of(sequence)
        if words and content.startswith(PNG):
            found.append(NamedPicture(words, base_of(sequence), content, f"glyph {glyph}"))
    return found


def _order(sequence: Sequence) -> tuple[int, Sequence]:
    """Order of sequences, of which a glyph's first counts: fonts have them backwards as well."""
    first, last = sequence[0], sequence[-1]
    backwards = first in GENDERS or first in SKINS or last in PEOPLE
    return (2 * backwards - (first in PEOPLE), sequence)


def _sequences(font: "TTFont") -> dict[Sequence, str]:
    """Find the glyph of each sequence of characters: alone, and by the font's ligatures."""
    characters = {(code,): glyph for code, glyph in (font.getBestCmap() or {}).items()}
    codes: dict[str, list[Sequence]] = {}
    for sequence, glyph in characters.items():
        codes.setdefault(glyph, []).append(sequence)
    found: dict[Sequence, str] = {**characters}
    lookups = font["GSUB"].table.LookupList.Lookup if "GSUB" in font else []
    for table in (each for lookup in lookups for each in lookup.SubTable):
        table = getattr(table, "ExtSubTable", table)
        for first, ligatures in getattr(table, "ligatures", {}).items():
            for ligature in ligatures:
                parts = [codes.get(glyph) for glyph in (first, *ligature.Component)]
                if None not in parts:
                    sequence = tuple(code for part in parts if part for code in part[0])
                    found.setdefault(sequence, ligature.LigGlyph)
    return found


def words_of(sequence: Sequence) -> tuple[str, ...]:
    """Words of a sequence of characters by Unicode's names; none where one has no name.

    Skin tones are one word each. Flags are ``flag`` and their letters.
    """
    words: list[str] = []
    for code in sequence:
        if code in JOINERS:
            continue
        if LETTERS <= code < LETTERS + 26:
            words += [] if words else ["flag"]
            words.append(chr(ord("a") + code - LETTERS))
        elif TAGS <= code < TAGS + 26:
            words.append(chr(ord("a") + code - TAGS))
        elif code in SKINS:
            words.append(SKINS[code])
        elif code in GENDERS and len(sequence) > 1:
            words.append(GENDERS[code])
        elif not (name := unicodedata.name(chr(code), "")):
            return ()
        else:
            words += name.lower().replace("-", " ").split()
    return tuple(words)


def base_of(sequence: Sequence) -> str:
    """Name what all variants of a picture share: the characters without skin tones and genders."""
    left = [code for code in sequence if code not in JOINERS and code not in SKINS]
    if len(left) > 1:
        left = [code for code in left if code not in GENDERS]
    return "-".join("person" if code in PEOPLE else f"{code:x}" for code in left)
