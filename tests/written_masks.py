"""Rows with random positions and masks, and what PyTorch says where the mask is written out."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from draftwood.models.model import ModelSession, RowsInput
from draftwood_torch.models.support import attention_windows


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows behind a text, which was read token by token.

    Attributes:
        sees: of the text and the rows.
    """

    text: Sequence[int]
    tokens: Sequence[int]
    positions: Int[np.ndarray, " rows"]
    sees: Bool[np.ndarray, "rows all"]

    @property
    def own(self) -> Bool[np.ndarray, "rows rows"]:
        return self.sees[:, len(self.text) :]

    def behind(self, session: ModelSession) -> RowsInput:
        """The input of a session that holds the text."""
        sees = self.own if self.sees[:, : len(self.text)].all() else self.sees
        return RowsInput(session, self.tokens, self.positions.tolist(), sees)

    def begun(self, session: ModelSession) -> RowsInput:
        """The same, once the session has read the text."""
        if self.text:
            session.extend(list(self.text), keep="none")
        return self.behind(session)

    def with_flipped(self, row: int, place: int) -> "Rows":
        sees = self.sees.copy()
        sees[row, place] = ~sees[row, place]
        return replace(self, sees=sees)

    def with_token(self, row: int, token: int) -> "Rows":
        return replace(self, tokens=[*self.tokens[:row], token, *self.tokens[row + 1 :]])


def some_rows(length: int, rows: int, vocab: int, seed: int) -> Rows:
    """Draw a text, rows behind it in any order, and whom they see.

    Every third case hides some of the text, every fourth puts rows at the text's positions.
    """
    chance, draw = random.Random(seed), np.random.default_rng(seed)
    positions = length + draw.integers(0, rows + 2, rows)
    if seed % 2:  # as a block has them
        positions = length + np.arange(rows)
    if seed % 4 == 3 and length:
        positions[0] = length // 2
    sees = draw.random((rows, length + rows)) < chance.choice((0.2, 0.5, 0.9, 1.0))
    if seed % 3:
        sees[:, :length] = True
    sees[np.arange(rows), length + np.arange(rows)] = True
    text, tokens = (chance.choices(range(vocab), k=count) for count in (length, rows))
    return Rows(text, tokens, positions, sees)


@torch.no_grad()
def written_out(model: PreTrainedModel, rows: Rows) -> Tensor:
    """The model's own logits of the rows, without any cache: text and rows in one pass."""
    length, count = len(rows.text), len(rows.text) + len(rows.tokens)
    positions = torch.cat([torch.arange(length), torch.from_numpy(rows.positions)])
    sees = torch.ones(count, count, dtype=torch.bool).tril()
    sees[length:] = torch.from_numpy(rows.sees)
    masks = {}
    for kind, window in attention_windows(model).items():
        near = sees if window is None else sees & (positions[None] > positions[:, None] - window)
        mask = torch.zeros(count, count, dtype=model.dtype)
        masks[kind] = mask.masked_fill(~near, torch.finfo(model.dtype).min)[None, None]
    out = model(
        input_ids=torch.tensor([[*rows.text, *rows.tokens]]),
        position_ids=positions[None],
        attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
        use_cache=False,
    )
    return out.logits[0, length:]
