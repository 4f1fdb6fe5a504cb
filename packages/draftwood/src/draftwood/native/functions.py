"""Signatures of the library's functions, as C has them."""

import ctypes
import re
from collections.abc import Callable
from typing import Any

from draftwood.native import structures

PROTOTYPES = """
int64 draftwood_structure_size(int32)
status draftwood_run(CDecoder*, CForwardInput*, int32)
status draftwood_steps(CDecoder*, CForwardInput*, void*, void*, int64, int32)
status draftwood_step_run(CDecoder*, CForwardInput*, void*, void*, void*, int64, int32)
void draftwood_interrupt()
void draftwood_work_beside(int32)
status draftwood_cache_shape(CDecoder*, int32, CCacheShape*, CCacheLayer*)
int64 draftwood_cache_block(CCacheShape*)
int64 draftwood_memory_bytes(CCacheShape*)
int64 draftwood_cache_tail(CCacheShape*)
status draftwood_keep_path(CCacheShape*, void*, int64, int64*, int64)
made* draftwood_head_new(CHead*)
void draftwood_head_free(void*)
status draftwood_head_take(void*, CFusionInput*, int64*, int64, CSuccessors*, int32)
status draftwood_head_level(void*, int64*, int64*, int64, CSuccessors*, int32)
status draftwood_head_draft(void*, CFusionInput*, int64*, int64, CSuccessors*, CHeadTree*, int32)
void draftwood_head_keep(void*, int64)
int64 draftwood_head_committed(void*)
status draftwood_head_copy(void*, void*, int64)
made* draftwood_head_drafting_new(CHeadDraftingSettings*)
void draftwood_head_drafting_free(void*)
status draftwood_head_drafting_learn(void*, int64*, int64, int64*)
void* draftwood_head_levels(void*)
made* draftwood_model_levels_new(void*)
void draftwood_model_levels_free(void*)
made* draftwood_jacobi_new(CJacobiSettings*)
void draftwood_jacobi_free(void*)
void* draftwood_jacobi_levels(void*)
made* draftwood_drawn_new(void*, void*)
void draftwood_drawn_free(void*)
double draftwood_read_peak(void*, int64, int32)
double draftwood_product_peak(int32)
int32 draftwood_fits_int4(void*, int32, int32, int32, int32)
int32 draftwood_pack(void*, int32, CMatrix*, int32)
int32 draftwood_pack_outputs(CMatrix*, void*, CMatrix*, int32)
void draftwood_pack_blocks(CStoredBlocks*, int64, int32)
void draftwood_matrix_sizes(CMatrix*, int64*)
char* draftwood_format_name(int32)
char* draftwood_instructions(int32)
int32 draftwood_block_bytes(int32)
float draftwood_block_factor(int32)
void draftwood_read_outputs(CMatrix*, void*, int64, void*, int32)
status draftwood_logits(CDecoder*, void*, int32, int32, void*, int64, void*, int32)
status draftwood_multiply(CMatrix*, void*, int32, void*, int32)
int32 draftwood_has_tiles()
int32 draftwood_takes_tiles(CMatrix*, int32)
void draftwood_force_tiles(int32)
void draftwood_topk(void*, int64, int64, int64, int32, void*, float, void*, int32)
void draftwood_softmax(void*, int64, int64, int64, float, void*, int32)
void draftwood_sample_inverse_cdf(void*, int64, int64, int64, void*, int32, int32, void*, int32)
int64 draftwood_sum_weights(void*, int64, int64, int64, float, void*, int32)
void draftwood_draw_children(void*, int64, int64, int64, float, void*, void*, int32, int32, void*,
    void*, int32)
double draftwood_sum_without(void*, int64, float, void*, void*, int64)
double draftwood_take_away(void*, int64, void*, int64, float, void*, void*, int64, float, void*,
    void*, double, void*, int64)
double draftwood_overlap(void*, void*, int64, float)
void draftwood_filter(CFilters*, void*, int64, int64, float, void*, int64, void*)
int64 draftwood_gumbel_argmax(void*, int64, uint32, uint32)
int64 draftwood_gumbel_argmax_of_logits(void*, int64, float, uint32, uint32)
void draftwood_exponential_noise(void*, int64, uint32, uint32, void*)
char* draftwood_source_kind(int32)
int64 draftwood_settings_size(int32)
int32 draftwood_max_order()
made* draftwood_shared_new(int32, void*)
void draftwood_shared_free(int32, void*)
made* draftwood_drafting_new(void*)
void draftwood_drafting_free(void*)
int32 draftwood_drafting_add_evidence(void*, double, int32)
void draftwood_drafting_add_source(void*, int32, void*, void*, int32*, int32)
void draftwood_drafting_add_foreign(void*, void*, void*, int32)
status draftwood_drafting_grow(void*, int32, void*, void*, double, int32, uint64, uint64, int64,
    int32, void*, void*, void*)
double draftwood_drafting_spent(void*)
int32 draftwood_drafting_is_open(void*)
void draftwood_drafting_proposers(void*, int32, void*)
status draftwood_drafting_learn(void*, void*, void*, int64, void*, int64, void*, void*, int64,
    void*)
made* draftwood_frames_new(CFrameHead*)
void draftwood_frames_free(void*)
status draftwood_frames_take(void*, CFusionInput*, int64*, int64, void*, int32)
status draftwood_medusa_logits(CMedusaHeads*, CFusionInput*, void*, int64, void*, int64, void*,
    int32)
void draftwood_likeliest_prefixes(CLattice*, CLatticeTree*)
void draftwood_collapsed_alignments(CLattice*, int32, int64, CLatticeTree*)
void draftwood_collapsed_paths(CLattice*, int64, int64*, int64*, CLatticeTree*)
"""
"""Rows of a vocabulary come as address, number, distance and width; a softmax as address, width,
temperature and sums. A ``status`` or what is ``made`` raises MemoryError without memory for it.
"""

NAMED = {
    "void": None,
    "void*": ctypes.c_void_p,
    "made*": ctypes.c_void_p,
    "char*": ctypes.c_char_p,
    "status": ctypes.c_int32,
}
NO_MEMORY = {"status": -3, "made*": None}
"""Results that say that there was no memory, as lack_of_memory.h has them."""


def declare(compiled: ctypes.CDLL) -> None:
    """Tell ctypes what the library's functions take and return.

    Raises:
        AttributeError: for a function that the library lacks.
    """
    for result, name, arguments in re.findall(r"(\S+) (\w+)\((.*?)\)", PROTOTYPES, re.DOTALL):
        function = getattr(compiled, name)
        function.restype = _type(result)
        if result in NO_MEMORY:
            function.errcheck = _checked(NO_MEMORY[result])
        function.argtypes = [_type(each) for each in re.split(r",\s+", arguments) if each]


def _checked(no_memory: int | None) -> Callable[..., Any]:
    """A function that returns what the library returned, or raises MemoryError."""

    def check(result: Any, function: object, given: object) -> Any:
        if result == no_memory:
            raise MemoryError(
                "there is no memory for what the library computes with; shorten the prompt, run"
                " fewer requests at once, or take a smaller model"
            )
        return result

    return check


def _type(name: str) -> Any:
    """The type of a name in C: a number, a structure, or a pointer."""
    if name in NAMED:
        return NAMED[name]
    if name.endswith("*"):
        return ctypes.POINTER(_type(name[:-1]))
    return getattr(structures, name, None) or getattr(ctypes, f"c_{name}")
