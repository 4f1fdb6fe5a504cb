"""Structures that Python passes to the library, with the same fields as in C++."""

from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu2": 2}


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


class CStoredBlocks(Structure):
    """See blocks.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("rows", "order", "grid", "signs")),
        ("matrix", POINTER(CMatrix)),
    )


class CNorm(Structure):
    """See network.h, also for what follows."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class CExpert(Structure):
    """See experts.h, also for what follows."""

    _fields_ = tuple((name, CMatrix) for name in ("gate", "up", "down"))


class CExperts(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("count", "per_row", "shares_sum_to_one", "has_shared")),
        ("is_sigmoid", c_int32),
        *((name, c_float) for name in ("scale", "sum_epsilon")),
        *((name, c_void_p) for name in ("router", "router_bias", "shared_gate", "choice_bias")),
        *((name, c_void_p) for name in ("router_norm", "factors")),
        ("networks", POINTER(CExpert)),
    )


NORMS = (
    *("attention_norm", "mlp_norm", "query_norm", "key_norm", "value_norm", "experts_norm"),
    *("after_attention_norm", "after_mlp_norm", "after_network_norm", "after_experts_norm"),
    "after_input_norm",
)


LAYER_MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
"""In the order of ``LayerMatrix`` of network.h."""


class CRecurrence(Structure):
    _fields_ = (
        *(
            (name, c_int32)
            for name in (
                *("key_heads", "value_heads", "key_dim", "value_dim"),
                *("kernel", "is_tiled", "copies", "norm_groups"),
            )
        ),
        *((name, c_void_p) for name in ("taps", "tap_biases", "decays", "steps", "skips", "norm")),
        *((name, c_float) for name in ("least_step", "most_step")),
        *((name, c_int64) for name in ("state_at", "row_at")),
    )


INPUT_MATRICES = ("input_gate", "input")
"""Matrices of a layer with an input of its own."""


class CAttentionShape(Structure):
    _fields_ = tuple((name, c_int32) for name in ("num_kv_heads", "head_dim", "rotary_dim"))


class CLayer(Structure):
    _fields_ = (
        *((name, CNorm) for name in NORMS),
        *((name, CMatrix) for name in LAYER_MATRICES),
        ("experts", CExperts),
        *((name, CMatrix) for name in INPUT_MATRICES),
        ("sinks", c_void_p),
        *((name, c_int32) for name in ("window", "rotary", "cached")),
        ("attention", CAttentionShape),
        ("scale", c_float),
        ("recurrence", CRecurrence),
    )


class CLayerInputs(Structure):
    _fields_ = (
        ("size", c_int32),
        *((name, c_float) for name in ("embedding_scale", "scale")),
        ("embedding", POINTER(CStoredBlocks)),
        ("projection", CMatrix),
        ("norm", CNorm),
    )


class CFusion(Structure):
    """See network.h, also for what follows."""

    _fields_ = (
        *((name, c_int32) for name in ("reads", "feeds_normed", "starts_normed", "joins_tokens")),
        ("norms", POINTER(CNorm)),
        ("matrix", CMatrix),
        *((name, CNorm) for name in ("state_norm", "token_norm")),
    )


class CFusionInput(Structure):
    _fields_ = (
        ("features", POINTER(c_int64)),
        ("feature_rows", POINTER(c_int64)),
        ("feature_stride", c_int64),
        ("is_bfloat16", c_int32),
        ("states", c_void_p),
        ("results", c_void_p),
    )


class CDecoder(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("hidden", "heads", "num_kv_heads", "head_dim")),
        *((name, c_int32) for name in ("rotary_dim", "rotaries", "vocabulary", "encodings")),
        *((name, c_int32) for name in ("is_bfloat16", "has_byte_cache", "is_layer_norm")),
        *((name, c_int32) for name in ("norms_whole_vectors", "is_parallel")),
        ("gating", CGating),
        *((name, c_float) for name in ("epsilon", "embedding_scale", "attention_scale")),
        *((name, c_float) for name in ("residual_scale", "logit_scale", "score_cap", "logit_cap")),
        *((name, c_float) for name in ("query_growth", "growth_every")),
        ("rotary_scales", c_void_p),
        ("frequencies", c_void_p),
        ("embedding", c_void_p),
        ("embedding_codes", CMatrix),
        ("norm", CNorm),
        ("lm_head", CMatrix),
        ("layers", POINTER(CLayer)),
        ("fusion", POINTER(CFusion)),
        ("inputs", CLayerInputs),
    )


