"""Float weights of a GGUF file, under the names and in the layouts that Transformers saves."""

from collections.abc import Mapping

import numpy as np

from draftwood.arrays import Float, FloatType, to_bfloat16
from draftwood.loading.gguf_reader import Content, placed
from draftwood.loading.tensors import LIKE_MIXTRAL, MIXTRAL
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.recurrent_layers import orders
from draftwood.models.shapes import is_never_rounded

Numbers = Float[np.ndarray, "..."]
OF_EXPERTS = ".experts."
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
        values = _side_by_side(each.name, each.floats(content.layout), content.native)
        is_rounded = dtype == "bfloat16" and not is_never_rounded(content.native, each.name)
        home[each.name] = to_bfloat16(values) if is_rounded else np.asarray(values)
    if content.layout.joined:
        from draftwood.loading.gguf_hybrid_mixtures import joined_states

        found = joined_states(found, content.native)
    name = content.native.architecture
    if name == "Gemma4ForCausalLM":
        return found | _below(experts, "experts.gate_up_proj", "experts.down_proj")
    if name.startswith("GraniteMoe"):
        from draftwood.loading.gguf_granite import joined_networks

        both = _below(experts, "input_linear.weight", "output_linear.weight")
        return joined_networks(found) | both
    saved = _joined if name == "GptOssForCausalLM" else _apart
    before, after = SAVED.get(name, ("", ""))
    found |= saved(experts, name)
    return (
        {key.replace(before, after): values for key, values in found.items()} if before else found
    )


def _side_by_side(name: str, values: Numbers, config: ModelConfiguration) -> Numbers:
    """Heads of values that share a key next to each other, as Transformers has them."""
    outputs, inputs = orders(name.removesuffix(".weight"), config)
    values = values if outputs is None else values[outputs.argsort()]
    return values if inputs is None else values[:, inputs.argsort()]


def _apart(experts: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Each expert's matrices as tensors of their own."""
    found = dict[str, np.ndarray]()
    for key, values in experts.items():
        above, _, rest = key.partition(OF_EXPERTS)
        part, _, kind = rest.partition(".")
        own = f"{MIXTRAL[part] if name in LIKE_MIXTRAL else f'{part}_proj'}.{kind}"
        found |= {f"{above}{OF_EXPERTS}{i}.{own}": each for i, each in enumerate(values)}
    return found


def _below(experts: Mapping[str, np.ndarray], gate_up: str, down: str) -> dict[str, np.ndarray]:
    """The experts of a layer in two tensors: gates, and below them what they gate, and the rest."""
    found = dict[str, np.ndarray]()
    for key, values in experts.items():
        at, _, part = key.removesuffix(".weight").rpartition("experts.")
        if part == "down":
            found[at + down] = values
        elif part == "gate":
            both = values, experts[f"{at}experts.up.weight"]
            found[at + gate_up] = np.concatenate(both, axis=1)
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
