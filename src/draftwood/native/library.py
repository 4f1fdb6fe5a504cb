"""The C++ library: compiled once per kind of CPU and kept on disk, or prebuilt; its types and
functions as Python sees them.
"""

import ctypes
import functools
import hashlib
import platform
import shutil
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

from draftwood.native import prebuilt
from draftwood.native.compiler import (
    FLAGS,
    LIBRARY,
    CompilerError,
    compile_library,
    compiler,
    processor,
    source_files,
)
from draftwood.storage.atomic import publish
from draftwood.storage.home import home
from draftwood.storage.progress import progress

MOST_KEPT = 8
TARGET = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


class CGating(Structure):
    """See activations.h."""

    _fields_ = (
        ("activation", c_int32),
        *((name, c_float) for name in ("slope", "limit", "shift")),
    )


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


class CExpert(Structure):
    """See experts.h, also for what follows."""

    _fields_ = tuple((name, CMatrix) for name in ("gate", "up", "down"))


class CExperts(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("count", "per_row", "shares_sum_to_one")),
        ("router", c_void_p),
        ("router_bias", c_void_p),
        ("networks", POINTER(CExpert)),
    )


NORMS = (
    *("attention_norm", "mlp_norm", "query_norm", "key_norm"),
    *("after_attention_norm", "after_mlp_norm"),
)


class CLayer(Structure):
    _fields_ = (
        *((name, CNorm) for name in NORMS),
        *((name, CMatrix) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        ("experts", CExperts),
        ("sinks", c_void_p),
        ("window", c_int32),
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
            )
        ),
        ("gating", CGating),
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
        *((name, c_int32) for name in ("num_sequences", "rows", "layers", "last_only")),
        ("sequences", POINTER(c_int64)),
        *((name, c_void_p) for name in ("tokens", "positions")),
        *((name, c_char_p) for name in ("attention", "mlp")),
        ("sees", POINTER(c_int64)),
        ("cache", c_void_p),
        ("cache_slots", c_int64),
        ("capacity", c_int64),
        ("logits", c_void_p),
        ("hidden", POINTER(c_int64)),
        ("seconds", c_void_p),
    )


STRUCTURES: tuple[type[Structure], ...] = (
    *(CMatrix, CNorm, CExpert, CExperts),
    *(CLayer, CGating, CDecoder, CForwardInput),
)
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
    "draftwood_instructions": (c_char_p, (c_int32,)),
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


@functools.cache
def library() -> ctypes.CDLL:
    """The library, compiled now where that was not done before.

    Where it cannot be compiled, a prebuilt one of the package serves.

    Raises:
        CompilerError: where no prebuilt library runs on this CPU and there is no C++ compiler, it
            fails, or the disk does not take what it makes.
        RuntimeError: where a structure has another size here than in C++.
    """
    found = _load()
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    _check_structures(found)
    return found


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(_compiled()))
    except (CompilerError, OSError) as error:
        level = prebuilt.best()
        if level is None:
            raise CompilerError(str(error)) from error
        try:
            return ctypes.CDLL(str(level.path))
        except OSError as other:  # for instance an older glibc
            raise CompilerError(f"{error}; the prebuilt library fails: {other}") from other


def _compiled() -> Path:
    """The library for this CPU, made where it is not there."""
    folder = home() / "kernels" / key()
    if not folder.is_dir():
        publish(folder, f"the C++ library for {platform.machine()}", _compile)
        _forget_old(folder.parent)
    return folder / LIBRARY


def _compile(folder: Path) -> None:
    with progress("compiling the decoder for this CPU (once, a few seconds)"):
        compile_library(folder / LIBRARY, [TARGET])


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


def instructions(of_bytes: bool) -> str | None:
    """What products of 8-bit integers, or of floats, run on; None for plain loops."""
    found = library().draftwood_instructions(of_bytes)
    return None if found is None else found.decode()


def _forget_old(folder: Path) -> None:
    """Keep the newest few libraries; another CPU, compiler or version of draftwood makes one of its
    own.
    """
    found = [path for path in folder.iterdir() if (path / LIBRARY).is_file()]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[MOST_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


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
        processor(),
        torch.__version__,
    ]
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
