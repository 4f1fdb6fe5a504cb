"""The prompt's pass, which is Transformers' own, and the caches it leaves."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from draftwood.models.model import CHUNK
from draftwood.models.session import PooledSession
from draftwood_torch.hook.call import Call
from draftwood_torch.tensors import as_tensor


def plain_cache(cache: object) -> bool:
    """True if a cache keeps keys and values of the newest tokens as they are."""
    layers = getattr(cache, "layers", None)
    return isinstance(cache, Cache) and all(
        type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers or ()
    )


def run_prompts(
    call: Call, hidden: Sequence[int], all_logits: bool, hear: Callable[[Any], None]
) -> Any:
    """Run the prompts as ``generate`` would; return the output of the last pass.

    Args:
        hidden: layers whose hidden states ``hear`` reads.
        all_logits: whether it reads the logits of every token.
        hear: called with the output of every pass; long prompts of which it reads much are run in
            pieces.
    """
    model, inputs = call.model, dict(call.inputs)
    if all_logits and "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = 0
    if hidden:
        inputs["output_hidden_states"] = True
    if (all_logits or hidden) and call.config.prefill_chunk_size is None and call.new > CHUNK:
        call.config.prefill_chunk_size = CHUNK
        if (positions := inputs.get("position_ids")) is not None:
            # pieces are cut out of those of all tokens
            missing = call.past + call.new - positions.shape[-1]
            inputs["position_ids"] = functional.pad(positions, (missing, 0))
    thread = threading.get_ident()  # other threads may run the same module meanwhile
    handle = model.register_forward_hook(
        lambda module, given, output: hear(output) if threading.get_ident() == thread else None
    )
    try:
        return model._prefill(call.input_ids, call.config, inputs)  # type: ignore[attr-defined]
    finally:
        handle.remove()


def adopt(session: PooledSession, cache: Cache, row: int, seen: int) -> None:
    """Make a new session continue a row of the cache.

    The newest ``seen`` tokens of that row are no padding.
    """
    session.adopt([(layer.keys[row], layer.values[row]) for layer in cache.layers], seen)  # type: ignore[attr-defined]


def extend_cache(cache: Cache, session: PooledSession, count: int, length: int) -> None:
    """Append to the cache of a single row what the session has run since, up to ``length`` tokens.

    Args:
        count: tokens of the session that the cache has.
    """
    pool = session.model.pool
    with pool.lock:
        for index, (keys, values) in enumerate(pool.places(session.slot, count, length)):
            dtype = cache.layers[index].keys.dtype  # type: ignore[attr-defined]
            batched = [_batched(as_tensor(each).to(dtype)) for each in (keys, values)]
            cache.update(batched[0], batched[1], index)


def _batched(states: Tensor) -> Tensor:
    """[tokens heads dim] as Transformers keeps them: [1 heads tokens dim]."""
    return torch.clone(states.transpose(0, 1)[None], memory_format=torch.contiguous_format)