class CLowRank(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("down", "up")),
        *((name, c_int32) for name in ("rank", "inputs")),
    )


class CLayerAdapter(Structure):
    _fields_ = tuple((name, CLowRank) for name in LAYER_MATRICES)


class CMarkedRows(Structure):
    _fields_ = (
        ("layers", POINTER(CLayerAdapter)),
        *((name, c_void_p) for name in ("rows", "vectors")),
        ("count", c_int64),
    )


class CForwardInput(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("num_sequences", "rows", "layers", "only_keys")),
        ("sequences", POINTER(c_int64)),
        *((name, c_void_p) for name in ("tokens", "positions")),
        *((name, c_char_p) for name in ("attention", "mlp")),
        ("sees", POINTER(c_int64)),
        ("logits", c_void_p),
        ("hidden", POINTER(c_int64)),
        *((name, c_void_p) for name in ("seconds", "trace")),
        ("fused", POINTER(CFusionInput)),
        ("stream", c_void_p),
        *((name, c_int32) for name in ("start", "stop")),
        ("marked", POINTER(CMarkedRows)),
    )


class CTaskTime(Structure):
    """See clock.h."""

    _fields_ = (("phase", c_int32), ("kind", c_int32), ("seconds", c_double))


class CTaskTrace(Structure):
    """See clock.h."""

    _fields_ = (
        *((name, c_int32) for name in ("threads", "most", "count")),
        ("tasks", POINTER(CTaskTime)),
    )


class CCacheLayer(Structure):
    """See cache.h, also for what follows."""

    _fields_ = tuple(
        (name, c_int64) for name in ("heads", "row_bytes", "bytes_before", "heads_before")
    )


class CCacheShape(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "heads", "row_bytes", "has_scales")),
        *((name, c_int64) for name in ("state_size", "row_size", "lookback")),
        ("each", POINTER(CCacheLayer)),
    )


class CFilters(Structure):
    """See filters.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("biased", "biases")),
        *((name, c_int64) for name in ("num_biased", "top_k")),
        *((name, c_double) for name in ("top_p", "min_p")),
        *((name, c_double) for name in ("repetition", "presence", "frequency")),
    )


class CStep(Structure):
    """See step.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("drafting", "head", "drawn", "raced", "uniforms")),
        *((name, c_void_p) for name in ("costs", "slopes")),
        ("others", c_double),
        *((name, c_int64) for name in ("room", "root", "most", "ranks")),
        *((name, c_uint64) for name in ("key", "place")),
        *((name, c_int32) for name in ("is_drawn", "rule")),
        *((name, c_float) for name in ("temperature", "temperature_of_ranks")),
        *((name, c_void_p) for name in ("filters", "before")),
        *((name, c_int64) for name in ("num_before", "prompt")),
        *((name, c_void_p) for name in ("tokens", "parents", "path", "chances", "proposers")),
        *((name, c_int64) for name in ("nodes", "kept", "next_token")),
        *((name, c_int64) for name in ("draws", "uniforms_used", "is_head_broken")),
        ("broken", c_void_p),
        *((name, c_double) for name in ("draft_seconds", "target_seconds", "verify_seconds")),
        *((name, c_double) for name in ("drafter_seconds", "learn_seconds")),
    )


class CStepRun(Structure):
    """See step.h."""

    _fields_ = (
        ("shape", POINTER(CCacheShape)),
        ("ends", c_void_p),
        *((name, c_int64) for name in ("num_ends", "steps", "tokens", "places", "states")),
        ("seconds", c_double),
    )


