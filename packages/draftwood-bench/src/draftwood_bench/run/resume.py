"""``run.json`` of a run: written at the first start, compared and continued at later ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from draftwood.storage.machine import device_name
from draftwood_bench.plan.prompts import PromptSet
from draftwood_bench.plan.protocols import (
    PROOF,
    PROTOCOLS,
    as_json,
    from_json,
    listed,
    measurement,
    timed,
)
from draftwood_bench.records.files import RunInfo, Writer, read_run, write_run
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit, describe, digest, digests, now, versions
from draftwood_bench.run.workbench import Workbench

if TYPE_CHECKING:
    from draftwood_bench.plan.order import Order


@dataclass(frozen=True)
class Start:
    """Identity of a run, to compare its start with earlier ones.

    Attributes:
        output: folder of the records.
        command: as typed.
        what: fields of ``RunInfo`` that may not change, the options among them.
        growing: options that may.
        prompts: digest of what is asked; None where nothing is.
        weights: digests by field of ``RunInfo``.
        machine: facts that figures depend on, under the names of ``RunInfo`` and its ``hardware``.
        describe: makes the whole ``RunInfo`` of a first start.
    """

    output: Path
    command: str
    what: dict[str, Any]
    growing: frozenset[str]
    prompts: str | None
    weights: dict[str, str | None]
    machine: dict[str, Any]
    describe: Callable[[], RunInfo]


def machine_of(device: Any) -> dict[str, Any]:
    """Facts of this machine that figures depend on, for models on a device."""
    threads = torch.get_num_threads()
    return {"threads": threads, "device": device_name(device), "processor": processor()}


def start_of(order: "Order", bench: Workbench, prompts: PromptSet, rule: str) -> Start:
    """The start of a protocol on these prompts."""

    def described() -> RunInfo:
        info = describe(bench, order.protocol, prompts, rule, order.command)
        return replace(info, peers={name: {} for name in order.peers})

    what = {
        "options": as_json(order.protocol),
        "model": order.models.model,
        **order.models.recorded,
        "dtype": bench.dtype,
        "peers": list(order.peers),
    }
    return Start(
        order.output,
        order.command,
        what,
        order.protocol.growing,
        digest(prompts),
        digests(bench),
        machine_of(bench.plain.model.device) if timed(order.protocol) else {},
        described,
    )


def begin_or_go_on(start: Start, writer: Writer) -> RunInfo:
    """Write ``run.json``, or read the folder's own and note that the run goes on.

    Raises:
        ValueError: where the folder holds records of another run.
    """
    try:
        before = read_run(start.output)
    except FileNotFoundError:
        if writer.records:
            raise ValueError(
                f"{start.output} holds records but no run.json; choose another --output"
            ) from None
        return _begin(start)
    if other := _difference(start, before):
        if not writer.records:  # a start that failed: there is nothing to go on with
            return _begin(start)
        raise ValueError(f"{start.output} holds a run {other}")
    again: dict[str, Any] = {"command": start.command, "commit": commit(), "started": now()}
    again |= {"versions": versions(), "records": writer.lines}
    info = replace(
        before,
        resumed=[*before.resumed, again],
        options=_grown(before.options, start.what["options"], start.growing),
    )
    write_run(start.output, info)
    return info


def finish(output: Path, writer: Writer, turns_left_out: Sequence[str] = ()) -> RunInfo:
    """The run as its folder tells it, without the note of a later start that measured nothing.

    Args:
        turns_left_out: later turns that were too long, which ``run.json`` then names.
    """
    info = before = read_run(output)
    if info.resumed and len(writer.records) == writer.lines:
        info = replace(info, resumed=info.resumed[:-1])
    if turns_left_out:
        info = replace(info, prompts={**info.prompts, "turns_left_out": list(turns_left_out)})
    if info != before:
        write_run(output, info)
    return info


def _begin(start: Start) -> RunInfo:
    info = start.describe()
    write_run(start.output, info)
    return info


def _difference(start: Start, before: RunInfo) -> str | None:
    """Describe the first difference between two starts and its cure; None if the run may go on."""
    there = {name: getattr(before, name) for name in start.what}
    if "options" in there:
        there["options"] = _with_defaults(before.options)
    known = _flat({**there, "peers": list(before.peers)})
    free = start.growing
    if start.what.get("options", {}).get("thrifty"):
        free |= PROOF
    for name, value in _flat(start.what).items():
        if name not in free and (found := known.get(name)) != value:
            return (
                f"with {name} {_short(found)}, this one has {_short(value)}; choose another"
                " --output, or the same options to go on"
            )
    if before.prompts.get("digest") != start.prompts:
        return "on other prompts; choose another --output"
    for name, value in start.weights.items():
        if getattr(before, name) not in (None, value):  # earlier versions did not tell
            were, are = (_short(each)[:12] for each in (getattr(before, name), value))
            return (
                f"on other {name.rpartition('_')[2]} of the same name ({name} {were}, here {are});"
                " choose another --output"
            )
    there = {"threads": before.threads, **before.hardware}
    for name, value in start.machine.items():
        if there.get(name) not in (None, value):
            return (
                f"with {name} {there[name]}, this one has {value}; choose another --output, or go"
                f" on with the same {name}"
            )
    return None


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Options of an earlier version, with those that came since at their defaults."""
    read = from_json if options.get("protocol") in PROTOCOLS else measurement
    try:
        return as_json(read(options))
    except ValueError:
        return options


def _grown(before: dict[str, Any], now: dict[str, Any], growing: frozenset[str]) -> dict[str, Any]:
    """The options of both runs together."""
    joined: dict[str, Any] = {
        name: list(dict.fromkeys([*before[name], *now[name]])) for name in growing if name in now
    }
    if "settings" in now:
        joined["settings"] = _grown(before["settings"], now["settings"], growing)
    return {**now, **joined}


def _flat(described: dict[str, Any]) -> dict[str, Any]:
    """Options by name, those inside others too, in the types that JSON has."""
    found: dict[str, Any] = {}
    for name, value in described.items():
        if isinstance(value, dict) and name in ("options", "settings"):
            found |= _flat(value)
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _short(value: object) -> str:
    if isinstance(value, list):
        return listed(value)
    return "none" if value is None else str(value)
