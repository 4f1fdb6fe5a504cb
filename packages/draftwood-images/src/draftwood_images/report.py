"""Page about drawn pictures: sheets by method, tokens of each pass, and where drafts fail."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8

from draftwood.storage.atomic import write_file
from draftwood_images.drawing import DrawnPicture
from draftwood_images.layout import PictureLayout
from draftwood_images.sheet import elsewhere, enlarged, on_white, png_of
from draftwood_images.sitting import MethodPictures, Sitting

SHOWN = 4
"""Pictures of each method of which passes are coloured."""
MOST = 8
"""Tokens of a pass from which on the colour is the darkest."""
SIDE = 12
"""Pixels of a code's square in a map."""
PALE, DARK = np.array([240, 244, 250]), np.array([11, 60, 130])
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#222;
background:#fff}
img{image-rendering:pixelated;border:1px solid #ccc}
table{border-collapse:collapse}
td,th{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}
.row,.pair{display:flex;flex-wrap:wrap;gap:1.25rem;align-items:start}.pair{gap:.4rem}
figure{margin:.5rem 0}figcaption{font-size:.85rem;color:#555;max-width:10rem}
.scale{display:inline-flex;align-items:center;gap:.25rem;font-size:.85rem}
.scale i{display:inline-block;width:1.1rem;height:1.1rem;border:1px solid #ccc}
"""


def write_page(path: Path, sitting: Sitting) -> None:
    """Write the page of a sitting, whole or not at all.

    Raises:
        OSError: where the disk refuses; the message says why.
    """
    write_file(path, page(sitting), elsewhere)


def page(sitting: Sitting) -> str:
    """HTML that stands by itself, pictures inside."""
    name = escape(sitting.easel.name or "anything")
    layout = sitting.easel.drawing.layout
    drawn = [each for each in sitting.drawn if each.pictures]
    parts = [
        f"<h1>{name}, drawn token by token</h1>",
        _facts(sitting),
        _table(sitting, drawn),
        "<h2>The same seeds by each method</h2>",
        "".join(_sheet(each) for each in drawn),
        "<h2>Tokens that each pass gave</h2>",
        "<p>Each square is a code of the picture to its left, coloured by how many tokens the pass"
        f" gave that wrote it. {_scale()}</p>",
        "".join(_passes(each, layout) for each in drawn if each.stats.drafted),
        _failing(drawn, layout),
    ]
    head = f'<meta charset="utf-8"><title>{name}, drawn</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _facts(sitting: Sitting) -> str:
    rule, model = sitting.easel.rule, escape(sitting.easel.drawing.name)
    seeds = sorted({each.seed for each in sitting.pictures})
    return (
        f"<p>Model {model}, temperature {rule.temperature:g}, top-k {rule.top_k}, guidance"
        f" {rule.guidance:g}, seeds {seeds[0]} to {seeds[-1]}.</p>"
    )


def _table(sitting: Sitting, drawn: Sequence[MethodPictures]) -> str:
    plain = sitting.plain
    head = ["method", "promise", "passes", "tokens per pass", "seconds"]
    head += [] if plain is None else ["as drawn plainly"]
    rows = list[list[str]]()
    for each in drawn:
        stats = each.stats
        row = [each.method, each.promise, str(stats.target_runs), f"{stats.block_efficiency:.2f}"]
        row.append(f"{each.seconds:.2f}")
        if plain is not None:
            row.append(f"{each.same_as(plain)} of {len(each.pictures)}")
        rows.append(row)
    cells = "".join(f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{one}</th>' for one in head)}</tr>{cells}</table>"


def _sheet(each: MethodPictures) -> str:
    shown = "".join(_picture(one, each.method) for one in each.pictures)
    return f'<h3>{escape(each.method)}</h3><div class="row">{shown}</div>'


def _picture(one: DrawnPicture, method: str) -> str:
    pixels = enlarged(on_white(one.pixels), -(-96 // one.pixels.shape[0]))
    told = f"seed {one.seed}, {one.stats.block_efficiency:.2f} tokens per pass"
    return _figure(pixels, f"{one.name} by {method}, seed {one.seed}", told)


def _passes(each: MethodPictures, layout: PictureLayout) -> str:
    shown = list[str]()
    for one in each.pictures[:SHOWN]:
        given = given_by_place(one, layout)
        alike = _map((given - 1) / (MOST - 1))
        factor = max(1, len(alike) // one.pixels.shape[0])
        picture = _figure(enlarged(on_white(one.pixels), factor), one.name, f"seed {one.seed}")
        told = f"{one.stats.target_runs} passes, at most {given.max()} tokens"
        map_ = _figure(alike, f"tokens of each pass, seed {one.seed}, {each.method}", told)
        shown.append(f'<div class="pair">{picture}{map_}</div>')
    return f'<h3>{escape(each.method)}</h3><div class="row">{"".join(shown)}</div>'


def given_by_place(one: DrawnPicture, layout: PictureLayout) -> Int[np.ndarray, "rows columns"]:
    """Tokens that the pass gave which wrote each code."""
    flat = np.array([count for count in one.given for _ in range(count)])
    return flat.reshape(layout.rows, layout.stride)[:, : layout.columns]


def failing_by_place(
    pictures: Sequence[DrawnPicture], layout: PictureLayout
) -> Float[np.ndarray, "rows columns"]:
    """Share of pictures in which a draft token was rejected at each code's place."""
    counts = np.zeros(layout.length)
    for one in pictures:
        counts[one.failures] += 1
    shares = counts.reshape(layout.rows, layout.stride) / max(1, len(pictures))
    return shares[:, : layout.columns]


def _failing(drawn: Sequence[MethodPictures], layout: PictureLayout) -> str:
    shown = list[str]()
    for each in drawn:
        if not any(one.stats.drafted for one in each.pictures):
            continue
        shares = failing_by_place(each.pictures, layout)
        told = f"{each.method}: {shares.mean():.0%} of places"
        shown.append(_figure(_map(shares), f"where drafts of {each.method} fail", told))
    if not shown:
        return ""
    return (
        "<h2>Places where drafts fail</h2><p>Share of the pictures in which a draft token was"
        f" rejected there: pale for none, dark for all.</p><div class='row'>{''.join(shown)}</div>"
    )


def _map(shares: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "height width 3"]:
    """Colour shares from 0 to 1, a square for each."""
    return enlarged(_colours(shares), SIDE)


def _colours(shares: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns 3"]:
    part = np.clip(shares, 0, 1)[..., None]
    return np.rint(PALE + part * (DARK - PALE)).astype(np.uint8)


def _scale() -> str:
    """Legend of the colours."""
    values = np.arange(1, MOST + 1)
    colours = _colours((values[None] - 1) / (MOST - 1))[0].tolist()
    marks = "".join(
        f'<i style="background:rgb({red},{green},{blue})"></i>{value}'
        for value, (red, green, blue) in zip(values, colours, strict=True)
    )
    return f'<span class="scale">{marks} and more</span>'


def _figure(pixels: UInt8[np.ndarray, "height width 3"], alt: str, told: str) -> str:
    content = b64encode(png_of(pixels)).decode()
    image = f'<img alt="{escape(alt)}" src="data:image/png;base64,{content}">'
    return f"<figure>{image}<figcaption>{escape(told)}</figcaption></figure>"
