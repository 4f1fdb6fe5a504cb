"""Resources of drafters: what they may ask for, each made for the methods that take it.

Nothing that runs a model is imported, so that refusals take no time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from draftwood.heads.trained import TrainedHead
    from draftwood.models.model import Model
    from draftwood.models.mtp import MtpHead
    from draftwood.shapes.shape import Shape
    from draftwood.sources.bigram_prior import BigramPrior
    from draftwood.sources.source import Source
    from draftwood.sources.stored_prior import StoredPrior

Value = TypeVar("Value")

Need = Literal[
    "draft-model", "head", "shape", "curve", "prior", "datastore", "stored", "mtp", "layers"
]
"""A field of ``Resources``, as drafters name it; ``layers``: parts of the target itself."""


@dataclass(frozen=True)
class Later:
    """A resource that is measured or read for a method that takes it, and for no other."""

    make: Callable[[], Any]


@dataclass(frozen=True, eq=False, repr=False)
class Resources:
    """Everything that ``Drafter.build`` may ask for; None where it was not given.

    A drafter asks only for what its ``needs`` and ``uses`` name: nothing else is made for it.

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
        mtp: the layer for multi-token prediction that comes with the target.
    """

    target: "Model"
    draft_model: "Model | None" = None
    head: "TrainedHead | None" = None
    shape: "Shape | None" = None
    curve: "Callable[[int], float] | None" = None
    prior: "BigramPrior | None" = None
    stored: "StoredPrior | None" = None
    datastore: "Source | None" = None
    mtp: "MtpHead | None" = None


def field_of(need: Need) -> str:
    """The field of ``Resources``, and keyword of ``draftwood.load``, that a need names."""
    return need.replace("-", "_")


GIVEN: Mapping[Need, tuple[str, str]] = {
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
"""Resources that users give: refusals of a method that lacks one, and of one that none uses."""

FILES: Mapping[Need, str] = {"datastore": "draftwood.sources.stored_index:open_datastore"}
"""Resources that users give as files: what opens one, as an object whose ``source`` drafts."""


def needed(resource: Value | None) -> Value:
    """A resource that a drafter needs; raises ValueError where it was not given."""
    if resource is None:
        raise ValueError("this was not given; a drafter that asks for it must name it in needs")
    return resource
