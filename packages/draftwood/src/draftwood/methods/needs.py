"""What methods need and use, and refusals of those that lack it. Nothing is imported for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftwood.drafters import resources
from draftwood.methods.listings import Listing, Named, listing

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from draftwood.drafters.drafter import Drafter, Need
    from draftwood.engine.method import Method
    from draftwood.methods.composition import Recipe
    from draftwood.shapes.shape import Shape


def needs_draft_model(method: Named) -> bool:
    """Whether a method cannot do without a second model."""
    return resources.needs_draft_model(_declared(method))


def uses_draft_model(method: Named) -> bool:
    """Whether a method drafts with a second model where one is given."""
    return resources.uses_draft_model(_declared(method))


def needs_drafter(method: Named) -> bool:
    """Whether a method cannot do without a trained drafter."""
    return resources.needs_drafter(_declared(method))


def uses_drafter(method: Named) -> bool:
    """Whether a method drafts with a trained drafter where one is given."""
    return resources.uses_drafter(_declared(method))


def needs_layers(method: Named) -> bool:
    """Whether a method drafts with parts of the target itself, which not every model has."""
    return resources.needs_layers(_declared(method))


def uses_datastore(method: Named) -> bool:
    """Whether a method copies from a datastore where one is given."""
    return "datastore" in _declared(method).uses


def drafts_ahead(method: Named) -> bool:
    """Whether a method can draft while the target runs."""
    return _declared(method).drafts_ahead


def lacking(method: Named, draft_model: bool, drafter: bool) -> "Need | None":
    """What a method cannot do without and does not get, under its option's name; None if nothing.

    Args:
        draft_model: whether one is given.
        drafter: whether a trained one is given.
    """
    return resources.lacking(_declared(method), draft_model, drafter)


def require(
    methods: "Sequence[str | Recipe | Method]",
    draft_model: bool,
    shape: "Shape | None" = None,
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
    built, wanted = _sorted(methods)
    if built and (draft_model or drafter or datastore or overlap or shape is not None):
        raise ValueError(
            f"method {built[0].name!r} is built already and takes no further parts; leave out draft"
            " model, drafter, datastore, shape and overlap"
        )
    declared = {name: _declared(each) for name, each in wanted.items()}
    if declared:
        resources.require(declared, draft_model, drafter, datastore)
    if shape is not None:
        resources.require_shape({name: _drafter(each) for name, each in wanted.items()}, shape)
    if overlap and not any(each.drafts_ahead for each in declared.values()):
        resources.require_ahead(*next(iter(declared.items())))


def _sorted(
    methods: "Sequence[str | Recipe | Method]",
) -> "tuple[list[Method], dict[str, Listing | Recipe]]":
    """Methods that are built already, and the others by name."""
    built: list[Method] = []
    wanted: dict[str, Listing | Recipe] = {}
    for method in methods:
        if isinstance(method, str):
            wanted[method] = listing(method)
        elif _is_built(method):
            built.append(method)
        else:
            wanted[method.name] = method
    return built, wanted


def _is_built(method: "Recipe | Method") -> "TypeIs[Method]":
    from draftwood.engine.method import Method  # whoever gives one has imported it

    return isinstance(method, Method)


def _declared(method: Named) -> resources.Declared:
    return listing(method) if isinstance(method, (str, Listing)) else method.drafter


def _drafter(method: "Listing | Recipe") -> "type[Drafter]":
    from draftwood.methods.registry import recipe

    return recipe(method.name).drafter if isinstance(method, Listing) else method.drafter
