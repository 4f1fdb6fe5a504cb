"""`draftwood models`: models by name, and the room they take."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import completers, options
from draftwood.cli.fetch import fetch
from draftwood.cli.terminal import notes, output, ruled_table
from draftwood.storage.home import home

if TYPE_CHECKING:
    from rich.table import Table

    from draftwood.loading.inventory import NamedModel


@click.group(invoke_without_command=True)
@options.as_json
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the models that have a name, with size, licence and origin: the built-in ones, and those
    of the hub that are on this machine.

    \b
    Examples:
      draftwood models
      draftwood models pull qwen2.5-coder-0.5b
      draftwood models remove stories-15m --yes
      draftwood models disk --json
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError(f"give --json behind {context.invoked_subcommand}")
        return
    from draftwood.loading.inventory import named_models

    found = named_models()
    if as_json:
        click.echo(json.dumps({"models": [_described(each) for each in found]}))
    else:
        output().print(_listed(found))
        told = f"in {home() / 'models'}; 'draftwood models pull NAME' fetches one"
        output().print(told, style="dim", markup=False, soft_wrap=True)


def _described(model: "NamedModel") -> dict[str, Any]:
    """A model in the form that ``--json`` prints."""
    return {
        "name": model.name,
        "present": bool(model.folders),
        "bytes": model.size,
        "licence": model.licence,
        "origin": model.origin,
        "folders": [str(each) for each in model.folders],
    }


def _listed(found: Sequence["NamedModel"]) -> "Table":
    table = _table("name", "size", "licence", "from", "here")
    for each in found:
        origin = ", ".join(each.registries)
        here = _here(len(each.folders))
        table.add_row(each.name, readable(each.size), each.licence or "-", origin or "-", here)
    return table


def _here(folders: int) -> str:
    return f"{folders} folders" if folders > 1 else "yes" if folders else "no"


def _table(*titles: str) -> "Table":
    table = ruled_table()
    for title in titles:
        number = title == "size"
        whole = number or title in ("name", "kind", "here")
        table.add_column(
            title,
            justify="right" if number else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    return table


def readable(size: int) -> str:
    """Bytes in the unit that people read."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} B"


@models.command(short_help="Remove models from this machine.")
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=completers.model_names
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.as_json
@click.pass_context
def remove(context: click.Context, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove built-in models, what was made of GGUF files, and weights that were packed of them.

    A GGUF file of one's own stays where it is, or may be gone already.

    \b
    Example:
      draftwood models remove stories-15m
    """
    from draftwood.loading import inventory

    folders, listed = dict[str, list[Path]](), set[Path]()
    for name in dict.fromkeys(names):
        own = [each for each in inventory.removable(name) if each not in listed]
        if own:  # else the same model under another name
            folders[name] = own
            listed.update(own)
    for name, own in folders.items():
        size = readable(sum(map(inventory.bytes_in, own)))
        if not yes and not _agreed(name, size, own):
            raise click.ClickException("nothing was removed")
    gone = {name: inventory.remove(own) for name, own in folders.items()}
    if as_json:
        told = [
            {"name": name, "bytes": size, "folders": [str(each) for each in folders[name]]}
            for name, size in gone.items()
        ]
        click.echo(json.dumps({"removed": told}))
        return
    for name, size in gone.items():
        click.echo(f"{name}: {readable(size)} free again")


def _agreed(name: str, size: str, folders: Sequence[Path]) -> bool:
    for each in folders:
        notes().print(str(each), style="dim", markup=False, soft_wrap=True)
    try:
        return click.confirm(f"Remove {name}, {size}?", err=True)
    except click.Abort:
        raise click.ClickException(
            "nobody is there to answer, and nothing was removed; --yes answers beforehand"
        ) from None


@models.command(short_help="Tell how much room is taken.")
@options.as_json
def disk(as_json: bool) -> None:
    """Tell the room on the disk that models, packed weights, kernels and the rest take.

    \b
    Example:
      draftwood models disk
    """
    from draftwood.loading.inventory import disk_used

    found = disk_used()
    total = sum(size for _, size in found.values())
    if as_json:
        told = [
            {"kind": kind, "bytes": size, "folder": str(folder)}
            for kind, (folder, size) in found.items()
        ]
        click.echo(json.dumps({"disk": told, "bytes": total}))
        return
    table = _table("kind", "size", "folder")
    for kind, (folder, size) in found.items():
        table.add_row(kind, readable(size), str(folder))
    table.add_row("in all", readable(total), "", style="bold")
    output().print(table)


models.add_command(
    click.Command(
        "pull",
        callback=fetch.callback,
        params=fetch.params,
        short_help="Fetch models, as 'draftwood fetch' does.",
        help=(fetch.help or "").replace("draftwood fetch", "draftwood models pull"),
    )
)
