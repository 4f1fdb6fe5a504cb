"""Protocols: each lists the configurations that it measures.

A protocol is a small frozen dataclass that goes to JSON and back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from typing import Any, ClassVar, Literal, TypeVar, get_args

from draftwood import methods
from draftwood.drafters.drafter import Drafter
from draftwood_bench.plan.configurations import (
    BUDGET_SHAPES,
    PAPER_BUDGETS,
    PLAIN,
    RSD_METHODS,
    Configuration,
    other_drafters,
    other_shapes,
    other_verifiers,
    rsd_configuration,
    shapes_and_verifiers,
    urgency,
    with_trees,
)
from draftwood_bench.plan.measurements import MEASUREMENTS, Measurement

PROOF = frozenset({"law_prompts", "law_samples", "bound_prompts", "bound_tokens"})
"""Settings of what proves the texts, which a thrifty run does not read."""


@dataclass(frozen=True)
class Settings:
    """Settings of requests that all protocols share.

    Args:
        temperatures: each is measured by itself.
        max_new_tokens: most tokens of an answer.
        rounds: how often everything is measured.
        seed: the first of the requests' seeds.
        exact: refuse lossy methods.
        ignore_eos: go on after the model's own end of text.
        prompts: see ``prompts.load_prompts``; so are the next three.
        max_prompt_tokens: longer prompts are left out; None leaves out what does not fit the model.
        law_prompts: at a temperature above 0, on how many prompts the distribution of the next
            token is tested, of methods that do not match.
        law_samples: how many tokens are drawn for that at each place; of fewer than 1,000 no
            p-value is told.
        bound_prompts: on how many prompts the greatest possible acceptance is computed.
        bound_tokens: over how many tokens of each.
        leave_out: ids of prompts that are not asked.

    Raises:
        ValueError: for numbers out of range.
    """

    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 128
    rounds: int = 1
    seed: int = 0
    exact: bool = True
    ignore_eos: bool = False
    prompts: str = "built-in"
    per_category: int | None = None
    categories: tuple[str, ...] = ()
    limit: int | None = None
    max_prompt_tokens: int | None = None
    law_prompts: int = 2
    law_samples: int = 1000
    bound_prompts: int = 2
    bound_tokens: int = 40
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        least = {
            "max_new_tokens": 1,
            "rounds": 1,
            "per_category": 1,
            "limit": 1,
            "max_prompt_tokens": 1,
        }
        least |= {"law_prompts": 0, "law_samples": 2, "bound_prompts": 0, "bound_tokens": 1}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ValueError(f"{name} must be at least {lowest}, got {value}")
        if not self.temperatures or not all(
            isfinite(each) and each >= 0 for each in self.temperatures
        ):
            raise ValueError(
                f"temperatures must be 0 or above and at least one, got {listed(self.temperatures)}"
            )


@dataclass(frozen=True)
class SpecBench:
    """Methods by category of prompt: block efficiency, speed, speed-up over plain decoding.

    Args:
        methods: names.
        tree: of those methods that can draw it.
    """

    name: ClassVar[str] = "spec-bench"
    growing: ClassVar[frozenset[str]] = frozenset()
    methods: tuple[str, ...] = ("auto",)
    settings: Settings = field(default_factory=Settings)
    tree: str | None = None

    def cells(self) -> list[Configuration]:
        return [Configuration(PLAIN), *with_trees(_named(self.methods), self.tree)]


@dataclass(frozen=True)
class Rsd:
    """The protocol of Recursive Speculative Decoding (Jeon et al. 2024, arXiv:2402.14160).

    Every method at fixed draft lengths, and at fixed budgets of drafted tokens with several shapes
    each, of which the best counts.

    Args:
        methods: names of ``RSD_METHODS``.
        lengths: draft lengths, in levels.
        budgets: drafted tokens; of ``BUDGET_SHAPES``.
        breadth: siblings at the root, chains or beams at fixed length.
        thrifty: compute only the nodes that are read, many texts in one forward pass; nothing is
            timed then.
        trained: kind of the trained drafter that draws the trees; None takes a draft model.
        chosen: keys of the only configurations to measure beside plain decoding; empty for all.
        levels: most levels that the trained drafter drafts; deeper trees are left out. None for no
            limit.
    """

    name: ClassVar[str] = "rsd"
    methods: tuple[str, ...] = ("speculative", "spectr", "specinfer", "rsd-c", "rsd-s")
    lengths: tuple[int, ...] = (2, 3, 4, 5)
    budgets: tuple[int, ...] = PAPER_BUDGETS
    breadth: int = 3
    thrifty: bool = False
    settings: Settings = field(
        default_factory=lambda: Settings(temperatures=(1.0,), max_new_tokens=64)
    )
    trained: str | None = None
    chosen: tuple[str, ...] = ()
    levels: int | None = None

    def __post_init__(self) -> None:
        self._trained_drafter()
        for budget in self.budgets:
            if budget not in BUDGET_SHAPES:
                raise ValueError(
                    f"budgets are of {', '.join(map(str, BUDGET_SHAPES))}, got {budget}"
                )
        if self.breadth < 1 or min(self.lengths, default=1) < 1:
            raise ValueError(
                f"breadth and lengths must be at least 1, got {self.breadth} and {self.lengths}"
            )
        for name in _named(self.methods):
            if name not in RSD_METHODS:
                raise ValueError(
                    f"rsd compares trees of a draft model: {', '.join(RSD_METHODS)}; not {name!r}"
                )

    @property
    def growing(self) -> frozenset[str]:
        """Options that may change when a run goes on.

        What is not timed need not be measured at one moment.
        """
        return frozenset({"methods", "lengths", "budgets", "temperatures"} if self.thrifty else ())

    def cells(self) -> list[Configuration]:
        """Configurations in the order that fills tables first: lengths, then budgets, broad trees
        first.
        """
        found: dict[str, Configuration] = {}
        for length in self.lengths:
            vector = (self.breadth,) + (1,) * (length - 1)
            for name in _named(self.methods):
                cell = rsd_configuration(
                    name, f"length {length}", vector, (self.breadth, length), (1,) * length
                )
                found[cell.key] = cell
        for budget in self.budgets:
            pairs, vectors = BUDGET_SHAPES[budget]
            for place, vector in enumerate(vectors):
                for name in _named(self.methods):
                    cell = rsd_configuration(
                        name, f"budget {budget}", vector, pairs[min(place, 1)], (1,) * budget
                    )
                    found[cell.key] = cell
        drafter = self._trained_drafter()
        known = sorted(filter(self._is_asked, found.values()), key=urgency)
        ordered = [replace(cell, drafter=drafter) for cell in known]
        return [Configuration(PLAIN), *ordered]

    def _is_asked(self, cell: Configuration) -> bool:
        depth = 0 if cell.tree is None else cell.tree.depth
        fits = self.levels is None or depth <= self.levels
        return fits and (not self.chosen or cell.key in self.chosen)

    def _trained_drafter(self) -> type[Drafter] | None:
        """Trained drafter that draws the trees in place of a draft model."""
        if self.trained is None:
            return None
        drawing = {name.removesuffix("-rsd"): name for name in methods.known() if "-rsd" in name}
        if self.trained not in drawing:
            raise ValueError(
                f"rsd draws its trees, and drafters of kind {self.trained!r} do not; take one of:"
                f" {', '.join(sorted(drawing))}"
            )
        return methods.recipe(drawing[self.trained]).drafter


@dataclass(frozen=True)
class Axes:
    """One question at a time: another drafter, shape or verifier, everything else as it was.

    Args:
        methods: the methods to start from.
        vary: the axis; ``pair`` takes every shape with every verifier that is exact for it.
        budget: drafted tokens of every shape, where shapes vary; of ``BUDGET_SHAPES``.
    """

    name: ClassVar[str] = "axes"
    growing: ClassVar[frozenset[str]] = frozenset()
    methods: tuple[str, ...] = ("rsd-s",)
    vary: Literal["drafter", "shape", "verifier", "pair"] = "verifier"
    budget: int = 14
    settings: Settings = field(default_factory=lambda: Settings(temperatures=(0.0, 1.0)))

    def __post_init__(self) -> None:
        if self.vary not in ("drafter", "shape", "verifier", "pair"):
            raise ValueError(f"vary is drafter, shape, verifier or pair, not {self.vary!r}")
        if self.budget not in BUDGET_SHAPES:
            raise ValueError(
                f"budget is one of {', '.join(map(str, BUDGET_SHAPES))}, got {self.budget}"
            )

    def cells(self) -> list[Configuration]:
        vary: dict[str, Callable[[methods.MethodSpec], list[Configuration]]] = {
            "drafter": other_drafters,
            "shape": lambda recipe: other_shapes(recipe, self.budget),
            "verifier": other_verifiers,
            "pair": lambda recipe: shapes_and_verifiers(recipe, self.budget),
        }
        found = [Configuration(PLAIN)]
        for name in _named(self.methods):
            found += vary[self.vary](methods.recipe(name))
        return found


@dataclass(frozen=True)
class Load:
    """Many requests at once: batches of a fixed size, and requests that arrive at random.

    Args:
        methods: names.
        batches: requests decoded together.
        rates: requests per second; arrivals are a Poisson process.
        most: most requests under way at a time, where they arrive at random; the others wait.
        tree: of those methods that can draw it.
    """

    name: ClassVar[str] = "load"
    growing: ClassVar[frozenset[str]] = frozenset()
    methods: tuple[str, ...] = ("auto",)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    rates: tuple[float, ...] = ()
    most: int = 8
    settings: Settings = field(default_factory=Settings)
    tree: str | None = None

    def __post_init__(self) -> None:
        if min((*self.batches, self.most)) < 1:
            found = f"batches {listed(self.batches)} and most {self.most}"
            raise ValueError(f"batches and most must be at least 1, got {found}")
        if not all(isfinite(rate) and rate > 0 for rate in self.rates):
            raise ValueError(f"rates must be above 0 and finite, got {listed(self.rates)}")
        if not self.batches and not self.rates:
            raise ValueError("there is nothing to measure; give at least one batch or rate")

    def cells(self) -> list[Configuration]:
        found = []
        for one in (Configuration(PLAIN), *with_trees(_named(self.methods), self.tree)):
            found += [replace(one, at=f"batch {batch}", batch=batch) for batch in self.batches]
            found += [
                replace(one, at=f"rate {rate:g}", batch=self.most, rate=rate) for rate in self.rates
            ]
        return sorted(found, key=lambda cell: (cell.rate or 0.0, cell.batch or 0))


Protocol = SpecBench | Rsd | Axes | Load
Described = TypeVar("Described", Protocol, Measurement)
PROTOCOLS: dict[str, type[Protocol]] = {kind.name: kind for kind in get_args(Protocol)}


def timed(protocol: Protocol) -> bool:
    """True if the protocol's records hold timings."""
    return not (isinstance(protocol, Rsd) and protocol.thrifty)


