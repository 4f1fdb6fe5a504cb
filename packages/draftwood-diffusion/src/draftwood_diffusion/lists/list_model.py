"""A model that knows a list of texts, for proofs: its passes obey masks as a transformer's do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from draftwood.models.model import ModelInput, ModelOutput, RowsInput
from draftwood.testing.models import TableModel, TableSession
from draftwood_diffusion.lists.listed_texts import ListedTexts
from draftwood_diffusion.masked_model import DiffusionSettings, MaskedModel


@dataclass(frozen=True, eq=False)
class ListModel(TableModel):
    """Each row of a pass gives the exact distribution of its place, or of the next one, given the
    tokens that it sees. It runs rows alone.

    Args:
        listed: texts, the prompt included.
        shifted: True if the row of a place is about the next one.
    """

    listed: ListedTexts
    shifted: bool = False

    @property
    def context_length(self) -> int:
        return self.listed.places

    @property
    def abilities(self) -> frozenset:
        return frozenset({"rows"})

    def start(self) -> "ListSession":
        return ListSession(self)

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        return [_session(each).run_rows(each) for each in inputs]  # type: ignore[arg-type]

    def row(self, known: Sequence[tuple[int, int]], position: int) -> Float[np.ndarray, " vocab"]:
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
class ListSession(TableSession):
    """One sequence on a ``ListModel``.

    Attributes:
        rows: position and token of each row of the newest pass.
    """

    rows: list[tuple[int, int]] = field(default_factory=list)

    def run_rows(self, given: RowsInput) -> ModelOutput:
        """Run rows, each of which sees committed tokens and rows by its mask."""
        model = self.model
        assert isinstance(model, ListModel)
        own = list(zip(np.asarray(given.positions).tolist(), given.tokens, strict=True))
        seen = [*enumerate(self.tokens), *own]
        sees = np.asarray(given.sees)
        whole = np.ones((len(own), len(seen)), bool)
        whole[:, len(seen) - sees.shape[1] :] = sees
        self.rows = own
        rows = [
            model.row([seen[place] for place in np.flatnonzero(row)], position)
            for (position, _), row in zip(own, whole, strict=True)
        ]
        wanted = {"all": rows, "last": rows[-1:], "none": []}[given.keep]
        return ModelOutput(np.array(wanted).reshape(-1, model.vocab_size))

    def commit(self, path: Sequence[int]) -> None:
        for row in path:
            position, token = self.rows[row]
            if position != len(self.tokens):
                raise ValueError(
                    f"row {row} has position {position} and would be kept at {len(self.tokens)}"
                )
            self.tokens.append(token)
        self.rows = []


def _session(given: ModelInput) -> ListSession:
    if not isinstance(given, RowsInput) or not isinstance(given.session, ListSession):
        raise ValueError("a list model runs rows with a mask of their own; give a RowsInput")
    return given.session


def list_model(
    listed: ListedTexts, block_length: int, shifted: bool = False, bidirectional: bool = False
) -> MaskedModel:
    """A masked-diffusion model of a list."""
    settings = DiffusionSettings(listed.mask, block_length, shifted, bidirectional)
    return MaskedModel(ListModel(np.zeros((1, listed.vocab)), listed, shifted), settings)
