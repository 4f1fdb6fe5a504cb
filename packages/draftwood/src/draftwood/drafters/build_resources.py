"""What a drafter is built of: models, a shape, and what was measured of machine and model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.shapes.shape import Shape
from draftwood.sources.source import Prior, Source


class ExitMaps(Protocol):
    """What a model would say after some of its layers."""

    @property
    def maps(self) -> Mapping[int, Float[Tensor, "dim dim"]]:
        """By layer."""
        ...

    def normed(self, layer: int, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """What the output head reads after hidden states of a layer that has a map."""
        ...


class Resources(ABC):
    """Everything that ``Drafter.build`` may ask for.

    Each is measured or loaded when it is first asked for. A drafter asks only for what its
    ``needs`` and ``uses`` name, so that no other method pays for it.
    """

    @property
    @abstractmethod
    def target(self) -> Model:
        """The model whose text is written."""

    @property
    @abstractmethod
    def draft_model(self) -> Model:
        """A smaller model; raises ValueError where none was given."""

    @property
    @abstractmethod
    def has_draft_model(self) -> bool:
        """Whether one was given; for drafters that only use one."""

    @property
    @abstractmethod
    def drafter(self) -> TrainedHead:
        """A trained drafter of this target; raises ValueError where none was given."""

    @property
    @abstractmethod
    def has_drafter(self) -> bool:
        """Whether one was given; for drafters that only use one."""

    @property
    @abstractmethod
    def shape(self) -> Shape | None:
        """The tree to grow; None leaves the choice to the drafter."""

    @property
    @abstractmethod
    def curve(self) -> Callable[[int], float] | None:
        """Seconds of a forward pass of the target by nodes; None where nobody measured it."""

    @property
    @abstractmethod
    def prior(self) -> Prior | None:
        """The target's likeliest successors of every token; None where nobody measured them."""

    @property
    @abstractmethod
    def exits(self) -> ExitMaps | None:
        """What the target would say after some of its layers; None where nobody fitted it."""

    @property
    @abstractmethod
    def datastore(self) -> Source | None:
        """Texts of a file that drafts may be copied from; None where none was given."""
