"""Resources of drafters: what they may ask for, each made when it is first asked for.

Nothing that runs a model is imported, so that refusals take no time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from draftwood.heads.trained import TrainedHead
    from draftwood.models.model import Model
    from draftwood.shapes.shape import Shape
    from draftwood.sources.source import Prior, Source
    from draftwood.sources.stored_prior import StoredPrior

Value = TypeVar("Value")

Need = Literal["draft-model", "head", "shape", "curve", "prior", "datastore", "stored", "layers"]
"""A field of ``Resources``, as drafters name it; ``layers``: a target that can be run in part."""


@dataclass(frozen=True)
class Later(Generic[Value]):
    """A resource that is measured or read when it is first asked for."""

    make: Callable[[], Value | None]


class _Lazy(Generic[Value]):
    """A field of a dataclass that may be given as ``Later``; None where it is left out.

    Args:
        missing: of a resource that users give, the refusal of a method that lacks it.
        unused: likewise of a resource that no method uses.
    """

    def __init__(self, missing: str = "", unused: str = "") -> None:
        self.refusals = missing, unused

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
        stored: the same with the folder of the weights and the tokens that texts begin with, for
            what a drafter measures of the target once and keeps.
        datastore: texts of a file that drafts may be copied from.
    """

    target: "Model"
    draft_model: "_Lazy[Model]" = _Lazy(
        "drafts with a second, smaller model of the same vocabulary; name one with --draft-model"
        " (draft_model= in Python), or choose auto, which needs none",
        "draft model; leave it out, or choose a method that drafts with one, for instance rsd-s",
    )
    head: "_Lazy[TrainedHead]" = _Lazy(
        "drafts with a trained head; name its folder with --draft-model (draft_model= in Python),"
        " or choose auto, which needs none",
        "trained head; leave it out, or choose a method that drafts with one, for instance eagle",
    )
    shape: "Shape | None" = None
    curve: "_Lazy[Callable[[int], float]]" = _Lazy()
    prior: "_Lazy[Prior]" = _Lazy()
    stored: "_Lazy[StoredPrior]" = _Lazy()
    datastore: "_Lazy[Source]" = _Lazy(
        "copies from a datastore; name one with --datastore (datastore= in Python)",
        "datastore; leave it out, or choose a method that copies from one, for instance auto or"
        " suffix",
    )


GIVEN: Mapping[Need, tuple[str, str]] = {
    name.replace("_", "-"): each.refusals  # type: ignore[misc]
    for name, each in vars(Resources).items()
    if isinstance(each, _Lazy) and all(each.refusals)
}
"""Resources that users give: refusals of a method that lacks one, and of one that none uses."""


def needed(resource: Value | None) -> Value:
    """A resource that a drafter needs; raises ValueError where it was not given."""
    if resource is None:
        raise ValueError("this was not given; a drafter that asks for it must name it in needs")
    return resource
