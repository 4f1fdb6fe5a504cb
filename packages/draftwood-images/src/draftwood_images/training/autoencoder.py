"""Autoencoder of pictures in PyTorch, whose weights ``LearnedCodec`` runs in NumPy."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from draftwood_images.codec import FACTOR, LearnedCodec

WARM_UP = 0.04
"""Share of a training in which vectors are not yet rounded to codes."""
DECAY = 0.99
"""Weight of the past in the means that a code follows (van den Oord et al. 2017, appendix A.1)."""
REVIVED_UNTIL = 0.7
"""Share of a training after which codes that nothing uses stay where they are."""
COMMITMENT = 0.25


@dataclass(frozen=True)
class AutoencoderSizes:
    """Sizes of an autoencoder.

    Attributes:
        patch: pixels across a code's square.
        grid: codes across a picture.
        codes: in the codebook.
        vector: numbers of a code.
        width, fine_width: channels on the grid of codes, and on the finer one.
        blocks, fine_blocks: residual blocks there.
    """

    patch: int = 4
    grid: int = 12
    codes: int = 512
    vector: int = 16
    width: int = 128
    fine_width: int = 64
    blocks: int = 2
    fine_blocks: int = 1

    def __post_init__(self) -> None:
        if self.patch % FACTOR:
            raise ValueError(
                f"a code's square is an even number of pixels across, got {self.patch}; or 1, which"
                " takes grey levels as codes"
            )


class ResidualBlock(nn.Module):
    """Two convolutions beside a grid: a wide one to half the channels, and one back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width // 2, 3, padding=1)
        self.narrow = nn.Conv2d(width // 2, width, 1)

    def forward(self, x: Float[Tensor, "batch width rows columns"]) -> Tensor:
        inner = self.wide(functional.relu(x))
        return x + self.narrow(functional.relu(inner))


class SquareEncoder(nn.Module):
    """Squares of pixels to vectors."""

    def __init__(self, sizes: AutoencoderSizes) -> None:
        super().__init__()
        self.patch = sizes.patch
        self.first = nn.Conv2d(3 * sizes.patch**2, sizes.width, 3, padding=1)
        self.coarse = nn.Sequential(*[ResidualBlock(sizes.width) for _ in range(sizes.blocks)])
        self.last = nn.Conv2d(sizes.width, sizes.vector, 1)

    def forward(self, pixels: Float[Tensor, "batch 3 height width"]) -> Tensor:
        x = self.coarse(self.first(gathered(pixels, self.patch)))
        return self.last(functional.relu(x))


class SquareDecoder(nn.Module):
    """Vectors to pixels."""

    def __init__(self, sizes: AutoencoderSizes) -> None:
        super().__init__()
        self.side = sizes.patch // FACTOR
        self.first = nn.Conv2d(sizes.vector, sizes.width, 3, padding=1)
        self.coarse = nn.Sequential(*[ResidualBlock(sizes.width) for _ in range(sizes.blocks)])
        self.finer = nn.Conv2d(sizes.width, sizes.fine_width * FACTOR**2, 1)
        blocks = [ResidualBlock(sizes.fine_width) for _ in range(sizes.fine_blocks)]
        self.fine = nn.Sequential(*blocks)
        self.last = nn.Conv2d(sizes.fine_width, 3 * self.side**2, 3, padding=1)

    def forward(self, vectors: Float[Tensor, "batch size rows columns"]) -> Tensor:
        x = self.fine(spread(self.finer(self.coarse(self.first(vectors))), FACTOR))
        return spread(self.last(functional.relu(x)), self.side)


class Autoencoder(nn.Module):
    """Encoder, codebook and decoder; the codebook follows the means of the vectors it stands for.

    Attributes:
        vectors: of the codes.
        counts, sums: running means of how many vectors were rounded to a code, and of their sum.
    """

    vectors: Float[Tensor, "codes size"]
    counts: Float[Tensor, " codes"]
    sums: Float[Tensor, "codes size"]

    def __init__(self, sizes: AutoencoderSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder, self.decoder = SquareEncoder(sizes), SquareDecoder(sizes)
        self.register_buffer("vectors", torch.zeros(sizes.codes, sizes.vector))
        self.register_buffer("counts", torch.zeros(sizes.codes))
        self.register_buffer("sums", torch.zeros(sizes.codes, sizes.vector))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def codes(self, vectors: Float[Tensor, "places size"]) -> Int[Tensor, " places"]:
        """Nearest code of each vector."""
        book = self.vectors
        return ((book**2).sum(1) - 2 * vectors @ book.T).argmin(1)

    def loss(self, pixels: Float[Tensor, "batch 3 height width"], progress: float) -> Tensor:
        """Distance of pictures from what is painted of their codes, and of vectors from codes."""
        encoded = self.encoder(pixels).float()
        if progress < WARM_UP:
            return distance(self.decoder(encoded).float(), pixels)
        flat = encoded.permute(0, 2, 3, 1).reshape(-1, self.sizes.vector)
        with torch.no_grad():
            if not self.counts.any():
                self._begin(flat.detach())
            found = self.codes(flat)
            self._follow(flat.detach(), found, revive=progress < REVIVED_UNTIL)
        rounded = self.vectors[found]
        committed = functional.mse_loss(flat, rounded)
        shape = (encoded.shape[0], *encoded.shape[2:], self.sizes.vector)
        straight = (flat + (rounded - flat).detach()).reshape(shape).permute(0, 3, 1, 2)
        return distance(self.decoder(straight).float(), pixels) + COMMITMENT * committed

    def encoded(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Int[Tensor, "batch r c"]:
        """Codes of pictures."""
        vectors = self.encoder(as_input(pixels)).float().permute(0, 2, 3, 1)
        return self.codes(vectors.reshape(-1, self.sizes.vector)).reshape(vectors.shape[:3])

    def decoded(self, codes: Int[Tensor, "batch r c"]) -> Float[Tensor, "batch 3 height width"]:
        """Pictures of codes, from -1 to 1."""
        return self.decoder(self.vectors[codes].permute(0, 3, 1, 2)).float()

    def codec(self) -> LearnedCodec:
        """The same in NumPy."""
        arrays: dict[str, np.ndarray] = {"vectors": self.vectors.numpy().copy()}
        for name, weight in self.named_parameters():
            own = weight.detach()
            own = own.permute(2, 3, 1, 0) if own.dim() == 4 else own
            arrays[name] = own.contiguous().numpy().copy()
        halves = {name: each.astype(np.float16) for name, each in arrays.items()}
        return LearnedCodec(halves, self.sizes.grid, self.sizes.grid)

    def _begin(self, flat: Float[Tensor, "places size"]) -> None:
        """Place the codes by a few rounds of k-means on a batch."""
        codes = self.sizes.codes
        self.vectors.copy_(flat[torch.randint(len(flat), (codes,))])
        for _ in range(8):
            sums, counts = _per_code(flat, self.codes(flat), codes)
            used = counts > 0
            self.vectors[used] = sums[used] / counts[used, None]
            rest = int((~used).sum())
            self.vectors[~used] = flat[torch.randint(len(flat), (rest,))]
        self.counts.fill_(len(flat) / codes)
        self.sums.copy_(self.vectors * self.counts[:, None])

    def _follow(self, flat: Tensor, found: Tensor, revive: bool) -> None:
        """Move each code towards the mean of what was rounded to it, and revive unused ones."""
        if not self.training:
            return
        sums, counts = _per_code(flat, found, self.sizes.codes)
        self.counts.lerp_(counts, 1 - DECAY)
        self.sums.lerp_(sums, 1 - DECAY)
        dead = self.counts < 1e-3 * len(flat) / self.sizes.codes
        if revive:
            dead = self.counts < 0.02 * len(flat) / self.sizes.codes
            far = (flat - self.vectors[found]).pow(2).sum(1)
            count = int(dead.sum())
            chosen = torch.multinomial(far + 1e-9, count, count > len(far)) if count else []
            self.sums[dead] = flat[chosen]
            self.counts[dead] = 1.0
            dead = torch.zeros_like(dead)
        self.vectors[~dead] = self.sums[~dead] / self.counts[~dead, None]


def _per_code(flat: Tensor, found: Tensor, codes: int) -> tuple[Tensor, Tensor]:
    """Sum, and number, of the vectors of each code."""
    sums = torch.zeros(codes, flat.shape[1]).index_add_(0, found, flat)
    return sums, torch.bincount(found, minlength=codes).float()


def as_input(pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 h w"]:
    """Pixels from -1 to 1, channels first."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def distance(painted: Tensor, pixels: Tensor) -> Tensor:
    """Mean absolute difference of pixels, and half of that of their neighbours' differences."""
    away = painted - pixels
    across, down = away.diff(dim=3).abs().mean(), away.diff(dim=2).abs().mean()
    return away.abs().mean() + away.pow(2).mean() + 0.5 * (across + down)


def spread(x: Float[Tensor, "batch channels rows columns"], factor: int) -> Tensor:
    """Lay the channels of each place out as a square of places, as ``LearnedCodec`` does."""
    batch, channels, rows, columns = x.shape
    squares = x.reshape(batch, factor, factor, channels // factor**2, rows, columns)
    wide = squares.permute(0, 3, 4, 1, 5, 2)
    return wide.reshape(batch, -1, rows * factor, columns * factor)


def gathered(x: Float[Tensor, "batch channels rows columns"], factor: int) -> Tensor:
    """Gather squares of places into the channels of one."""
    batch, channels, height, width = x.shape
    rows, columns = height // factor, width // factor
    squares = x.reshape(batch, channels, rows, factor, columns, factor)
    return squares.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, rows, columns)


def psnr(painted: Float[Tensor, "batch 3 height width"], pixels: Tensor) -> float:
    """Mean over pictures of the peak signal-to-noise ratio, in decibels."""
    squared = ((painted.clamp(-1, 1) - pixels) / 2).pow(2).mean(dim=(1, 2, 3)).clamp_min(1e-10)
    return float(cast(Any, -10 * torch.log10(squared)).mean())
