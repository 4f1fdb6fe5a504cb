"""Pictures of fonts and folders: names, bases, what is held out, and bad input."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from draftwood_images.training.fonts import base_of, read_font, words_of
from draftwood_images.training.named import HELD_OUT, PictureSet, read_pictures, scaled
from small_pictures import write_font, write_png


def test_a_font_gives_pictures_by_the_names_of_their_characters(tmp_path: Path) -> None:
    found = {each.words: each for each in read_font(write_font(tmp_path / "small.ttf"))}

    assert set(found) == {
        ("man",),
        ("red", "apple"),
        ("dark-skin",),
        ("rocket",),
        ("man", "dark-skin"),
        ("man", "rocket"),
    }
    pictures = scaled(list(found.values()), 16)
    assert pictures.pixels.shape == (6, 16, 16, 3)
    place = list(found).index(("man", "rocket"))
    assert pictures.pixels[place, 8, 8].tolist() == [180, 0, 75]
    assert pictures.pixels[place, 0, 0].tolist() == [255, 255, 255]


def test_variants_share_a_base() -> None:
    surfer, woman = 0x1F3C4, 0x2640
    assert base_of((surfer,)) == base_of((surfer, 0x1F3FD, 0x200D, woman, 0xFE0F))
    assert base_of((0x1F468, 0x200D, 0x1F680)) == base_of((0x1F469, 0x1F3FB, 0x200D, 0x1F680))
    assert base_of((0x1F468, 0x200D, 0x1F680)) != base_of((0x1F468, 0x200D, 0x1F692))
    assert words_of((surfer, 0x1F3FD, 0x200D, woman, 0xFE0F)) == ("surfer", "medium-skin", "woman")
    assert words_of((0x1F1E9, 0x1F1EA)) == ("flag", "d", "e")
    assert words_of((0x10FFFF,)) == ()


def test_all_variants_of_a_base_are_held_out_together() -> None:
    bases = [f"base {at % 400}" for at in range(1200)]
    pictures = PictureSet(np.zeros((1200, 1, 1, 3), np.uint8), [("a",)] * 1200, bases)
    held = {base for base, out in zip(bases, pictures.is_held_out, strict=True) if out}
    learnt = {base for base, out in zip(bases, pictures.is_held_out, strict=True) if not out}

    assert not held & learnt
    assert 0.5 * HELD_OUT < len(held) / 400 < 1.5 * HELD_OUT


def test_pictures_of_few_classes_are_held_out_one_by_one() -> None:
    bases = [f"class {at % 5}" for at in range(500)]
    pictures = PictureSet(np.zeros((500, 1, 1, 3), np.uint8), [("a",)] * 500, bases)

    assert 0.5 * HELD_OUT < pictures.is_held_out.mean() < 1.5 * HELD_OUT
    assert {base for base, out in zip(bases, pictures.is_held_out, strict=True) if not out} == set(
        bases
    )


def test_a_number_behind_a_files_name_is_no_word(tmp_path: Path) -> None:
    for name in ("red apple 1", "red apple-2", "Seven_12", "7"):
        write_png(tmp_path / f"{name}.png", 100)

    found = sorted(each.words for each in read_pictures(tmp_path))
    assert found == [("7",), ("red", "apple"), ("red", "apple"), ("seven",)]


def test_a_font_without_bitmaps_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no bitmaps in colour") as refused:
        read_font(write_font(tmp_path / "outlines.ttf", bitmaps=False))
    assert "\n" not in str(refused.value)

    (tmp_path / "text.ttf").write_text("no font at all")
    with pytest.raises(ValueError, match=r"text\.ttf is no font that can be read"):
        read_font(tmp_path / "text.ttf")


def test_pictures_of_mixed_sizes_are_refused_by_name(tmp_path: Path) -> None:
    write_png(tmp_path / "one.png", 10, size=8)
    write_png(tmp_path / "two.png", 10, size=9)

    with pytest.raises(ValueError, match=r"one\.png has 8 x 8 pixels and two\.png 9 x 9"):
        scaled(read_pictures(tmp_path), 8)


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no PNG files"):
        read_pictures(tmp_path)
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(ValueError, match=r"torn\.png is no picture"):
        scaled(read_pictures(tmp_path), 8)
    with pytest.raises(ValueError, match="no pictures to learn from"):
        scaled([], 8)


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "clear.png")

    assert (scaled(read_pictures(tmp_path), 4).pixels == 255).all()


def test_pictures_of_16_bits_have_their_grey_levels(tmp_path: Path) -> None:
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    Image.fromarray(levels).save(tmp_path / "grey.png")
    found = scaled(read_pictures(tmp_path), 16)
    np.testing.assert_array_equal(found.pixels[0, :, :, 1], levels // 257)
