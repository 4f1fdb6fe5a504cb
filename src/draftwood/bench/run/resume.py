"""``run.json`` of a run: written at the first start, compared and continued at later ones."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from draftwood.bench.plan.prompts import PromptSet
from draftwood.bench.plan.protocols import as_json, listed
from draftwood.bench.records.files import RunInfo, Writer, read_run, write_run
from draftwood.bench.run.describe import commit, describe, digest, digests, now
from draftwood.bench.run.workbench import Workbench

if TYPE_CHECKING:
    from draftwood.bench.plan.order import Order


def begin_or_go_on(
    order: "Order", bench: Workbench, prompts: PromptSet, rule: str, writer: Writer
) -> RunInfo:
    """What all records of the folder have in common, old ones and new ones.

    Raises:
        ValueError: where the folder holds records of another run.
    """
    try:
        before = read_run(order.output)
    except FileNotFoundError:
        if writer.records:
            raise ValueError(
                f"{order.output} holds records but no run.json; choose another --output"
            ) from None
        return _begin(order, bench, prompts, rule)
    if other := _difference(order, bench, prompts, before):
        if not writer.records:  # a start that failed: there is nothing to go on with
            return _begin(order, bench, prompts, rule)
        raise ValueError(f"{order.output} holds a run {other}")
    growing, options = order.protocol.growing, as_json(order.protocol)
    again = {"command": order.command, "commit": commit(), "started": now()}
    info = replace(
        before, resumed=[*before.resumed, again], options=_grown(before.options, options, growing)
    )
    write_run(order.output, info)
    return info


def _begin(order: "Order", bench: Workbench, prompts: PromptSet, rule: str) -> RunInfo:
    info = describe(bench, order.protocol, prompts, rule, order.command)
    info = replace(info, peers={name: {} for name in order.peers})
    write_run(order.output, info)
    return info


def _difference(
    order: "Order", bench: Workbench, prompts: PromptSet, before: RunInfo
) -> str | None:
    """What is not as it was, and the cure; None where the run may go on."""
    here = {
        "options": as_json(order.protocol),
        "model": order.models.model,
        "draft_model": order.models.draft_model,
    }
    here |= {"dtype": bench.dtype, "peers": list(order.peers)}
    there = {**{name: getattr(before, name) for name in here}, "peers": list(before.peers)}
    known = _flat(there)
    for name, value in _flat(here).items():
        if name not in order.protocol.growing and (found := known.get(name)) != value:
            return (
                f"with {name} {_short(found)}, this one has {_short(value)}; choose another"
                " --output, or the same options to go on"
            )
    if before.prompts.get("digest") != digest(prompts):
        return "on other prompts; choose another --output"
    for name, value in digests(bench).items():
        if getattr(before, name) not in (None, value):  # earlier versions did not tell
            were, are = (_short(each)[:12] for each in (getattr(before, name), value))
            return (
                f"on other weights of the same name ({name} {were}, here {are}); choose another"
                " --output"
            )
    return None


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
