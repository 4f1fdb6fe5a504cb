"""The C++ library: compiled once per kind of CPU and kept on disk; its types and functions as
Python sees them.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

import torch

from draftwood.storage.atomic import publish
from draftwood.storage.home import home
from draftwood.storage.progress import progress

SOURCES = Path(__file__).parent
LIBRARY = "decoder.so"
MOST_KEPT = 8
FLAGS = (
    "-std=c++17",
    "-O3",
    "-pthread",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
)
TARGET = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


class CMatrix(Structure):
    """See matrices.h."""

    _fields_ = (
        *((name, c_int32) for name in ("format", "outputs", "inputs", "encoding")),
        ("factor", c_float),
        *((name, c_void_p) for name in ("weights", "scales", "bias")),
    )


class CNorm(Structure):
    """See decoder.cpp, also for what follows."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


NORMS = (
    *("attention_norm", "mlp_norm", "query_norm", "key_norm"),
    *("after_attention_norm", "after_mlp_norm"),
)


class CLayer(Structure):
    _fields_ = (
        *((name, CNorm) for name in NORMS),
        *((name, CMatrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        ("mask", c_int32),
        ("rotary", c_int32),
    )


class CDecoder(Structure):
    _fields_ = (
        *(
            (name, c_int32)
            for name in (
                "hidden",
                "intermediate_size",
                "heads",
                "num_kv_heads",
                "head_dim",
                "rotary_dim",
                "rotaries",
                "vocabulary",
                "encodings",
                "is_bfloat16",
                "is_layer_norm",
                "norms_whole_vectors",
                "is_parallel",
                "activation",
            )
        ),
        *(
            (name, c_float)
            for name in (
                "epsilon",
                "embedding_scale",
                "attention_scale",
                "residual_scale",
                "logit_scale",
                "score_cap",
                "logit_cap",
            )
        ),
        ("rotary_scales", c_void_p),
        ("frequencies", c_void_p),
        ("embedding", c_void_p),
        ("embedding_codes", CMatrix),
        ("norm", CNorm),
        ("lm_head", CMatrix),
        ("layers", POINTER(CLayer)),
    )


class CForwardInput(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("num_sequences", "rows", "masks", "layers", "last_only")),
        ("sequences", POINTER(c_int64)),
        *((name, c_void_p) for name in ("tokens", "positions")),
        *((name, c_char_p) for name in ("attention", "mlp")),
        ("sees", POINTER(c_int64)),
        ("cache", c_void_p),
        ("cache_slots", c_int64),
        ("capacity", c_int64),
        ("logits", c_void_p),
        ("hidden", POINTER(c_int64)),
    )


STRUCTURES: tuple[type[Structure], ...] = (CMatrix, CNorm, CLayer, CDecoder, CForwardInput)
"""In the order of ``draftwood_structure_size``."""

ROWS = (c_void_p, c_int64, c_int64, c_int64)  # address, number, distance and width

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "draftwood_structure_size": (c_int64, (c_int32,)),
    "draftwood_run": (c_int32, (POINTER(CDecoder), POINTER(CForwardInput), c_int32)),
    "draftwood_fits_int4": (c_int32, (c_void_p, c_int32, c_int32, c_int32)),
    "draftwood_pack": (None, (c_void_p, POINTER(CMatrix), c_int32)),
    "draftwood_pack_blocks": (
        None,
        (c_void_p, c_void_p, c_void_p, c_void_p, POINTER(CMatrix), c_int32),
    ),
    "draftwood_matrix_sizes": (None, (POINTER(CMatrix), POINTER(c_int64))),
    "draftwood_format_name": (c_char_p, (c_int32,)),
    "draftwood_block_inputs": (c_int32, (c_int32,)),
    "draftwood_block_bytes": (c_int32, (c_int32,)),
    "draftwood_read_outputs": (
        None,
        (POINTER(CMatrix), c_void_p, c_int64, c_void_p, c_int32),
    ),
    "draftwood_logits": (
        None,
        (
            POINTER(CDecoder),
            c_void_p,
            c_int32,
            c_int32,
            c_void_p,
            c_int64,
            c_void_p,
            c_int32,
        ),
    ),
    "draftwood_multiply": (None, (POINTER(CMatrix), c_void_p, c_int32, c_void_p)),
    "draftwood_has_tiles": (c_int32, ()),
    "draftwood_takes_tiles": (c_int32, (POINTER(CMatrix), c_int32)),
    "draftwood_force_tiles": (None, (c_int32,)),
    "draftwood_topk": (None, (*ROWS, c_int32, c_void_p, c_float, c_void_p, c_int32)),
    "draftwood_softmax": (None, (*ROWS, c_float, c_void_p, c_int32)),
    "draftwood_sample_inverse_cdf": (None, (*ROWS, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
    "draftwood_overlap": (c_double, (c_void_p, c_void_p, c_int64, c_float)),
    "draftwood_gumbel_argmax": (c_int64, (c_void_p, c_int64, c_uint32, c_uint32)),
    "draftwood_gumbel_argmax_of_logits": (
        c_int64,
        (c_void_p, c_int64, c_float, c_uint32, c_uint32),
    ),
    "draftwood_exponential_noise": (None, (c_void_p, c_int64, c_uint32, c_uint32, c_void_p)),
    "draftwood_source_kind": (c_char_p, (c_int32,)),
    "draftwood_settings_size": (c_int64, (c_int32,)),
    "draftwood_max_order": (c_int32, ()),
    "draftwood_shared_new": (c_void_p, (c_int32, c_void_p)),
    "draftwood_shared_free": (None, (c_int32, c_void_p)),
    "draftwood_drafting_new": (c_void_p, (c_void_p,)),
    "draftwood_drafting_free": (None, (c_void_p,)),
    "draftwood_drafting_add_evidence": (c_int32, (c_void_p, c_double, c_int32)),
    "draftwood_drafting_add_source": (
        None,
        (c_void_p, c_int32, c_void_p, c_void_p, POINTER(c_int32), c_int32),
    ),
    "draftwood_drafting_add_foreign": (None, (c_void_p, c_void_p)),
    "draftwood_drafting_grow": (
        c_int32,
        (
            c_void_p,
            c_int32,
            c_void_p,
            c_void_p,
            c_int32,
            c_uint64,
            c_uint64,
            c_int64,
            c_void_p,
            c_void_p,
            c_void_p,
        ),
    ),
    "draftwood_drafting_proposers": (None, (c_void_p, c_int32, c_void_p)),
    "draftwood_drafting_learn": (
        None,
        (c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64),
    ),
}
"""What the library offers: type of the result, types of the arguments."""


def integers(values: Sequence[int]) -> ctypes.Array[c_int64]:
    """Numbers or addresses in an array."""
    return (c_int64 * len(values))(*values)


def doubles(values: Sequence[float]) -> ctypes.Array[c_double]:
    """Numbers in an array."""
    return (c_double * len(values))(*values)


class CompilerError(ValueError):
    """The library cannot be compiled here; the message says why."""


@functools.cache
def library() -> ctypes.CDLL:
    """The library, compiled now where that was not done before.

    Raises:
        CompilerError: where there is no C++ compiler, it fails, or the disk does not take what it
            makes.
        RuntimeError: where a structure has another size here than in C++.
    """
    folder = home() / "kernels" / key()
    try:
        if not folder.is_dir():
            publish(folder, f"the C++ library for {platform.machine()}", _compile)
            _forget_old(folder.parent)
        found = ctypes.CDLL(str(folder / LIBRARY))
    except OSError as error:
        raise CompilerError(str(error)) from error
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    _check_structures(found)
    return found


def _check_structures(compiled: ctypes.CDLL) -> None:
    """Otherwise C++ would read its fields from other places than where Python puts them."""
    for number, structure in enumerate(STRUCTURES):
        size = compiled.draftwood_structure_size(number)
        if size != ctypes.sizeof(structure):
            raise RuntimeError(
                f"{structure.__name__} of library.py must have {size} bytes, as"
                f" {structure.__name__[1:]} has in C++, but it has {ctypes.sizeof(structure)}; give"
                " both the same fields in the same order"
            )
    if compiled.draftwood_structure_size(len(STRUCTURES)):
        raise RuntimeError("STRUCTURES of library.py must name all of draftwood_structure_size")


@functools.cache
def available() -> bool:
    """Whether there is a library for this machine; the first question may compile it."""
    try:
        library()
    except CompilerError:
        return False
    return True


def compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for path in map(shutil.which, names) if path), None)


