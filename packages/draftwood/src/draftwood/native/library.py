"""The C++ library: compiled once per kind of CPU and kept on disk, or prebuilt; its functions as
Python sees them.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import platform
import shutil
import time
import warnings
from collections.abc import Sequence
from ctypes import (
    POINTER,
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
    own_flags,
    processor,
    source_files,
)
from draftwood.native.frame_functions import FRAME_FUNCTIONS
from draftwood.native.structures import (
    STRUCTURES,
    CCacheShape,
    CDecoder,
    CForwardInput,
    CFusionInput,
    CHead,
    CHeadDraftingSettings,
    CHeadTree,
    CMatrix,
    CStoredBlocks,
    CSuccessors,
)
from draftwood.storage.atomic import MANIFEST, Facts, is_intact, publish
from draftwood.storage.home import home
from draftwood.storage.progress import counted_progress

MOST_KEPT = 8
TARGET = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"

ROWS = (c_void_p, c_int64, c_int64, c_int64)  # address, number, distance and width

SOFTMAX = (c_void_p, c_int64, c_float, c_void_p)  # address, width, temperature, sums

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "draftwood_structure_size": (c_int64, (c_int32,)),
    "draftwood_run": (c_int32, (POINTER(CDecoder), POINTER(CForwardInput), c_int32)),
    "draftwood_steps": (
        c_int32,
        (
            POINTER(CDecoder),
            POINTER(CForwardInput),
            c_void_p,
            c_void_p,
            c_int64,
            c_int32,
        ),
    ),
    "draftwood_work_beside": (None, (c_int32,)),
    "draftwood_cache_block": (c_int64, (POINTER(CCacheShape),)),
    "draftwood_keep_path": (
        None,
        (POINTER(CCacheShape), c_void_p, c_int64, POINTER(c_int64), c_int64),
    ),
    "draftwood_head_new": (c_void_p, (POINTER(CHead),)),
    "draftwood_head_free": (None, (c_void_p,)),
    "draftwood_head_take": (
        c_int32,
        (
            c_void_p,
            POINTER(CFusionInput),
            POINTER(c_int64),
            c_int64,
            POINTER(CSuccessors),
            c_int32,
        ),
    ),
    "draftwood_head_level": (
        c_int32,
        (
            c_void_p,
            POINTER(c_int64),
            POINTER(c_int64),
            c_int64,
            POINTER(CSuccessors),
            c_int32,
        ),
    ),
    "draftwood_head_draft": (
        c_int32,
        (
            c_void_p,
            POINTER(CFusionInput),
            POINTER(c_int64),
            c_int64,
            POINTER(CSuccessors),
            POINTER(CHeadTree),
            c_int32,
        ),
    ),
    "draftwood_head_keep": (None, (c_void_p, c_int64)),
    "draftwood_head_committed": (c_int64, (c_void_p,)),
    "draftwood_head_copy": (None, (c_void_p, c_void_p, c_int64)),
    "draftwood_head_drafting_new": (c_void_p, (POINTER(CHeadDraftingSettings),)),
    "draftwood_head_drafting_free": (None, (c_void_p,)),
    "draftwood_head_drafting_learn": (
        None,
        (c_void_p, POINTER(c_int64), c_int64, POINTER(c_int64)),
    ),
    "draftwood_head_levels": (c_void_p, (c_void_p,)),
    "draftwood_model_levels_new": (c_void_p, (c_void_p,)),
    "draftwood_model_levels_free": (None, (c_void_p,)),
    "draftwood_drawn_new": (c_void_p, (c_void_p, c_void_p)),
    "draftwood_drawn_free": (None, (c_void_p,)),
    "draftwood_fits_int4": (c_int32, (c_void_p, c_int32, c_int32, c_int32)),
    "draftwood_pack": (None, (c_void_p, POINTER(CMatrix), c_int32)),
    "draftwood_pack_blocks": (None, (POINTER(CStoredBlocks), c_int64, c_int32)),
    "draftwood_matrix_sizes": (None, (POINTER(CMatrix), POINTER(c_int64))),
    "draftwood_format_name": (c_char_p, (c_int32,)),
    "draftwood_instructions": (c_char_p, (c_int32,)),
    "draftwood_block_bytes": (c_int32, (c_int32,)),
    "draftwood_block_factor": (c_float, (c_int32,)),
    "draftwood_read_outputs": (
        None,
        (POINTER(CMatrix), c_void_p, c_int64, c_void_p, c_int32),
    ),
    "draftwood_padded_dim": (c_int32, (c_int32,)),
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
    "draftwood_sum_weights": (c_int64, (*ROWS, c_float, c_void_p, c_int32)),
    "draftwood_draw_children": (
        None,
        (*ROWS, c_float, c_void_p, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_int32),
    ),
    "draftwood_sum_without": (c_double, (*SOFTMAX, c_void_p, c_int64)),
    "draftwood_take_away": (
        c_double,
        (c_void_p, c_int64, *SOFTMAX, *SOFTMAX, c_void_p, c_double, c_void_p, c_int64),
    ),
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
    "draftwood_drafting_add_foreign": (None, (c_void_p, c_void_p, c_void_p, c_int32)),
    "draftwood_drafting_grow": (
        c_int32,
        (
            c_void_p,
            c_int32,
            c_void_p,
            c_void_p,
            c_double,
            c_int32,
            c_uint64,
            c_uint64,
            c_int64,
            c_int32,
            c_void_p,
            c_void_p,
            c_void_p,
        ),
    ),
    "draftwood_drafting_spent": (c_double, (c_void_p,)),
    "draftwood_drafting_proposers": (None, (c_void_p, c_int32, c_void_p)),
    "draftwood_drafting_learn": (
        None,
        (
            *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64),
            *(c_void_p, c_void_p, c_int64, c_void_p),
        ),
    ),
}
"""Signatures of the library's functions: type of the result, types of the arguments; see also
``frame_functions``.
"""


def integers(values: Sequence[int]) -> ctypes.Array[c_int64]:
    """Numbers or addresses in an array."""
    return (c_int64 * len(values))(*values)


def doubles(values: Sequence[float]) -> ctypes.Array[c_double]:
    """Numbers in an array."""
    return (c_double * len(values))(*values)


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library, compiling it if necessary.

    If it cannot be compiled, a prebuilt one of the package serves.

    Raises:
        CompilerError: where no prebuilt library runs on this CPU and there is no C++ compiler, it
            fails, or the disk does not take what it makes.
        RuntimeError: where a structure has another size here than in C++.
    """
    found = _load()
    for name, (result, arguments) in (FUNCTIONS | FRAME_FUNCTIONS).items():
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
    """Path of the library for this CPU; compiled if it is missing or damaged."""
    folder = home() / "kernels" / key()
    if not _is_whole(folder):
        if folder.is_dir():
            warnings.warn(f"{folder / LIBRARY} is damaged; it is compiled again", stacklevel=4)
        publish(folder, f"the C++ library for {platform.machine()}", _compile, _is_whole)
        _forget_old(folder.parent)
    return folder / LIBRARY


