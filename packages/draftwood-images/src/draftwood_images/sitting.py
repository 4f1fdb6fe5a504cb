"""Draw the same seeds by several methods, and tell of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftwood import methods
from draftwood.stats import Stats
from draftwood_images.drawing import DrawingRule, DrawnPicture, Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.methods import MachineCosts, WindowKnobs, picture_method
from draftwood_images.sheet import sheet, write_png


@dataclass
class MethodPictures:
    """Pictures of one method so far.

    Attributes:
        method: its name.
        promise: what it promises of its pictures.
        pictures: in the order of their seeds.
        seconds: that drawing them took.
    """

    method: str
    promise: str
    pictures: list[DrawnPicture] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def stats(self) -> Stats:
        """Sums over all pictures."""
        return sum((each.stats for each in self.pictures), Stats())

    def same_as(self, other: "MethodPictures") -> int:
        """Pictures that are those of the same seeds by another method, code by code."""
        known = {each.seed: each.codes for each in other.pictures}
        return sum(
            each.seed in known and bool((known[each.seed] == each.codes).all())
            for each in self.pictures
        )

    def as_json(self, plain: "MethodPictures | None") -> dict[str, object]:
        """In plain types."""
        told: dict[str, object] = {
            "method": self.method,
            "promise": self.promise,
            "passes": self.stats.target_runs,
            "tokens": self.stats.tokens,
            "tokens_per_pass": round(self.stats.block_efficiency, 4),
            "seconds": round(self.seconds, 4),
        }
        if plain is not None:
            told["same_as_plain"] = self.same_as(plain)
        return {**told, "pictures": [each.as_json() for each in self.pictures]}

    def told(self, plain: "MethodPictures | None") -> str:
        """One line about them."""
        stats, count = self.stats, len(self.pictures)
        line = (
            f"{self.method}: {count} picture{'s' * (count != 1)}, {stats.target_runs} passes,"
            f" {stats.block_efficiency:.2f} tokens per pass, {self.seconds:.2f} s"
        )
        if plain is None or plain is self:
            return line
        return f"{line}, {self.same_as(plain)} as drawn plainly"


class Sitting:
    """Draws one name by several methods under equal seeds.

    Args:
        drawing: the model.
        name: of what is drawn.
        rule: by which each code is drawn.
        knobs: of windows.

    Attributes:
        drawn: by method, as far as it went.

    Raises:
        ValueError: for words that the model does not know.
    """

    def __init__(
        self, drawing: DrawingModel, name: str, rule: DrawingRule, knobs: WindowKnobs
    ) -> None:
        self.easel = Easel(drawing, name, rule)
        self.knobs, self.drawn = knobs, list[MethodPictures]()

    def run(
        self,
        names: Sequence[str],
        seeds: Sequence[int],
        together: int = 1,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """Draw a picture for each method and seed; what is finished stays where this is stopped.

        Args:
            names: of the methods.
            seeds: of the pictures of each.
            together: pictures that share a pass.
            advance: called after each picture.

        Raises:
            ValueError: for a method that the model cannot have.
        """
        costs = MachineCosts(self.easel, min(together, len(seeds)))
        built = [picture_method(name, self.easel, self.knobs, costs) for name in names]
        for method in built:
            own = MethodPictures(method.name, methods.listing(method.name).promise)
            self.drawn.append(own)
            since = time.perf_counter()
            for picture in self.easel.draw(method, seeds, together):
                own.pictures.append(picture)
                own.pictures.sort(key=lambda each: each.seed)
                own.seconds = time.perf_counter() - since
                advance()

    @property
    def pictures(self) -> list[DrawnPicture]:
        """All that are finished, method by method."""
        return [picture for each in self.drawn for picture in each.pictures]

    @property
    def plain(self) -> MethodPictures | None:
        """Pictures of plain drawing, where it was asked for."""
        return next((each for each in self.drawn if each.method == "plain"), None)

    def write(self, path: Path) -> None:
        """Write all pictures as one sheet; several methods have a row each, seeds a column.

        Raises:
            OSError: where the disk refuses.
        """
        if len(self.drawn) == 1:
            write_png(path, sheet([each.pixels for each in self.pictures]))
            return
        seeds = sorted({each.seed for each in self.pictures})
        rows = [{each.seed: each.pixels for each in own.pictures} for own in self.drawn]
        places = [row.get(seed) for row in rows if row for seed in seeds]
        write_png(path, sheet(places, len(seeds)))

    def as_json(self) -> dict[str, object]:
        """In plain types."""
        easel = self.easel
        rule = easel.rule
        return {
            "name": easel.name,
            "model": easel.drawing.name,
            "temperature": rule.temperature,
            "top_k": rule.top_k,
            "guidance": rule.guidance,
            "methods": [each.as_json(self.plain) for each in self.drawn],
        }
