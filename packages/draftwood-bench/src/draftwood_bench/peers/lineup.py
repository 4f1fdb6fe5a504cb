"""Peers as the runner sees them: they answer the same prompts, or are absent for a reason."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood_bench.peers.process import Adapter, AdapterError
from draftwood_bench.peers.protocol import PeerRequest, Reply
from draftwood_bench.peers.systems import System
from draftwood_bench.plan.units import Key

WARM_UP_TOKENS = 16


@dataclass(eq=False)
class Peer:
    """One mode of a system under way.

    ``answer`` gives fields of a record, none from the moment it failed.
    """

    system: System
    mode: str
    adapter: Adapter
    max_new_tokens: int
    ignore_eos: bool
    failed: Callable[[str, str, Key], None]

    @property
    def key(self) -> str:
        return self.system.keys[self.mode]

    @property
    def alive(self) -> bool:
        return self.adapter.process.poll() is None

    def answer(self, tokens: Sequence[int], key: Key) -> dict[str, Any]:
        """Ask the peer; return its answer as the record of this key, empty once it has failed."""
        if not self.alive:
            return {}
        try:
            answer = self.adapter.ask(
                PeerRequest(list(tokens), self.max_new_tokens, self.mode, self.ignore_eos)
            )
        except AdapterError as error:
            self.failed(self.system.name, f"{self.system.modes[self.mode]}: {error}", key)
            return {}
        return {
            "cell": self.key,
            "method": f"peer:{self.system.name}",
            "at": self.system.modes[self.mode],
            "seed": 0,
            "token_ids": answer.token_ids,
            "stats": stats_of(answer),
            "seconds_end_to_end": round(answer.prefill_seconds + answer.decode_seconds, 6),
        }


def stats_of(answer: Reply) -> dict[str, Any]:
    """The numbers that a peer tells, under the names that ``Stats.as_json`` has for them."""
    later, seconds, runs = (
        len(answer.token_ids) - answer.first_tokens,
        answer.decode_seconds,
        answer.target_runs,
    )
    return {
        "tokens": len(answer.token_ids),
        "first_tokens": answer.first_tokens,
        "target_runs": runs,
        "block_efficiency": round(later / runs, 4) if runs else None,
        "seconds": {"prefill": round(answer.prefill_seconds, 6), "decode": round(seconds, 6)},
        "tokens_per_second": round(later / seconds, 3) if later > 0 and seconds > 0 else None,
    }


@dataclass
class Peers:
    """All peers of a run.

    Attributes:
        known: by name what a peer said of itself, where it failed, and ``absent``: why it is left
            out.
        entrants: those that answer.
    """

    say: Callable[[str], None]
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    lineup: list[Peer] = field(default_factory=list)

    def absent(self, name: str, reason: str) -> None:
        """Note that a peer is left out from now on, and why."""
        self.known[name] = {**self.known.get(name, {}), "absent": reason}
        self.say(f"{name} is left out: {reason}")

    def failed(self, name: str, reason: str, key: Key) -> None:
        """Note the record that a peer failed to give, too."""
        earlier = self.known[name].get("failed", [])
        self.known[name] = {
            **self.known[name],
            "failed": [*earlier, {"key": list(key), "reason": reason}],
        }
        self.absent(name, f"at prompt {key[2]}, {reason}")


@contextmanager
def started(
    chosen: Sequence[System],
    warm_up: Sequence[int],
    settings: tuple[int, bool],
    threads: int,
    logs: Path,
    say: Callable[[str], None],
) -> Iterator[Peers]:
    """Start every system and warm it up; they end with the context.

    Args:
        chosen: systems.
        warm_up: tokens to answer before anything counts.
        settings: most new tokens, and whether to go on after the end of text.
        threads: for each.
        logs: folder for what they print.
        say: told in one line of every peer that is left out.
    """
    peers = Peers(say)
    with ExitStack() as stack:
        for system in chosen:
            try:
                logs.mkdir(parents=True, exist_ok=True)
                log = logs / (re.sub(r"[^\w.]+", "-", system.name) + ".log")
                adapter = stack.enter_context(Adapter(system.command(), log, environment(threads)))
                for mode in system.modes:
                    adapter.ask(PeerRequest(list(warm_up), WARM_UP_TOKENS, mode))
            except (AdapterError, OSError, ValueError) as error:
                peers.absent(system.name, " ".join(str(error).split()))
                continue
            peers.known[system.name] = {**adapter.description, "weights_sha256": system.weights}
            peers.lineup += [
                Peer(system, mode, adapter, *settings, peers.failed) for mode in system.modes
            ]
        yield peers


def environment(threads: int) -> dict[str, str]:
    """Variables for adapters.

    Threads may wait actively while they work: to wait passively (OMP_WAIT_POLICY=PASSIVE) costs
    llama.cpp two thirds of its speed, and it is not needed, for between requests the whole adapter
    is stopped.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
