"""Texts that a package's method writes, in the place of the engine's loop."""

from contextlib import suppress
from pathlib import Path

from draftwood.methods.answers import AnswersMethod, answers_method
from draftwood.methods.listings import ANSWERS
from draftwood.optional import entry_points
from draftwood_serve.settings import ServeSettings


def served_method(
    name: str, settings: ServeSettings, folder: Path | None = None
) -> AnswersMethod | None:
    """A package's method by its name and knobs; None for a method of the engine's loop.

    Args:
        folder: of the model; None asks nothing of it.

    Raises:
        ValueError: for one that this server cannot run, one that changes texts unless the server
            allows it, and knobs that it does not have.
    """
    found = answers_method(name)
    if found is None:
        return None
    if found.serve is None:
        raise ValueError(
            f"method {name!r} writes several answers at once, which no server runs; take it in"
            " 'draftwood generate'"
        )
    if found.require_served is not None:
        found.require_served(folder, name == settings.method)
    settings.require_allowed(name, found.promise)
    if settings.tree is not None:
        raise ValueError(f"method {name!r} draws no trees; leave --tree out")
    return found


def served_methods(settings: ServeSettings, folder: Path | None) -> list[AnswersMethod]:
    """The methods of packages that requests may ask for, on the model of a folder."""
    found = []
    for entry in entry_points(ANSWERS):
        with suppress(ValueError):
            found.append(served_method(entry.name, settings, folder))
    return [each for each in found if each is not None]