def as_json(protocol: Protocol | Measurement) -> dict[str, Any]:
    """A protocol or a measurement in plain types."""
    return {"protocol": protocol.name, **asdict(protocol)}


def from_json(described: dict[str, Any]) -> Protocol:
    """The protocol that ``as_json`` described.

    Raises:
        ValueError: for anything else.
    """
    return _from_json(described, PROTOCOLS)


def measurement(described: dict[str, Any]) -> Measurement:
    """The measurement that ``as_json`` described. Raises ValueError for anything else."""
    return _from_json(described, MEASUREMENTS)


def _from_json(described: dict[str, Any], kinds: Mapping[str, type[Described]]) -> Described:
    options = dict(described)
    name = options.pop("protocol", None)
    if name not in kinds:
        raise ValueError(f"there is no protocol {name!r}; there are {', '.join(kinds)}")
    kind = kinds[name]
    unknown = set(options) - {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}")
    if "settings" in options:
        options["settings"] = Settings(**_tuples(options["settings"]))
    return kind(**_tuples(options))


def _named(names: Sequence[str]) -> list[str]:
    """Methods beside plain decoding, which is measured anyway."""
    found = [name for name in dict.fromkeys(names) if name != PLAIN]
    if not found:
        raise ValueError(
            "there is nothing to compare with plain decoding; name at least one other method"
        )
    return found


def listed(values: Sequence[object]) -> str:
    """The values with commas between, as they are typed."""
    return ", ".join(map(str, values)) or "none"


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
