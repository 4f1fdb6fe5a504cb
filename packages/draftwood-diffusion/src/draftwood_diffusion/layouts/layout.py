"""A layout: how settings and tensors of a folder are named in a decoder that is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DECODER = "model_type"


@dataclass(frozen=True)
class FolderLayout:
    """Folders whose config.json has a ``model_type`` of their own.

    Attributes:
        model_type: there.
        decoder: the model_type whose shape it has.
        mask_token: that its authors use where config.json names none.
        block_length: likewise.
        shifted, bidirectional: as ``DiffusionSettings`` has them.
        settings: keys of the decoder's config.json, by those of this layout that are others.
        tensors: parts of the decoder's names of tensors, by those of this layout, in the order in
            which they are replaced.
        mask_keys, block_keys: under which config.json may name mask token and block length.
        required: values of settings that the decoder's shape takes for granted.
    """

    model_type: str
    decoder: str
    mask_token: int
    block_length: int
    shifted: bool
    bidirectional: bool
    settings: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    mask_keys: tuple[str, ...] = ("mask_token_id",)
    block_keys: tuple[str, ...] = ("block_size", "block_length")
    required: Mapping[str, Any] = field(default_factory=dict)

    def told(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The decoder's config.json.

        Raises:
            ValueError: for a setting that gives a decoder of another shape.
        """
        for name, value in self.required.items():
            if config.get(name, value) != value:
                raise ValueError(
                    f"models of type {self.model_type} are read with {name} {value}, this"
                    f" config.json has {config[name]}; take weights of the published shape"
                )
        left_out = {"auto_map", "architectures", DECODER}
        kept = {name: each for name, each in config.items() if name not in left_out}
        named = {self.settings.get(name, name): each for name, each in kept.items()}
        return {**named, DECODER: self.decoder}

    def name(self, tensor: str) -> str:
        """The decoder's name of a tensor."""
        for theirs, ours in self.tensors.items():
            tensor = tensor.replace(theirs, ours)
        return tensor
