"""A small network says which predictions will stay."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from draftwood.methods.knobs import knob
from draftwood.storage.atomic import write_file
from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View

FILTER = "filter.npz"
"""File of a network in its model's folder."""
UNREADABLE = (OSError, EOFError, LookupError, ValueError, zipfile.BadZipFile, zlib.error)
"""Errors of reading a damaged or strange file."""


@dataclass(frozen=True, eq=False)
class Filter:
    """Two layers from a block's confidences to a log-odds of each place.

    Attributes:
        first, first_bias: [places hidden] and [hidden]; ReLU follows.
        second, second_bias: [hidden places] and [places].
    """

    first: Float[np.ndarray, "places hidden"]
    first_bias: Float[np.ndarray, " hidden"]
    second: Float[np.ndarray, "hidden places"]
    second_bias: Float[np.ndarray, " places"]

    @classmethod
    def read(cls, file: str) -> "Filter":
        """Read a filter from an ``.npz`` file.

        Raises:
            ValueError: for a file that is not there or holds something else.
        """
        names = ("first", "first_bias", "second", "second_bias")
        try:
            with Path(file).open("rb") as opened:
                stored = np.load(opened, allow_pickle=False)
                found = [stored[name] for name in names]
            _require_layers(found)
        except UNREADABLE as error:
            raise ValueError(
                f"a filter is a .npz file of the arrays {', '.join(names)}; {file!r} is not one"
                f" ({error})"
            ) from None
        return cls(*found)

    def save(self, file: Path) -> None:
        """Write an ``.npz`` file, in float32."""
        stored = io.BytesIO()
        np.savez(stored, **{name: each.astype(np.float32) for name, each in vars(self).items()})
        write_file(file, lambda partial: partial.write_bytes(stored.getvalue()))

    def logits(
        self, confidence: Float[np.ndarray, "rows places"]
    ) -> Float[np.ndarray, "rows places"]:
        """Log-odds of each place of whole blocks."""
        return np.maximum(confidence @ self.first + self.first_bias, 0.0) @ self.second + (
            self.second_bias
        )

    def probability(self, confidence: Float[np.ndarray, " places"]) -> Float[np.ndarray, " places"]:
        """Probability that each place's prediction stays.

        Args:
            confidence: of a block, 1 where a token is written. Fewer places than the network has
                are as if others were written.
        """
        count, size = len(confidence), len(self.first)
        if count > size:
            raise ValueError(
                f"the filter reads blocks of at most {size} places, got {count}; give"
                f" --block-length {size} and no whole blocks, or train one for such blocks"
            )
        given = np.concatenate([confidence, np.ones(size - count)])
        with np.errstate(over="ignore"):
            return 1.0 / (1.0 + np.exp(-self.logits(given[None])[0, :count]))


def _require_layers(arrays: Sequence[np.ndarray]) -> None:
    """Raise ValueError for arrays that are no layers of finite numbers."""
    hidden, places = arrays[1].size, arrays[3].size
    shapes = [each.shape for each in arrays]
    if shapes != [(places, hidden), (hidden,), (hidden, places), (places,)]:
        raise ValueError(f"its layers do not fit together: {shapes}")
    if not all(each.dtype.kind in "fiu" and np.isfinite(each).all() for each in arrays):
        raise ValueError("its layers are not of finite numbers")


def known_confidence(view: View) -> Float[np.ndarray, " places"]:
    """Confidence of a block's places, 1 where a token is written."""
    return np.where(view.is_open, view.confidence, 1.0)


@dataclass(frozen=True)
class Learned(UnmaskingRule):
    """Learn2PD (2025, arXiv:2509.25188). That written places count as certain is our choice.

    Args:
        above: probability from which a place is fixed.
        file: of the network; by default the one in the model's folder.
    """

    name: ClassVar[str] = "learned"
    summary: ClassVar[str] = "places whose prediction a small network expects to stay"
    source: ClassVar[str] = "Learn2PD, 2025, arXiv:2509.25188"
    above: float = knob(0.96, "probability from which a place is fixed", 0, 1)
    file: str = knob("", "file of the network")

    @property
    def names_file(self) -> bool:
        return bool(self.file)

    def beside(self, folder: Path | None) -> "Learned":
        if self.file or folder is None or not (folder / FILTER).is_file():
            return self
        return replace(self, file=str(folder / FILTER))

    @cached_property
    def network(self) -> Filter:
        """As the file holds it."""
        if not self.file:
            raise ValueError(
                f"rule 'learned' reads a network, and this model's folder has no {FILTER}; make one"
                " with 'draftwood train filter', and name it with learned,file=FILE.npz"
            )
        return Filter.read(self.file)

    def require_file(self) -> None:
        _ = self.network

    @property
    def digest(self) -> str:
        self.require_file()
        return sha256(Path(self.file).read_bytes()).hexdigest()[:16]

    @property
    def most_places(self) -> int:
        return len(self.network.first)

    def choose(self, view: View) -> Int[np.ndarray, " chosen"]:
        stays = self.network.probability(known_confidence(view)) > self.above
        return view.with_best(view.is_open & stays, view.confidence)
