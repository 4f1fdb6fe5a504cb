"""What drafters are built of, measured or loaded when one asks."""

from draftwood.costs.budget import Seconds
from draftwood.costs.calibration import Calibration, Unmeasured
from draftwood.drafters.build_resources import ExitMaps, Resources
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.shapes.shape import Shape
from draftwood.sources.source import Prior, Source
from draftwood.sources.stored_exits import stored_exits
from draftwood.sources.stored_prior import StoredPrior


class LazyResources(Resources):
    """What a method is built of. A curve and a prior are measured when a drafter asks for them.

    Args:
        target: the model whose text is written.
        draft_model: None without one.
        shape: None leaves it to the drafter.
        curve: seconds of a forward pass by nodes, or what knows and follows them; None where there
            is neither.
        prior: likewise.
        drafter: a trained drafter of the target; None without one.
        datastore: texts of a file; None without one.
    """

    def __init__(
        self,
        target: Model,
        draft_model: Model | None = None,
        shape: Shape | None = None,
        curve: Seconds | Calibration | Unmeasured | None = None,
        prior: Prior | StoredPrior | None = None,
        drafter: TrainedHead | None = None,
        datastore: Source | None = None,
    ) -> None:
        self._target, self._draft_model, self._shape = target, draft_model, shape
        self._drafter, self._datastore = drafter, datastore
        self._curve, self._prior = curve, prior

    @property
    def target(self) -> Model:
        return self._target

    @property
    def draft_model(self) -> Model:
        if self._draft_model is None:
            raise ValueError(
                "there is no draft model; a drafter that asks for one must need it, or look at"
                " has_draft_model first"
            )
        return self._draft_model

    @property
    def has_draft_model(self) -> bool:
        return self._draft_model is not None

    @property
    def drafter(self) -> TrainedHead:
        if self._drafter is None:
            raise ValueError(
                "there is no trained drafter; a drafter that asks for one must need it, or look at"
                " has_drafter first"
            )
        return self._drafter

    @property
    def has_drafter(self) -> bool:
        return self._drafter is not None

    @property
    def shape(self) -> Shape | None:
        return self._shape

    @property
    def curve(self) -> Seconds | None:
        known = self._curve
        return known.followed() if isinstance(known, (Calibration, Unmeasured)) else known

    @property
    def prior(self) -> Prior | None:
        return self._prior.table if isinstance(self._prior, StoredPrior) else self._prior

    @property
    def exits(self) -> ExitMaps | None:
        return stored_exits(self._prior) if isinstance(self._prior, StoredPrior) else None

    @property
    def datastore(self) -> Source | None:
        return self._datastore
