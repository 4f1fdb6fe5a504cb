"""Words that a shell completes in the place of an option's value; none of them takes an import of
what it names.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from draftwood.loading.names import BUILTIN_NAMES, DTYPES, PICTURES, shipped_models
from draftwood.native.formats import CACHES, INTEGERS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def files(context: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Files, which the shell itself lists."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def model_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Built-in models."""
    return _beginning(begun, BUILTIN_NAMES)


def models(
    context: click.Context, parameter: click.Parameter, begun: str
) -> "list[str] | list[CompletionItem]":
    """Built-in models and those of packages that write texts, or files where none begins so."""
    names = _beginning(begun, (*BUILTIN_NAMES, *_shipped(draws=False)))
    return names or files(context, parameter, begun)


def picture_models(
    context: click.Context, parameter: click.Parameter, begun: str
) -> "list[str] | list[CompletionItem]":
    """Models of packages that draw pictures, or files where none begins so."""
    return _beginning(begun, _shipped(draws=True)) or files(context, parameter, begun)


def _shipped(draws: bool) -> list[str]:
    """Models of installed packages that draw, or those that write."""
    known = shipped_models().items()
    return [name for name, folder in known if (folder / PICTURES).is_file() == draws]


def draft_models(
    context: click.Context, parameter: click.Parameter, begun: str
) -> "list[str] | list[CompletionItem]":
    """Built-in models, trained heads that are installed, and ``none``; or files."""
    from draftwood.heads.places import shipped

    names = _beginning(begun, (*BUILTIN_NAMES, *shipped(), "none"))
    return names or files(context, parameter, begun)


def methods(
    context: click.Context, parameter: click.Parameter, begun: str
) -> "list[CompletionItem]":
    """Methods, with what each is; of a list the one behind the last comma."""
    from click.shell_completion import CompletionItem

    from draftwood.methods import listings

    before, comma, last = begun.rpartition(",")
    known = listings()
    return [
        CompletionItem(f"{before}{comma}{name}", help=known[name].summary)
        for name in _beginning(last, known)
    ]


def chats(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Saved chats."""
    from draftwood.cli.chats import saved_names

    return _beginning(begun, saved_names())


def dtypes(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Types of weights."""
    return _beginning(begun, (*INTEGERS, *DTYPES))


def caches(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Types of keys and values."""
    return _beginning(begun, CACHES)


def _beginning(begun: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(begun)]


OF_NAMES = {
    "model": models,
    "draft_model": draft_models,
    "datastore": files,
    "dtype": dtypes,
    "cache": caches,
    "adapter": files,
}
"""Completers by the fields of ``ModelNames``."""
