"""Estimate the time of a forward pass from a machine's bandwidth and compute and a model's size.

A pass reads all weights once, whatever it runs, and multiplies them with every row, which also
attends to its context. It takes the longer of the two, smoothed where they are about equal, and a
fixed cost for each layer.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftwood_bench.sizes import ModelSize

if TYPE_CHECKING:
    from draftwood.costs.curve import Curve

PEAK_BANDWIDTH, PEAK_COMPUTE = 0.8, 0.7
"""Shares of a GPU's data sheet that dense layers reach."""
NATIVE_ATTENTION = 0.25
"""Share of the compute of integer products that attention, in bfloat16, reaches on CPUs in C++.

From passes behind 128 and 8,000 tokens, benchmarks/results/int8-curves.json.
"""


@dataclass(frozen=True)
class Engine:
    """Fixed costs of the software that runs the layers, however few the rows.

    Attributes:
        per_pass: seconds of a pass beside its layers: the output head's call, sampling, waiting.
        per_layer: seconds of launching a layer's kernels, or of threads that meet.
        per_tree_layer: seconds that a layer takes longer under a tree's mask, with the keys and
            values of accepted tokens put in order.
    """

    per_pass: float = 0.0
    per_layer: float = 0.0
    per_tree_layer: float = 0.0


@dataclass(frozen=True)
class Machine:
    """A processor with its memory.

    Attributes:
        bandwidth: bytes a second that passes read.
        compute: operations a second that passes do, a multiplication and an addition being two.
        sharpness: exponent of the norm that rounds the corner between the two; infinity has none.
        engine: what runs the layers.
        attention: share of the compute that attention reaches.

    Raises:
        ValueError: for numbers that are not above 0 or have no end, and a sharpness below 1.
    """

    name: str
    bandwidth: float
    compute: float
    sharpness: float = 4.0
    engine: Engine = Engine()
    attention: float = 1.0

    def __post_init__(self) -> None:
        rates = (self.bandwidth, self.compute, self.attention)
        if not (all(map(math.isfinite, rates)) and min(rates) > 0 and self.sharpness >= 1):
            raise ValueError(
                "bandwidth, compute and attention must be finite and above 0, and sharpness at"
                f" least 1, got {self.bandwidth:g}, {self.compute:g}, {self.attention:g} and"
                f" {self.sharpness:g}"
            )

    def seconds(
        self,
        size: ModelSize,
        rows: float = 1,
        *,
        texts: int = 1,
        context: int = 0,
        tree: bool = False,
    ) -> float:
        """Seconds of one pass over so many rows in all.

        Args:
            texts: that the rows belong to; each reads its own keys and values.
            context: tokens before the rows in each text.
            tree: whether rows are trees of draft tokens.
        """
        memory = _read(size, texts * context) / self.bandwidth
        products = rows * self._products(size, context) / self.compute
        layer = self.engine.per_layer + tree * self.engine.per_tree_layer
        fixed = self.engine.per_pass + size.layers * layer
        return _rounded(memory, products, self.sharpness) + fixed

    def _products(self, size: ModelSize, context: int) -> float:
        """Operations of a row, those of attention as many more as they take longer."""
        return 2 * size.parameters + context * size.attention / self.attention

    @classmethod
    def fitted(
        cls,
        curve: "Curve",
        size: ModelSize,
        name: str = "measured here",
        attention: float = NATIVE_ATTENTION,
    ) -> "Machine":
        """Fit a machine to the measured curve of one model.

        Least squares of logarithms over the measured sizes. The fixed cost of a layer cannot be
        told from reading its weights, and counts as reading.

        Args:
            attention: as in ``Machine``; a curve at one context cannot determine it.

        Raises:
            ValueError: for a curve of fewer than 3 sizes, which tells bandwidth from compute no
                more.
        """
        if len(curve.nodes) < 3:
            raise ValueError(
                f"a curve needs 3 sizes or more to fit a machine to, got {len(curve.nodes)};"
                " draftwood tune --seconds 30 measures more"
            )
        balance, sharpness = _fit(curve)
        scale = math.exp(_offset(curve, balance, sharpness))
        unit = cls(name, 1.0, 1.0, sharpness, attention=attention)
        return replace(
            unit,
            bandwidth=_read(size, curve.context) / scale,
            compute=unit._products(size, curve.context) / (scale * balance),
        )


