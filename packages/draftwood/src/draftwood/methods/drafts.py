"""Drafts for a target: a second language model, a trained head, or one of each.

One option takes both. The kind is read from the folder, without PyTorch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.drafters.resources import Need
from draftwood.heads.places import LEFT_OUT, config_in
from draftwood.methods.needs import Spec
from draftwood.moved import renamed

IN_AUTO = "eagle"
"""The kind of heads that ``auto`` drafts with."""
PUBLISHED = "speculative"
"""The method for a language model of which nobody knows what it costs."""


@dataclass(frozen=True)
class Drafts:
    """Draft model and head of a target: as they are given, or by name.

    Attributes:
        model: a second language model; None without one.
        head: a trained head; None without one.
        takes_shipped: whether methods may take a head that comes with draftwood where ``head`` is
            None.
    """

    model: Any = None
    head: Any = None
    takes_shipped: bool = True

    @classmethod
    def of(cls, given: object = None, drafter: object = None) -> "Drafts":
        """Sort what is given by kind.

        Args:
            given: one model or head or several, in a list or tuple; ``none`` leaves out the head
                that comes with draftwood.
            drafter: a head, by the name that the option for heads had before.

        Raises:
            TypeError: for what can be no head.
            ValueError: for two of one kind.
        """
        every = list(given) if isinstance(given, (list, tuple)) else [given]
        models = [each for each in every if each is not None and not _is_head(each)]
        heads = [each for each in every if _is_head(each)]
        if drafter is not None:
            heads.append(_old_head(drafter))
        for kind, found in (("language models", models), ("trained heads", heads)):
            if len(found) > 1:
                told = " and ".join(map(_told, found[:2]))
                raise ValueError(
                    f"two {kind} are given to draft with, {told}; give at most one of each kind"
                )
        head = _path(heads[0]) if heads else None
        takes_shipped, head = head != LEFT_OUT, None if head == LEFT_OUT else head
        return cls(_path(models[0]) if models else None, head, takes_shipped)

    @property
    def given(self) -> frozenset[Need]:
        """The resources that these are."""
        found: dict[Need, object] = {"draft-model": self.model, "head": self.head}
        return frozenset(need for need, each in found.items() if each is not None)

    @property
    def method(self) -> str:
        """The method that follows from the kind.

        For a language model that is the published one; what it costs may decide for another.
        """
        if self.head is None:
            return "auto" if self.model is None else PUBLISHED
        if not isinstance(self.head, str):
            config = getattr(self.head.head, "config", None)
            kind = getattr(config, "kind", IN_AUTO)
            return method_of(kind, getattr(config, "sees_drafted", False))
        says = config_in(self.head)
        head = says.get("head")
        sees_drafted = isinstance(head, dict) and bool(head.get("sees_drafted"))
        return method_of(says.get("kind", IN_AUTO), sees_drafted)

    def require_for(self, methods: Iterable[Spec]) -> None:
        """Refuse a head that none of these methods can use: those that need none take EAGLE heads.

        Raises:
            ValueError: naming the method of the head's kind.
        """
        if not self.fits(methods):
            raise ValueError(
                f"auto drafts with EAGLE heads, and this one is for method {self.method!r}; choose"
                " that method, or leave the head out"
            )

    def fits(self, methods: Iterable[Spec]) -> bool:
        """True without a head, and where one of these methods can use it."""
        own = self.method
        return self.head is None or own == "auto" or any("head" in each.needs for each in methods)


def method_of(kind: str, sees_drafted: bool) -> str:
    """The method of a kind of heads.

    Args:
        sees_drafted: of ``MedusaConfig``.
    """
    if kind == IN_AUTO:
        return "auto"
    return "hydra" if sees_drafted else kind


def _is_head(given: object) -> bool:
    if isinstance(given, (str, Path)):
        return str(given) == LEFT_OUT or bool(config_in(Path(given).expanduser()))
    return hasattr(given, "draft_tokens")


def _old_head(drafter: object) -> object:
    if not (isinstance(drafter, (str, Path)) or hasattr(drafter, "draft_tokens")):
        wanted = "a trained head's folder or name, or what heads.folder.load gave"
        raise TypeError(f"drafter must be {wanted}, got {drafter!r:.80}")
    renamed("drafter", "draft_model")
    return drafter


def _path(given: object) -> object:
    return str(given) if isinstance(given, Path) else given


def _told(given: object) -> str:
    return repr(str(given)) if isinstance(given, (str, Path)) else type(given).__name__
