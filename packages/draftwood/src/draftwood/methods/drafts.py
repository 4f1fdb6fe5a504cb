"""Drafts for a target: a second language model, a trained head, or one of each.

One option takes both. The kind is read from the folder, without PyTorch.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.drafters.resources import Need
from draftwood.heads.places import LEFT_OUT, config_in, is_head
from draftwood.methods.needs import Spec, taken
from draftwood.moved import renamed
from draftwood.storage.home import expanded

if TYPE_CHECKING:
    from draftwood.heads.packed import HeadTarget
    from draftwood.models.model import Model
    from draftwood.models.mtp import MtpHead

IN_AUTO = "eagle"
"""The kind of heads that ``auto`` drafts with."""
OTHER_NAMES = {"masked": "masked-block"}
"""Methods by the kind of their heads where they are called otherwise."""
PUBLISHED = "speculative"
"""The method for a language model of which nobody knows what it costs."""
_TRAINED: frozenset[Need] = frozenset({"head", "draft-model"})
"""Needs of methods that draft with heads of any kind."""


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
                that comes with draftwood. ``Drafts`` stay as they are.
            drafter: a head, by the name that the option for heads had before.

        Raises:
            TypeError: for what can be no head.
            ValueError: for two language models, two heads, and a head beside ``none``.
        """
        if isinstance(given, Drafts):
            return given
        every = list(given) if isinstance(given, (list, tuple)) else [given]
        models = [each for each in every if each is not None and not _is_head(each)]
        heads = [each for each in every if _is_head(each)]
        if drafter is not None:
            heads.append(_old_head(drafter))
        for kind, found in (("language models", models), ("trained heads", heads)):
            if len(found) > 1:
                raise ValueError(_too_many(kind, list(map(_told, found))))
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
        return "auto" if self.drafter == IN_AUTO else self.drafter

    @property
    def drafter(self) -> str:
        """The name of the head's drafter."""
        found = self._settings
        kind = str(found.get("kind", IN_AUTO))
        return "hydra" if found.get("sees_drafted") else OTHER_NAMES.get(kind, kind)

    def head_for(self, known: Spec, target: "HeadTarget") -> Any:
        """The head that was given, or the one that comes with draftwood for a target; None without
        either, and for methods that take none.
        """
        from draftwood.heads.packed import shipped

        takes_any = bool({"head", "draft-model"} & known.needs)
        if takes_any or (self.head is not None and self.method == "auto"):
            return self.head
        return shipped(target, IN_AUTO) if self.takes_shipped else None

    def mtp_of(self, target: "Model") -> "MtpHead | None":
        """The target's own layer for multi-token prediction, where nothing was given in its place.

        One that cannot be read is left out, with a warning.
        """
        from draftwood.models.requirements import own_mtp_head

        if not self.takes_shipped or self.head is not None:
            return None
        try:
            return own_mtp_head(target)
        except ValueError as error:
            warnings.warn(f"drafts come without it: {error}", stacklevel=2)
            return None

    @property
    def levels(self) -> int | None:
        """Most levels of a tree that the head drafts; None where nothing bounds them."""
        found = self._settings
        counted = {"medusa": "heads", "ctc": "frames", "dflash": "frames"}
        counted |= {"masked": "masks", "specdec": "places"}
        levels = found.get(counted.get(str(found.get("kind")), ""))
        return levels if isinstance(levels, int) else None

    @property
    def _settings(self) -> Mapping[str, Any]:
        """Kind and settings of the head, by name."""
        if isinstance(self.head, str):
            says = config_in(self.head)
            settings = says.get("head")
            return {
                **(settings if isinstance(settings, dict) else {}),
                "kind": says.get("kind", IN_AUTO),
            }
        config = getattr(self.head, "config", None)
        names = ("kind", "sees_drafted", "heads", "frames", "masks", "places")
        return {name: getattr(config, name) for name in names if hasattr(config, name)}

    def require_for(self, methods: Iterable[Spec]) -> None:
        """Refuse a head that none of these methods can use: those that need none take EAGLE heads.

        Raises:
            ValueError: naming the method of the head's kind.
        """
        if not self.fits(methods):
            raise ValueError(
                f"auto drafts with EAGLE heads, and this one is for method {self.method!r}; choose"
                f" that method with --method {self.method}, or leave the head out"
            )

    def fits(self, methods: Iterable[Spec]) -> bool:
        """True without a head, and where one of these methods can use it."""
        if self.head is None or self.method == "auto":
            return True
        return any("head" in taken(each, self.given) and each.needs & _TRAINED for each in methods)


def _is_head(given: object) -> bool:
    if isinstance(given, (str, Path)):
        return str(given) == LEFT_OUT or is_head(expanded(given))
    return hasattr(given, "draft_tokens")


def _too_many(kind: str, told: list[str]) -> str:
    if repr(LEFT_OUT) in told:
        return (
            f"draft model {LEFT_OUT!r} leaves trained heads out, but {' and '.join(told)} are"
            f" given; give {LEFT_OUT!r} or one head"
        )
    return (
        f"two {kind} are given to draft with, {' and '.join(told[:2])}; give at most one language"
        " model and one trained head"
    )


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
