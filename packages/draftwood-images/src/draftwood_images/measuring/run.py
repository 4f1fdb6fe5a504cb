"""Draw the same names and seeds in several settings; records are appended as they are made."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.engine import Method
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_images.codec import Pixels
from draftwood_images.drawing import DrawingRule, DrawnPicture, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import place_of
from draftwood_images.methods import MachineCosts, WindowKnobs, picture_method
from draftwood_images.sheet import on_white, png_of

PROTOCOL = "pictures"
"""Names the files of its records."""
PLAIN = "plain"
PLACES = "places"
"""Setting that says where codes stand in a picture."""
HEIGHT = 128
"""Pixels that a record's picture has in height at most."""
WARM = 2
"""Tokens that each setting draws before it is timed."""


@dataclass(frozen=True)
class DrawnPoint:
    """Setting in which pictures are drawn.

    Attributes:
        method: its name.
        rule: by which codes are drawn.
        knobs: of windows.
        seeds: added to each picture's.
    """

    method: str
    rule: DrawingRule
    knobs: WindowKnobs = WindowKnobs()  # noqa: RUF009  frozen
    seeds: int = 0


@dataclass(frozen=True)
class PictureRecord:
    """One picture.

    Attributes:
        point: name of its setting.
        method: of that.
        name: of what it shows.
        seed: of its draws.
        tokens: of it.
        passes: of the model, without the prompt's.
        drafted: tokens.
        accepted: of these.
        seconds: from the first pass to the last, other pictures' work among them.
        codes: in the order of their places.
        given: tokens that each pass gave.
        failures: places where a draft token was rejected.
        png: the picture, at most 128 pixels high, in base64.
    """

    point: str
    method: str
    name: str
    seed: int
    tokens: int
    passes: int
    drafted: int
    accepted: int
    seconds: float
    codes: Sequence[int]
    given: Sequence[int]
    failures: Sequence[int]
    png: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.point, self.name, self.seed

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass gave, those of the prompt's pass left out like that pass."""
        of_prompt = sum(self.given[: max(0, len(self.given) - self.passes)])
        return (self.tokens - of_prompt) / self.passes if self.passes else 1.0

    @classmethod
    def of(cls, point: str, method: str, picture: DrawnPicture) -> "PictureRecord":
        """Record a picture of a setting."""
        stats = picture.stats
        return cls(
            *(point, method, picture.name, picture.seed),
            *(stats.tokens, stats.target_runs, stats.drafted, stats.accepted),
            round(picture.seconds, 6),
            *(picture.codes.reshape(-1).tolist(), picture.given, picture.failures),
            b64encode(png_of(shrunk(picture.pixels))).decode(),
        )


def shrunk(pixels: Pixels) -> Pixels:
    """A picture on white, a mean of squares where it is higher than ``HEIGHT``."""
    from PIL import Image

    shown = on_white(pixels)
    factor = -(-shown.shape[0] // HEIGHT)
    return shown if factor == 1 else np.asarray(Image.fromarray(shown).reduce(factor))


@dataclass(frozen=True)
class PictureRun:
    """Names drawn in several settings.

    Attributes:
        drawing: the model.
        points: settings by name; they take turns on each name.
        names: of what is drawn.
        seeds: pictures of each name. All pictures of a setting have seeds of their own, as equal
            ones make those of two names alike.
        folder: of the records.
        protocol: names the file of the records.
        together: pictures that share each pass.
    """

    drawing: DrawingModel
    points: Mapping[str, DrawnPoint]
    names: Sequence[str]
    seeds: int
    folder: Path
    protocol: str = PROTOCOL
    together: int = 1
    _costs: dict[DrawingRule, MachineCosts] = field(default_factory=dict, init=False, repr=False)

    def run(
        self, settings: Mapping[str, Any], advance: Callable[[], None] = lambda: None
    ) -> list[PictureRecord]:
        """Draw what is not in the folder yet; gives all records.

        Args:
            settings: that the folder must have been begun with, or has from now on, besides the
                model, the names and how many pictures each has.
            advance: called for each picture, those that were there among them.

        Raises:
            ValueError: for words that the model does not know, a method that it cannot have, and a
                folder of other settings.
        """
        for name in self.names:
            self.drawing.prompt(name)
        for point in self.points.values():
            picture_method(
                point.method, Easel(self.drawing, self.names[0], point.rule), point.knobs
            )
        self._records.begin(
            {
                **{"model": self.drawing.name, "names": list(self.names), "seeds": self.seeds},
                **{PLACES: asdict(self.drawing.layout.places), **settings},
            },
            models={self.drawing.name: place_of(self.drawing.name)},
        )
        records = self._records.read()
        for _ in records:
            advance()
        for record in self._drawn({each.key for each in records}):
            self._records.append(record)
            records.append(record)
            advance()
        return records

    @cached_property
    def _records(self) -> RecordFolder[PictureRecord]:
        return RecordFolder(self.folder, self.protocol, PictureRecord)

    def _drawn(self, done: set[tuple[str, str, int]]) -> Iterator[PictureRecord]:
        warm = set[str]()
        for number, name in enumerate(self.names):
            for key, point in self.points.items():
                first = point.seeds + self.seeds * number
                wanted = range(first, first + self.seeds)
                left = [seed for seed in wanted if (key, name, seed) not in done]
                if not left:
                    continue
                easel = Easel(self.drawing, name, point.rule)
                method = self._method(point, easel)
                if key not in warm:
                    warm.add(key)
                    list(easel.pieces(method, [0], min(WARM, self.drawing.layout.length)))
                for picture in easel.draw(method, left, self.together):
                    yield PictureRecord.of(key, point.method, picture)

    def _method(self, point: DrawnPoint, easel: Easel) -> Method:
        """The setting's method, by costs that are measured once for each rule."""
        together = min(self.together, self.seeds)
        costs = self._costs.setdefault(point.rule, MachineCosts(easel, together))
        return picture_method(point.method, easel, point.knobs, costs)
