"""Page about drawn pictures: sheets by method, tokens of each pass, and where drafts fail."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from draftwood.storage.atomic import write_file
from draftwood_images.drawing import DrawnPicture
from draftwood_images.layout import PictureLayout
from draftwood_images.maps import (
    GIVEN,
    HEIGHT,
    figure,
    figure_of_failures,
    figures_of_passes,
    scale,
)
from draftwood_images.sheet import elsewhere, on_white, png_of
from draftwood_images.sitting import MethodPictures, Sitting

SHOWN = 4
"""Pictures of each method of which passes are coloured."""
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
        f"<p>{GIVEN} {scale()}</p>",
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
    told = f"seed {one.seed}, {one.stats.block_efficiency:.2f} tokens per pass"
    return figure(
        png_of(on_white(one.pixels)), f"{one.name} by {method}, seed {one.seed}", told, HEIGHT
    )


def _passes(each: MethodPictures, layout: PictureLayout) -> str:
    shown = list[str]()
    for one in each.pictures[:SHOWN]:
        png, passes = png_of(on_white(one.pixels)), one.stats.target_runs
        alt = f"tokens of each pass, seed {one.seed}, {each.method}"
        pair = figures_of_passes(png, one.name, one.seed, passes, one.given, layout.places, alt)
        shown.append(f'<div class="pair">{pair}</div>')
    return f'<h3>{escape(each.method)}</h3><div class="row">{"".join(shown)}</div>'


def _failing(drawn: Sequence[MethodPictures], layout: PictureLayout) -> str:
    shown = [
        figure_of_failures(each.method, [one.failures for one in each.pictures], layout.places)
        for each in drawn
        if each.stats.drafted
    ]
    if not shown:
        return ""
    return (
        "<h2>Places where drafts fail</h2><p>Share of the pictures in which a draft token was"
        f" rejected there: pale for none, dark for all.</p><div class='row'>{''.join(shown)}</div>"
    )
