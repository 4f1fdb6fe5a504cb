"""A model that knows a list of texts, for proofs: its passes obey masks as a transformer's do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from draftwood.models.model import (
    Ability,
    Cpu,
    EmbeddingsAndHead,
    Keep,
    ModelInput,
    ModelOutput,
    ModelSession,
    RowsInput,
)
from draftwood.models.requirements import NoEmbeddingsAndHead
from draftwood.tree import DraftTree
from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.masked_model import DiffusionSettings, MaskedModel


@dataclass(frozen=True, eq=False)
class ListModel:
    """Each row of a pass gives the exact distribution of its place, or of the next one, given the
    tokens that it sees.

    Args:
        listed: texts, the prompt included.
        shifted: True if the row of a place is about the next one.
    """

    listed: ListedTexts
    shifted: bool = False

    @property
    def vocab_size(self) -> int:
        return self.listed.vocab

    @property
    def context_length(self) -> int:
        return self.listed.places

    @property
    def layers(self) -> int:
        return 0

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset()

    @property
    def device(self) -> Cpu:
        return Cpu()

    @property
    def hidden_size(self) -> int:
        return 0

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        return NoEmbeddingsAndHead(self)

    @property
    def abilities(self) -> frozenset[Ability]:
        return frozenset({"rows"})

    def start(self) -> "ListSession":
        return ListSession(self)

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        return [_session(each).run(each) for each in inputs]  # type: ignore[arg-type]

    def logits(
        self, known: Sequence[tuple[int, int]], position: int
    ) -> Float[np.ndarray, " vocab"]:
        """Logits of a row at a position that sees these positions and their tokens."""
        tokens = np.full(self.listed.places, self.listed.mask)
        for place, token in known:
            tokens[place] = token
        place = position + 1 if self.shifted else position
        if place >= self.listed.places:
            return np.zeros(self.listed.vocab)
        with np.errstate(divide="ignore"):
            return np.log(self.listed.marginals(tokens)[place])


@dataclass(eq=False)
class ListSession:
    """One sequence on a ``ListModel``.

    Attributes:
        tokens: committed so far.
        run_rows: position and token of each row of the newest pass.
    """

    model: ListModel
    tokens: list[int] = field(default_factory=list)
    run_rows: list[tuple[int, int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def run(self, given: RowsInput) -> ModelOutput:
        """Run rows, each of which sees committed tokens and rows by its mask."""
        own = list(zip(np.asarray(given.positions).tolist(), given.tokens, strict=True))
        seen = [*enumerate(self.tokens), *own]
        sees = np.asarray(given.sees)
        whole = np.ones((len(own), len(seen)), bool)
        whole[:, len(seen) - sees.shape[1] :] = sees
        self.run_rows = own
        rows = [
            self.model.logits([seen[place] for place in np.flatnonzero(row)], position)
            for (position, _), row in zip(own, whole, strict=True)
        ]
        wanted = {"all": rows, "last": rows[-1:], "none": []}[given.keep]
        return ModelOutput(np.array(wanted).reshape(-1, self.model.vocab_size))

    def commit(self, path: Sequence[int]) -> None:
        for row in path:
            position, token = self.run_rows[row]
            if position != len(self.tokens):
                raise ValueError(
                    f"row {row} has position {position} and would be kept at {len(self.tokens)}"
                )
            self.tokens.append(token)
        self.run_rows = []

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        raise ValueError("a list model runs rows with a mask of their own; give a RowsInput")

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        raise ValueError("a list model runs rows with a mask of their own; give a RowsInput")

    def rewind(self, count: int) -> None:
        del self.tokens[len(self.tokens) - count :]

    def fork(self, into: ModelSession | None = None, length: int | None = None) -> ModelSession:
        if into is not None:
            raise ValueError("a list model's sessions fork into new ones")
        return ListSession(self.model, self.tokens[:length])

    def wants(self, count: int) -> int:
        return 0

    def clear(self) -> None:
        self.tokens, self.run_rows = [], []

    def close(self) -> None:
        self.clear()


def _session(given: ModelInput) -> ListSession:
    if not isinstance(given, RowsInput) or not isinstance(given.session, ListSession):
        raise ValueError("a list model runs rows with a mask of their own; give a RowsInput")
    return given.session


def list_model(
    listed: ListedTexts, block_length: int, shifted: bool = False, bidirectional: bool = False
) -> MaskedModel:
    """A masked-diffusion model of a list."""
    settings = DiffusionSettings(listed.mask, block_length, shifted, bidirectional)
    return MaskedModel(ListModel(listed, shifted), settings)
