"""Refusals of methods that lack a resource, and of what none of them uses; imports nothing."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from draftwood.drafters import resources
from draftwood.methods.listings import Listing, Named, listing

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from draftwood.drafters.resources import Need
    from draftwood.engine.method import Method
    from draftwood.methods.composition import MethodSpec


def spec(method: Named) -> "Listing | MethodSpec":
    """The ``needs``, ``uses`` and ``drafts_ahead`` of a method; a name's parts are not imported."""
    return listing(method) if isinstance(method, str) else method


def lacking(method: Named, given: "Collection[Need]") -> "Need | None":
    """The resource that a method cannot do without and does not get; None where there is none."""
    return resources.lacking(spec(method), given)


def taken(method: Named, given: "Collection[Need]") -> "frozenset[Need]":
    """The given resources that a method takes."""
    return resources.taken(spec(method), given)


def require(
    methods: "Sequence[str | MethodSpec | Method]",
    given: "Collection[Need]" = (),
    overlap: bool = False,
) -> None:
    """Refuse methods that lack a resource, and resources that none of them uses.

    Args:
        given: resources that the user gives.
        overlap: whether those that can are to draft while the target runs.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    built = [method for method in methods if is_built(method)]
    if built and (given or overlap):
        raise ValueError(
            f"method {built[0].name!r} is built already and takes no further parts; leave out draft"
            " model, datastore, shape and overlap"
        )
    specs = {each.name: each for each in (spec(one) for one in methods if not is_built(one))}
    if specs:
        resources.require(specs, given)
    if overlap and not any(each.drafts_ahead for each in specs.values()):
        resources.require_ahead(*next(iter(specs.items())))


def is_built(method: "str | MethodSpec | Method") -> "TypeIs[Method]":
    """True for a method that has a model already."""
    return not isinstance(method, str) and not hasattr(method, "needs")
