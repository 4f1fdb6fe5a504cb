"""Other systems in a run: each is asked for what it has not answered yet."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from draftwood.loading.weights import WeightsFolder
from draftwood_bench.peers import environments, lineup
from draftwood_bench.peers.lineup import Peer
from draftwood_bench.peers.systems import System, Target, systems
from draftwood_bench.plan.configurations import PLAIN, Configuration
from draftwood_bench.plan.units import Key, Unit
from draftwood_bench.records.files import RunInfo, write_run
from draftwood_bench.records.notes import FLOATS
from draftwood_bench.run.workbench import Workbench

if TYPE_CHECKING:
    from draftwood_bench.plan.order import Order, Progress


def named_peers(order: "Order", bench: Workbench, info: RunInfo) -> list[System]:
    """The systems that a run names, not started yet.

    Raises:
        ValueError: where there are some, but no folder of weights that they could read.
    """
    if not order.peers:
        return []
    if bench.folder is None:
        raise ValueError(
            "peers read the weights from a folder; name the model instead of giving it as an object"
        )
    own, model = WeightsFolder(bench.folder), order.models.model
    device, dtype = bench.plain.model.device.type, bench.dtype.partition("+")[0]
    if dtype not in FLOATS:
        dtype = "bfloat16"  # notes tell of it
    # the others read floats
    floats = WeightsFolder.of_floats(model, getattr(torch, dtype)) if own.is_of_blocks else own
    target = Target(model, floats.path, own.digest, info.threads, device, dtype)
    return systems(order.peers, target)


def missed(units: Sequence[Unit], chosen: Sequence[System], done: Container[Key]) -> list[Unit]:
    """Plain decoding of the units, all done, in which a system has not answered.

    They are asked beside it.
    """
    alone = (Configuration(PLAIN),)
    return [
        replace(unit, cells=alone)
        for unit in units
        if any(_lacks(unit, system, done) for system in chosen)
    ]


@contextmanager
def under_way(
    order: "Order",
    bench: Workbench,
    chosen: Sequence[System],
    units: Sequence[Unit],
    done: set[Key],
    info: RunInfo,
    progress: "Progress",
) -> Iterator[Sequence[Peer]]:
    """Start the systems that are needed.

    ``run.json`` says at once what they are, and in the end which failed.
    """
    needed = [system for system in chosen if any(_lacks(unit, system, done) for unit in units)]
    settings = order.protocol.settings
    limits = (settings.max_new_tokens, settings.ignore_eos)
    tokens, logs = bench.encode(units[0].prompts[0][1]), environments.folder("logs")
    with lineup.started(needed, tokens, limits, info.threads, logs, progress.say) as peers:
        try:
            write_run(order.output, _with(info, peers.known))
            yield peers.lineup
        finally:
            info = _with(info, peers.known)
            # one that failed for the last time at the last of its prompts is not waited for
            for system in needed:
                if not any(_lacks(unit, system, done | info.given_up) for unit in units):
                    info.peers[system.name].pop("absent", None)
            write_run(order.output, info)


def _with(info: RunInfo, known: dict[str, dict]) -> RunInfo:
    """Merge what is known of peers now with their failures at any start."""
    peers = dict(info.peers)
    for name, now in known.items():
        before = {word: value for word, value in peers.get(name, {}).items() if word != "absent"}
        failed = {"failed": [*before.get("failed", []), *now.get("failed", [])]}
        peers[name] = {**before, **now, **(failed if failed["failed"] else {})}
    return replace(info, peers=peers)


def asked(unit: Unit, peers: Sequence[Peer], done: Container[Key]) -> list[Peer]:
    """Select the peers that answer a unit: they decode greedily, live, and have not answered it."""
    return [
        peer
        for peer in peers
        if peer.alive and unit.temperature == 0.0 and unit.lacks(peer.key, done)
    ]


def _lacks(unit: Unit, system: System, done: Container[Key]) -> bool:
    return unit.temperature == 0.0 and any(unit.lacks(key, done) for key in system.keys.values())
