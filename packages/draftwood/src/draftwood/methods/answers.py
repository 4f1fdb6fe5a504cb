"""Methods of installed packages that write whole answers to a prompt, one or several at once.

They draft and verify nothing: ``draftwood generate --method NAME`` calls them in the place of the
engine's loop.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from draftwood.methods.listings import ANSWERS, CommandMethod
from draftwood.optional import entry_points

if TYPE_CHECKING:
    from pathlib import Path

    from draftwood.drafters.resources import Need


@dataclass(frozen=True)
class AnswersMethod(CommandMethod):
    """A way to write several answers at once, found by an entry point of ``draftwood.answers``.

    Attributes:
        write: makes a list of ``Generation``s from a ``LanguageModel``, a prompt, how many, and
            ``SamplingParams``; it raises ValueError for options that it does not take.
        needs: files without which it cannot write; ``lm.models`` has them opened.
        adjust: makes the method that a text behind its name asks for, as ``threshold,tau=0.8``, and
            settings of the model that the user gives; None where it has neither.
        show: shows an answer in its own way, given the ``LanguageModel`` too; None where it cannot.
        serve: makes a text, of a ``LanguageModel``, tokens and ``SamplingParams``, that a server
            runs beside others: a task of a scheduler with what ``engine.Sequence`` tells of its
            prompt, and ``details``; None where it cannot.
        require_served: raises ValueError where a server cannot run it, given the folder of its
            model, or None for any, and whether the server was started with it, as requests name no
            files of the server; None where nothing speaks against it.
    """

    write: Callable[[Any, Any, int, Any], list[Any]]
    needs: "frozenset[Need]" = frozenset()
    adjust: "Callable[[str, Mapping[str, int]], AnswersMethod] | None" = None
    show: Callable[[Any, Any], None] | None = None
    serve: Callable[[Any, list[int], Any], Any] | None = None
    require_served: "Callable[[Path | None, bool], None] | None" = None

    def adjusted(self, text: str, settings: Mapping[str, int]) -> "AnswersMethod":
        """The method with its knobs.

        Args:
            text: as the user types it.
            settings: of the model, by the options that give them.

        Raises:
            ValueError: for knobs or settings that it does not have.
        """
        if self.adjust is not None:
            return self.adjust(text, settings)
        if text != self.name or settings:
            spare = min(settings) if settings else text.removeprefix(self.name)
            raise ValueError(f"method {self.name!r} has nothing to set; leave {spare} out")
        return self

    def require(self, inexact: bool, given: "frozenset[Need]", others: Collection[str]) -> None:
        """Refuse what does not go with it, before anything is loaded.

        Args:
            inexact: whether another text than the model's is allowed.
            given: resources that the user gives.
            others: options that the user gives and drafting alone takes.

        Raises:
            ValueError: with what is wrong and how to mend it.
        """
        if self.promise == "trades quality" and not inexact:
            raise ValueError(
                f"method {self.name!r} changes what the model would say; --inexact allows that"
            )
        if missing := sorted(self.needs - given):
            raise ValueError(
                f"method {self.name!r} reads a {missing[0]}; name one with --{missing[0]}, which"
                f" 'draftwood {missing[0]} build' makes of files"
            )
        if others:
            raise ValueError(f"method {self.name!r} drafts nothing; leave {min(others)} out")

    def answer(self, lm: Any, prompt: Any, count: int, params: Any) -> Any:
        """Write a ``Generation`` that holds them all.

        Args:
            params: ``SamplingParams``; ``exact`` refuses a method that trades quality.
        """
        self.require(not params.exact, self.needs, ())
        first, *others = self.write(lm, prompt, count, params)
        return replace(first, others=tuple(others))


def answers_method(
    text: str | None, settings: Mapping[str, int] | None = None
) -> AnswersMethod | None:
    """Look one up by its name; None where another kind of method has it. No other is imported.

    Args:
        text: the name, and knobs behind it.
        settings: as ``AnswersMethod.adjusted`` takes them.
    """
    if text is None:  # packages are not looked through
        return None
    name = re.split("[,+]", text)[0].strip()
    found = next((each.load() for each in entry_points(ANSWERS) if each.name == name), None)
    return None if found is None else found.adjusted(text, settings or {})
