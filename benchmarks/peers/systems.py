"""What is measured: every system's adapter, how it is started, and its modes."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers import environments, weights
from peers.environments import LLAMA_CPP_SOURCE

HERE = Path(__file__).parent
PEERS = ("transformers", "llama.cpp", "llama.cpp-lookup", "openvino", "openvino-int8")
# Its own default guesses 48 or more tokens after 24 that match, the other eight after three, nearest to prompt lookup.
NGRAM_DEFAULT = "--spec-type ngram-mod"
NGRAM_LOOKUP = "--spec-type ngram-map-k --spec-ngram-map-k-size-n 3 --spec-ngram-map-k-size-m 8"


@dataclass(frozen=True)
class System:
    """One adapter.

    Attributes:
        name: in the table.
        modes: what the table calls each mode, by the protocol's name for it.
        command: gives the adapter's command line; fetches and compiles what is missing, so it may raise OSError.
    """

    name: str
    modes: dict[str, str]
    command: Callable[[], list[str]]


def systems(names: list[str], entries: list[str], model: str, threads: int) -> list[System]:
    """The peers of these names and draftwood's ``method:dtype`` entries. Raises ValueError for unknown ones."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"there is no peer {unknown[0]!r}; peers are {', '.join(PEERS)}")
    return [_peer(name, model, threads) for name in names] + [_draftwood(entry, model, threads) for entry in entries]


def _peer(name: str, model: str, threads: int) -> System:
    plain, lookup = {"plain": "plain"}, {"speculation": "prompt lookup"}
    return {
        "transformers": System(name, plain | lookup, lambda: _transformers(model, threads)),
        "llama.cpp": System(name, plain | {"speculation": "n-gram, its default"}, lambda: _llama_cpp(model, threads)),
        "llama.cpp-lookup": System(
            "llama.cpp", {"speculation": "n-gram, 3 find 8"}, lambda: _llama_cpp(model, threads, NGRAM_LOOKUP)
        ),
        "openvino": System(name, plain | lookup, lambda: _openvino(model, threads)),
        "openvino-int8": System(name, plain | lookup, lambda: _openvino_int8(model, threads)),
    }[name]


def _command(python: Path, adapter: str, place: Path, threads: int) -> list[str]:
    return [str(python), str(HERE / f"run_{adapter}.py"), "--weights", str(place), "--threads", str(threads)]


def _transformers(model: str, threads: int) -> list[str]:
    return _command(environments.prepare("transformers"), "transformers", weights.model_folder(model), threads)


def _llama_cpp(model: str, threads: int, speculation: str = NGRAM_DEFAULT) -> list[str]:
    python, file = environments.prepare("llama.cpp"), weights.gguf_file(model)
    server = environments.folder("llama.cpp") / "build" / "bin" / "llama-server"
    more = ["--server", str(server), "--package", LLAMA_CPP_SOURCE, f"--speculation={speculation}"]
    more += ["--weight-bytes", str(weights.gguf_bytes_read_per_token(file))]
    return _command(python, "llama_cpp", file, threads) + more


def _openvino(model: str, threads: int, kind: str = "gguf") -> list[str]:
    python, place = environments.prepare("openvino"), environments.folder("openvino") / "models" / f"{model}-{kind}"
    return [*_command(python, "openvino", weights.gguf_file(model), threads), "--folder", str(place)]


def _openvino_int8(model: str, threads: int) -> list[str]:
    return [*_openvino(model, threads, "int8"), "--folder-of-values", str(weights.model_folder(model))]


def _draftwood(entry: str, model: str, threads: int) -> System:
    method, _, dtype = entry.partition(":")
    if not method or not dtype:
        raise ValueError(f"an entry of draftwood is METHOD:DTYPE, for instance plain:bfloat16, not {entry!r}")

    def command() -> list[str]:
        more = ["--method", method, "--dtype", dtype]
        return _command(Path(sys.executable), "draftwood", weights.model_folder(model), threads) + more

    return System("draftwood", {"plain" if method == "plain" else "speculation": entry}, command)
