"""A run from its start to its end: what is missing is measured, unit by unit, and written at once."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwood.bench.describe import commit, describe, digest, now
from draftwood.bench.measure import Unit, measure
from draftwood.bench.prompts import Prompt, PromptSet, load_prompts
from draftwood.bench.protocols import Load, Protocol, as_json, timed
from draftwood.bench.records import TREE, RunInfo, Writer, read_run, write_run, writing
from draftwood.bench.trees import write_trees
from draftwood.bench.workbench import Models, Workbench


@dataclass(frozen=True)
class Order:
    """Everything that a run is asked for.

    Attributes:
        protocol: what is measured.
        models: on which weights.
        output: folder of the records.
        peers: names of other systems to measure beside.
        workers: processes that share the prompts; 1 is this one.
        ray_address: of a cluster; None starts one on this machine.
        command: as typed.
    """

    protocol: Protocol
    models: Models
    output: Path
    peers: tuple[str, ...] = ()
    workers: int = 1
    ray_address: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.peers and (self.workers > 1 or self.ray_address):
            raise ValueError("peers are measured in turns with draftwood, so they need --workers 1")
        if self.peers and (0.0 not in self.protocol.settings.temperatures or not _in_turns(self.protocol)):
            raise ValueError("peers decode greedily, prompt by prompt: add --temperature 0, or leave --peers out")


@dataclass(frozen=True)
class Progress:
    """What a run tells while it goes on; each is called from the main thread.

    Attributes:
        begin: how many units there are, and how many of them are done already.
        advance: one more is done.
        say: one line.
    """

    begin: Callable[[int, int], None] = lambda total, done: None
    advance: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda line: None


def run(order: Order, progress: Progress | None = None) -> RunInfo:
    """Measure what the folder does not hold yet.

    Raises:
        OSError: where another run writes the folder, or the disk refuses; what was measured is kept.
        ValueError: for prompts, methods and models that do not go together, and a folder that holds another run.
        ImportError: for workers without Ray.
    """
    progress, order = progress or Progress(), _with_threads(order)
    protocol, settings = order.protocol, order.protocol.settings
    cells = protocol.cells()
    _check(order)
    chosen = load_prompts(settings.prompts, settings.per_category, settings.categories, settings.limit)
    with writing(order.output) as writer:
        bench = Workbench(order.models, settings)
        fitting, rule = fit(bench, chosen, progress.say)
        info = _common(order, bench, fitting, rule, writer)
        bench.use_curve(info.curve)
        numbers = {prompt.id: number for number, prompt in enumerate(chosen.prompts)}
        units = list(units_of(protocol, [(numbers[prompt.id], prompt) for prompt in fitting.prompts]))
        left = [unit for unit in units if not writer.done.issuperset(unit.keys)]
        progress.begin(len(units), len(units) - len(left))
        if left:
            with _measuring(order, bench, left, info, progress) as found:
                for records in found:
                    writer.append(records)
                    progress.advance()
        if timed(protocol) and not isinstance(protocol, Load) and not (order.output / TREE).exists():
            tokens = bench.encode(fitting.prompts[0])
            write_trees(bench, cells, tokens, settings.temperatures[0], order.output)
        return read_run(order.output)


def units_of(protocol: Protocol, prompts: Sequence[tuple[int, Prompt]]) -> Iterator[Unit]:
    """The units of a protocol in their order."""
    cells, settings = tuple(protocol.cells()), protocol.settings
    for turn in range(settings.rounds):
        if _in_turns(protocol):
            for prompt in prompts:
                for temperature in settings.temperatures:
                    yield Unit("turns", cells, (prompt,), temperature, turn)
            continue
        kind = "load" if isinstance(protocol, Load) else "thrifty"
        for cell in cells:
            for temperature in settings.temperatures:
                yield Unit(kind, (cell,), tuple(prompts), temperature, turn)


def fit(bench: Workbench, chosen: PromptSet, say: Callable[[str], None]) -> tuple[PromptSet, str]:
    """The prompts whose first turn fits, and the rule by which others are left out.

    Raises:
        ValueError: where none fits.
    """
    room = bench.room
    if room is None:
        return chosen, "none is left out"
    rule = f"prompts and later turns of more than {room} tokens are left out, never cut"
    kept = [prompt for prompt in chosen.prompts if len(bench.encode(prompt)) <= room]
    left = [prompt.id for prompt in chosen.prompts if prompt not in kept]
    if not kept:
        raise ValueError(f"no prompt of {chosen.source} fits: all have more than {room} tokens; ask for fewer new ones")
    if left:
        say(f"left out, with more than {room} tokens: {', '.join(left)}")
        rule = f"{rule}; left out: {', '.join(left)}"
    return replace(chosen, prompts=tuple(kept)), rule


def _with_threads(order: Order) -> Order:
    """Workers of one machine share its cores; those of a cluster use as many threads as this process says it does."""
    if order.models.threads is not None or (order.workers == 1 and not order.ray_address):
        return order
    threads = 1 if order.ray_address else max(1, (os.cpu_count() or 1) // order.workers)
    return replace(order, models=replace(order.models, threads=threads))


def _check(order: Order) -> None:
    """Refuse what cannot work before any weights are loaded."""
    cells, settings = order.protocol.cells(), order.protocol.settings
    lossy = [cell.method for cell in cells if not cell.lossless]
    if lossy and settings.exact:
        raise ValueError(f"method {lossy[0]!r} changes what the model would say; --inexact allows that")
    drafting = [cell.method for cell in cells if cell.drafts_with == "draft-model"]
    if drafting and order.models.draft_model is None:
        raise ValueError(
            f"method {drafting[0]!r} drafts with a second, smaller model of the same vocabulary; name one with "
            "--draft-model"
        )
    if order.models.draft_model is not None and not drafting:
        raise ValueError("none of these methods uses a draft model; leave --draft-model out or add one, say rsd-s")
    if order.workers > 1 or order.ray_address:
        from draftwood.bench.workers import require_cluster, require_ray

        require_ray()
        if order.ray_address:
            require_cluster(order.ray_address)


def _common(order: Order, bench: Workbench, prompts: PromptSet, rule: str, writer: Writer) -> RunInfo:
    """``run.json``: written at the first start, compared and continued at later ones."""
    try:
        before = read_run(order.output)
    except FileNotFoundError:
        if writer.records:
            raise ValueError(f"{order.output} holds records but no run.json; choose another --output") from None
        info = describe(bench, order.protocol, prompts, rule, order.command)
        info = replace(info, peers={name: {} for name in order.peers})
        write_run(order.output, info)
        return info
    here = {"options": as_json(order.protocol), "model": order.models.model, "draft_model": order.models.draft_model}
    here |= {"dtype": bench.dtype, "peers": list(order.peers)}
    there = {**{name: getattr(before, name) for name in here}, "peers": list(before.peers)}
    growing, known = order.protocol.growing, _flat(there)
    for name, value in _flat(here).items():
        if name not in growing and (found := known.get(name)) != value:
            raise ValueError(
                f"{order.output} holds a run with {name} {_short(found)}, this one has {_short(value)}; choose another "
                "--output, or the same options to go on"
            )
    if before.prompts.get("digest") != digest(prompts):
        raise ValueError(f"{order.output} holds a run on other prompts; choose another --output")
    again = {"command": order.command, "commit": commit(), "started": now()}
    info = replace(before, resumed=[*before.resumed, again], options=_grown(before.options, here["options"], growing))
    write_run(order.output, info)
    return info


def _grown(before: dict[str, Any], now: dict[str, Any], growing: frozenset[str]) -> dict[str, Any]:
    """The options of both runs together."""
    joined: dict[str, Any] = {name: list(dict.fromkeys([*before[name], *now[name]])) for name in growing if name in now}
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
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


@contextmanager
def _measuring(
    order: Order, bench: Workbench, left: Sequence[Unit], info: RunInfo, progress: Progress
) -> Iterator[Iterator[list[Any]]]:
    """The records of the units, as they come."""
    if order.workers > 1 or order.ray_address:
        from draftwood.bench.workers import spread

        with spread(order, left, info.curve, progress.say) as found:
            yield found
        return
    with ExitStack() as stack:
        rivals: Sequence[Any] = ()
        if order.peers:
            rivals = stack.enter_context(_peers(order, bench, left[0], info, progress))
        if left[0].kind == "turns":
            bench.warm_up(left[0].cells, bench.encode(left[0].prompts[0][1]))
        yield (measure(bench, unit, rivals if unit.temperature == 0.0 else ()) for unit in left)


@contextmanager
def _peers(order: Order, bench: Workbench, unit: Unit, info: RunInfo, progress: Progress) -> Iterator[Sequence[Any]]:
    from draftwood.bench.peers import entrants, environments
    from draftwood.bench.peers.systems import Target, systems

    settings = order.protocol.settings
    if bench.folder is None:
        raise ValueError("peers read the weights from a folder; name the model instead of giving it as an object")
    target = Target(order.models.model, bench.folder, info.threads)
    chosen = systems(list(order.peers), target)
    limits = (settings.max_new_tokens, settings.ignore_eos)
    tokens, logs = bench.encode(unit.prompts[0][1]), environments.folder("logs")
    with entrants.started(chosen, tokens, limits, info.threads, logs, progress.say) as peers:
        try:
            yield peers.entrants
        finally:
            write_run(order.output, replace(info, peers=peers.known))


def _in_turns(protocol: Protocol) -> bool:
    return not isinstance(protocol, Load) and timed(protocol)
