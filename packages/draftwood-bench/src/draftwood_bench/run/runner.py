"""A run from its start to its end.

What is missing is measured, unit by unit, and written at once.
"""

import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from draftwood import methods
from draftwood_bench.peers.lineup import Peer
from draftwood_bench.peers.systems import System, require_known
from draftwood_bench.plan.configurations import PLAIN, Configuration
from draftwood_bench.plan.order import Order, Progress
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import PromptSet, load_prompts
from draftwood_bench.plan.protocols import Load, Protocol, timed
from draftwood_bench.plan.units import Key, Unit, UnitKind
from draftwood_bench.records.files import TREE, Record, RunInfo, writing
from draftwood_bench.run.measure import measure
from draftwood_bench.run.peers import asked, missed, named_peers, under_way
from draftwood_bench.run.resume import begin_or_go_on, finish, start_of
from draftwood_bench.run.trees import write_trees
from draftwood_bench.run.workbench import Workbench

WORTH_TELLING = 0.1
"""Hours of a run that is announced."""


def run(order: Order, progress: Progress | None = None) -> RunInfo:
    """Measure what the folder does not hold yet.

    Raises:
        OSError: where another run writes the folder, or the disk refuses; what was measured is
        kept. ValueError: for prompts, methods and models that do not go together, and a folder that
        holds another run. ImportError: for workers without Ray.
    """
    progress, order = progress or Progress(), _with_threads(order)
    protocol, settings = order.protocol, order.protocol.settings
    cells = protocol.cells()
    _check(order)
    chosen = load_prompts(
        settings.prompts,
        settings.per_category,
        settings.categories,
        settings.limit,
        settings.leave_out,
    )
    with writing(order.output) as writer:
        bench = Workbench(order.models, settings)
        fitting, rule = fit(bench, chosen, progress.say)
        _require_full_batches(protocol, len(fitting.prompts))
        info = begin_or_go_on(start_of(order, bench, fitting, rule), writer)
        bench.use_curve(info.curve)
        numbers = {prompt.id: number for number, prompt in enumerate(chosen.prompts)}
        units = list(
            units_of(protocol, [(numbers[prompt.id], prompt) for prompt in fitting.prompts])
        )
        peers = named_peers(order, bench, info)
        writer.done |= info.given_up
        left, whole = _parted(units, writer.done)
        left += missed(whole, peers, writer.done)
        progress.begin(len(units), len(units) - len(left))
        if left:
            with _measuring(order, bench, left, writer.done, peers, info, progress) as found:
                for records in found:
                    writer.append(records)
                    progress.advance()
        if (
            timed(protocol)
            and not isinstance(protocol, Load)
            and not (order.output / TREE).exists()
        ):
            tokens = bench.encode(fitting.prompts[0])
            write_trees(bench, cells, tokens, settings.temperatures[0], order.output)
        turns = _turns_left_out(units, writer.done)
        if turns:
            progress.say(f"left out, with more than {bench.room} tokens: {', '.join(turns)}")
        return finish(order.output, writer, turns)


def units_of(protocol: Protocol, prompts: Sequence[tuple[int, Prompt]]) -> Iterator[Unit]:
    """The units of a protocol in their order."""
    cells, settings = tuple(protocol.cells()), protocol.settings
    for turn in range(settings.rounds):
        if isinstance(protocol, Load):
            for cell in cells:
                for temperature in settings.temperatures:
                    yield Unit("load", (cell,), tuple(prompts), temperature, turn)
            continue
        kind: UnitKind = "turns" if timed(protocol) else "thrifty"
        # what is not timed may be stopped anywhere, and then holds as many prompts of each category
        ordered = prompts if kind == "turns" else by_turns(prompts)
        for place, prompt in enumerate(ordered):
            for temperature in settings.temperatures:
                yield Unit(kind, cells, (prompt,), temperature, turn, place)


def _turns_left_out(units: Sequence[Unit], done: Container[Key]) -> list[str]:
    """Later turns that were too long: plain decoding has no record of them."""
    cell = Configuration(PLAIN).key
    found = (
        f"turn {turn + 1} of {unit.prompts[0][1].id}"
        for unit in units
        if unit.kind == "turns"
        for turn in range(1, len(unit.prompts[0][1].turns))
        if unit.key(cell, turn) not in done
    )
    return list(dict.fromkeys(found))


def _parted(units: Sequence[Unit], done: set[Key]) -> tuple[list[Unit], list[Unit]]:
    """Split units into the rest that is left to measure, and those that are whole."""
    left, whole = list[Unit](), list[Unit]()
    for unit in units:
        is_whole = done.issuperset(unit.keys)
        (whole if is_whole else left).append(unit if is_whole else unit.left(done))
    return left, whole


def by_turns(prompts: Sequence[tuple[int, Prompt]]) -> list[tuple[int, Prompt]]:
    """The first prompt of each category, then the second of each, and so on."""
    places: Counter[str] = Counter()
    order = []
    for number, prompt in prompts:
        order.append((places[prompt.category], number, prompt))
        places[prompt.category] += 1
    return [(number, prompt) for _, number, prompt in sorted(order, key=lambda each: each[0])]


