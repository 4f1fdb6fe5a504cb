"""Manifest of a data set: who made it, from what, with which options."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from draftwood.models.model import Model
from draftwood.storage.atomic import write_file
from draftwood_train.data.options import DataOptions
from draftwood_train.data.shards import ShardFacts, explain_errors

NAME = "manifest.json"
KIND, FORMAT = "draftwood training data", 1
PROBE = 16  # tokens
TOLERANCE = 0.02  # of the probe's largest entry


@dataclass(frozen=True)
class TargetDigest:
    """Identity of the weights that wrote the texts, by what they compute.

    Attributes:
        name: as it was loaded.
        products: how its matrices are multiplied, which changes its states a little.
        probe: logits after a fixed text.
    """

    name: str
    vocab_size: int
    hidden_size: int
    layers: int
    products: str
    probe: tuple[float, ...]

    @classmethod
    def of(cls, model: Model, name: str) -> "TargetDigest":
        text = [(7919 * (place + 1)) % model.vocab_size for place in range(PROBE)]
        with closing(model.start()) as session, torch.no_grad():
            logits = session.extend(text, keep="last").logits[-1].float()
        places = torch.arange(PROBE) * model.vocab_size // PROBE
        probe = tuple(round(number, 3) for number in logits[places].tolist())
        products = str(getattr(model, "products", None) or getattr(model, "dtype", "unknown"))
        sizes = (model.vocab_size, model.hidden_size, model.layers)
        return cls(name, *sizes, products.removeprefix("torch."), probe)

    def require(self, other: "TargetDigest") -> None:
        """Raise ValueError unless the other is the same model, saying what differs."""
        for part in ("vocab_size", "hidden_size", "layers", "products"):
            ours, theirs = getattr(self, part), getattr(other, part)
            if ours != theirs:
                raise ValueError(
                    f"the data were written by {self.name} with {part} {ours}, but {other.name} has"
                    f" {theirs}; load the model that wrote them, or make new data"
                )
        largest = max(map(abs, self.probe), default=0.0)
        pairs = zip(self.probe, other.probe, strict=True)
        if any(abs(a - b) > TOLERANCE * max(largest, 1e-6) for a, b in pairs):
            raise ValueError(
                f"the data were written by {self.name}, whose weights differ from those of"
                f" {other.name}; load the model that wrote them, or make new data"
            )


@dataclass(frozen=True)
class Manifest:
    """The file ``manifest.json`` of a data set.

    Attributes:
        target: that wrote the texts.
        options: that decided which.
        sources: licence and origin of each.
        shards: that are whole, in their order.
        split: what is held out, where that is more than a share of prompts.
        measured: SHA-256 of the measured prompts that were barred, or "none"; "" where a manifest
            of before does not tell.
    """

    target: TargetDigest
    options: DataOptions
    sources: Mapping[str, Mapping[str, str]]
    shards: tuple[ShardFacts, ...] = field(default=())
    split: Mapping[str, Any] = field(default_factory=dict)
    measured: str = ""

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def digest(self) -> str:
        """SHA-256 of the list of shards, in hex, which tells these data from others."""
        told = json.dumps([shard.told() for shard in self.shards])
        return sha256(told.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write the manifest to the folder, atomically."""
        record = {
            "kind": KIND,
            "format": FORMAT,
            **asdict(self),
            "shards": [shard.told() for shard in self.shards],
            "counts": self.counts(),
        }
        write_file(folder / NAME, json.dumps(record, indent=2) + "\n", explain_errors)

    def counts(self) -> dict[str, int]:
        names = ("texts", "held_out_texts", "tokens", "answer_tokens", "bytes")
        return {name: sum(getattr(shard, name) for shard in self.shards) for name in names}

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest of a folder.

        Raises:
            FileNotFoundError: where there is none.
            ValueError: where it is damaged or of another kind or format.
        """
        path = folder / NAME
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no training data in {folder} (no {NAME}); make some with 'draftwood"
                f" train data {folder}'"
            )
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if (record["kind"], record["format"]) != (KIND, FORMAT):
                raise ValueError(f"it is {record['kind']} of format {record['format']}")
            return _manifest(record)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged or of another version ({' '.join(str(error).split())[:80]});"
                " make the data again in a new folder"
            ) from None


def _manifest(record: Mapping[str, Any]) -> Manifest:
    target = {**record["target"], "probe": tuple(record["target"]["probe"])}
    lists = ("layers", "sets", "files", "without")
    options: dict[str, Any] = {
        name: tuple(value) if name in lists else value for name, value in record["options"].items()
    }
    return Manifest(
        TargetDigest(**target),
        DataOptions(**options),
        record["sources"],
        tuple(ShardFacts(**shard) for shard in record["shards"]),
        record.get("split", {}),
        record.get("measured", ""),
    )
