"""A target of random numbers and texts that look as if it had written them."""

from typing import Any

import torch

from draftwood.native.formats import HeadSizes
from draftwood_train.data.texts import StoredText, TextsInMemory
from draftwood_train.packing import RowPacking
from draftwood_train.recipe import PackedRows, TargetWeights

VOCAB, DIM, LAYERS = 40, 16, 6
SIZES = HeadSizes(hidden=DIM, intermediate_size=24, heads=4, num_kv_heads=2, head_dim=4)
STORED = (2, 3, 6)


def target(draft_vocabulary: int = 24) -> TargetWeights:
    drawn = torch.Generator().manual_seed(1)
    embedding = torch.randn(VOCAB, DIM, generator=drawn)
    tokens = torch.randperm(VOCAB, generator=drawn)[:draft_vocabulary].sort().values
    index = torch.full((VOCAB,), -1)
    index[tokens] = torch.arange(draft_vocabulary)
    return TargetWeights(LAYERS, SIZES, embedding, embedding[tokens], tokens, index)


def texts(count: int, seed: int, most: int = 30) -> TextsInMemory:
    """Each token follows from the one before, and the state after the norm says which it is."""
    drawn = torch.Generator().manual_seed(seed)
    embedding, found = target().embedding, TextsInMemory()
    for number in range(count):
        length = int(torch.randint(8, most, (), generator=drawn))
        first = int(torch.randint(VOCAB, (), generator=drawn))
        tokens = (first + 7 * torch.arange(length + 1)) % VOCAB
        final = 0.7 * embedding[tokens[1:]]
        states = torch.stack([0.1 * final, final + 1, final], dim=1)
        normalizer = (final @ embedding.T).logsumexp(-1)
        found.append(StoredText(tokens[:-1], 3, number % 2 == 0, "own", states, normalizer))
    return found


def packing(
    texts: TextsInMemory,
    rows: int = 3,
    places: int = 24,
    seed: int | None = 0,
    reads: tuple[int, ...] = STORED[:2],
) -> RowPacking:
    columns = tuple(STORED.index(layer) for layer in reads)
    return RowPacking(texts, columns, 2, places, rows, seed)


def trained(recipe: Any, rows: PackedRows, steps: int, own: TargetWeights | None = None) -> Any:
    """A new head after so many steps on the same rows, of ``target()`` where no other is named."""
    torch.manual_seed(0)
    head = recipe.build(own or target())
    learnt(head, recipe, rows, steps, own)
    return head.eval()


def learnt(
    head: Any, recipe: Any, rows: PackedRows, steps: int, own: TargetWeights | None = None
) -> None:
    """Let a head learn the same rows for so many steps."""
    own = own or target()
    optimiser = torch.optim.Adam([each for each in head.parameters() if each.requires_grad], 1e-2)
    for _ in range(steps):
        loss, _ = recipe.loss(head, rows, own, 0.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