class CHead(Structure):
    """See head.h, also for what follows."""

    _fields_ = (
        ("decoder", POINTER(CDecoder)),
        ("layers", c_int64),
        ("draft_tokens", c_void_p),
        ("target_vocabulary", c_int64),
    )


class CSuccessors(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("ranks", "is_drawn")),
        ("temperature", c_float),
        *((name, c_uint64) for name in ("key", "place")),
        ("tokens", POINTER(c_int64)),
        ("log_probs", POINTER(c_float)),
        ("logits", c_void_p),
    )


class CHeadTree(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("max_nodes", "depth", "width")),
        ("least_log_prob", c_float),
        *((name, POINTER(c_int64)) for name in ("tokens", "parents")),
        ("log_probs", POINTER(c_float)),
        *((name, c_int32) for name in ("nodes", "is_broken")),
    )


class CHeadDraftingSettings(Structure):
    """See head_drafting.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("session", "found", "layers")),
        ("width", c_int64),
        *((name, c_int32) for name in ("reads", "nodes", "depth", "level_width")),
        ("least_log_prob", c_float),
    )


class CDrawnShape(Structure):
    """See drawn_trees.h."""

    _fields_ = (
        ("widths", POINTER(c_int32)),
        *((name, c_int32) for name in ("levels", "is_beam", "is_distinct", "is_noisy")),
        ("is_judged_distinct", c_int32),
        ("temperature", c_float),
    )


class CJacobiSettings(Structure):
    """See jacobi.h."""

    _fields_ = (
        *((name, c_void_p) for name in ("backs", "text")),
        *((name, c_int64) for name in ("places", "length", "vocabulary", "window")),
    )


class CDraftModelText(Structure):
    """See draft_model_levels.h."""

    _fields_ = (
        ("decoder", POINTER(CDecoder)),
        ("shape", POINTER(CCacheShape)),
        ("blocks", c_void_p),
        ("late", POINTER(c_int64)),
        *((name, c_int64) for name in ("slot", "length", "num_late", "layers")),
        *((name, c_int64) for name in ("target_vocabulary", "stand_in")),
    )


class CFrameHead(Structure):
    """See frames.h."""

    _fields_ = (
        ("decoder", POINTER(CDecoder)),
        *((name, c_int32) for name in ("layers", "frames", "reads")),
        ("norms", POINTER(CNorm)),
        ("combination", CMatrix),
        ("target_vocabulary", c_int64),
        ("token_norm", CNorm),
        *((name, CMatrix) for name in ("token_projection", "births")),
        ("offsets", c_void_p),
    )


class CMedusaHeads(Structure):
    """See medusa.h."""

    _fields_ = (
        ("decoder", POINTER(CDecoder)),
        ("reads", c_void_p),
        ("target_vocabulary", c_int64),
        ("token_norm", CNorm),
        *((name, POINTER(CMatrix)) for name in ("projections", "blocks")),
    )


class CLattice(Structure):
    """See lattice.h, also for what follows."""

    _fields_ = (
        ("probs", c_void_p),
        *((name, c_int32) for name in ("frames", "symbols", "has_blank", "merges")),
    )


class CLatticeTree(Structure):
    _fields_ = (
        *((name, c_int32) for name in ("most", "depth")),
        *((name, POINTER(c_int64)) for name in ("tokens", "parents")),
        ("nodes", c_int32),
    )


STRUCTURES: tuple[type[Structure], ...] = (
    *(CMatrix, CNorm, CExpert, CExperts),
    *(CLayer, CGating, CDecoder, CForwardInput, CStoredBlocks, CStep),
    *(CFusion, CFusionInput, CHead, CSuccessors, CHeadTree, CCacheShape),
    *(CFrameHead, CMedusaHeads, CLattice, CLatticeTree),
    *(CHeadDraftingSettings, CDrawnShape, CDraftModelText, CStepRun, CFilters),
    *(CTaskTime, CTaskTrace, CLowRank, CLayerAdapter, CMarkedRows),
    *(CJacobiSettings, CRecurrence, CAttentionShape, CLayerInputs, CCacheLayer),
)
"""In the order of ``draftwood_structure_size``."""