def fit(bench: Workbench, chosen: PromptSet, say: Callable[[str], None]) -> tuple[PromptSet, str]:
    """The prompts whose first turn fits, and the rule by which others are left out.

    Raises:
        ValueError: where none fits.
    """
    room = bench.room
    if room is None:
        return chosen, "none is left out"
    if room < 1:
        raise ValueError(
            f"the model reads {bench.context_length} tokens, so {bench.settings.max_new_tokens} new"
            " ones leave no room for a prompt; ask for fewer with --max-new-tokens"
        )
    rule = f"prompts and later turns of more than {room} tokens are left out, never cut"
    kept = [prompt for prompt in chosen.prompts if len(bench.encode(prompt)) <= room]
    left = [prompt.id for prompt in chosen.prompts if prompt not in kept]
    if not kept:
        raise ValueError(
            f"no prompt of {chosen.source} fits: all have more than {room} tokens; ask for fewer"
            " new ones, or for a larger --max-prompt-tokens"
        )
    if left:
        say(f"left out, with more than {room} tokens: {', '.join(left)}")
        rule = f"{rule}; left out: {', '.join(left)}"
    return replace(chosen, prompts=tuple(kept)), rule


def _require_full_batches(protocol: Protocol, prompts: int) -> None:
    """Refuse batches that so few prompts cannot fill: a smaller one would have their name."""
    most = max(protocol.batches, default=0) if isinstance(protocol, Load) else 0
    if most > prompts:
        raise ValueError(
            f"a batch of {most} needs as many prompts, and there are {prompts}; leave it out of"
            " --batches, or take more prompts"
        )


def _with_threads(order: Order) -> Order:
    """Set the threads that the workers of a run use.

    Workers of one machine share its cores; those of a cluster use as many threads as this process
    says it does.
    """
    if order.models.threads is not None or (order.workers == 1 and not order.ray_address):
        return order
    threads = 1 if order.ray_address else max(1, (os.cpu_count() or 1) // order.workers)
    return replace(order, models=replace(order.models, threads=threads))


def _check(order: Order) -> None:
    """Refuse what cannot work before any weights are loaded."""
    require_known(order.peers)
    cells, settings = order.protocol.cells(), order.protocol.settings
    compared = [cell.varied for cell in cells if cell.method != PLAIN]
    methods.require(compared, order.models.given)
    order.models.drafts.require_for(compared)
    order.models.opened()
    lossy = [recipe.name for recipe in compared if recipe.promise == "trades quality"]
    if lossy and settings.exact:
        raise ValueError(
            f"method {lossy[0]!r} changes what the model would say; --inexact allows that"
        )
    if order.workers > 1 or order.ray_address:
        from draftwood_bench.run.workers import cluster_at

        if ":" in (order.models.device or ""):
            raise ValueError(
                f"each worker takes a device of its own, so {order.models.device} cannot be for"
                f" all; say --device {str(order.models.device).partition(':')[0]}, and choose among"
                " GPUs with CUDA_VISIBLE_DEVICES"
            )
        cluster_at(order.ray_address)


@contextmanager
def _measuring(
    order: Order,
    bench: Workbench,
    left: Sequence[Unit],
    done: set[Key],
    chosen: Sequence[System],
    info: RunInfo,
    progress: Progress,
) -> Iterator[Iterator[list[Record]]]:
    """The records of the units, as they come."""
    if order.workers > 1 or order.ray_address:
        from draftwood_bench.run.workers import spread

        with spread(order, left, bench.plain.model.device.type, info, progress.say) as found:
            yield found
        return
    with ExitStack() as stack:
        peers: Sequence[Peer] = ()
        if chosen:
            peers = stack.enter_context(under_way(order, bench, chosen, left, done, info, progress))
        hours = _hours_left(bench, left)
        if hours >= WORTH_TELLING:
            progress.say(f"this takes up to {hours:.1f} hours; started again, it goes on")
        yield (_measured(bench, unit, asked(unit, peers, done), done) for unit in left)


def _hours_left(bench: Workbench, left: Sequence[Unit]) -> float:
    """Try what is left for a few tokens, and tell how long it takes; 0 for loads."""
    prompt, most = bench.encode(left[0].prompts[0][1]), bench.settings.max_new_tokens
    if left[0].kind == "turns":
        cells = dict.fromkeys(cell for unit in left for cell in unit.cells)
        return _hours(bench.warm_up(list(cells), prompt), most, left)
    if left[0].kind == "thrifty":
        a_token = bench.try_thrifty(left[0].cells, prompt) / len(left[0].cells)
        return a_token * most * sum(len(unit.cells) for unit in left) / 3600
    return 0.0


def _hours(a_token: float, most_tokens: int, left: Sequence[Unit]) -> float:
    """Hours of what is left, were all answers as long as they may be."""
    turns = sum(len(prompt.turns) for unit in left for _, prompt in unit.prompts)
    return a_token * most_tokens * turns / 3600


def _measured(bench: Workbench, unit: Unit, peers: Sequence[Peer], done: set[Key]) -> list[Record]:
    """The records of a unit; none where only others missed it, and have failed again."""
    if not done.issuperset(unit.keys):
        return measure(bench, unit, peers)
    return measure(bench, unit, peers, done=done) if peers else []
