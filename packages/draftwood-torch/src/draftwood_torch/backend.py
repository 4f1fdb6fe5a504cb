"""The door through which draftwood reaches this package.

Each method imports what it needs, as Transformers takes seconds to import.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood.backend import Backend, CustomGenerate
from draftwood.models.families import FAMILIES

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

    from draftwood.drafters.ctc_drafter import CtcDrafter
    from draftwood.drafters.drafter import DraftRequest
    from draftwood.heads.kinds import HeadConfig
    from draftwood.heads.trained import TrainedHead
    from draftwood.loading.gguf_reader import Content
    from draftwood.models.decoder_model import DescribedModel
    from draftwood.models.model import EmbeddingsAndHead, Model
    from draftwood_torch.heads.ctc_session import TorchCtcSession
    from draftwood_torch.heads.medusa_session import TorchMedusaSession
    from draftwood_torch.heads.placed import OutputHead, PlacedHead
    from draftwood_torch.heads.texts import EagleText, LmText
    from draftwood_torch.lean.model import LeanModel
    from draftwood_torch.loading.gguf_places import ModelParts
    from draftwood_torch.models.parallel import LeadingModel
    from draftwood_torch.models.transformers import TransformersModel


class TorchBackend(Backend):
    """Models of Transformers, networks of trained heads, and tensors; see ``Backend``."""

    def device(self, device: Any) -> "torch.device":
        from draftwood_torch.loading.pretrained import torch_device

        return torch_device(device)

    def quantisations(self) -> frozenset[str]:
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

        return frozenset(AUTO_QUANTIZATION_CONFIG_MAPPING)

    def tokenizer(self, folder: Path) -> Any:
        from draftwood_torch.loading.tokenizers import read_tokenizer

        return read_tokenizer(folder)

    def read(
        self,
        folder: Path,
        dtype: str,
        place: Any,
        split: Mapping[str, Any] | None,
        unpacked: bool,
    ) -> tuple[Any, Any]:
        from draftwood_torch.loading.pretrained import read_folder

        return read_folder(folder, dtype, place, split, unpacked)

    def adapt(self, hf_model: Any, changes_of: Callable[[Mapping[str, Any]], Any]) -> None:
        from draftwood_torch.loading.adapters import adapt

        adapt(hf_model, changes_of)

    def skeleton(self, folder: Path) -> Any:
        from draftwood_torch.loading.pretrained import skeleton_of_folder

        return skeleton_of_folder(folder)

    def why_not_native(self, folder: Path) -> str | None:
        from draftwood_torch.loading.pretrained import why_other_model

        return why_other_model(folder)

    def gguf_saver(self, content: "Content", dtype: str) -> Callable[[Path], None]:
        from draftwood_torch.loading.gguf_models import saver

        return saver(content, dtype)

    def gguf_parts(self, content: "Content") -> "ModelParts":
        from draftwood_torch.loading.gguf_places import model_parts

        return model_parts(content)

    def read_blocks(
        self,
        folder: Path,
        tensors: Mapping[str, Any],
        products: str,
        changes_of: Callable[[Mapping[str, Any]], Any] | None,
    ) -> Any:
        from draftwood_torch.loading.packed_models import read_blocks

        return read_blocks(folder, tensors, products, changes_of)

    def pack(self, hf_model: Any, products: str) -> None:
        from draftwood_torch.loading.packed_models import pack

        pack(hf_model, products)

    def require_split(self, name: str, processes: int, dtype: Any, device: Any) -> Path:
        from draftwood_torch.loading.parallel import require_split

        return require_split(name, processes, dtype, device)

    def load_parallel(
        self, name: str, processes: int, dtype: Any, device: Any
    ) -> "tuple[LeadingModel, Any]":
        from draftwood_torch.loading.parallel import load_parallel

        return load_parallel(name, processes, dtype, device)

    def why_not_lean(self, hf_model: Any) -> str | None:
        from draftwood_torch.models.reading import why_not_lean

        return why_not_lean(hf_model)

    def describe(self, hf_model: Any) -> "DescribedModel":
        from draftwood_torch.models.reading import described

        return described(hf_model)

    def arrays(self, hf_model: Any) -> Callable[[str], Any]:
        from draftwood_torch.models.state import ModelArrays

        return ModelArrays(hf_model)

    def lean_model(self, hf_model: Any) -> "LeanModel | TransformersModel":
        from draftwood_torch.lean.model import LeanModel

        if not FAMILIES[type(hf_model).__name__].is_lean:
            return self.general_model(hf_model)
        return LeanModel(hf_model)

    def general_model(self, hf_model: Any) -> "TransformersModel":
        from draftwood_torch.general import general_model

        return general_model(hf_model)

    def network(self, config: "HeadConfig", weights: Mapping[str, np.ndarray]) -> Any:
        from draftwood_torch.heads.networks import filled

        return filled(config, weights)

    def random_network(self, config: "HeadConfig", seed: int, noise: float) -> Any:
        from draftwood_torch.heads.networks import random_network

        return random_network(config, seed, noise)

    def placed(self, trained: "TrainedHead", target: "Model") -> "PlacedHead":
        from draftwood_torch.heads.placed import placed

        return placed(trained, target)

    def eagle_text(
        self, network: Any, embeddings: "EmbeddingsAndHead", logits: "OutputHead"
    ) -> "EagleText":
        from draftwood_torch.heads.texts import EagleText, HeadRows

        rows, weight = HeadRows.of(network.config, network.fc.weight), network.fc.weight
        return EagleText(network, network.config.reads, weight.dtype, rows, embeddings, logits)

    def lm_text(
        self, network: Any, embeddings: "EmbeddingsAndHead", logits: "OutputHead"
    ) -> "LmText":
        from draftwood_torch.heads.texts import LmText

        return LmText(network, embeddings, logits)

    def ctc_session(self, drafter: "CtcDrafter", request: "DraftRequest") -> "TorchCtcSession":
        from draftwood_torch.heads.ctc_session import TorchCtcSession

        return TorchCtcSession(drafter, request)

    def medusa_session(self, drafter: Any, request: "DraftRequest") -> "TorchMedusaSession":
        from draftwood_torch.heads.medusa_session import TorchMedusaSession

        return TorchMedusaSession(drafter, request)

    def as_tensor(self, array: Any) -> "torch.Tensor":
        from draftwood_torch.tensors import as_tensor

        return as_tensor(array)

    @property
    def custom_generate(self) -> CustomGenerate:
        from draftwood_torch.hook import custom_generate

        return custom_generate

    @property
    def tiny_llama(self) -> "Callable[..., LlamaForCausalLM]":
        from draftwood_torch.tiny import tiny_llama

        return tiny_llama


BACKEND = TorchBackend()
"""The object that the entry point names."""