def _read(size: ModelSize, context: int) -> float:
    """Bytes of a pass over texts with so many tokens in all."""
    return size.weight_bytes + context * size.cache_bytes


def _rounded(memory: float, products: float, sharpness: float) -> float:
    larger, smaller = max(memory, products), min(memory, products)
    if math.isinf(sharpness):
        return larger
    return larger * (1 + (smaller / larger) ** sharpness) ** (1 / sharpness)


def _logs(curve: "Curve", balance: float, sharpness: float) -> Iterator[float]:
    """Logarithms of measured over modelled times, for passes that read weights for a second."""
    for nodes, seconds in zip(curve.nodes, curve.seconds, strict=True):
        yield math.log(seconds / _rounded(1.0, balance * nodes, sharpness))


def _offset(curve: "Curve", balance: float, sharpness: float) -> float:
    return sum(_logs(curve, balance, sharpness)) / len(curve.nodes)


def _fit(curve: "Curve") -> tuple[float, float]:
    """Fit the ratio of products to reading, and the corner's sharpness, by a narrowing grid."""

    def error(point: tuple[float, float]) -> float:
        logs = list(_logs(curve, math.exp(point[0]), math.exp(point[1])))
        mean = sum(logs) / len(logs)
        return sum((value - mean) ** 2 for value in logs)

    best, reach = (math.log(0.03), math.log(3.0)), (math.log(300.0), math.log(3.0))
    steps = [step / 6 for step in range(-6, 7)]
    for _ in range(12):
        found = [
            (best[0] + reach[0] * x, max(0.0, best[1] + reach[1] * y)) for x in steps for y in steps
        ]
        best = min((best, *found), key=error)
        reach = reach[0] / 2, reach[1] / 2
    return math.exp(best[0]), math.exp(best[1])


ENGINES = {
    "native": Engine(),
    "graphs": Engine(100e-6, 15e-6, 5e-6),
    # launched one by one from Python: 35.5 tokens/s of Vicuna-7B without drafts, assumed to be on
    # an A100, and Medusa's and EAGLE's speed-ups there on Spec-Bench
    "transformers": Engine(1.2e-3, 0.585e-3, 0.122e-3),
}
"""By name: C++ on CPUs, recorded CUDA graphs, and Transformers without them."""


def _gpu(name: str, gigabytes: float, teraflops: float) -> Machine:
    return Machine(
        name,
        PEAK_BANDWIDTH * gigabytes * 1e9,
        PEAK_COMPUTE * teraflops * 1e12,
        engine=ENGINES["graphs"],
    )


# GB/s and dense TFLOP/s in bfloat16 that add in float32, from the makers' data sheets
GPUS = {
    "t4": (320, 65),
    "rtx-3090": (936, 71),
    "rtx-4090": (1008, 165),
    "l40": (864, 181),
    "l40s": (864, 362),
    "a100-40g": (1555, 312),
    "a100-80g": (2039, 312),
    "h100": (3350, 989),
    "h200": (4800, 989),
    "b200": (8000, 2250),
}
MACHINES = {
    **{name: _gpu(name, *sheet) for name, sheet in GPUS.items()},
    # fitted to TinyLlama-1.1B's curve in int8, benchmarks/results/int8-curves.json
    "epyc-2-cores": Machine("epyc-2-cores", 31.2e9, 582e9, 1.73, attention=NATIVE_ATTENTION),
}
"""Hardware by name."""


def machine_of(name: str, engine: str | None = None) -> Machine:
    """Look up known hardware, with an engine other than its usual one if named.

    Raises:
        ValueError: for unknown names.
    """
    if name not in MACHINES:
        raise ValueError(
            f"hardware {name!r} is not known; take one of {', '.join(MACHINES)}, or give"
            " --bandwidth and --compute"
        )
    found = MACHINES[name]
    return found if engine is None else with_engine(found, engine)


def with_engine(machine: Machine, engine: str) -> Machine:
    """A machine whose layers are run by this engine.

    Raises:
        ValueError: for an unknown engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is not known; take one of {', '.join(ENGINES)}")
    return replace(machine, engine=ENGINES[engine])
