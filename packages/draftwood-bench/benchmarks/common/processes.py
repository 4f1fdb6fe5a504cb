"""Processes of checkouts of draftwood, each with a model in it, that answer in turns.

Trees are chosen by one given curve of costs: the same trees whatever the machine does.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
ROOT = HERE.parents[4]
CURVE = ((1, 8, 16, 64), (0.0030, 0.0045, 0.0073, 0.026))


@dataclass(frozen=True)
class Answer:
    """Tokens, time and text of one answer, told from others by the text's digest."""

    tokens: int
    seconds: float
    cpu_seconds: float
    text: str

    @property
    def speed(self) -> float:
        """Tokens per second of the whole request."""
        return self.tokens / self.seconds


class Process:
    """A checkout's own code with a model loaded; it answers when it is asked.

    Args:
        tree: the checkout.
        model: as ``draftwood.load`` takes it.
        group: a control group that the process joins.
    """

    def __init__(self, tree: Path, model: str, group: Path | None = None) -> None:
        self.tree = tree
        joins = ["--group", str(group)] if group else []
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), "--model", model, *joins],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(tree),
        )
        self._read()

    def ask(self, method: str, temperature: float, prompt: str, tokens: int) -> Answer:
        """A text of so many tokens, seed 0."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps([method, temperature, prompt, tokens]) + "\n")
        self.process.stdin.flush()
        return Answer(**self._read())

    def close(self) -> None:
        """End the process and wait for it."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.tree} ended")
        return json.loads(line)


def checkout(path: str) -> Path:
    """The folder of another checkout; refused where none is."""
    tree = Path(path).resolve()
    if not _sources(tree):
        raise SystemExit(f"{tree} is no checkout of draftwood; --old names one")
    return tree


def environment(tree: Path) -> dict[str, str]:
    """In which Python imports a checkout's code."""
    sources = os.pathsep.join(map(str, _sources(tree)))
    return {**os.environ, "PYTHONPATH": sources, "PYTHONWARNINGS": "ignore"}


def _sources(tree: Path) -> list[Path]:
    """Folders that Python imports from; a checkout before the packages has one."""
    return sorted(
        path.parent
        for pattern in ("src/draftwood", "packages/*/src/draftwood*")
        for path in tree.glob(pattern)
        if path.is_dir() and path.suffix != ".egg-info"
    )


def in_turns(names: Iterable[str], turn: int) -> list[str]:
    """Names in an order that changes from turn to turn, for whoever comes first is slower."""
    return list(names)[:: -1 if turn % 2 else 1]


def serve(model: str, requests: Iterable[str], say: Callable[[str], None]) -> None:
    """Answer requests, one a line."""
    import draftwood
    from draftwood.costs.curve import Curve

    lm = draftwood.load(model, curve=Curve(*CURVE))
    ways: dict = {}
    say("{}")
    for line in requests:
        method, temperature, prompt, tokens = json.loads(line)
        if method not in ways:
            ways[method] = lm.with_method(method)
        used, since = time.process_time(), time.perf_counter()
        made = ways[method].generate(
            prompt, max_new_tokens=tokens, temperature=temperature, seed=0, ignore_eos=True
        )
        seconds, cpu = time.perf_counter() - since, time.process_time() - used
        digest = hashlib.sha256(made.text.encode()).hexdigest()[:12]
        say(json.dumps(asdict(Answer(len(made.token_ids), seconds, cpu, digest))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--group")
    arguments = parser.parse_args()
    if arguments.group:
        (Path(arguments.group) / "cgroup.procs").write_text(str(os.getpid()))
    serve(arguments.model, sys.stdin, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
