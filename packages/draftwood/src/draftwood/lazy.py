"""Packages whose names are imported when they are first used, so that the package costs nothing.

Imports next to nothing itself: whoever stops a command in its first moments hears one line.
"""

TYPE_CHECKING = False  # as in typing, whose import takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def importer(package: str, homes: "Mapping[str, Collection[str]]") -> "Callable[[str], object]":
    """The ``__getattr__`` of a package.

    Args:
        package: its ``__name__``.
        homes: names by the module that defines them. No module of the package may have one of these
            names: its import would take the name's place.

    Raises:
        AttributeError: on use, for other names.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in home_of:
            from draftwood.moved import moved_name

            return moved_name(package, name)
        from importlib import import_module

        return getattr(import_module(home_of[name]), name)

    return get
