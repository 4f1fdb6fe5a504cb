"""Packages whose names are imported when they are first used, so that the package costs nothing.

Imports next to nothing itself: whoever stops a command in its first moments hears one line.
"""

import gc
from _thread import allocate_lock

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

        with UNCOLLECTED:
            return getattr(import_module(home_of[name]), name)

    return get


class Uncollected:
    """A stretch of work in which Python looks for no garbage, in any thread.

    Imports and loads make many objects and drop few: looking for cycles among them is a tenth of
    the time until a first token. Stretches may overlap; the last to end lets Python look again.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._under_way = 0
        self._collects = True

    def __enter__(self) -> None:
        with self._lock:
            if not self._under_way:
                self._collects = gc.isenabled()
                gc.disable()
            self._under_way += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._under_way -= 1
            if not self._under_way and self._collects:
                gc.enable()


UNCOLLECTED = Uncollected()
"""Uncollected work of this process."""
