"""What drafters are built of, measured or loaded when one asks.

Parts that are missing, or that would not be used, are refused here.
"""

from collections.abc import Mapping

from draftwood.costs.budget import Seconds
from draftwood.costs.calibration import Calibration, Unmeasured
from draftwood.interfaces.drafter import Drafter, Need
from draftwood.interfaces.model import Model
from draftwood.interfaces.resources import ExitMaps, Resources
from draftwood.interfaces.shape import Shape
from draftwood.interfaces.source import Prior, Source
from draftwood.interfaces.trained import TrainedHead
from draftwood.sources.stored_exits import stored_exits
from draftwood.sources.stored_prior import StoredPrior


def needs_draft_model(drafter: type[Drafter]) -> bool:
    """Whether a drafter cannot do without a second model."""
    return "draft-model" in drafter.needs


def uses_draft_model(drafter: type[Drafter]) -> bool:
    """Whether a drafter takes a second model where one is given."""
    return "draft-model" in drafter.needs | drafter.uses


def needs_drafter(drafter: type[Drafter]) -> bool:
    """Whether a drafter cannot do without a trained one's folder."""
    return "drafter" in drafter.needs


def uses_drafter(drafter: type[Drafter]) -> bool:
    """Whether a drafter takes a trained one's folder where it is given."""
    return "drafter" in drafter.needs | drafter.uses


def needs_layers(drafter: type[Drafter]) -> bool:
    """Whether a drafter runs parts of its target."""
    return "layers" in drafter.needs


def require_ahead(name: str, drafter: type[Drafter]) -> None:
    """Refuse to overlap drafts and passes where a method's drafts cannot be made meanwhile.

    Raises:
        ValueError: with the reason.
    """
    if drafter.drafts_ahead:
        return
    if "layers" in drafter.needs:
        why = "drafts with parts of the target itself, which are at work in its passes"
    elif "drafter" in drafter.needs:
        why = "reads the target's hidden states, which are there only after its passes"
    elif "draft-model" in drafter.needs:
        why = "learns from its drafts, so that none can be taken back"
    else:
        why = "has drafts that cost next to nothing, so that there is nothing to hide"
    raise ValueError(
        f"method {name!r} {why}; leave overlap out, or choose a method that drafts with a draft"
        " model alone, for instance rsd-s"
    )


def lacking(drafter: type[Drafter], draft_model: bool, trained: bool) -> Need | None:
    """What a drafter cannot do without and does not get; None where it can be built."""
    if needs_draft_model(drafter) and not draft_model:
        return "draft-model"
    return "drafter" if needs_drafter(drafter) and not trained else None


def require(
    drafters: Mapping[str, type[Drafter]],
    draft_model: bool,
    shape: Shape | None = None,
    trained: bool = False,
    datastore: bool = False,
) -> None:
    """Refuse methods that lack a part, and parts that no method uses.

    Called before weights are loaded.

    Args:
        drafters: by method.
        draft_model: whether one is given.
        shape: one that is given for each of them.
        trained: whether a trained drafter is given.
        datastore: whether one is given.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    _require_models(drafters, draft_model, trained)
    if datastore and not any("datastore" in drafter.uses for drafter in drafters.values()):
        raise ValueError(
            f"{_subject(drafters)} no datastore; leave it out, or choose a method that copies from"
            " one, for instance auto or suffix"
        )
    for name, drafter in drafters.items() if shape is not None else ():
        if "shape" not in drafter.uses:
            raise ValueError(f"method {name!r} takes no shape")
        if not isinstance(shape, drafter.shape_type):
            raise ValueError(
                f"method {name!r} takes a {drafter.shape_type.__name__} shape, not {shape}"
            )


def _require_models(
    drafters: Mapping[str, type[Drafter]], draft_model: bool, trained: bool
) -> None:
    drafting = [name for name, drafter in drafters.items() if needs_draft_model(drafter)]
    if drafting and not draft_model:
        raise ValueError(
            f"method {drafting[0]!r} drafts with a second, smaller model of the same vocabulary;"
            " name one with --draft-model (draft_model= in Python), or choose lookup, recycling or"
            " layer-skip, which need none"
        )
    learnt = [name for name, drafter in drafters.items() if needs_drafter(drafter)]
    if learnt and not trained:
        raise ValueError(
            f"method {learnt[0]!r} drafts with a trained drafter; name its folder with --drafter"
            " (drafter= in Python), or choose lookup, recycling or suffix, which need none"
        )
    subject = _subject(drafters)
    if draft_model and not any(map(uses_draft_model, drafters.values())):
        raise ValueError(
            f"{subject} no draft model; leave it out, or choose a method that drafts with one, for"
            " instance rsd-s"
        )
    if trained and not any(map(uses_drafter, drafters.values())):
        raise ValueError(
            f"{subject} no trained drafter; leave --drafter out, or choose a method that drafts"
            " with one, for instance eagle"
        )


def _subject(drafters: Mapping[str, type[Drafter]]) -> str:
    names = ", ".join(map(repr, drafters))
    return f"method {names} uses" if len(drafters) == 1 else f"methods {names} use"


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
