"""Flags, JSON keys and names of methods that users and stored files rely on stay as they are.

``interface.json`` holds them. Something new is added there by hand; something that is gone breaks
scripts and old records.
"""

import json
from dataclasses import fields
from pathlib import Path

import click

import draftwood
from draftwood.cli.main import main
from draftwood.cli.methods import describe
from draftwood.methods import known
from draftwood.stats import Stats
from draftwood.text.stream import Generation
from draftwood_bench.plan.measurements import MEASUREMENTS
from draftwood_bench.plan.protocols import PROTOCOLS, Settings
from draftwood_bench.records.files import Record, RunInfo

KNOWN = json.loads(Path(__file__).with_name("interface.json").read_text())


def flags(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Options and arguments of each command below this one."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        found: dict[str, list[str]] = {}
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= flags(inner, (*path, name))
        return found
    names = []
    for each in command.params:
        options = [*each.opts, *each.secondary_opts]
        names += options if isinstance(each, click.Option) else [str(each.name).upper()]
    return {" ".join(path): sorted(names)}


def interface() -> dict[str, object]:
    answer = Generation("", [], "stop", "", "", Stats(), logprobs=[])
    several = Generation("", [], "stop", "", "", Stats(), others=(answer,))
    return {
        "flags": flags(main),
        "generation": sorted({*answer.as_json(), *several.as_json()}),
        "measurements": {
            name: sorted(each.name for each in fields(kind)) for name, kind in MEASUREMENTS.items()
        },
        "method names": list(known()),
        "methods": sorted(describe(known()["auto"])),
        "protocols": {
            name: sorted(each.name for each in fields(kind)) for name, kind in PROTOCOLS.items()
        },
        "record": sorted(each.name for each in fields(Record)),
        "run.json": sorted(each.name for each in fields(RunInfo)),
        "settings": sorted(each.name for each in fields(Settings)),
        "stats": sorted(Stats().as_json()),
        "top-level names": sorted(draftwood.__all__),
    }


def test_nothing_that_users_rely_on_has_changed() -> None:
    assert interface() == KNOWN
