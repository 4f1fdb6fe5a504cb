"""Methods by name: found and built."""

from draftwood.costs.budget import Seconds
from draftwood.costs.calibration import Calibration, Unmeasured
from draftwood.drafters.lazy_resources import LazyResources
from draftwood.drafters.overlap import Overlap, require_places
from draftwood.engine.executors.overlapping import Overlapping
from draftwood.engine.method import Method
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.methods.composition import Recipe
from draftwood.methods.listings import unknown
from draftwood.methods.needs import require
from draftwood.methods.parts import known_parts
from draftwood.models.model import Model, require_ability
from draftwood.shapes import Shape
from draftwood.sources.source import Prior, Source
from draftwood.sources.stored_prior import StoredPrior
from draftwood.validation import require_kind, require_like_size
from draftwood.verifiers import Verifier


def known() -> dict[str, Recipe]:
    """All methods by name: draftwood's own, then those of installed packages."""
    return dict(known_parts().recipes)


def recipe(method: str | Recipe) -> Recipe:
    """The recipe of this name; a recipe is its own.

    Raises:
        ValueError: for an unknown name, with the nearest ones.
    """
    if isinstance(method, Recipe):
        return method
    recipes = known_parts().recipes
    if method in recipes:
        return recipes[method]
    raise unknown(method, {name: each.source for name, each in recipes.items()})


def build(
    method: str | Recipe | Method,
    target: Model,
    draft_model: Model | None = None,
    shape: Shape | None = None,
    verifier: Verifier | None = None,
    curve: Seconds | Calibration | Unmeasured | None = None,
    prior: Prior | StoredPrior | None = None,
    drafter: TrainedHead | None = None,
    datastore: Source | None = None,
    overlap: Overlap | None = None,
) -> Method:
    """A method for a target.

    Args:
        method: a name of ``known()`` or a recipe; a method that is built already stays as it is.
        draft_model: for the methods that draft with one, some of which do without it.
        shape: a tree other than the recipe's, for drafters that take one.
        verifier: a verifier other than the recipe's.
        curve: seconds of a forward pass by nodes, for methods that weigh it, or what measures them
            when such a method asks; None assumes a machine where draft tokens are dear.
        prior: the model's bigrams, or what measures them, for methods that draft with them; they do
            without where it is None.
        drafter: a trained drafter of the target, for the methods that draft with one.
        datastore: texts of a file, for the methods that copy from them.
        overlap: how to draft while the target runs; None drafts in turn.

    Raises:
        TypeError: for a draft model that is none.
        ValueError: for an unknown name, a missing draft model or one of another vocabulary, a
            missing drafter or one of another target, for parts that would not be used, and for an
            overlap where nothing can be drafted while the target runs.
    """
    given = draft_model is not None, shape, drafter is not None, datastore is not None
    require([method], *given, overlap is not None)
    if isinstance(method, Method):
        return method
    wanted = recipe(method)
    require_kind("draft_model", draft_model, Model, "a model of draftwood")
    if draft_model is not None:
        require_like_size(target.vocab_size, draft_model.vocab_size)
    if drafter is not None:
        drafter.target.require(TargetFingerprint.of(target, "this model"))
    found = LazyResources(
        target, draft_model, shape or wanted.shape, curve, prior, drafter, datastore
    )
    if overlap is not None:
        _require_places(target, draft_model, overlap)
    built, judge = wanted.drafter.build(found), verifier or wanted.verifier
    if overlap is not None:
        built = Overlapping(built, overlap)
    return Method(built, judge, wanted.name, wanted.otherwise)


def _require_places(target: Model, draft_model: Model | None, overlap: Overlap) -> None:
    """Refuse an overlap without a core or device for each of what runs at the same time."""
    drafts = target if draft_model is None else draft_model
    if draft_model is not None:
        require_ability(draft_model, "fork", "overlap")
    require_places(target.device, drafts.device, overlap)
