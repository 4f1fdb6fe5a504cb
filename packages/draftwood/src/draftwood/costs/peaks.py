"""Measure what a machine gives at most, and what share of it a model's products reach."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from draftwood.arrays import Float, address_of
from draftwood.models.native import NativeModel
from draftwood.native.library import instructions, library
from draftwood.native.threads import threads

READ = 256 << 20  # bytes, more than caches hold
ROUNDS = 5


@dataclass(frozen=True)
class Peaks:
    """The best of a few rounds, by all threads.

    Attributes:
        bytes_per_second: read from memory.
        products_per_second: multiplications and additions of bytes in registers; 0 on CPUs without
            instructions for them.
        instructions: that multiply bytes.
    """

    bytes_per_second: float
    products_per_second: float
    instructions: str


@dataclass(frozen=True)
class Shares:
    """Shares of both peaks that the matrix products of a pass reach.

    Attributes:
        memory: of bytes read; above 1 where weights lie in the caches.
        products: of products; None where others multiply than those of the peak.
    """

    memory: float
    products: float | None


def measure_peaks() -> Peaks:
    """Read memory and multiply registers with all threads."""
    data = np.ones(READ, np.uint8)
    count, native = threads(), library()
    return Peaks(
        max(native.draftwood_read_peak(address_of(data), READ, count) for _ in range(ROUNDS)),
        max(native.draftwood_product_peak(count) for _ in range(ROUNDS)),
        instructions(True) or "",
    )


def shares_of(
    model: NativeModel, phases: Mapping[int, Float[np.ndarray, "threads parts"]], peaks: Peaks
) -> dict[int, Shares]:
    """Shares by nodes of a pass.

    Args:
        phases: as ``measure_phases`` gives them.
    """
    weights, found = model.weights, dict[int, Shares]()
    head, takes_tiles = weights.lm_head.structure, library().draftwood_takes_tiles
    for nodes, seconds in phases.items():
        spent = float(seconds[:, 0].mean())
        by_bytes = weights.products.startswith("int") and not takes_tiles(head, nodes)
        products = None
        if by_bytes and peaks.products_per_second:
            products = nodes * weights.multiply_adds / spent / peaks.products_per_second
        found[nodes] = Shares(weights.weight_bytes / spent / peaks.bytes_per_second, products)
    return found
