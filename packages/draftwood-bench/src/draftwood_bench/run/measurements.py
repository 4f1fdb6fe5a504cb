"""Run a measurement without prompts, in a folder like that of a protocol.

Records that are measured at one moment are a piece, which is recorded together or not at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch

from draftwood.loading.hub import device_of
from draftwood.loading.weights import WeightsFolder
from draftwood.storage.machine import device_name
from draftwood_bench.plan.measurements import Overhead, SameFile, VerifyCost
from draftwood_bench.plan.order import MeasurementOrder, Progress
from draftwood_bench.plan.prompts import load_text
from draftwood_bench.plan.protocols import as_json
from draftwood_bench.records.files import Record, RunInfo, writing
from draftwood_bench.run import format_quality, overhead, same_file, verify_cost
from draftwood_bench.run.describe import here
from draftwood_bench.run.resume import Start, begin_or_go_on, finish, machine_of


@dataclass(frozen=True)
class Piece:
    """Records that are measured at one moment.

    Attributes:
        records: all of them, their ``stats`` still empty.
        measure: function that returns the stats of these or of some of them.
        prepare: loads what they need, and refuses what cannot be measured.
    """

    records: Sequence[Record]
    measure: Callable[[Sequence[Record]], Sequence[dict[str, Any]]]
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Work:
    """A measurement that can begin.

    Attributes:
        pieces: in their order.
        model: as ``RunInfo`` names it.
        dtype: of all records; empty where they differ.
        prompts: as in ``RunInfo``; empty where no text is read.
    """

    pieces: Sequence[Piece]
    model: str
    dtype: str = ""
    prompts: dict[str, Any] = field(default_factory=dict)


def run_measurement(order: MeasurementOrder, progress: Progress | None = None) -> RunInfo:
    """Measure what the folder does not hold yet.

    Raises:
        OSError: where another run writes the folder, or the disk refuses; what was measured is
        kept. ValueError: for models and options that do not go together, and a folder that holds
        another run.
    """
    progress = progress or Progress()
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    work, device = work_of(order), _device(order)
    with writing(order.output) as writer:
        left = [
            [record for record in piece.records if record.key not in writer.done]
            for piece in work.pieces
        ]
        first = next((piece for piece, todo in zip(work.pieces, left, strict=True) if todo), None)
        if first is not None:
            first.prepare()  # nothing is written where it cannot be measured
        begin_or_go_on(_start(order, work, device), writer)
        progress.begin(len(left), sum(not missing for missing in left))
        for piece, missing in zip(work.pieces, left, strict=True):
            if missing:
                found = piece.measure(missing)
                writer.append(
                    [
                        replace(record, stats=stats)
                        for record, stats in zip(missing, found, strict=True)
                    ]
                )
                progress.advance()
        return finish(order.output, writer)


def work_of(order: MeasurementOrder, text: str | None = None) -> Work:
    """The pieces of a measurement; no weights are loaded.

    Args:
        order: what is asked for.
        text: is read by models; None reads the one that the order names.
    """
    asked, names = order.measurement, ", ".join(order.models)
    if isinstance(asked, Overhead):
        bench = overhead.OverheadBench(asked)
        pieces = [Piece([record], bench.measure) for record in overhead.records(asked)]
        dtypes = {"prepared": "float32", "native": "int8"}
        dtype = " and ".join(dtypes[part] for part in asked.parts)
        kinds = {"prepared": "prepared logits", "native": "random weights"}
        model = " and ".join(kinds[part] for part in asked.parts)
        return Work(pieces, f"{model} of {asked.vocab} tokens", dtype)
    if isinstance(asked, VerifyCost):
        paths = verify_cost.ModelPaths(asked, order.device)
        pieces = [
            Piece(
                verify_cost.records(asked, model, context),
                paths.measure,
                partial(paths.use, model),
            )
            for model in order.models
            for context in sorted(set(asked.contexts))
        ]
        return Work(pieces, names)
    if isinstance(asked, SameFile):
        systems = same_file.Systems(asked, order.threads)
        pieces = [
            Piece(same_file.records(asked, model), systems.measure, partial(systems.use, model))
            for model in order.models
        ]
        return Work(pieces, names)
    text = load_text(asked.text) if text is None else text
    formats = format_quality.Formats(asked, order.device, text)
    pieces = [
        Piece(
            format_quality.records(asked, model, number),
            partial(formats.measure, number),
            partial(formats.use, model),
        )
        for model in order.models
        for number in range(asked.windows)
    ]
    return Work(pieces, names, prompts=format_quality.described(asked, text))


def _device(order: MeasurementOrder) -> Any:
    """Device that is measured; prepared models and systems on one file run on the CPU alone."""
    on_cpu = isinstance(order.measurement, Overhead | SameFile)
    return torch.device("cpu") if on_cpu else device_of(order.device)


def _start(order: MeasurementOrder, work: Work, device: Any) -> Start:
    asked = order.measurement
    what = {"options": as_json(asked), "model": work.model, "draft_model": None}
    weights = _weights(order.models)

    def described() -> RunInfo:
        return RunInfo(
            protocol=asked.name,
            command=order.command,
            dtype=work.dtype,
            curve=None,
            bandwidth=None,
            weight_bytes=None,
            prompts=work.prompts,
            weights=weights,
            **what,
            **here(device_name(device)),
        )

    return Start(
        order.output,
        order.command,
        what,
        asked.growing,
        work.prompts.get("digest"),
        {"weights": weights},
        machine_of(device),
        described,
    )


def _weights(models: Sequence[str]) -> str | None:
    """Tells the weights of all models from others."""
    found = [WeightsFolder.of(name).digest for name in models]
    if len(found) == 1 or not found:
        return found[0] if found else None
    return sha256(" ".join(str(each) for each in found).encode()).hexdigest()
