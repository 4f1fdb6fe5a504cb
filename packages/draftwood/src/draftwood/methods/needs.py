"""Refusals of methods that lack a resource, and of what none of them uses; imports nothing."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Union

from draftwood.drafters.resources import GIVEN, Need
from draftwood.methods.listings import Listing, Named, listing

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from draftwood.engine.method import Method
    from draftwood.methods.composition import MethodSpec

Spec = Union[Listing, "MethodSpec"]
"""A method that says what it ``needs`` and ``uses``, and whether it ``drafts_ahead``."""


def spec(method: Named) -> Spec:
    """The ``needs``, ``uses`` and ``drafts_ahead`` of a method; a name's parts are not imported."""
    return listing(method) if isinstance(method, str) else method


def lacking(method: Named, given: Collection[Need]) -> Need | None:
    """The resource that a method cannot do without and does not get; None where there is none."""
    missing = spec(method).needs - frozenset(given)
    if head_stands_in(method, given):
        missing -= {"draft-model"}
    return next((need for need in GIVEN if need in missing), None)


def head_stands_in(method: Named, given: Collection[Need]) -> bool:
    """True if a trained head takes the place of a draft model that a method needs."""
    known, there = spec(method), frozenset(given)
    return "draft-model" in known.needs - there and "head" in known.uses & there


def taken(method: "Named | Method", given: Collection[Need]) -> frozenset[Need]:
    """The given resources that a method takes; a method that is built takes none.

    Beside a draft model it takes no head that would stand in.
    """
    if is_built(method):
        return frozenset()
    known = spec(method)
    found = (known.needs | known.uses) & frozenset(given)
    return found - {"head"} if "draft-model" in known.needs & found else found


def require(
    methods: "Sequence[str | MethodSpec | Method]",
    given: Collection[Need] = (),
    overlap: bool = False,
) -> None:
    """Refuse methods that lack a resource, and resources that none of them uses.

    Args:
        given: resources that the user gives.
        overlap: whether those that can are to draft while the target runs.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    built = next((method for method in methods if is_built(method)), None)
    if built is not None and (given or overlap):
        raise ValueError(
            f"method {built.name!r} is built already and takes no further parts; leave out draft"
            " model, files, shape and overlap"
        )
    specs = [spec(method) for method in methods if not is_built(method)]
    for each in specs:
        if (need := lacking(each, given)) is not None:
            raise ValueError(f"method {each.name!r} {GIVEN[need][0]}")
    takes = {need for each in specs for need in taken(each, given)}
    idle = [unused for need, (_, unused) in GIVEN.items() if need in given and need not in takes]
    if specs and idle:
        names = list(dict.fromkeys(repr(each.name) for each in specs))
        subject = f"method{'s' * (len(names) > 1)} {', '.join(names)}"
        raise ValueError(f"{subject} use{'s' * (len(names) == 1)} no {idle[0]}")
    if overlap and specs and not any(each.drafts_ahead for each in specs):
        from draftwood.drafters.overlap import require_ahead

        require_ahead(specs[0].name, specs[0])


def is_built(method: "Named | Method") -> "TypeIs[Method]":
    """True for a method that has a model already."""
    return not isinstance(method, str) and not hasattr(method, "needs")
