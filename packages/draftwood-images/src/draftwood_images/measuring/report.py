"""Sections of a report about pictures: sheets by method, tokens of passes, where drafts fail."""

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from draftwood_bench.report.sections import Drawing, Gallery, ProtocolSection
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_images.layout import Places
from draftwood_images.maps import (
    GIVEN,
    HEIGHT,
    figure,
    figure_of_failures,
    figures_of_passes,
    scale,
)
from draftwood_images.measuring.run import PLACES, PLAIN, PROTOCOL, PictureRecord
from draftwood_images.measuring.table import compared, table

SHOWN = 8
"""Names whose pictures are shown."""
SHEETS = "Each column has one seed, each row one method."
FAILING = (
    "Share of the pictures in which a draft token was rejected at a code's place: pale for none,"
    " dark for all."
)


@dataclass(frozen=True)
class PictureRecords:
    """A folder's pictures.

    Attributes:
        found: the folder.
        records: at least one of plain drawing.
        places: of the codes.
    """

    found: RecordFolder[PictureRecord]
    records: Sequence[PictureRecord]
    places: Places

    @classmethod
    def read(cls, folder: Path) -> "PictureRecords":
        """Read a folder.

        Raises:
            ValueError: for records that are none.
        """
        found = RecordFolder(folder, PROTOCOL, PictureRecord)
        records, told = found.read(), found.settings()
        try:
            return cls(found, records, Places(**told[PLACES]))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{folder} does not say where codes stand in its pictures ({error}); measure it"
                " again"
            ) from None

    @property
    def shown(self) -> list[str]:
        """Names whose pictures are shown."""
        return list(dict.fromkeys(each.name for each in self.records))[:SHOWN]

    @property
    def by_point(self) -> dict[str, list[PictureRecord]]:
        """Pictures by setting."""
        points = dict.fromkeys(each.point for each in self.records)
        return {point: [x for x in self.records if x.point == point] for point in points}


def report(folders: Sequence[Path]) -> list[ProtocolSection]:
    """One section for each folder.

    Raises:
        ValueError: for records that are none, and for a run without any of plain drawing.
    """
    return [_section(PictureRecords.read(folder)) for folder in folders]


def _section(told: PictureRecords) -> ProtocolSection:
    settings = {name: each for name, each in told.found.settings().items() if name != PLACES}
    return ProtocolSection(
        _headline(told),
        PROTOCOL,
        [told.found.folder],
        {name: _told(each) for name, each in settings.items() if each is not None},
        [table(told.records)],
        (),
        [
            Gallery("The same seeds by each method", SHEETS, _sheets(told), ("Name", "Seeds")),
            Gallery("Tokens that each pass gave", GIVEN, _passes(told), ("Method", "Picture")),
            Gallery("Places where drafts fail", FAILING, _failing(told)),
        ],
        told.found.commits(),
    )


def _told(value: object) -> str:
    """A setting as people read it."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _headline(told: PictureRecords) -> str:
    """The method of the most tokens per pass, beside plain drawing."""
    others = {point: each for point, each in compared(told.records).items() if point != PLAIN}
    if not others:
        return f"{PLAIN} drawing alone has been measured so far"
    best = max(others, key=lambda point: others[point].tokens_per_pass.value)
    found = others[best]
    return (
        f"{best}: {found.tokens_per_pass.value:.2f} tokens per pass,"
        f" {found.speed.value:.2f} times plain drawing's speed, {found.same} of"
        f" {found.pictures} pictures as drawn plainly"
    )


def _sheets(told: PictureRecords) -> list[Drawing]:
    """A contact sheet of each name."""
    found = list[Drawing]()
    for name in told.shown:
        seeds = sorted({each.seed for each in told.records if each.name == name})
        rows = [
            f'<p class="soft">{escape(point)}</p>{_row([_picture(x) for x in own])}'
            for point, drawn in told.by_point.items()
            if (own := sorted((x for x in drawn if x.name == name), key=lambda x: x.seed))
        ]
        found.append(Drawing(name, f"seeds {seeds[0]} to {seeds[-1]}", "".join(rows)))
    return found


def _picture(each: PictureRecord) -> str:
    alt = f"{each.name} by {each.point}, seed {each.seed}"
    return figure(b64decode(each.png), alt, f"{each.tokens_per_pass:.2f} per pass", HEIGHT)


def _passes(told: PictureRecords) -> list[Drawing]:
    """Each name's first picture by each method that drafts, beside the tokens of its passes."""
    found = list[Drawing]()
    for point, drawn in told.by_point.items():
        first = {each.name: each for each in reversed(drawn) if each.name in told.shown}
        for each in reversed(first.values()):
            if not each.drafted:
                continue
            png, passes = b64decode(each.png), each.passes
            alt = f"tokens of each pass, {each.name} by {point}, seed {each.seed}"
            pair = figures_of_passes(
                png, each.name, each.seed, passes, each.given, told.places, alt
            )
            label = f"{each.name}, seed {each.seed}"
            found.append(Drawing(point, label, f"{_row([pair])}{scale()}"))
    return found


def _failing(told: PictureRecords) -> list[Drawing]:
    """A map of each method that drafts, side by side."""
    maps = [
        figure_of_failures(point, [each.failures for each in drawn], told.places)
        for point, drawn in told.by_point.items()
        if any(each.drafted for each in drawn)
    ]
    names = len({each.name for each in told.records})
    return [Drawing("all methods", f"{names} names", _row(maps))] if maps else []


def _row(figures: Sequence[str]) -> str:
    return f'<div class="pictures">{"".join(figures)}</div>'
