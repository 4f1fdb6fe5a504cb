"""Small fonts and folders of pictures for the tests."""

import struct
from io import BytesIO
from pathlib import Path

import numpy as np
from fontTools.feaLib.builder import addOpenTypeFeaturesFromString
from fontTools.fontBuilder import FontBuilder
from fontTools.ttLib.tables._g_l_y_f import Glyph
from fontTools.ttLib.tables.DefaultTable import DefaultTable
from PIL import Image

GLYPHS = {"man": 0x1F468, "apple": 0x1F34E, "dark": 0x1F3FF, "rocket": 0x1F680, "joiner": 0x200D}
"""Characters of the small font."""


def write_png(path: Path, level: int, size: int = 8) -> None:
    """Write a picture of one grey level with a black corner."""
    pixels = np.full((size, size), level, np.uint8)
    pixels[0, 0] = 0
    Image.fromarray(pixels).save(path)


def write_font(path: Path, bitmaps: bool = True) -> Path:
    """Write a font with a picture for each character, and for a dark man and a man in space."""
    pictures = [*GLYPHS, "man_dark", "man_rocket"]
    builder = FontBuilder(128, isTTF=True)
    builder.setupGlyphOrder([".notdef", *pictures])
    builder.setupCharacterMap({code: name for name, code in GLYPHS.items()})
    builder.setupGlyf({name: Glyph() for name in [".notdef", *pictures]})
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *pictures], (128, 0)))
    builder.setupHorizontalHeader()
    builder.setupPost()
    rules = "sub man dark by man_dark; sub man joiner rocket by man_rocket;"
    addOpenTypeFeaturesFromString(
        builder.font, f"feature ccmp {{ {rules} sub rocket man by man_rocket; }} ccmp;"
    )
    if bitmaps:
        images = [_png(30 * place) for place in range(len(pictures))]
        for tag, data in zip(("CBDT", "CBLC"), _tables(images), strict=True):
            builder.font[tag] = table = DefaultTable(tag)
            table.data = data
    builder.save(path)
    return path


def _png(level: int) -> bytes:
    """A transparent picture of 136 x 128 pixels with a square in its middle."""
    pixels = np.zeros((128, 136, 4), np.uint8)
    pixels[32:96, 36:100] = (level, 0, 255 - level, 255)
    content = BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def _tables(images: list[bytes]) -> tuple[bytes, bytes]:
    """Tables CBDT and CBLC with one image for each glyph from the second on."""
    version = struct.pack(">I", 0x30000)
    parts = [struct.pack(">BBbbBI", 128, 136, 0, 101, 136, len(each)) + each for each in images]
    offsets = np.cumsum([0, *map(len, parts)])
    index = struct.pack(">HHI", 1, 17, 4) + b"".join(struct.pack(">I", each) for each in offsets)
    size = struct.pack(">IIII", 56, 8 + len(index), 1, 0) + bytes(24)
    size += struct.pack(">HHBBBb", 1, len(images), 109, 109, 32, 1)
    array = struct.pack(">HHI", 1, len(images), 8)
    return version + b"".join(parts), version + struct.pack(">I", 1) + size + array + index
