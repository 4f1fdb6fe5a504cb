"""Orders of runs and measurements, and callbacks for their progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftwood_bench.plan.measurements import Measurement
from draftwood_bench.plan.models import Models
from draftwood_bench.plan.protocols import Load, Protocol, timed


@dataclass(frozen=True)
class Order:
    """Order of a run.

    Attributes:
        protocol: what is measured.
        models: weights to measure on.
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
        if self.peers and (
            0.0 not in self.protocol.settings.temperatures or not _in_turns(self.protocol)
        ):
            raise ValueError(
                "peers decode greedily, prompt by prompt: add --temperature 0, or leave --peers out"
            )


@dataclass(frozen=True)
class MeasurementOrder:
    """Order of a measurement.

    Attributes:
        measurement: what is measured.
        models: weights to measure on, each as ``draftwood.load`` takes it.
        output: folder of the records.
        device: of the models; None takes the default of ``draftwood.load``. Overhead and systems
            on one file are measured on the CPU whatever it is.
        threads: that PyTorch uses; None leaves it its own choice.
        command: as typed.
    """

    measurement: Measurement
    models: tuple[str, ...]
    output: Path
    device: str | None = None
    threads: int | None = None
    command: str = ""


@dataclass(frozen=True)
class Progress:
    """Callbacks of a run in progress; each is called from the main thread.

    Attributes:
        begin: called with the number of units, and the number of those already done.
        advance: called after each unit.
        say: called with a line for the user.
    """

    begin: Callable[[int, int], None] = lambda total, done: None
    advance: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda line: None


def _in_turns(protocol: Protocol) -> bool:
    return not isinstance(protocol, Load) and timed(protocol)
