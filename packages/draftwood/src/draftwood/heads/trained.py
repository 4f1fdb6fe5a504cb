"""A trained drafter: its weights, the tokens that it drafts, and the target that it belongs to."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.models.fingerprint import adapter_of, probe_text
from draftwood.models.model import Model
from draftwood.optional import backend
from draftwood.storage.atomic import write_file

TOLERANCE = 0.05
"""Largest difference of two probes of one model, as the root of the mean square.

Measured on SmolLM2-135M: rows in 8 bits give 0.003, weights rounded to 4 bits once more 0.04, noise
of a fifth of the weights' spread 0.09, and a fine-tune 0.03 after its first 30 steps of 5e-5. What
differs less than rounding does is as good a target for the drafter as the one it was trained for.
"""


@dataclass(frozen=True)
class TargetFingerprint:
    """Tells the target of a drafter from other models, however its weights are stored.

    Attributes:
        name: of the target, for errors alone.
        layers: decoder layers.
        probe: cosines between the states behind one token and the next of a fixed text, before the
            last layer; empty for a model that shows no states.
    """

    name: str
    vocab_size: int
    hidden_size: int
    layers: int
    probe: tuple[float, ...] = ()

    @classmethod
    def of(cls, model: Model, name: str) -> "TargetFingerprint":
        """Fingerprint of a model; costs it a pass over a few tokens, once."""
        if model not in _PROBES:
            _PROBES[model] = _probe(model)
        return cls(name, model.vocab_size, model.hidden_size, model.layers, _PROBES[model])

    def require_model(self, model: Model, name: str = "this model", weights: bool = True) -> None:
        """Raise ValueError unless this is the fingerprint of a model, saying what differs.

        The drafter of a model may draft for it with an adapter too.

        Args:
            weights: False for a model of this shape, whatever its weights.
        """
        other = self.of(model, name)
        if weights and not adapter_of(model):
            self.require(other)
        else:
            replace(self, probe=()).require(replace(other, probe=()))

    def require(self, other: "TargetFingerprint") -> None:
        """Raise ValueError unless ``other`` is the same model, saying what differs."""
        sizes = {
            "vocabulary": (self.vocab_size, other.vocab_size),
            "hidden size": (self.hidden_size, other.hidden_size),
            "decoder layers": (self.layers, other.layers),
            "length of a probe": (len(self.probe), len(other.probe)),
        }
        for what, (own, others) in sizes.items():
            if own != others:
                raise ValueError(self._refusal(other, f"{what} {others}, not {own}"))
        off = self.difference(other)
        if not off <= TOLERANCE:
            raise ValueError(
                self._refusal(
                    other,
                    f"other weights (its states differ by {off:.2f}, rounding does"
                    f" {TOLERANCE} at most)",
                )
            )

    def difference(self, other: "TargetFingerprint") -> float:
        """Root of the mean square difference of both probes; NaN where one of them is broken."""
        squares = [(a - b) ** 2 for a, b in zip(self.probe, other.probe, strict=True)]
        return math.sqrt(sum(squares) / max(len(squares), 1))

    def _refusal(self, other: "TargetFingerprint", difference: str) -> str:
        return (
            f"the drafter was trained for {self.name}, and {other.name} has {difference}; take a"
            " drafter of this model, or train one"
        )


_PROBES: WeakKeyDictionary[Model, tuple[float, ...]] = WeakKeyDictionary()


def _probe(model: Model) -> tuple[float, ...]:
    if "hidden" not in model.abilities or model.layers == 0:
        return ()
    text, last = probe_text(model), model.layers - 1
    with closing(model.start()) as session:
        states = as_array(session.extend(text, keep="last", hidden=(last,)).hidden[last])
    wide = states.astype(np.float64)
    units = wide / np.linalg.norm(wide, axis=-1, keepdims=True).clip(min=1e-12)
    return tuple(round(cosine, 4) for cosine in (units[1:] * units[:-1]).sum(-1).tolist())


@contextmanager
def kept_probe(model: Model, path: Path | None) -> Iterator[None]:
    """Spare later loads the pass that finds a model's probe.

    A damaged file is written anew; none is kept where the disk refuses.

    Args:
        path: of the file, which belongs to the model's weights; None keeps nothing.
    """
    known = None if path is None else _read_probe(path)
    if known is not None:
        _PROBES.setdefault(model, known)
    yield
    if path is not None and known is None and model in _PROBES:
        with suppress(OSError):
            write_file(path, json.dumps(_PROBES[model]))


def _read_probe(path: Path) -> tuple[float, ...] | None:
    try:
        return tuple(float(each) for each in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


HeadWeights = Mapping[str, np.ndarray]
"""Weights in float32, by the names of a network's ``state_dict()``."""


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """Contents of a drafter's folder.

    Attributes:
        config: settings of its kind.
        weights: that ``config.shapes`` names.
        draft_tokens: the tokens that it drafts, as ids in the target's vocabulary, ascending.
        target: the model that it was trained for.
    """

    config: Any
    weights: HeadWeights
    draft_tokens: Int[np.ndarray, " draft_vocab"]
    target: TargetFingerprint

    def rows_of(self, target: Model) -> Float[Any, "draft_vocab dim"]:
        """Rows of the target's output head for these tokens; see ``scaled_rows``."""
        from draftwood.heads.scaled_rows import scaled_rows

        return scaled_rows(target, self.draft_tokens)

    @classmethod
    def of(cls, network: Any, draft_tokens: Any, target: Model, name: str) -> "TrainedHead":
        """The head of a network in PyTorch, for a loaded model by this name."""
        return cls.with_fingerprint(network, draft_tokens, TargetFingerprint.of(target, name))

    @classmethod
    def with_fingerprint(
        cls, network: Any, draft_tokens: Any, target: TargetFingerprint
    ) -> "TrainedHead":
        """The head of a network in PyTorch, whose memory the weights share if they are in float32.

        Args:
            draft_tokens: as array or tensor.
        """
        weights = {name: as_array(each) for name, each in network.state_dict().items()}
        return cls(network.config, weights, np.asarray(as_array(draft_tokens)), target)

    @property
    def digest(self) -> str:
        """SHA-256 of the weights and the tokens, in hex."""
        found = hashlib.sha256(self.draft_tokens.astype(np.int64).tobytes())
        for name, weight in sorted(self.weights.items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(weight, np.float32).tobytes())
        return found.hexdigest()

    @cached_property
    def network(self) -> Any:
        """The head as a network of PyTorch, whose parameters share memory with the weights.

        Raises:
            ImportError: without PyTorch.
        """
        return backend("a head's network").network(self.config, self.weights)
