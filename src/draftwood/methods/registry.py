"""Methods by name: found, checked and built."""

from collections.abc import Sequence
from difflib import get_close_matches

from draftwood.costs.budget import Seconds
from draftwood.costs.calibration import Calibration
from draftwood.drafters import resources
from draftwood.engine.method import Method
from draftwood.engine.overlap import Overlap, Overlapped, require_places
from draftwood.interfaces.drafter import Need
from draftwood.interfaces.model import Model, require_ability
from draftwood.interfaces.source import Prior, Source
from draftwood.interfaces.trained import TargetMark, TrainedHead
from draftwood.methods.parts import known_parts
from draftwood.methods.recipes import Recipe
from draftwood.shapes import Shape
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
    near = [
        *(name for name, each in recipes.items() if f"{method}: ".lower() in each.source.lower()),
        *get_close_matches(method, recipes, n=3, cutoff=0.75),
    ] or get_close_matches(method, recipes, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(recipes)}"
    raise ValueError(f"there is no method {method!r}; {hint}")


def needs_draft_model(method: str | Recipe) -> bool:
    """Whether a method cannot do without a second model."""
    return resources.needs_draft_model(recipe(method).drafter)


def uses_draft_model(method: str | Recipe) -> bool:
    """Whether a method drafts with a second model where one is given."""
    return resources.uses_draft_model(recipe(method).drafter)


def needs_drafter(method: str | Recipe) -> bool:
    """Whether a method cannot do without a trained drafter."""
    return resources.needs_drafter(recipe(method).drafter)


def uses_drafter(method: str | Recipe) -> bool:
    """Whether a method drafts with a trained drafter where one is given."""
    return resources.uses_drafter(recipe(method).drafter)


def needs_layers(method: str | Recipe) -> bool:
    """Whether a method drafts with parts of the target itself, which not every model has."""
    return resources.needs_layers(recipe(method).drafter)


def uses_datastore(method: str | Recipe) -> bool:
    """Whether a method copies from a datastore where one is given."""
    return "datastore" in recipe(method).drafter.uses


def drafts_ahead(method: str | Recipe) -> bool:
    """Whether a method can draft while the target runs."""
    return recipe(method).drafter.drafts_ahead


def lacking(method: str | Recipe, draft_model: bool, drafter: bool) -> Need | None:
    """What a method cannot do without and does not get, under its option's name; None if nothing.

    Args:
        draft_model: whether one is given.
        drafter: whether a trained one is given.
    """
    return resources.lacking(recipe(method).drafter, draft_model, drafter)


def require(
    methods: Sequence[str | Recipe | Method],
    draft_model: bool,
    shape: Shape | None = None,
    drafter: bool = False,
    datastore: bool = False,
    overlap: bool = False,
) -> None:
    """Refuse methods that lack a part, and parts that none of them uses. Costs no weights.

    Args:
        overlap: whether those that can are to draft while the target runs.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    built = [method.name for method in methods if isinstance(method, Method)]
    if built and (draft_model or drafter or datastore or overlap or shape is not None):
        raise ValueError(
            f"method {built[0]!r} is built already and takes no further parts; leave out draft"
            " model, drafter, datastore, shape and overlap"
        )
    wanted = [recipe(method) for method in methods if not isinstance(method, Method)]
    if wanted:
        drafters = {each.name: each.drafter for each in wanted}
        resources.require(drafters, draft_model, shape, drafter, datastore)
    if overlap and not any(each.drafter.drafts_ahead for each in wanted):
        resources.require_ahead(wanted[0].name, wanted[0].drafter)


def build(
    method: str | Recipe | Method,
    target: Model,
    draft_model: Model | None = None,
    shape: Shape | None = None,
    verifier: Verifier | None = None,
    curve: Seconds | Calibration | None = None,
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
        drafter.target.require(TargetMark.of(target, "this model"))
    found = resources.LazyResources(
        target, draft_model, shape or wanted.shape, curve, prior, drafter, datastore
    )
    if overlap is not None:
        _require_places(target, draft_model, overlap)
    built, judge = wanted.drafter.build(found), verifier or wanted.verifier
    if overlap is not None:
        built = Overlapped(built, judge, overlap)
    return Method(built, judge, wanted.name, wanted.otherwise)


def _require_places(target: Model, draft_model: Model | None, overlap: Overlap) -> None:
    """Refuse an overlap without a core or device for each of what runs at the same time."""
    drafts = target if draft_model is None else draft_model
    if draft_model is not None:
        require_ability(draft_model, "fork", "overlap")
    require_places(target.device, drafts.device, overlap)
