"""Log-bilinear probes: a token's log-probability is bilinear in it and what a probe reads.

    log p(v | x_1, x_2, ...) = u_v . (A_1 x_1 + A_2 x_2 + ...) + b_v - log Z

(Mnih and Hinton 2007, with a model's states in the place of word vectors.)
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

RANK = 128
"""Entries of u_v."""
BATCH = 256
EPOCHS = 40
PATIENCE = 1
"""Epochs without a gain on the documents to stop by after which training ends."""
RATE = 5e-4
DECAY = 0.1
DROPPED = 0.2
"""Share of what a probe reads that a training step leaves out."""
CHUNK = 1024
MOST = 4096
OFTEN = 4
"""Least count in what is learnt from of a token with a class of its own."""


@dataclass(frozen=True, eq=False)
class Classes:
    """Tokens that probes tell apart: those frequent in what they learn from; all others are one.

    Attributes:
        tokens: ids; their classes are their places here, that of all others is the last.
        of_token: class of each token of the vocabulary.
        vectors: of the classes, to begin from.
        counts: how often each stood in the text.
    """

    tokens: Int[Tensor, " classes_but_one"]
    of_token: Int[Tensor, " vocab"]
    vectors: Float[Tensor, "classes rank"]
    counts: Float[Tensor, " classes"]

    @classmethod
    def of(
        cls, text: Int[Tensor, " places"], head: Float[Tensor, "vocab dim"], most: int = MOST
    ) -> "Classes":
        """Classes of a text's tokens.

        Args:
            head: the model's output head, whose rows' principal components are the first vectors.
            most: classes but one.
        """
        counts = torch.bincount(text, minlength=len(head))
        order = counts.sort(descending=True, stable=True).indices[:most]
        tokens = order[counts[order] >= OFTEN]
        of_token = torch.full((len(head),), len(tokens))
        of_token[tokens] = torch.arange(len(tokens))
        rows = head[tokens].float()
        rows = rows - rows.mean(0)
        components = torch.linalg.svd(rows, full_matrices=False)
        vectors = components.U[:, :RANK] * len(tokens) ** 0.5
        vectors = functional.pad(vectors, (0, RANK - vectors.shape[1], 0, 1))
        seen = torch.bincount(of_token[text], minlength=len(tokens) + 1)
        return cls(tokens, of_token, vectors, seen.float())


class Probe(nn.Module):
    """Log-bilinear model of one token ahead.

    Args:
        classes: that it tells apart.
        widths: features of each block that it reads.
    """

    def __init__(self, classes: Classes, widths: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, RANK, bias=False) for width in widths)
        for block in self.blocks:
            nn.init.zeros_(block.weight)  # type: ignore[arg-type]
        self.vectors = nn.Parameter(classes.vectors.clone())
        self.bias = nn.Parameter((classes.counts + 0.1).log())

    def forward(
        self, rows: Sequence[Float[Tensor, "places features"]]
    ) -> Float[Tensor, "places classes"]:
        """Log-probabilities of the classes."""
        read = [functional.dropout(each, DROPPED, self.training) for each in rows]
        joined = torch.stack([block(own) for block, own in zip(self.blocks, read, strict=True)])
        return (joined.sum(0) @ self.vectors.T + self.bias).log_softmax(-1)

    def widened(self, width: int) -> "Probe":
        """A copy that reads one more block, of which it makes nothing yet.

        All else is kept as it is, so that a gain is the new block's and no longer training's.
        """
        made = copy.deepcopy(self).requires_grad_(False)
        block = nn.Linear(width, RANK, bias=False)
        nn.init.zeros_(block.weight)
        made.blocks.append(block)
        return made


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Blocks of rows, and the class that stands behind each."""

    blocks: tuple[Float[Tensor, "places features"], ...]
    classes: Int[Tensor, " places"]

    def at(self, places: Int[Tensor, " some"]) -> "ProbeRows":
        """Some of the places."""
        return ProbeRows(tuple(each[places] for each in self.blocks), self.classes[places])


@torch.no_grad()
def losses(probe: Probe, rows: ProbeRows) -> Float[Tensor, " places"]:
    """Negative log-probability of the true class at each place, in nats."""
    found = []
    for places in torch.arange(len(rows.classes)).split(CHUNK):
        own = rows.at(places)
        found.append(functional.nll_loss(probe.eval()(own.blocks), own.classes, reduction="none"))
    return torch.cat(found)


@torch.no_grad()
def foretold(probe: Probe, rows: ProbeRows) -> Float[Tensor, "places classes_but_one"]:
    """Probabilities of a drafter that drafts the tokens with a class of their own alone."""
    parts = torch.arange(len(rows.classes)).split(CHUNK)
    every = torch.cat([probe.eval()(rows.at(places).blocks) for places in parts])
    return every[:, :-1].softmax(-1)


def trained(probe: Probe, learnt: ProbeRows, stopping: ProbeRows, seed: int) -> Probe:
    """Train a probe until it gains no more on other documents, and return it as it was best."""
    drawn = torch.Generator().manual_seed(seed)
    learning = [each for each in probe.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, RATE, weight_decay=DECAY)
    best, state, waited = float(losses(probe, stopping).mean()), copy.deepcopy(probe), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(EPOCHS):
            probe.train()
            for places in torch.randperm(len(learnt.classes), generator=drawn).split(BATCH):
                own = learnt.at(places)
                loss = functional.nll_loss(probe(own.blocks), own.classes)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
            now = float(losses(probe, stopping).mean())
            waited = 0 if now < best else waited + 1
            if now < best:
                best, state = now, copy.deepcopy(probe)
            if waited == PATIENCE:
                break
    return state