def _compile(folder: Path) -> None:
    path = compiler()
    if path is None:
        raise CompilerError("there is no C++ compiler; install one (for instance: apt install g++)")
    command = [path, *FLAGS, TARGET, *map(str, SOURCES.glob("*.cpp")), "-o", str(folder / LIBRARY)]
    with progress("compiling the decoder for this CPU (once, a few seconds)"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]
        )
        raise CompilerError(
            f"{Path(path).name} could not compile the decoder ({first.strip()}); try another with"
            " $CXX"
        )


def _forget_old(folder: Path) -> None:
    """Keep the newest few libraries; another CPU, compiler or version of draftwood makes one of its
    own.
    """
    found = [path for path in folder.iterdir() if (path / LIBRARY).is_file()]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[MOST_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def source_files() -> list[Path]:
    """All files that the library is made from."""
    patterns = ("*.cpp", "*.h", "sources/*.h")
    return sorted(path for pattern in patterns for path in SOURCES.glob(pattern))


@functools.cache
def key() -> str:
    """Names the library by all that it is made from."""
    sources = [path.read_text(encoding="utf-8") for path in source_files()]
    identity = [
        *FLAGS,
        TARGET,
        *sources,
        compiler() or "",
        platform.machine(),
        _processor(),
        torch.__version__,
    ]
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]


def _processor() -> str:
    """What ``-march=native`` goes by."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
