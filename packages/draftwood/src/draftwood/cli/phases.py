"""`draftwood tune --phases`: the time of forward passes by phase, and what it is of the peaks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import click

from draftwood.cli.terminal import output, progress, ruled_table

if TYPE_CHECKING:
    import numpy as np

    from draftwood.arrays import Float
    from draftwood.costs.peaks import Peaks, Shares
    from draftwood.text.language_model import LanguageModel

SIZES, LARGEST = "1,8", 512


def sizes_of(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[int] | None:
    """Numbers of nodes from a comma-separated list."""
    if value is None:
        return None
    try:
        sizes = sorted({int(part) for part in value.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1 or sizes[-1] > LARGEST:
        raise click.BadParameter(
            f"takes numbers of nodes from 1 to {LARGEST}, for instance {SIZES}, got {value!r}",
            context,
            parameter,
        )
    return sizes


def measure(lm: "LanguageModel", sizes: Sequence[int], seconds: float) -> "Phases":
    """Phases of a median pass of each size, and the machine's peaks."""
    from draftwood.costs.peaks import measure_peaks
    from draftwood.costs.phases import ROUNDS, measure_phases

    with progress() as bar:
        task = bar.add_task("forward passes", total=ROUNDS)
        found = measure_phases(lm.model, sizes, seconds=seconds, advance=lambda: bar.advance(task))
    return Phases(lm, found, measure_peaks())


@dataclass(frozen=True)
class Phases:
    """Times of the parts of a model's passes.

    Attributes:
        seconds: of each thread's parts in a median pass of each size.
    """

    lm: "LanguageModel"
    seconds: "dict[int, Float[np.ndarray, 'threads parts']]"
    peaks: "Peaks"

    @cached_property
    def shares(self) -> "dict[int, Shares]":
        """Shares of the peaks that matrix products reach, by size."""
        from draftwood.costs.peaks import shares_of
        from draftwood.models.native import NativeModel

        assert isinstance(self.lm.model, NativeModel)  # as only these tell their phases
        return shares_of(self.lm.model, self.seconds, self.peaks)

    def as_json(self) -> dict[str, object]:
        from draftwood.costs.phases import PARTS

        return {
            "model": self.lm.name,
            "parts": list(PARTS),
            "seconds_by_nodes": {size: each.tolist() for size, each in self.seconds.items()},
            "peaks": asdict(self.peaks),
            "shares_by_nodes": {size: asdict(each) for size, each in self.shares.items()},
        }

    def show(self) -> None:
        """Print a line for each thread of each size, and what products reach of the peaks."""
        from draftwood.costs.phases import PARTS

        console = output()
        console.print("[bold]Where the time of a forward pass goes[/] (ms): ", end="")
        console.print(self.lm.name, markup=False, soft_wrap=True)
        table = ruled_table(numbers=("nodes", "thread", *PARTS, "in all"))
        for size, seconds in self.seconds.items():
            for thread, parts in enumerate(seconds.tolist()):
                numbers = [f"{1e3 * part:.3f}" for part in (*parts, sum(parts))]
                table.add_row("" if thread else str(size), str(thread), *numbers)
        console.print(table)
        peaks, memory = self.peaks, f"{self.peaks.bytes_per_second / 1e9:.1f} GB/s of memory"
        products = f"{peaks.products_per_second / 1e9:.0f} billion products/s"
        of_products = f" and {products} ({peaks.instructions})" if peaks.products_per_second else ""
        console.print(f"Products reach, of {memory}{of_products}:", soft_wrap=True, markup=False)
        for size, share in self.shares.items():
            told = f"  {size} node{'s' * (size > 1)}: {share.memory:.0%} of memory"
            if share.products is not None:
                told += f", {share.products:.0%} of products"
            if share.memory > 1:
                told += "; weights that lie in the CPU's caches come faster than from memory"
            console.print(told, soft_wrap=True, markup=False)
