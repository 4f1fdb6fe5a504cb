"""Layers of Transformers' models for multi-token prediction (MTP), drafted with over trees.

Transformers builds them and reads their weights; here are the cache and the masks of trees.
"""

import copy
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import modeling_layers
from transformers.cache_utils import Cache

from draftwood.models.configuration import FULL, SLIDING
from draftwood_torch.heads.texts import EagleText, HeadRows
from draftwood_torch.loading.packed_models import pack_linear
from draftwood_torch.loading.quiet import quiet_transformers
from draftwood_torch.models.embeddings_and_head import ModuleEmbeddingsAndHead
from draftwood_torch.models.mtp_weights import names_of_mtp
from draftwood_torch.models.packed_linear import on_one_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LayerCache(Cache):
    """Keys and values of one layer of Transformers for one text; drafted rows lie last.

    Attributes:
        length: rows.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.length = 0
        self._seen: Tensor | None = None
        self._memory: list[Tensor] = []  # keys and values [1 heads room dim]

    def attend(self, seen: Bool[Tensor, "rows context"]) -> "LayerCache":
        """Begin a pass of new rows that see these of the rows before and of themselves."""
        self._seen = seen
        return self

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Append the new rows; give all [1 heads rows dim]."""
        new = [key_states, value_states]
        first, last = self.length, self.length + key_states.shape[2]
        if not self._memory or last > self._memory[0].shape[2]:
            self._memory = [self._roomier(number, each) for number, each in enumerate(new)]
        for kept, each in zip(self._memory, new, strict=True):
            kept[:, :, first:last] = each
        self.length = last
        keys, values = (kept[:, :, :last] for kept in self._memory)
        return keys, values

    def _roomier(self, number: int, new: Tensor) -> Tensor:
        """Twice the memory that new rows need with those that there are, and these in it."""
        batch, heads, rows, dim = new.shape
        found = new.new_empty(batch, heads, max(64, 2 * (self.length + rows)), dim)
        if self.length:
            found[:, :, : self.length] = self._memory[number][:, :, : self.length]
        return found

    def mask_of(self, like: Tensor) -> Float[Tensor, "1 1 rows context"]:
        """The mask of the pass under way, in the type of its rows."""
        assert self._seen is not None
        mask = like.new_zeros(self._seen.shape)
        mask.masked_fill_(~self._seen.to(like.device), torch.finfo(like.dtype).min)
        return mask[None, None]

    def copy(self, other: "LayerCache", length: int) -> None:
        """Take over the first ``length`` rows of another sequence."""
        self._memory = [each[:, :, :length].clone() for each in other._memory]
        self.length = length

    def keep(self, length: int) -> None:
        """Drop all rows from ``length`` on."""
        self.length = min(self.length, length)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length


class TorchMtp:
    """The first layer of a model for multi-token prediction; implements ``MtpHead``.

    Args:
        hf_model: whose embedding and output head it shares.
        layers: as Transformers has them.
    """

    native = None

    def __init__(self, hf_model: "PreTrainedModel", layers: Any) -> None:
        self.hf_model, self.layers = hf_model, layers
        layers.create_masks_for_mtp_layer = _mask_of_tree
        config = hf_model.config.get_text_config()
        self.reads = (config.num_hidden_layers,)
        kinds = getattr(layers.config, "layer_types", None) or [FULL]
        self.window = config.sliding_window if kinds[0] == SLIDING else None

    def text(self) -> EagleText:
        model, rows = self.hf_model, HeadRows(LayerCache(), self.window, self.hf_model.device)
        embeddings = ModuleEmbeddingsAndHead(model)
        return EagleText(self, self.reads, model.dtype, rows, embeddings, self.logits)

    def combine(self, features: Float[Tensor, "rows 1 dim"]) -> Float[Tensor, "rows dim"]:
        return features[:, 0]

    def __call__(
        self,
        embedded: Float[Tensor, "rows dim"],
        state: Float[Tensor, "rows dim"],
        positions: Int[Tensor, " rows"],
        attend: LayerCache,
    ) -> tuple[Float[Tensor, "rows dim"], Float[Tensor, "rows dim"]]:
        """Run new rows; what they say is what goes back in."""
        given, places = state[None].to(self.hf_model.device), positions[None]
        with on_one_thread(self.hf_model, len(state)):
            said = self.layers.forward_layer(
                0, given, places, attend, inputs_embeds=embedded[None]
            )[0]
        return said, said

    @torch.no_grad()
    def logits(self, states: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows vocab"]:
        """Logits after normed states, as the model's own output head gives them."""
        with on_one_thread(self.hf_model, len(states)):
            return self.layers._project_to_logits(states).float()


def mtp_of(hf_model: "PreTrainedModel") -> TorchMtp:
    """Read the first of the layers for multi-token prediction beside a model's weights.

    Raises:
        ValueError: where tensors are missing or of other shapes.
    """
    double: Any = copy.copy(hf_model)
    double._keys_to_ignore_on_load_unexpected = [names_of_mtp(hf_model)]
    double.config = copy.deepcopy(hf_model.config)
    told = double.config.get_text_config()
    told.num_mtp_layers = 1  # as some configurations call it otherwise, or do not say it
    for kinds, own, usual in (
        ("layer_types", "mtp_layer_types", FULL),
        ("mlp_layer_types", "mtp_mlp_layer_types", None),
    ):
        named = getattr(told, kinds, None)
        if named and not getattr(told, own, None):
            setattr(told, own, [usual or named[-1]])
    try:
        with quiet_transformers():
            layers = _read(double, hf_model)
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        if "ignore_mismatched_sizes" in reason:  # it points to a report that is not shown
            reason = "its tensors have other shapes than its config.json asks for"
        raise ValueError(
            f"the layer for multi-token prediction in {told.name_or_path or 'the folder'} cannot be"
            f" read ({reason}); choose another method, or fetch the model again"
        ) from error
    return TorchMtp(hf_model, layers.eval().requires_grad_(False))


def _read(double: Any, hf_model: Any) -> Any:
    """Layers with the weights that lie where a model was read from; packed as those of the model.

    Args:
        double: the model, under a configuration of the layers.
    """
    kind, products = modeling_layers.MtpModel, getattr(hf_model, "packed_as", None)
    layers = kind.from_pretrained(double, device_map={"": hf_model.device})
    if products is None:
        return layers.to(hf_model.dtype)
    pack_linear(layers, products)
    return layers.float()


def _mask_of_tree(
    layer_idx: int, inputs_embeds: Tensor, mtp_cache: LayerCache, position_ids: Tensor
) -> dict[str, Tensor]:
    """The masks of a pass, in the place of the causal ones that Transformers makes."""
    return {"attention_mask": mtp_cache.mask_of(inputs_embeds)}
