"""Measurements without prompts: overhead, costs of forward passes, stored formats.

A measurement is a small frozen dataclass, as a protocol is, and goes to JSON as one does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from draftwood import methods
from draftwood.shapes import BestFirst, Widths
from draftwood_bench.plan.configurations import PLAIN, Configuration, beams_of
from draftwood_bench.plan.prompts import WIKITEXT

REFERENCE = "float32"
TRANSFORMERS = "transformers"
MODES_OF = {  # of each system that reads GGUF files; llama.cpp has two ways to speculate
    "draftwood": ("plain", "speculation"),
    "llama.cpp": ("plain", "speculation"),
    "llama.cpp-lookup": ("speculation",),
    "openvino": ("plain", "speculation"),
}
SYSTEMS = tuple(MODES_OF)
Cases = tuple[tuple[Configuration, tuple[float, ...]], ...]
"""Methods, and the temperatures at which they are measured."""
OverheadPart = Literal["prepared", "native"]
"""A model whose answers lie ready, conducted by Python, or random weights in whole native steps."""


def _usual_trees() -> Cases:
    recycled: Any = methods.recipe("recycling").shape
    traversal = methods.recipe("traversal").verifier
    widths = Widths((4, 3, 2, 1))
    return (
        (Configuration("recycling", shape=replace(recycled, budget=64)), (0.0, 1.0)),
        (Configuration("lookup"), (1.0,)),
        (Configuration("rsd-s", shape=beams_of("rsd-s", 8, 8)), (0.0, 1.0)),
        (Configuration("rsd-c", shape=widths), (1.0,)),
        (
            Configuration("rsd-c + traversal", recipe="rsd-c", shape=widths, verifier=traversal),
            (1.0,),
        ),
        (Configuration("spectr", shape=Widths((8,) + (1,) * 7, "independent")), (1.0,)),
    )


def _trees_of_eight_nodes() -> Cases:
    """Trees of the size that pays on a CPU, by vocabulary."""
    beams, chains = beams_of("rsd-s", 2, 4), beams_of("spectr", 2, 4)
    return (
        (Configuration("chain of 8", recipe="speculative", shape=Widths((1,) * 8)), (1.0,)),
        (Configuration("rsd-c of 8", recipe="rsd-c", shape=Widths((2, 1, 1, 1))), (1.0,)),
        (Configuration("rsd-s of 8", recipe="rsd-s", shape=beams), (0.0, 1.0)),
        (Configuration("specinfer of 8", recipe="specinfer", shape=chains), (1.0,)),
        (Configuration("best of 8", recipe="eagle-2-tree", shape=BestFirst(3, 3, 8)), (0.0, 1.0)),
    )


def _native_trees() -> Cases:
    """Trees of eight nodes that the library draws, runs and judges by itself."""
    beams = beams_of("rsd-s", 2, 4)
    drawn = tuple(each for each in _trees_of_eight_nodes() if each[0].recipe != "eagle-2-tree")
    return (
        (Configuration(PLAIN), (0.0, 1.0)),
        *drawn,
        (Configuration("spectr of 8", recipe="spectr", shape=beams_of("spectr", 2, 4)), (1.0,)),
        (Configuration("traversal of 8", recipe="traversal", shape=beams), (1.0,)),
        (Configuration("eagle of 8", recipe="eagle", shape=BestFirst(3, 3, 8)), (0.0, 1.0)),
        (
            Configuration("eagle-rsd of 8", recipe="eagle-rsd", shape=Widths((2, 1, 1, 1))),
            (1.0,),
        ),
    )


@dataclass(frozen=True)
class OverheadCase:
    """A method at one temperature.

    Attributes:
        vocab: tokens of its model.
    """

    cell: Configuration
    temperature: float
    vocab: int
    part: OverheadPart = "prepared"


@dataclass(frozen=True)
class Overhead:
    """Time per step outside forward passes.

    Args:
        vocab: tokens of the model.
        steps: of each method, of which the median counts.
        wide: tokens of a second model. Trees of eight nodes are measured on both; 0 leaves it out,
            and these trees on prepared models.
        parts: see ``OverheadPart``.

    Raises:
        ValueError: for numbers out of range, and unknown parts.
    """

    name: ClassVar[str] = "overhead"
    growing: ClassVar[frozenset[str]] = frozenset()
    vocab: int = 49152
    steps: int = 120
    wide: int = 0
    parts: tuple[str, ...] = ("prepared",)

    def __post_init__(self) -> None:
        _require_least(vocab=(self.vocab, 1024), steps=(self.steps, 1))
        if self.wide:
            _require_least(wide=(self.wide, 1024))
        _require_some(parts=self.parts)
        known = get_args(OverheadPart)
        if unknown := [each for each in self.parts if each not in known]:
            raise ValueError(f"there is no part {unknown[0]!r}; parts are {', '.join(known)}")

    def cases(self) -> list[OverheadCase]:
        """All that is measured, part by part."""
        both = dict.fromkeys((self.vocab, self.wide) if self.wide else ())
        found = list[OverheadCase]()
        if "prepared" in self.parts:
            found += _cases(_usual_trees(), self.vocab)
            for vocab in both:
                found += _cases(_trees_of_eight_nodes(), vocab, f"{vocab} tokens")
        if "native" in self.parts:
            for vocab in both or (self.vocab,):
                found += _cases(_native_trees(), vocab, f"native, {vocab} tokens", "native")
        return found

    def count(self, models: int) -> int:
        """Number of records in a finished folder; no weights are read."""
        return len(self.cases())


def _cases(
    cases: Cases, vocab: int, at: str = "default", part: OverheadPart = "prepared"
) -> list[OverheadCase]:
    return [
        OverheadCase(replace(cell, at=at), temperature, vocab, part)
        for cell, temperatures in cases
        for temperature in temperatures
    ]


@dataclass(frozen=True)
class VerifyCost:
    """Milliseconds of a forward pass by nodes and by tokens of context before them.

    Args:
        paths: types that weights are multiplied in, as ``draftwood.load`` takes them;
            ``transformers`` is Transformers itself in bfloat16.
        nodes: nodes of a tree, its root among them.
        contexts: tokens before the tree.
        rounds: of which the median counts; the first, which warms up, comes on top.

    Raises:
        ValueError: for numbers out of range, and where there is nothing to measure.
    """

    name: ClassVar[str] = "cost"
    growing: ClassVar[frozenset[str]] = frozenset()
    paths: tuple[str, ...] = (TRANSFORMERS, "bfloat16", "int8")
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    contexts: tuple[int, ...] = (128,)
    rounds: int = 11

    def __post_init__(self) -> None:
        _require_some(paths=self.paths, nodes=self.nodes, contexts=self.contexts)
        _require_least(
            nodes=(min(self.nodes), 1), contexts=(min(self.contexts), 1), rounds=(self.rounds, 1)
        )

    def count(self, models: int) -> int:
        """Number of records in a finished folder, for so many models."""
        return models * len(set(self.paths)) * len(set(self.nodes)) * len(set(self.contexts))


@dataclass(frozen=True)
class FormatQuality:
    """Cost of storing or multiplying weights in few bits: perplexity and divergence.

    Each format is compared with float32 on the same file of weights; more formats may be added to
    a folder later.

    Args:
        formats: types as ``draftwood.load`` takes them, alone or with a cache as
            ``int8+int8-cache``.
        text: see ``prompts.load_text``.
        window: tokens that are read at a time.
        windows: how many, spread evenly over the text.

    Raises:
        ValueError: for numbers out of range, and where there is nothing to measure.
    """

    name: ClassVar[str] = "quality"
    growing: ClassVar[frozenset[str]] = frozenset({"formats"})
    formats: tuple[str, ...] = ("bfloat16", "int8")
    text: str = WIKITEXT
    window: int = 512
    windows: int = 64

    def __post_init__(self) -> None:
        _require_some(formats=self.formats)
        _require_least(window=(self.window, 2), windows=(self.windows, 1))

    def count(self, models: int) -> int:
        """Number of records in a finished folder, for so many models."""
        return models * self.windows * len({REFERENCE, *self.formats})


@dataclass(frozen=True)
class SameFile:
    """Systems beside each other on one GGUF file: speeds, time to the first token, memory.

    Args:
        systems: of ``SYSTEMS``; each decodes plainly and with its own speculation.
        prompts: see ``prompts.load_prompts``.
        per_category: most prompts of each category.
        max_new_tokens: of each answer.
        prompt_tokens: of the prompt that reading is timed on.
        rounds: of which the median counts; the first, which warms up, comes on top.

    Raises:
        ValueError: for an unknown system, numbers out of range, and where nothing is measured.
    """

    name: ClassVar[str] = "gguf"
    growing: ClassVar[frozenset[str]] = frozenset({"systems"})
    systems: tuple[str, ...] = SYSTEMS
    prompts: str = "built-in"
    per_category: int | None = 1
    max_new_tokens: int = 64
    prompt_tokens: int = 512
    rounds: int = 3

    def __post_init__(self) -> None:
        _require_some(systems=self.systems)
        _require_least(
            max_new_tokens=(self.max_new_tokens, 2),
            prompt_tokens=(self.prompt_tokens, 2),
            rounds=(self.rounds, 1),
        )
        for name in self.systems:
            if name not in SYSTEMS:
                raise ValueError(f"there is no system {name!r}; systems are {', '.join(SYSTEMS)}")

    def count(self, models: int) -> int:
        """Number of records in a finished folder, for so many models."""
        return models * sum(len(MODES_OF[name]) for name in dict.fromkeys(self.systems))


Measurement = Overhead | VerifyCost | FormatQuality | SameFile
MEASUREMENTS: dict[str, type[Measurement]] = {kind.name: kind for kind in get_args(Measurement)}


def _require_least(**given: tuple[int, int]) -> None:
    for name, (value, least) in given.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def _require_some(**given: Sequence[object]) -> None:
    for name, values in given.items():
        if not values:
            raise ValueError(f"there is nothing to measure; give at least one of {name}")
