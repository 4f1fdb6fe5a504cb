"""Models without weights, which get their matrices from a file: a GGUF file, or one of packed
matrices.

The rest of such a model is in a small folder: configuration, tokenizer, and all tensors but the
matrices of products.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftwood.loading.folders import REST
from draftwood.models.shapes import Shape, require_none, require_shape
from draftwood.models.shapes import other_shape as other_shape
from draftwood.native.matrix import Weights
from draftwood_torch.models import experts
from draftwood_torch.models.reading import weights_of


def skeleton(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Make the model of a configuration without weights.

    Tables of rotary frequencies are computed.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _make_rotary(model)
    return model.eval()


def save(model: Any, tokenizer: Any, small: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write what ``open_skeleton`` reads."""
    from safetensors.torch import save_file

    model.config.save_pretrained(folder)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in small.items()}, folder / REST)


def small_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Load the tensors that ``save`` was given, mapped from their file."""
    from safetensors.torch import load_file

    return load_file(folder / REST)


def open_skeleton(
    folder: Path,
    small: Mapping[str, torch.Tensor],
    matrices: Mapping[str, Weights] | None = None,
) -> Any:
    """The model that a folder describes; the native path alone runs it.

    Args:
        small: tensors by their names.
        matrices: what linear layers, embeddings and parts of experts get in the place of weights,
            by their names. None gives all linear layers and experts their shapes alone.

    Raises:
        ValueError: for tensors of other shapes than the configuration asks for, and missing ones.
    """
    from transformers import AutoConfig, GenerationConfig

    model = skeleton(AutoConfig.from_pretrained(folder))
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    fill(model, small, large(model) if matrices is None else matrices)
    return model


def fill(model: Any, small: Mapping[str, torch.Tensor], matrices: Mapping[str, Weights]) -> None:
    """Give a skeleton its tensors, and its modules matrices in the place of weights.

    Raises:
        ValueError: for tensors of other shapes than the configuration asks for, and missing ones.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in small.items()}
    shapes |= {f"{module}.weight": tuple(found.shape) for module, found in matrices.items()}
    wanted = {name: _flat(shape) for name, shape in shapes_of(model).items()}
    for name, shape in shapes.items():
        require_shape(name, _flat(shape), wanted.get(name, _flat(shape)))
    require_all(model, shapes)
    mixtures = experts.mixtures(model)
    for name, found in matrices.items():
        parent, _, part = name.rpartition(".")
        if parent in mixtures:
            _put_part(mixtures[parent], part, found)
        else:
            _put(model.get_submodule(name), found)
    model.load_state_dict(small, strict=False, assign=True)
    if model.config.tie_word_embeddings:
        _put(model.get_output_embeddings(), weights_of(model.get_input_embeddings()))


def linear(model: Any) -> list[str]:
    """Names of linear layers whose weights are not tied."""
    tied = model.get_output_embeddings() if model.config.tie_word_embeddings else None
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not tied
    ]


def large(model: Any) -> dict[str, torch.Tensor]:
    """The weights of linear layers by their names, and of experts for each of their parts."""
    found = {name: model.get_submodule(name).weight.detach() for name in linear(model)}
    for name, module in experts.mixtures(model).items():
        for part, weights in experts.stacked(module).items():
            found[f"{name}.{part}"] = weights
    return found


def module_of(model: nn.Module, name: str) -> str | None:
    """The linear layer or embedding whose weight this is; None for all else."""
    module, _, kind = name.rpartition(".")
    found = model.get_submodule(module) if module else None
    is_matrix = type(found) is nn.Linear or isinstance(found, nn.Embedding)
    return module if kind == "weight" and is_matrix else None


def shapes_of(model: Any) -> dict[str, Shape]:
    """The shapes of a model's tensors, by their names.

    Weights of experts are told part by part, as ``model.layers.0.mlp.experts.gate.weight``.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, module in experts.mixtures(model).items():
        for whole in (experts.GATE_UP, experts.DOWN):
            del shapes[f"{name}.{whole}"]
        for part, weights in experts.stacked(module).items():
            shapes[f"{name}.{part}.weight"] = tuple(weights.shape)
    return shapes


def require_all(model: Any, names: Iterable[str]) -> None:
    """Raise ValueError where the model has tensors that are not among these."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set[str]()
    stored = {*names} | tied
    missing = [name for name in shapes_of(model) if name not in stored]
    require_none(missing)


def _flat(shape: Shape) -> Shape:
    """Shape of several matrices below each other."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape


def _put_part(module: Any, part: str, weights: Weights) -> None:
    """Do as ``_put`` for one of the matrices of experts."""
    module.gate_up_proj = module.down_proj = None
    if not hasattr(module, experts.BLOCKS):
        setattr(module, experts.BLOCKS, {})
    getattr(module, experts.BLOCKS)[part] = weights


def _put(module: Any, weights: Weights) -> None:
    """Replace a module's own weights by weights in a file."""
    module.weight = None
    setattr(module, experts.BLOCKS, weights)


def _make_rotary(model: Any) -> None:
    """Compute tables of rotary frequencies, which are not stored."""
    for module in model.modules():
        if "Rotary" in type(module).__name__:
            made = type(module)(config=model.config)
            for name, buffer in made.named_buffers(recurse=False):
                module.register_buffer(name, buffer, persistent=False)
