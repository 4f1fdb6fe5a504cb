"""Peers: the adapter of every system, its command line and its modes."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from draftwood_bench.peers import environments, weights
from draftwood_bench.peers.environments import LLAMA_CPP_SOURCE

HERE = Path(__file__).parent
PEERS = ("transformers", "llama.cpp", "llama.cpp-lookup", "openvino", "openvino-int8", "vllm")
# Its own default drafts 48 or more tokens after 24 that match, the other eight after three,
# nearest to prompt lookup.
NGRAM_DEFAULT = "--spec-type ngram-mod"
NGRAM_LOOKUP = "--spec-type ngram-map-k --spec-ngram-map-k-size-n 3 --spec-ngram-map-k-size-m 8"


@dataclass(frozen=True)
class System:
    """One adapter.

    Attributes:
        name: in the table.
        modes: what the table calls each mode, by the protocol's name for it.
        command: gives the adapter's command line; fetches and compiles what is missing, so it may
            raise OSError, and ValueError for a model that this peer cannot run, or only with other
            weights.
        weights: digest of those that it runs, the same as draftwood's.
    """

    name: str
    modes: dict[str, str]
    command: Callable[[], list[str]]
    weights: str | None = None

    @property
    def keys(self) -> dict[str, str]:
        """Keys of its modes in records, by mode."""
        return {mode: f"peer:{self.name} | {label}" for mode, label in self.modes.items()}


@dataclass(frozen=True)
class Target:
    """Target model that all systems run.

    Attributes:
        model: its name.
        folder: of its weights.
        digest: that tells these weights from others.
        threads: for each.
        device: kind of what it runs on; peers that can run there too.
        dtype: float in which peers multiply the weights of the folder.
    """

    model: str
    folder: Path
    digest: str | None
    threads: int
    device: str = "cpu"
    dtype: str = "bfloat16"


def require_known(names: Sequence[str]) -> None:
    """Raises ValueError for a name that no peer has."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"there is no peer {unknown[0]!r}; peers are {', '.join(PEERS)}")


def systems(names: Sequence[str], target: Target) -> list[System]:
    """The peers of these names. Raises ValueError for an unknown one."""
    require_known(names)
    return [_peer(name, target) for name in names]


def _peer(name: str, target: Target) -> System:
    plain, lookup = {"plain": "plain"}, {"speculation": "prompt lookup"}
    system = {
        "transformers": System(name, plain | lookup, lambda: _transformers(target)),
        "llama.cpp": System(
            name, plain | {"speculation": "n-gram, its default"}, lambda: _llama_cpp(target)
        ),
        "llama.cpp-lookup": System(
            name, {"speculation": "n-gram, 3 find 8"}, lambda: _llama_cpp(target, NGRAM_LOOKUP)
        ),
        "openvino": System(name, plain | lookup, lambda: _openvino(target)),
        "openvino-int8": System(name, plain | lookup, lambda: _openvino_int8(target)),
        "vllm": System(name, plain | {"speculation": "n-gram"}, lambda: _vllm(target)),
    }[name]
    return replace(system, weights=target.digest)


def _command(python: Path, adapter: str, place: Path, threads: int) -> list[str]:
    return [
        str(python),
        str(HERE / f"run_{adapter}.py"),
        "--weights",
        str(place),
        "--threads",
        str(threads),
    ]


def _own_folder(name: str, target: Target) -> list[str]:
    command = _command(environments.prepare(name), name, target.folder, target.threads)
    return [*command, "--dtype", target.dtype]


def _transformers(target: Target) -> list[str]:
    return [*_own_folder("transformers", target), "--device", target.device]


def _vllm(target: Target) -> list[str]:
    if not torch.cuda.is_available():
        raise OSError("vLLM runs on a GPU, and this machine has none that PyTorch can use")
    size = weights.bytes_read_per_token(target.folder, target.dtype)
    return [*_own_folder("vllm", target), "--weight-bytes", str(size)]


def on_file(name: str, file: Path, threads: int) -> list[str]:
    """The command line of a system's adapter that reads a GGUF file.

    Raises OSError where what it needs cannot be fetched or compiled.
    """
    commands = {
        "draftwood": lambda: _command(Path(sys.executable), "draftwood", file, threads),
        "llama.cpp": lambda: _llama_cpp_on(file, threads, NGRAM_DEFAULT),
        "llama.cpp-lookup": lambda: _llama_cpp_on(file, threads, NGRAM_LOOKUP),
        "openvino": lambda: _openvino_on(file, threads, f"{file.stem}-{file.stat().st_size}-gguf"),
    }
    return commands[name]()


def _llama_cpp(target: Target, speculation: str = NGRAM_DEFAULT) -> list[str]:
    return _llama_cpp_on(
        weights.gguf_file(target.model, target.digest), target.threads, speculation
    )


def _llama_cpp_on(file: Path, threads: int, speculation: str) -> list[str]:
    python = environments.prepare("llama.cpp")
    server = environments.folder("llama.cpp") / "build" / "bin" / "llama-server"
    more = ["--server", str(server), "--package", LLAMA_CPP_SOURCE, f"--speculation={speculation}"]
    more += ["--weight-bytes", str(weights.gguf_bytes_read_per_token(file))]
    return _command(python, "llama_cpp", file, threads) + more


def _openvino(target: Target, kind: str = "gguf") -> list[str]:
    file = weights.gguf_file(target.model, target.digest)
    return _openvino_on(file, target.threads, f"{target.model}-{kind}")


def _openvino_on(file: Path, threads: int, name: str) -> list[str]:
    python, models = environments.prepare("openvino"), environments.folder("openvino") / "models"
    return [*_command(python, "openvino", file, threads), "--folder", str(models / name)]


def _openvino_int8(target: Target) -> list[str]:
    return [*_openvino(target, "int8"), "--folder-of-values", str(target.folder)]
