"""Weights of a model by its name, for who reads them without running the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.loading import native_folders
from draftwood.loading.gguf_blocks import (
    files_of,
    is_blocks_folder,
    matrix_shapes,
    open_blocks,
    why_general,
)
from draftwood.loading.hub import blocks_of, described, folder_of, load_pretrained
from draftwood.loading.origin import weights_digest
from draftwood.models.decoder import Decoder
from draftwood.optional import backend
from draftwood.storage.safetensors import read_header
from draftwood.tokenizer import AnyTokenizer, open_tokenizer


@dataclass(frozen=True)
class WeightsFolder:
    """A folder of weights: of safetensors, or one that describes a GGUF file."""

    path: Path

    @classmethod
    def of(cls, name: str, dtype: Any = None) -> "WeightsFolder":
        """The folder of a name, as a model of it is loaded; raises as ``load_model``."""
        return cls(blocks_of(name) or folder_of(name, dtype))

    @classmethod
    def of_floats(cls, name: str, dtype: Any = None) -> "WeightsFolder":
        """The folder of a name whose weights are floats; a GGUF file is converted."""
        return cls(folder_of(name, dtype))

    @classmethod
    def of_blocks(cls, name: str) -> "WeightsFolder | None":
        """The folder of a name that is a GGUF file whose matrices are used as they are."""
        folder = blocks_of(name)
        return None if folder is None else cls(folder)

    @property
    def is_of_blocks(self) -> bool:
        """True if it describes a GGUF file."""
        return is_blocks_folder(self.path)

    @property
    def digest(self) -> str | None:
        """Digest of the weights; None where they do not say."""
        return weights_digest(self.path)

    @property
    def gguf_files(self) -> list[Path]:
        """The parts of the GGUF file."""
        return files_of(self.path)

    @property
    def shapes(self) -> dict[str, Any]:
        """Shapes of tensors by name; of the matrices alone in a GGUF file."""
        if self.is_of_blocks:
            return matrix_shapes(self.path)
        headers = map(read_header, sorted(self.path.glob("*.safetensors")))
        return {name: entry["shape"] for header in headers for name, entry in header.items()}

    def tokenizer(self) -> AnyTokenizer:
        """The tokenizer of the model."""
        return open_tokenizer(self.path)


def decoder_of(name: str, cannot: str) -> Decoder:
    """The layers of a model by its name, as floats or as the blocks of its file.

    Args:
        cannot: what is not possible for a model of another shape than Llama's.

    Raises:
        ValueError: for such a model.
    """
    folder = blocks_of(name)
    if folder is not None and why_general(folder) is not None:
        reason = backend(f"the model {name}").why_not_native(folder)
        raise ValueError(f"{cannot} {name}: {reason}")
    if folder is not None:
        return open_blocks(folder).decoder
    found = folder_of(name)
    if native_folders.why_not(found) is None:
        return native_folders.read_folder(found).model.decoder
    return _decoder_of_transformers(name, cannot)


def _decoder_of_transformers(name: str, cannot: str) -> Decoder:
    hf_model: Any = load_pretrained(name, device="cpu").model
    reader = backend(f"the model {name}")
    reason = reader.why_not_lean(hf_model)
    if reason is not None:
        raise ValueError(f"{cannot} {name}: {reason}")
    return reader.describe(hf_model).decoder


def skeleton_of(name: str) -> Any:
    """A model by its name without weights, which are not fetched where its configuration is apart.

    Raises:
        ValueError: where the name or the configuration says nothing.
    """
    return backend("a model without weights").skeleton(described(name))
