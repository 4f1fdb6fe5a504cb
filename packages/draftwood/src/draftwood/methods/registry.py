"""Methods by name: found and built."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from draftwood.drafters import Drafter
from draftwood.drafters.resources import GIVEN, Later, Need, Resources, field_of
from draftwood.engine.method import Method
from draftwood.heads.trained import TrainedHead
from draftwood.methods.composition import MethodSpec
from draftwood.methods.drafts import Drafts
from draftwood.methods.listings import all_listed, unknown
from draftwood.methods.needs import head_stands_in, is_built, require, taken
from draftwood.methods.recipes import own_recipes
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.shapes import Shape
from draftwood.validation import require_kind, require_like_size
from draftwood.verifiers import Verifier

if TYPE_CHECKING:
    from draftwood.drafters.overlap import Overlap


def known() -> dict[str, MethodSpec]:
    """All methods by name: draftwood's own, then those of installed packages."""
    from draftwood.methods.parts import known_parts

    return dict(known_parts().recipes)


def recipe(method: str | MethodSpec) -> MethodSpec:
    """The recipe of this name; a recipe is its own.

    Raises:
        ValueError: for an unknown name, with the nearest ones.
    """
    if isinstance(method, MethodSpec):
        return method
    if all_listed():  # then nobody takes the names of draftwood's own
        own = next((each for each in own_recipes() if each.name == method), None)
        if own is not None:
            return own
    recipes = known()
    if method in recipes:
        return recipes[method]
    raise unknown(method, {name: each.source for name, each in recipes.items()})


def build(
    method: str | MethodSpec | Method,
    target: Model,
    draft_model: Model | Later | None = None,
    shape: Shape | None = None,
    verifier: Verifier | None = None,
    *,
    overlap: "Overlap | None" = None,
    **resources: Any,
) -> Method:
    """A method for a target.

    Args:
        method: a name of ``known()`` or a recipe; a method that is built already stays as it is.
        draft_model: for the methods that draft with one, some of which do without it. Where a
            head stands in for it, the head's own drafter grows the method's tree.
        shape: a tree other than the recipe's, for drafters that take one.
        verifier: a verifier other than the recipe's.
        overlap: how to draft while the target runs; None drafts in turn.
        resources: further fields of ``Resources``, such as ``head`` or ``curve``; as ``Later``
            what is to be made for a method that takes it.

    Raises:
        TypeError: for a draft model that is none.
        ValueError: for an unknown name, a missing draft model or one of another vocabulary, a
            missing head or one of another target, for resources that would not be used, for a tree
            that is deeper than the head's levels or the context, and for an overlap where nothing
            can be drafted while the target runs.
    """
    usual = None if isinstance(method, Method) else recipe(method).shape
    made = _made(method, {"draft_model": draft_model, **resources})
    found = Resources(target, shape=shape or usual, **made)
    given: set[Need] = {"shape"} if shape is not None else set()
    given |= {need for need in GIVEN if getattr(found, field_of(need)) is not None}
    require([method], given, overlap is not None)
    if isinstance(method, Method):
        return method
    wanted = recipe(method)
    drafter = _drafter_for(wanted, given, found.head)
    if shape is not None:
        _require_shape(wanted, shape, target, Drafts(head=found.head).levels)
    require_kind("draft_model", found.draft_model, Model, "a model of draftwood")
    if found.draft_model is not None:
        require_like_size(target.vocab_size, found.draft_model.vocab_size)
    if found.head is not None:
        if found.head.target.probe:  # by which the head knows its target
            require_ability(target, "hidden", f"method {wanted.name!r} with this head")
        found.head.target.require_model(target)
    if overlap is not None:
        from draftwood.drafters.overlap import require_ahead

        require_ahead(drafter.name, drafter)
        _require_places(target, found.draft_model, overlap)
    built, judge = drafter.build(found), verifier or wanted.verifier
    if overlap is not None:
        from draftwood.engine.executors.overlapping import Overlapping

        built = Overlapping(built, overlap)
    return Method(built, judge, wanted.name, wanted.otherwise)


def _made(method: str | MethodSpec | Method, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Make the resources that a method takes of those that come later, and leave out the others."""
    there: Any = {name.replace("_", "-"): each for name, each in parts.items() if each is not None}
    used = taken(method, there)
    if not is_built(method):
        used -= recipe(method).drafter.unused_here()
    return {
        field_of(need): each.make() if isinstance(each, Later) else each
        for need, each in there.items()
        if need in used or not isinstance(each, Later)
    }


def _drafter_for(
    wanted: MethodSpec, given: Collection[Need], head: TrainedHead | None
) -> type[Drafter]:
    """The drafter of a method: its own, or that of a head which stands in for a draft model."""
    if head_stands_in(wanted, given):
        return recipe(Drafts(head=head).drafter).drafter  # the method of the head's kind
    return wanted.drafter


def _require_shape(wanted: MethodSpec, shape: Shape, target: Model, levels: int | None) -> None:
    """Refuse a shape that a method does not take, or that is too deep for its head or target."""
    from draftwood.methods.trees import require_context, require_levels

    if "shape" not in wanted.uses:
        raise ValueError(f"method {wanted.name!r} takes no shape")
    if not isinstance(shape, wanted.drafter.shape_type):
        kind = wanted.drafter.shape_type.__name__
        raise ValueError(f"method {wanted.name!r} takes a {kind} shape, not {shape}")
    require_levels(shape, levels)
    require_context(shape, target.context_length)


def _require_places(target: Model, draft_model: Model | None, overlap: "Overlap") -> None:
    """Refuse an overlap without a core or device for each of what runs at the same time."""
    from draftwood.drafters.overlap import require_places

    drafts = target if draft_model is None else draft_model
    if draft_model is not None:
        require_ability(draft_model, "fork", "overlap")
    require_places(target.device, drafts.device, overlap)
