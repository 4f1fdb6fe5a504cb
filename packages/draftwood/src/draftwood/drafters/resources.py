"""What drafters declare that they need and use.

Parts that are missing, or that would not be used, are refused here, before anything is imported
that runs a model.
"""

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from draftwood.drafters.drafter import Drafter, Need
    from draftwood.shapes.shape import Shape


class Declared(Protocol):
    """A drafter's class, or what is known of it without its import: see ``Drafter``."""

    @property
    def needs(self) -> "Set[Need]": ...

    @property
    def uses(self) -> "Set[Need]": ...

    @property
    def drafts_ahead(self) -> bool: ...


def needs_draft_model(drafter: Declared) -> bool:
    """Whether a drafter cannot do without a second model."""
    return "draft-model" in drafter.needs


def uses_draft_model(drafter: Declared) -> bool:
    """Whether a drafter takes a second model where one is given."""
    return "draft-model" in drafter.needs | drafter.uses


def needs_drafter(drafter: Declared) -> bool:
    """Whether a drafter cannot do without a trained one's folder."""
    return "drafter" in drafter.needs


def uses_drafter(drafter: Declared) -> bool:
    """Whether a drafter takes a trained one's folder where it is given."""
    return "drafter" in drafter.needs | drafter.uses


def needs_layers(drafter: Declared) -> bool:
    """Whether a drafter runs parts of its target."""
    return "layers" in drafter.needs


def require_ahead(name: str, drafter: Declared) -> None:
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


def lacking(drafter: Declared, draft_model: bool, trained: bool) -> "Need | None":
    """What a drafter cannot do without and does not get; None where it can be built."""
    if needs_draft_model(drafter) and not draft_model:
        return "draft-model"
    return "drafter" if needs_drafter(drafter) and not trained else None


def require(
    drafters: Mapping[str, Declared],
    draft_model: bool,
    trained: bool = False,
    datastore: bool = False,
) -> None:
    """Refuse methods that lack a part, and parts that no method uses.

    Called before weights are loaded.

    Args:
        drafters: by method.
        draft_model: whether one is given.
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


def require_shape(drafters: "Mapping[str, type[Drafter]]", shape: "Shape") -> None:
    """Refuse a shape that one of these methods does not take.

    Raises:
        ValueError: naming the method.
    """
    for name, drafter in drafters.items():
        if "shape" not in drafter.uses:
            raise ValueError(f"method {name!r} takes no shape")
        if not isinstance(shape, drafter.shape_type):
            raise ValueError(
                f"method {name!r} takes a {drafter.shape_type.__name__} shape, not {shape}"
            )


def _require_models(drafters: Mapping[str, Declared], draft_model: bool, trained: bool) -> None:
    drafting = [name for name, drafter in drafters.items() if needs_draft_model(drafter)]
    if drafting and not draft_model:
        raise ValueError(
            f"method {drafting[0]!r} drafts with a second, smaller model of the same vocabulary;"
            " name one with --draft-model (draft_model= in Python), or choose auto, which needs"
            " none"
        )
    learnt = [name for name, drafter in drafters.items() if needs_drafter(drafter)]
    if learnt and not trained:
        raise ValueError(
            f"method {learnt[0]!r} drafts with a trained drafter; name its folder with --drafter"
            " (drafter= in Python), or choose auto, which needs none"
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


def _subject(drafters: Mapping[str, Declared]) -> str:
    names = ", ".join(map(repr, drafters))
    return f"method {names} uses" if len(drafters) == 1 else f"methods {names} use"
