"""GGUF files of models that do not run natively, read by Transformers' names and layouts."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch

from draftwood.loading.gguf_settings import ARCHITECTURES
from draftwood.models.shapes import other_shape, require_none
from draftwood_torch.loading import skeleton
from draftwood_torch.loading.quiet import quiet_transformers
from draftwood_torch.models import experts

if TYPE_CHECKING:
    from draftwood.loading.gguf_reader import Content

LAYER = re.compile(r"layers\.(\d+)\.")
OF_EXPERTS = re.compile(
    r"blk\.(?P<layer>\d+)\.ffn_(?P<part>gate|up|down)_exps\.(?P<kind>weight|bias)"
)


def saver(content: "Content", dtype: str) -> Callable[[Path], None]:
    """Read a model as ``read_model`` does; gives what writes it into a folder."""
    with quiet_transformers():
        model = read_model(content, dtype)

    def save(folder: Path) -> None:
        with quiet_transformers():
            model.save_pretrained(folder)

    return save


def read_model(content: "Content", dtype: str) -> Any:
    """The model of a file, with weights of this type.

    Raises:
        ValueError: for tensors that the model does not have, and missing ones.
    """
    from transformers import AutoConfig

    kind = getattr(torch, dtype)
    model = skeleton.skeleton(AutoConfig.for_model(**content.config), kind)
    # from_pretrained(gguf_file=...) would keep the weights packed, which cannot be saved, and asks
    # for accelerate.
    model.load_state_dict(_weights(content, model, kind), strict=False, assign=True)
    model.tie_weights()
    require_none([name for name, tensor in model.state_dict().items() if tensor.is_meta])
    return model


def _weights(content: "Content", model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """All tensors under the model's names and in its layout."""
    layout, found = TransformersLayout(content.architecture, model), dict[str, torch.Tensor]()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for _, tensor in content.tensors:
        name, values = layout.place(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
        if name is not None:
            if values.shape != shapes[name]:
                raise ValueError(f"its tensor {other_shape(name, values.shape, shapes[name])}")
            found[name] = torch.from_numpy(values.copy()).to(dtype)
    return found | {name: tensor.to(dtype) for name, tensor in layout.joined.items()}


class TransformersLayout:
    """Names and places of a file's tensors in a model of Transformers.

    Attributes:
        joined: tensors that several of the file's are parts of, by the model's names.
    """

    def __init__(self, architecture: str, model: Any) -> None:
        from transformers import modeling_gguf_pytorch_utils as transformers_gguf

        kind = transformers_gguf.TENSOR_PROCESSORS.get(
            ARCHITECTURES[architecture].layout or architecture, transformers_gguf.TensorProcessor
        )
        self._model, self._processor = model, kind(config=model.config.to_dict())
        with _one_map_of_names():
            names = transformers_gguf.get_gguf_hf_weights_map(
                model, self._processor, model_type=architecture
            )
        # files name the weights of all tensors so
        plain = [name for name in names if not name.endswith((".weight", ".bias"))]
        self._names = names | {f"{name}.weight": names[name] for name in plain}
        self._parts: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}
        self._mixtures = {
            int(found[1]): (name, module)
            for name, module in experts.mixtures(model).items()
            if (found := LAYER.search(name))
        }
        self._halves: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def joined(self) -> dict[str, torch.Tensor]:
        return self._parts["tensors"]

    def place(self, name: str, values: np.ndarray) -> tuple[str | None, np.ndarray]:
        """The model's name and the values in its layout; no name for what is ``joined``.

        Raises ValueError for a tensor that the model does not have.
        """
        part = self._part_of_experts(name)
        if part is not None:
            return self._place_experts(*part, values)
        placed = self._processor.process(
            weights=values,
            name=name,
            tensor_key_mapping=self._names,
            parsed_parameters=self._parts,
        )
        if placed.name is None:
            return None, placed.weights
        if placed.name not in self._names:
            raise ValueError(f"its tensor {name} has no place in {type(self._model).__name__}")
        return self._names[placed.name], placed.weights

    def _part_of_experts(self, name: str) -> tuple[str, Any, str, str] | None:
        """Locate a tensor of experts: the model's name of them, their module, which of their
        matrices it is, and whether it is the weight or the bias.
        """
        found = OF_EXPERTS.fullmatch(name)
        known = self._mixtures.get(int(found["layer"])) if found else None
        return None if found is None or known is None else (*known, found["part"], found["kind"])

    def _place_experts(
        self, name: str, module: Any, which: str, kind: str, values: np.ndarray
    ) -> tuple[str | None, np.ndarray]:
        """Join gate and up projections; the first to come waits for the other."""
        parts = {which: torch.from_numpy(np.array(values))}
        ending = "_bias" if kind == "bias" else ""
        if which == "down":
            return f"{name}.{experts.DOWN}{ending}", experts.join(module, parts).numpy()
        whole = f"{name}.{experts.GATE_UP}{ending}"
        halves = self._halves.setdefault(whole, {})
        halves |= parts
        if len(halves) == 2:
            self.joined[whole] = experts.join(module, self._halves.pop(whole))
        return None, values


@contextmanager
def _one_map_of_names() -> Iterator[None]:
    """Cache Transformers' map of names, which takes seconds and is built for every submodule."""
    usual = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = cache(usual)
    try:
        yield
    finally:
        gguf.get_tensor_name_map = usual
