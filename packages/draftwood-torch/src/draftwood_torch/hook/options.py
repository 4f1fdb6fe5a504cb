"""Options of ``generate``, and their effect here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

from torch import Tensor, distributed
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.generation import utils as generation
from transformers.generation.configuration_utils import GenerationMode

from draftwood.models.cached import same_beyond_context
from draftwood.sampling_params import OPTIONS as OF_TEXTS
from draftwood_torch.hook.call import Call
from draftwood_torch.hook.prefill import plain_cache
from draftwood_torch.hook.processors import strangers, why_stateful
from draftwood_torch.models.support import holds_no_weights, layer_windows
from draftwood_torch.models.transformers import TransformersModel

Outcome = Literal["right", "without drafts", "refused", "not for this"]


@dataclass(frozen=True)
class Option:
    """An option of ``generate``.

    Attributes:
        outcome: ``right``: with drafts, what Transformers gives. ``without drafts``: what
            Transformers gives, one token per pass. ``refused``: a ValueError. ``not for this``:
            Transformers itself does not read it in greedy decoding and sampling, or not in custom
            loops.
        remark: conditions, or an alternative.
    """

    outcome: Outcome
    remark: str = ""


_RIGHT, _BEAMS = Option("right"), Option("not for this", "read in beam search alone")
_ASSISTANT = Option("not for this", "read in Transformers' assisted decoding alone")
_OTHER_LOOP = Option("refused", "another decoding loop; leave out one of the two")

OPTIONS: Mapping[str, Option] = {
    # that a text has here, too
    **{each.transformers: _RIGHT for each in OF_TEXTS.values() if each.transformers},
    # length
    **dict.fromkeys(("max_length", "min_length", "max_time"), _RIGHT),
    "stop_strings": Option("right", "with `tokenizer`"),
    "early_stopping": _BEAMS,
    # strategy
    "do_sample": Option("right", "the same distribution; for a seed other texts than there"),
    "num_beams": Option("refused", "above 1; trees are drafts of one text"),
    "num_beam_groups": Option("refused", "above 1"),
    "diversity_penalty": _BEAMS,
    "length_penalty": _BEAMS,
    "constraints": _OTHER_LOOP,
    "force_words_ids": _OTHER_LOOP,
    "penalty_alpha": Option("refused", "contrastive search, with `top_k`"),
    "dola_layers": _OTHER_LOOP,
    "low_memory": Option("not for this", "read in contrastive search alone"),
    "use_mtp": _OTHER_LOOP,
    # cache
    "use_cache": Option("without drafts", "where it is False"),
    "cache_implementation": Option("without drafts", "but for `dynamic`"),
    "cache_config": Option("without drafts", "with a `cache_implementation` that reads it"),
    "max_cache_len": Option("without drafts", "with a static cache"),
    "prefill_chunk_size": _RIGHT,
    # logits processors
    **dict.fromkeys(("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"), _RIGHT),
    **dict.fromkeys(("encoder_repetition_penalty", "renormalize_logits"), _RIGHT),
    **dict.fromkeys(
        ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"), _RIGHT
    ),
    **dict.fromkeys(
        ("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"), _RIGHT
    ),
    "exponential_decay_length_penalty": _RIGHT,
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), _RIGHT),
    "token_healing": Option("right", "with `tokenizer`"),
    "guidance_scale": Option("without drafts", "it keeps a second cache between steps"),
    "watermarking_config": Option("right", "SynthID's, which keeps a state, without drafts"),
    # output
    "num_return_sequences": Option("right", "with `do_sample`, as Transformers asks"),
    "output_scores": Option("right", "without drafts in a batch"),
    "output_logits": Option("right", "without drafts in a batch"),
    "return_dict_in_generate": Option("right", "without drafts in a batch"),
    "output_attentions": Option("without drafts"),
    "output_hidden_states": Option("without drafts"),
    # tokens
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), _RIGHT),
    "decoder_start_token_id": Option("not for this", "read by encoder-decoders alone"),
    # assisted decoding
    "prompt_lookup_num_tokens": Option("refused", 'use `draftwood.custom_generate("lookup")`'),
    "assistant_early_exit": Option("refused", 'use `draftwood.custom_generate("auto")`'),
    "speculation_type": _ASSISTANT,
    **dict.fromkeys(
        ("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"), _ASSISTANT
    ),
    **dict.fromkeys(
        ("assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind"), _ASSISTANT
    ),
    **dict.fromkeys(("assistant_ensemble_weight", "max_matching_ngram_size"), _ASSISTANT),
    # running
    "compile_config": Option("not for this", "read with static caches alone"),
    "disable_compile": Option("not for this", "read with static caches alone"),
    "continuous_batching_config": Option("not for this", "read in continuous batching alone"),
    "transformers_version": Option("not for this", "a note of who saved the file"),
}
"""Every field of ``GenerationConfig``."""

ARGUMENTS: Mapping[str, Option] = {
    "inputs": _RIGHT,
    "generation_config": _RIGHT,
    "logits_processor": Option("right", "of your own: without drafts, unless named in `stateless`"),
    "stopping_criteria": Option(
        "right", "asked once a step with the whole batch, as Transformers asks"
    ),
    "prefix_allowed_tokens_fn": _RIGHT,
    "synced_gpus": Option(
        "refused", "processes that wait for each other must take equally many steps"
    ),
    "assistant_model": Option("refused", "give it to `draftwood.custom_generate` as `draft_model`"),
    "streamer": _RIGHT,
    "negative_prompt_ids": Option("without drafts", "with `guidance_scale`"),
    "negative_prompt_attention_mask": Option("without drafts", "with `guidance_scale`"),
    "custom_generate": _RIGHT,
    "tokenizer": _RIGHT,
    "assistant_tokenizer": _ASSISTANT,
    "trust_remote_code": Option("not for this", "for loops from the hub"),
    "attention_mask": Option("right", "padding on the right and holes without drafts"),
    "position_ids": Option("right", "other than 0, 1, 2, ... without drafts"),
    "past_key_values": Option(
        "right", "a `DynamicCache`, filled and returned; others and batches without drafts"
    ),
    "inputs_embeds": Option("without drafts"),
    "token_type_ids": Option("without drafts"),
    "pixel_values and other inputs of a model": Option("without drafts"),
}
"""Every argument of ``generate``, and the inputs of models that it hands on."""

# Inputs that are read here, or that say how to run and not what.
_READ = frozenset(
    ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")
)
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


def _waits_for_others(model: PreTrainedModel) -> bool:
    """True if Transformers sets ``synced_gpus`` by itself: processes share the weights."""
    shares = generation.is_deepspeed_zero3_enabled() or generation.is_fsdp_managed_module(model)
    begun = distributed.is_available() and distributed.is_initialized()
    return bool(shares and begun and distributed.get_world_size() > 1)


def refuse(model: PreTrainedModel, config: GenerationConfig, asked: Mapping[str, Any]) -> None:
    """Raise ValueError for options that ask for another decoding loop."""
    if asked.get("assistant_model") is not None:
        raise ValueError(
            "assistant_model asks for another loop; give it to draftwood.custom_generate as"
            " draft_model"
        )
    synced = asked.get("synced_gpus")
    if _waits_for_others(model) if synced is None else synced:
        raise ValueError(
            "synced_gpus makes processes wait for each other after every pass, and with drafts"
            " their numbers of passes differ; call generate without custom_generate"
        )
    mode = config.get_generation_mode()
    if mode not in _MODES or (config.num_beam_groups or 1) > 1 or config.dola_layers is not None:
        asking = [name for name in _ASKING if _asks(name, getattr(config, name, None))]
        raise ValueError(
            f"{', '.join(asking) or 'the configuration'} asks for {mode.value.replace('_', ' ')},"
            " but this loop decodes greedily or samples; leave it out, or call generate without"
            " custom_generate"
        )
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{type(model).__name__} is an encoder-decoder; draftwood decodes causal language"
            " models"
        )


def _asks(name: str, value: Any) -> bool:
    """True if a setting asks for something: one beam is none."""
    return value is not None and value is not False and not (value == 1 and "beam" in name)


_ASKING = (
    *(
        "num_beams",
        "num_beam_groups",
        "constraints",
        "force_words_ids",
        "penalty_alpha",
        "dola_layers",
        "use_mtp",
    ),
    *("prompt_lookup_num_tokens", "assistant_early_exit"),
)


def why_without_trees(model: PreTrainedModel) -> str | None:
    """Reason why this model runs no trees for the time of this call; None if it may.

    It must be known before the model is run for anything but its own loop.
    """
    if holds_no_weights(model):
        return "some of the model's weights are offloaded"
    if any(map(_is_of_peft, _pre_hooks(model))):
        return "PEFT chooses adapters by rows of the batch or places in it"
    return None


def _pre_hooks(model: PreTrainedModel) -> Iterator[object]:
    return chain.from_iterable(each._forward_pre_hooks.values() for each in model.modules())


def _is_of_peft(hook: object) -> bool:
    """True if PEFT gives a module more of a call of ``generate``.

    Such are ``adapter_names``, and the offsets from which on activated LoRA (Greenewald et al.
    2025) adapts.
    """
    return isinstance(hook, partial) and hook.func.__module__.startswith("peft.")


def why_without_drafts(
    call: Call, target: TransformersModel, stateless: Sequence[type]
) -> str | None:
    """Reason why this call must go token by token; None if drafts change nothing."""
    config = call.config
    if reason := why_stateful(call.processors):
        return reason
    unknown = strangers(call.processors, stateless)
    if unknown:
        return (
            f"{', '.join(unknown)} may keep something between calls or read other rows; where it"
            " does not, name its class in custom_generate(stateless=...)"
        )
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        return "attentions and hidden states belong to passes of single tokens"
    return (
        _odd_inputs(call)
        or _odd_batch(call)
        or _past_the_context(call, target)
        or _past_the_caches_window(call)
    )


def _odd_inputs(call: Call) -> str | None:
    inputs, cache = call.inputs, call.inputs.get("past_key_values")
    others = [
        name
        for name, value in inputs.items()
        if value is not None and name not in _READ and _holds_data(value)
    ]
    if others:
        return f"the model reads {', '.join(others)} beside tokens"
    if not inputs.get("use_cache", True):
        return "use_cache=False keeps no cache, which drafts need"
    if cache is None or not plain_cache(cache) or cache.offloading:
        return "its cache is not a plain DynamicCache"
    if _replaced(call.model):
        return "prompt tuning runs more than the tokens given"
    if call.new < 1 or call.input_ids.ndim != 2:
        return "there are no new tokens to run"
    return _odd_places(call, call.past + call.new)


def _holds_data(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_data, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_data, value))
    return isinstance(value, Tensor)


def _replaced(model: PreTrainedModel) -> bool:
    """True if PEFT puts virtual tokens before the prompt.

    Its other adapters change nothing but weights.
    """
    replaced = model.__dict__.get("prepare_inputs_for_generation")
    if replaced is None:
        return False
    settings = getattr(getattr(replaced, "__self__", None), "active_peft_config", None)
    return settings is None or bool(getattr(settings, "is_prompt_learning", True))


def _odd_places(call: Call, width: int) -> str | None:
    """Reason why tokens are not one after the other from position 0 on; None if they are."""
    mask, positions = call.inputs.get("attention_mask"), call.inputs.get("position_ids")
    if mask is not None:
        begun = mask.bool().cumsum(-1) > 0
        if mask.shape != (len(call.input_ids), width) or not bool(
            (begun == mask.bool()).all() and begun[:, -1].all()
        ):
            return "its attention mask has holes or padding on the right"
    if positions is not None:
        usual = call.input_ids.new_tensor(range(width))[None]
        if mask is not None:
            usual = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)
        usual = usual[:, -positions.shape[-1] :]
        if (
            positions.ndim != 2
            or positions.shape[1] != usual.shape[1]
            or not bool((positions == usual).all())
        ):
            return "its position_ids are not 0, 1, 2, ..."
    return None


def _odd_batch(call: Call) -> str | None:
    if len(call.input_ids) > 1 and call.keeps_cache:
        return "scores and caches of a batch hold what was run for rows that had ended"
    return None


def _past_the_context(call: Call, target: TransformersModel) -> str | None:
    limit = target.context_length
    if limit is None or call.longest <= limit or same_beyond_context(target.config):
        return None
    return f"it may write beyond {limit} tokens, where the model's positions end or change"


def _past_the_caches_window(call: Call) -> str | None:
    """Reason why a cache may drop what the model's masks show; None if it does not."""
    layers, windows = call.inputs["past_key_values"].layers, layer_windows(call.model)
    drops = any(
        isinstance(layer, DynamicSlidingWindowLayer)
        and layer.sliding_window < min(call.longest, window or call.longest)
        for layer, window in zip(layers, windows, strict=False)  # some models share layers' caches
    )
    return "its cache drops tokens that the model's attention masks show" if drops else None
