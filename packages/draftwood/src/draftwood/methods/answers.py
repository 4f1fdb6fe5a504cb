"""Methods that write several answers to a prompt at once, which installed packages bring.

They draft and verify nothing: ``draftwood generate --answers N --method NAME`` calls them in the
place of the engine's loop.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from draftwood.methods.listings import ANSWERS, CommandMethod
from draftwood.optional import entry_points

if TYPE_CHECKING:
    from draftwood.drafters.resources import Need


@dataclass(frozen=True)
class AnswersMethod(CommandMethod):
    """A way to write several answers at once, found by an entry point of ``draftwood.answers``.

    Attributes:
        write: makes a list of ``Generation``s from a ``LanguageModel``, a prompt, how many, and
            ``SamplingParams``; it raises ValueError for options that it does not take.
        needs: files without which it cannot write; ``lm.models`` has them opened.
    """

    write: Callable[[Any, Any, int, Any], list[Any]]
    needs: "frozenset[Need]" = frozenset()

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


def answers_method(name: str | None) -> AnswersMethod | None:
    """Look one up by its name; None where another kind of method has it. No other is imported."""
    if name is None:  # packages are not looked through
        return None
    return next((each.load() for each in entry_points(ANSWERS) if each.name == name), None)
