"""Draw pictures in continuous tokens: `python -m draftwood_images.continuous FOLDER`."""

import argparse
from pathlib import Path

import numpy as np

from draftwood_images.continuous.loop import BLOCK, DrawnPictures, draw
from draftwood_images.continuous.methods import METHODS, method_named
from draftwood_images.continuous.patches import load_pair, pictures_of
from draftwood_images.sheet import write_png

BIGGER, GAP = 8, 1
"""Times as large as pixels are shown, and pixels between pictures."""


def sheet(pictures: np.ndarray, columns: int) -> np.ndarray:
    """Lay pictures [count pixels pixels] side by side, in bytes: [height width]."""
    rows = -(-len(pictures) // columns)
    pixels = pictures.shape[1] + GAP
    laid = np.full((rows * pixels, columns * pixels), -1.0)
    for number, picture in enumerate(pictures):
        top, left = number // columns * pixels, number % columns * pixels
        laid[top : top + pixels - GAP, left : left + pixels - GAP] = picture
    grey = np.rint((np.clip(laid, -1, 1) + 1) * 127.5).astype(np.uint8)
    return grey.repeat(BIGGER, axis=0).repeat(BIGGER, axis=1)


def told(drawn: DrawnPictures) -> str:
    """Say what pictures took."""
    tokens = drawn.tokens.shape[0] * drawn.tokens.shape[1]
    tested = max(1, int(drawn.tested.sum()))
    return (
        f"{len(drawn.tokens)} pictures, {tokens / drawn.passes.sum():.2f} tokens a pass,"
        f" {drawn.kept.sum() / tested:.0%} of {drawn.tested.sum()} drafted tokens kept"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("folder", type=Path, help="of draftwood train continuous")
    parser.add_argument("--method", default="reflected", choices=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=9)
    parser.add_argument("--block", type=int, default=BLOCK, help="drafted tokens of a pass")
    parser.add_argument("--output", type=Path, default=Path("sheet.png"))
    given = parser.parse_args()
    try:
        if not given.output.parent.is_dir():
            raise ValueError(f"there is no folder {given.output.parent}; make it first")
        if given.output.suffix.lower() != ".png":
            raise ValueError(f"{given.output} would be a PNG by another name; let it end in .png")
        if given.count < 1:
            raise ValueError(f"--count is at least 1, got {given.count}")
        target, draft = load_pair(given.folder)
        seeds = range(given.seed, given.seed + given.count)
        drawn = draw(target, draft, method_named(given.method), seeds, given.block)
        pictures = pictures_of(drawn.tokens, target.settings.patch)
        write_png(given.output, sheet(pictures, round(len(seeds) ** 0.5)))
    except (ValueError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
    print(f"{given.output}: {told(drawn)}")


if __name__ == "__main__":
    main()
