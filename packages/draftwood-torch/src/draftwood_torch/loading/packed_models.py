"""Models of Transformers whose linear layers are packed for the library, the rest in float32."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

from draftwood.loading.folders import understood
from draftwood.models.shapes import require_none
from draftwood.native.matrix import LargePages, Matrix
from draftwood.storage.memory import require_memory
from draftwood_torch.loading.quiet import quiet_transformers
from draftwood_torch.loading.skeleton import skeleton
from draftwood_torch.models.packed_linear import PackedEmbedding, PackedLinear

ChangesOf = Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]]


def linear_modules(model: nn.Module) -> dict[str, Any]:
    """Modules that multiply rows by a matrix, by name; without those that choose experts, which
    the least rounding may let choose others.
    """
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) in (nn.Linear, Conv1D)
        and not hasattr(model.get_submodule(name.rpartition(".")[0]), "experts")
    }


def shape_of(module: Any) -> tuple[int, int]:
    """Outputs and inputs of a linear module."""
    outputs, inputs = reversed(module.weight.shape) if is_turned(module) else module.weight.shape
    return outputs, inputs


def is_turned(module: nn.Module) -> bool:
    """True if inputs come first in a module's weight."""
    return type(module) is Conv1D


def named(model: Any, module: Any) -> str:
    """The name of one of a model's modules."""
    return next(name for name, each in model.named_modules() if each is module)


@torch.no_grad()
def pack(hf_model: Any, products: str) -> None:
    """Pack the linear layers of a model, one after the other, and put the rest into float32.

    Matrices of experts, and embeddings that are no output head, keep their numbers.

    Args:
        products: of integers.

    Raises:
        MemoryError: where the rest does not fit into memory.
    """
    embedding, head = hf_model.get_input_embeddings(), hf_model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    pack_linear(hf_model, products)
    head = hf_model.get_output_embeddings()
    if type(embedding) is nn.Embedding:
        weight: Any = embedding.weight
        own = "bfloat16" if weight.dtype == torch.bfloat16 else "float32"
        shared = is_tied and isinstance(head, PackedLinear)
        matrix = head.matrix if shared else Matrix.pack(weight, None, own)
        hf_model.set_submodule(named(hf_model, embedding), PackedEmbedding(matrix))
    rest = [each for each in hf_model.parameters() if each.dtype != torch.float32]
    require_memory(4 * sum(each.numel() for each in rest), "what is not packed of the model")
    hf_model.float()
    _end(hf_model, products)


def _end(model: Any, products: str) -> None:
    """Note how a model is packed; see that it has a parameter, by whose first one Transformers
    tells a model's type and device.
    """
    model.packed_as = products
    if next(model.parameters(), None) is None:
        model.typical = nn.Parameter(torch.empty(0, dtype=torch.float32), requires_grad=False)


@torch.no_grad()
def pack_linear(model: nn.Module, products: str) -> None:
    """Pack the linear layers of a module; those that share weights share a matrix."""
    sharing = dict[tuple[int, int], list[str]]()
    for name, module in linear_modules(model).items():
        sharing.setdefault((id(module.weight), id(module.bias)), []).append(name)
    for names in sharing.values():
        packed = _packed(model.get_submodule(names[0]), products)
        for name in names:
            model.set_submodule(name, packed)


def _packed(module: Any, products: str) -> PackedLinear:
    weight = module.weight.detach()
    weight = weight.T.contiguous() if is_turned(module) else weight
    return PackedLinear(Matrix.pack(weight, module.bias, products))


class BlocksReader:
    """Puts the matrices of a GGUF file into the modules of a model without weights.

    Args:
        model: see above.
        tensors: of the file, by the model's names.
        products: with which they are multiplied.
        changes: of matrices, by the names of their modules.
    """

    def __init__(
        self, model: Any, tensors: Mapping[str, Any], products: str, changes: Mapping[str, Any]
    ) -> None:
        self.model, self.tensors, self.products, self.changes = model, tensors, products, changes
        self._allocate = LargePages().take

    def read(self) -> None:
        """Read all matrices, and then all other tensors."""
        for name in linear_modules(self.model):
            if f"{name}.weight" in self.tensors:
                self.model.set_submodule(name, self._linear(name))
        self._read_embedding()
        self._read_rest()

    def _read_rest(self) -> None:
        names = self.model.state_dict().keys() & self.tensors.keys()
        rest = {name: torch.from_numpy(self.tensors[name]) for name in names}
        self.model.load_state_dict(rest, strict=False, assign=True)
        held = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        require_none([name for name, tensor in held.items() if tensor.is_meta])

    def _linear(self, name: str) -> PackedLinear:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        if (change := self.changes.get(name)) is not None:
            weight = Matrix.pack(weight, None, "float32").floats() + change.product
        return PackedLinear(Matrix.pack(weight, bias, self.products, self._allocate))

    def _read_embedding(self) -> None:
        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        name, is_tied = named(self.model, embedding), not isinstance(head, PackedLinear)
        weight, products = self.tensors[f"{name}.weight"], self.products
        if isinstance(weight, np.ndarray) and not is_tied:
            products = "bfloat16" if weight.dtype == np.uint16 else "float32"
        last = named(self.model, head)
        matrix = Matrix.pack(weight, self.tensors.get(f"{last}.bias"), products, self._allocate)
        if is_tied:
            self.model.set_submodule(last, PackedLinear(matrix))
        if type(embedding) is nn.Embedding:
            self.model.set_submodule(name, PackedEmbedding(matrix))
        else:
            embedding.weight = nn.Parameter(torch.from_numpy(matrix.floats()))


@torch.no_grad()
def read_blocks(
    folder: Path,
    tensors: Mapping[str, Any],
    products: str,
    changes_of: ChangesOf | None,
) -> Any:
    """Make the model of a GGUF file around its blocks; see ``Backend.read_blocks``."""
    with quiet_transformers(), understood(folder):
        model = skeleton(AutoConfig.from_pretrained(folder))
    _make_buffers(model)
    linear = linear_modules(model).items()
    shapes = {name: shape_of(each) for name, each in linear if f"{name}.weight" in tensors}
    changes = {} if changes_of is None else changes_of(shapes)
    BlocksReader(model, tensors, products, changes).read()
    _end(model, products)
    return model


def _make_buffers(model: Any) -> None:
    """Compute the tensors that no file stores, beside the rotary frequencies."""
    for module in model.modules():
        buffers = dict(module.named_buffers(recurse=False))
        loose = [name for name in buffers if name in module._non_persistent_buffers_set]
        if loose := [name for name in loose if buffers[name].is_meta]:
            for name in loose:
                module._buffers[name] = torch.zeros_like(buffers[name], device="cpu")
            model._init_weights(module)