def _is_whole(folder: Path) -> bool:
    return is_intact(folder, LIBRARY)


def _compile(folder: Path) -> Facts:
    """Compile into a folder; returns how long that took, for the next time."""
    last, begun = _last_seconds(folder.parent), time.monotonic()
    told = "" if last is None else f" (last time took {last:.0f} s)"
    with counted_progress(f"compiling for this CPU, once{told}") as tell:
        compile_library(folder / LIBRARY, [TARGET], tell)
    return {"seconds": f"{time.monotonic() - begun:.1f}"}


def _last_seconds(folder: Path) -> float | None:
    """Seconds that compiling the newest library here took; None if not recorded."""
    found = list[tuple[float, float]]()
    for path in folder.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
            found.append((path.stat().st_mtime, seconds))
    return max(found)[1] if found else None


def _check_structures(compiled: ctypes.CDLL) -> None:
    """Check that C++ and Python agree on the sizes of structures."""
    for number, structure in enumerate(STRUCTURES):
        size = compiled.draftwood_structure_size(number)
        if size != ctypes.sizeof(structure):
            raise RuntimeError(
                f"{structure.__name__} of structures.py must have {size} bytes, as"
                f" {structure.__name__[1:]} has in C++, but it has {ctypes.sizeof(structure)}; give"
                " both the same fields in the same order"
            )
    if compiled.draftwood_structure_size(len(STRUCTURES)):
        raise RuntimeError("STRUCTURES of structures.py must name all of draftwood_structure_size")


@functools.cache
def available() -> bool:
    """True if there is a library for this machine; the first call may compile it."""
    try:
        library()
    except CompilerError:
        return False
    return True


def instructions(of_bytes: bool) -> str | None:
    """Instruction set for products of 8-bit integers, or of floats; None for plain loops."""
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
    """Name the library by everything that it is made from."""
    sources = [path.read_text(encoding="utf-8") for path in source_files()]
    identity = [
        *FLAGS,
        TARGET,
        *own_flags(),
        *sources,
        compiler() or "",
        platform.machine(),
        processor(),
        torch.__version__,
    ]
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
