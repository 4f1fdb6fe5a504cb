"""Settings of GGUF files of hybrid models, which have layers without attention."""

from typing import Any

from draftwood.loading.gguf_metadata import Metadata
from draftwood.loading.gguf_settings import text_alone


def qwen35(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Layers behind the text's predict further tokens (MTP); they are none of these."""
    layers = common["num_hidden_layers"] - int(metadata.take("nextn_predict_layers", 0))
    every = int(metadata.take("full_attention_interval", 4))
    told = metadata.take_each("attention.recurrent_layers", 0)
    told = told or [(layer + 1) % every != 0 for layer in range(layers)]
    if not isinstance(told, list) or not 0 < layers <= min(len(told), common["num_hidden_layers"]):
        raise ValueError(f"its attention.recurrent_layers do not tell of {layers} layers")
    heads = metadata.need_count("ssm.time_step_rank")
    size, rest = divmod(metadata.need_count("ssm.inner_size"), heads)
    if rest:
        raise ValueError(f"its {heads} heads of values do not share the states evenly")
    return text_alone(metadata, common) | {
        "num_hidden_layers": layers,
        "layer_types": [
            "linear_attention" if is_recurrent else "full_attention"
            for is_recurrent in told[:layers]
        ],
        "linear_conv_kernel_dim": metadata.need_count("ssm.conv_kernel"),
        "linear_key_head_dim": metadata.need_count("ssm.state_size"),
        "linear_num_key_heads": metadata.need_count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": size,
    }


def lfm2(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    layers = range(common["num_hidden_layers"])
    are_short = [f"blk.{layer}.shortconv.conv.weight" in metadata.shapes for layer in layers]
    return {
        "layer_types": ["conv" if is_short else "full_attention" for is_short in are_short],
        "conv_L_cache": metadata.need_count("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
    }
