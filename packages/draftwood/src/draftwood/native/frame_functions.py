"""Signatures of the library's functions for CTC, Medusa and Hydra heads; see frames.cpp."""

from ctypes import POINTER, c_int32, c_int64, c_void_p
from typing import Any

from draftwood.native.structures import (
    CFrameHead,
    CFusionInput,
    CLattice,
    CLatticeTree,
    CMedusaHeads,
)

FRAME_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "draftwood_frames_new": (c_void_p, (POINTER(CFrameHead),)),
    "draftwood_frames_free": (None, (c_void_p,)),
    "draftwood_frames_take": (
        c_int32,
        (c_void_p, POINTER(CFusionInput), POINTER(c_int64), c_int64, c_void_p, c_int32),
    ),
    "draftwood_medusa_logits": (
        c_int32,
        (
            *(POINTER(CMedusaHeads), POINTER(CFusionInput)),
            *(c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int32),
        ),
    ),
    "draftwood_likeliest_prefixes": (None, (POINTER(CLattice), POINTER(CLatticeTree))),
    "draftwood_collapsed_alignments": (
        None,
        (POINTER(CLattice), c_int32, c_int64, POINTER(CLatticeTree)),
    ),
    "draftwood_collapsed_paths": (
        None,
        (POINTER(CLattice), c_int64, POINTER(c_int64), POINTER(c_int64), POINTER(CLatticeTree)),
    ),
}
"""Type of the result, types of the arguments."""
