"""Float weights of a GGUF file, under the names and in the layouts that Transformers saves."""

from collections.abc import Mapping

import numpy as np

from draftwood.arrays import FloatType, to_bfloat16
from draftwood.loading.gguf_reader import Content, placed
from draftwood.models.shapes import is_never_rounded

OF_EXPERTS = ".experts."
LIKE_MIXTRAL = ("MixtralForCausalLM", "MiniMaxM2ForCausalLM", "Lfm2MoeForCausalLM")
"""Architectures that have Mixtral's names of an expert's matrices."""
MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}
SAVED = {
    "MixtralForCausalLM": (".mlp.", ".block_sparse_moe."),
    "MiniMaxM2ForCausalLM": (".mlp.", ".block_sparse_moe."),
    "Ernie4_5_MoeForCausalLM": (".mlp.gate.moe_statics.", ".mlp.moe_statics."),
}
"""Parts of names that Transformers has otherwise in files."""


def float_tensors(content: Content, dtype: FloatType) -> dict[str, np.ndarray]:
    """Read all weights; those in bfloat16 as their bits. Some are never rounded.

    Raises:
        ValueError: as ``placed``.
    """
    found, experts = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for each in placed(content):
        home = experts if OF_EXPERTS in each.name else found
        values = content.layout.side_by_side(each.stored.name, each.floats(content.layout))
        is_rounded = dtype == "bfloat16" and not is_never_rounded(content.native, each.name)
        home[each.name] = to_bfloat16(values) if is_rounded else np.asarray(values)
    if content.config["model_type"] == "qwen3_next" and content.as_stored:
        from draftwood.loading.gguf_hybrid_mixtures import joined_states

        found = joined_states(found, content.native.get("linear_num_key_heads"))
    name = content.native.architecture
    if name == "Gemma4ForCausalLM":
        from draftwood.loading.gguf_gemma4 import joined_experts

        return found | joined_experts(experts)
    if name.startswith("GraniteMoe"):
        from draftwood.loading.gguf_granite import joined_networks

        return joined_networks(found, experts)
    saved = _joined if name == "GptOssForCausalLM" else _apart
    before, after = SAVED.get(name, ("", ""))
    found |= saved(experts, name)
    return (
        {key.replace(before, after): values for key, values in found.items()} if before else found
    )


def _apart(experts: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Each expert's matrices as tensors of their own."""
    found = dict[str, np.ndarray]()
    for key, values in experts.items():
        above, _, rest = key.partition(OF_EXPERTS)
        part, _, kind = rest.partition(".")
        own = f"{MIXTRAL[part] if name in LIKE_MIXTRAL else f'{part}_proj'}.{kind}"
        found |= {f"{above}{OF_EXPERTS}{i}.{own}": each for i, each in enumerate(values)}
    return found


def _joined(experts: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The experts of GPT-OSS: gates and what they gate take turns, and inputs come first."""
    found = dict[str, np.ndarray]()
    for key, values in experts.items():
        layer, _, rest = key.partition(OF_EXPERTS)
        part, _, kind = rest.partition(".")
        ending = "_bias" if kind == "bias" else ""
        if part == "down":
            found[f"{layer}{OF_EXPERTS}down_proj{ending}"] = _inputs_first(values)
        elif part == "gate":
            up = experts[f"{layer}{OF_EXPERTS}up.{kind}"]
            both = np.stack([values, up], axis=2).reshape(len(up), -1, *up.shape[2:])
            found[f"{layer}{OF_EXPERTS}gate_up_proj{ending}"] = _inputs_first(both)
    return found


def _inputs_first(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.swapaxes(1, 2)) if values.ndim == 3 else values
