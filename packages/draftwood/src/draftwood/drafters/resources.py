"""Resources of drafters; refusals of methods that lack one, and of unused ones.

Nothing that runs a model is imported, so that refusals take no time.
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from draftwood.heads.trained import TrainedHead
    from draftwood.models.model import Model
    from draftwood.shapes.shape import Shape
    from draftwood.sources.source import ExitMaps, Prior, Source

Value = TypeVar("Value")

Need = Literal["draft-model", "head", "shape", "curve", "prior", "datastore", "exits", "layers"]
"""A field of ``Resources``, as drafters name it; ``layers``: a target that can be run in part."""

GIVEN: "Mapping[Need, tuple[str, str]]" = {
    "draft-model": (
        "drafts with a second, smaller model of the same vocabulary; name one with --draft-model"
        " (draft_model= in Python), or choose auto, which needs none",
        "draft model; leave it out, or choose a method that drafts with one, for instance rsd-s",
    ),
    "head": (
        "drafts with a trained head; name its folder with --draft-model (draft_model= in Python),"
        " or choose auto, which needs none",
        "trained head; leave it out, or choose a method that drafts with one, for instance eagle",
    ),
    "datastore": (
        "copies from a datastore; name one with --datastore (datastore= in Python)",
        "datastore; leave it out, or choose a method that copies from one, for instance auto or"
        " suffix",
    ),
}
"""Resources that the user gives: what to say of a method that lacks one, and of one not used."""


class Spec(Protocol):
    """Needs of a method: a ``Listing``, a ``MethodSpec``, or a drafter's class."""

    @property
    def needs(self) -> Set[Need]: ...

    @property
    def uses(self) -> Set[Need]: ...

    @property
    def drafts_ahead(self) -> bool: ...


@dataclass(frozen=True)
class Later(Generic[Value]):
    """A resource that is measured or read when it is first asked for."""

    make: Callable[[], Value]


class _Lazy(Generic[Value]):
    """A field of a dataclass that may be given as ``Later``; None where it is left out."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = f"_{name}"

    def __get__(self, resources: object, owner: type) -> Value | None:
        if resources is None:
            return None
        found = vars(resources)[self.place]
        if isinstance(found, Later):
            found = vars(resources)[self.place] = found.make()
        return found

    def __set__(self, resources: object, value: Value | Later[Value] | None) -> None:
        vars(resources)[self.place] = value


@dataclass(frozen=True, eq=False, repr=False)
class Resources:
    """Everything that ``Drafter.build`` may ask for; None where it was not given.

    A drafter asks only for what its ``needs`` and ``uses`` name, so that no other method pays for
    what is measured or read first.

    Attributes:
        target: the model whose text is written.
        draft_model: a smaller model of the same vocabulary.
        head: a trained head of this target.
        shape: the tree to grow; None leaves the choice to the drafter.
        curve: seconds of a forward pass of the target by nodes.
        prior: the target's likeliest successors of every token.
        exits: what the target would say after some of its layers.
        datastore: texts of a file that drafts may be copied from.
    """

    target: "Model"
    draft_model: "Model | None" = None
    head: "TrainedHead | None" = None
    shape: "Shape | None" = None
    curve: "_Lazy[Callable[[int], float]]" = _Lazy()
    prior: "_Lazy[Prior]" = _Lazy()
    exits: "_Lazy[ExitMaps]" = _Lazy()
    datastore: "Source | None" = None


def needed(resource: Value | None) -> Value:
    """A resource that a drafter needs; raises ValueError where it was not given."""
    if resource is None:
        raise ValueError("this was not given; a drafter that asks for it must name it in needs")
    return resource


def lacking(spec: Spec, given: Collection[Need]) -> Need | None:
    """The resource that a method cannot do without and does not get; None where it can be built."""
    for need in GIVEN:
        if need in spec.needs and need not in given and not stands_in(need, spec, given):
            return need
    return None


def stands_in(need: Need, spec: Spec, given: Collection[Need]) -> bool:
    """True if a trained head takes the place of a draft model that a method needs."""
    missing = need == "draft-model" and need in spec.needs and need not in given
    return missing and "head" in spec.uses and "head" in given


def taken(spec: Spec, given: Collection[Need]) -> frozenset[Need]:
    """The given resources that a method takes; beside a draft model, no head that stands in."""
    found = frozenset(given) & (spec.needs | spec.uses)
    return found - {"head"} if "draft-model" in spec.needs & found else found


def require(specs: Mapping[str, Spec], given: Collection[Need]) -> None:
    """Refuse methods that lack a resource, and resources that no method uses.

    Args:
        specs: by method.
        given: resources that the user gives.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    for need, (missing, _) in GIVEN.items():
        for name, spec in specs.items():
            if lacking(spec, given) == need:
                raise ValueError(f"method {name!r} {missing}")
    for need, (_, unused) in GIVEN.items():
        if need in given and not any(need in taken(spec, given) for spec in specs.values()):
            one = len(specs) == 1
            subject = f"method{'' if one else 's'} {', '.join(map(repr, specs))}"
            raise ValueError(f"{subject} use{'s' if one else ''} no {unused}")


def require_ahead(name: str, spec: Spec) -> None:
    """Refuse to overlap drafts and passes where a method's drafts cannot be made meanwhile.

    Raises:
        ValueError: with the reason.
    """
    if spec.drafts_ahead:
        return
    if "layers" in spec.needs:
        why = "drafts with parts of the target itself, which are at work in its passes"
    elif "head" in spec.needs:
        why = "reads the target's hidden states, which are there only after its passes"
    elif "draft-model" in spec.needs:
        why = "learns from its drafts, so that none can be taken back"
    else:
        why = "has drafts that cost next to nothing, so that there is nothing to hide"
    raise ValueError(
        f"method {name!r} {why}; leave overlap out, or choose a method that drafts with a draft"
        " model alone, for instance rsd-s"
    )
