"""Training data as recipes read them: texts of a split, one at a time, from mapped files."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood_train.data.manifest import Manifest, TargetDigest
from draftwood_train.data.shards import Shard
from draftwood_train.data.states import states_alone, states_of
from draftwood_train.data.texts import StoredText, TokenText

Split = Literal["train", "held-out"]


class Dataset:
    """Data set in a folder that ``draftwood train data`` made.

    Args:
        manifest: of the folder.
        shards: all of its files, in their order.
        model: the target that wrote it; needed where states are recomputed.
    """

    def __init__(self, manifest: Manifest, shards: Sequence[Shard], model: Model | None) -> None:
        self.manifest, self.shards, self.model = manifest, tuple(shards), model

    @classmethod
    def open(cls, folder: Path, model: Model | None = None) -> "Dataset":
        """Open the data set in a folder; only its lists are read at once.

        Args:
            folder: as ``draftwood train data`` wrote it.
            model: the target; None where states are stored and nobody checks whose they are.

        Raises:
            FileNotFoundError: where there is none.
            ValueError: for a torn, empty or missing shard, another target, and states that would
                have to be recomputed without one; the message names the cure.
        """
        manifest = Manifest.read(folder)
        whole = [facts for facts in manifest.shards if facts.texts]
        if not whole:
            raise ValueError(
                f"the data in {folder} have no texts yet; give the command that makes them again"
            )
        if model is None and manifest.options.states == "recomputed":
            raise ValueError(
                f"the states of the data in {folder} are recomputed on reading, which needs the"
                f" target; load {manifest.target.name} and hand it over"
            )
        if model is not None:
            manifest.target.require(TargetDigest.of(model, "this model"))
            if manifest.options.states == "recomputed":
                require_ability(model, "hidden", "recomputing states")
        shards = [Shard(folder / facts.file) for facts in whole]
        for shard, facts in zip(shards, whole, strict=True):
            shard.require(facts, manifest.target.vocab_size)
        return cls(manifest, shards, model)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose inputs the texts hold; the number after the last is the state after the
        norm.
        """
        return self.manifest.options.layers

    def texts(self, split: Split) -> "Texts":
        """The texts of a split, in their order."""
        found = [
            (shard, int(text))
            for shard in self.shards
            for text in np.flatnonzero(shard.held_out == (split == "held-out"))
        ]
        return Texts(found, self.layers, self.model)

    def token_counts(self, split: Split = "train") -> Int[Tensor, " vocab"]:
        """Count each token in the answers of a split."""
        counts = torch.zeros(self.manifest.target.vocab_size, dtype=torch.int64)
        for shard in self.shards:
            tokens, answers = shard.array("tokens"), shard.array("answers")
            for text in np.flatnonzero(shard.held_out == (split == "held-out")).tolist():
                answer = tokens[shard.places(text)][answers[text] :]
                counts += torch.from_numpy(np.bincount(answer, minlength=len(counts)))
        return counts

    def coverage(self, draft_tokens: Int[Tensor, " draft_vocab"], split: Split) -> float:
        """Share of the tokens of a split's answers that a draft vocabulary has."""
        counts = self.token_counts(split)
        return float(counts[draft_tokens].sum()) / max(float(counts.sum()), 1.0)

    def draft_vocabulary(self, size: int) -> Int[Tensor, " draft_vocab"]:
        """The most frequent tokens of the target's own answers, ids ascending.

        Of equally frequent ones the smaller ids; all of the vocabulary where it is no larger.

        Raises:
            ValueError: for a size below 1.
        """
        if size < 1:
            raise ValueError(f"a draft vocabulary has at least 1 token, got {size}")
        order = torch.argsort(self.token_counts(), descending=True, stable=True)
        return order[:size].sort().values


class Texts(Sequence[StoredText]):
    """Texts of a data set, read from their files when they are asked for."""

    def __init__(
        self, places: Sequence[tuple[Shard, int]], layers: tuple[int, ...], model: Model | None
    ) -> None:
        self._places, self.layers, self.model = places, layers, model

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> StoredText: ...

    @overload
    def __getitem__(self, index: slice) -> "Texts": ...

    def __getitem__(self, index: int | slice) -> "StoredText | Texts":
        if isinstance(index, slice):
            return Texts(self._places[index], self.layers, self.model)
        text = self.tokens_of(index)
        states, normalizers = self._states(index, text)
        return StoredText(
            *(text.tokens, text.answer, text.is_greedy, text.source, states, normalizers),
            kind=text.kind,
            top=text.top,
        )

    def of_kind(self, kind: str) -> "Texts":
        """The texts of one kind of task."""
        places = [self._places[n] for n, each in enumerate(self.kinds) if each == kind]
        return Texts(places, self.layers, self.model)

    def tokens_of(self, index: int) -> TokenText:
        """Read a text without running the target."""
        shard, text = self._places[index]
        return TokenText(
            tokens=torch.from_numpy(shard.array("tokens")[shard.places(text)].astype(np.int64)),
            answer=int(shard.array("answers")[text]),
            is_greedy=bool(shard.array("is_greedy")[text]),
            source=shard.sources[text],
            kind=shard.kinds[text],
            top=shard.top(text),
        )

    def _states(self, index: int, text: TokenText) -> tuple[Tensor, Tensor]:
        """Stored states and normalisers of a text, or those that its target computes now."""
        shard, number = self._places[index]
        if shard.has_states:
            stored = shard.states(number)
            return stored.floats(), stored.log_normalizer
        assert self.model is not None
        if text.top is None:
            return states_of(self.model, text.tokens, self.layers)
        normalizers = torch.zeros(len(text.tokens))
        normalizers[text.answer - 1 :] = text.top.log_normalizer
        return states_alone(self.model, text.tokens, self.layers), normalizers

    @cached_property
    def kinds(self) -> list[str]:
        """Kind of each text's task, known without reading it."""
        return [shard.kinds[text] for shard, text in self._places]

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each text, known without reading it."""
        return [int(shard.array("lengths")[text]) for shard, text in self._places]

    @cached_property
    def answers(self) -> list[int]:
        """Place of the first token of each answer, known without reading the text."""
        return [int(shard.array("answers")[text]) for shard, text in self._places]

    @cached_property
    def are_greedy(self) -> list[bool]:
        """Flags: true for texts whose answer is the likeliest, not drawn at temperature 1."""
        return [bool(shard.array("is_greedy")[text]) for shard, text in self._places]

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts together."""
        return sum(self.lengths)
