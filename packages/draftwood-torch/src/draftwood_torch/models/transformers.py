"""Any causal language model of Transformers, unmodified: a 4-D mask and a cache of trees."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from draftwood.models.cached import CachedModel
from draftwood.models.model import Ability, EmbeddingsAndHead, Layers, ModelOutput
from draftwood.models.parts import Packed, PackedInput
from draftwood.models.requirements import NoEmbeddingsAndHead
from draftwood_torch.models.by_place import masking_of
from draftwood_torch.models.embeddings_and_head import ModuleEmbeddingsAndHead, final_norm
from draftwood_torch.models.mtp_weights import has_mtp
from draftwood_torch.models.packed_linear import on_one_thread
from draftwood_torch.models.pool import CachePool, LayerShape
from draftwood_torch.models.run_cache import RunCache
from draftwood_torch.models.submodules import GoingOn, going_on, list_of_layers, without_layers
from draftwood_torch.models.support import attention_windows, end_tokens, require_tree_support
from draftwood_torch.models.tensor_input import TensorInput

WHOLE = ("hidden_size_per_layer_input", "num_kv_shared_layers")
"""Settings of models whose layers read an input by their place, or keys of an earlier layer."""
MOST_SMALLER = 32
"""Sets of layers left out whose models are kept; a search for layers tries hundreds."""


class TransformersModel(CachedModel[CachePool]):
    """A causal language model of Transformers behind the ``Model`` protocol.

    It leaves out whole decoder layers only, as attention and MLP are no parts that all
    architectures have.

    Args:
        hf_model: the model, in eval mode; it is not changed.
        pool: the cache of an earlier object for the same model; None makes one.

    Attributes:
        masks_by_place: whether it hides tokens by their places in the cache, or takes no trees side
            by side, so that each sequence is run in a pass of its own.

    Raises:
        ValueError: for architectures whose cache cannot drop nodes or whose attention cannot take a
            tree mask; the message says which and why.
    """

    holds_states = False
    takes_cache_as = "past_key_values"

    def __init__(self, hf_model: PreTrainedModel, pool: CachePool | None = None) -> None:
        require_tree_support(hf_model, self.holds_states)
        pool = pool or CachePool(layer_shapes(hf_model), hf_model.dtype, hf_model.device)
        abilities: set[Ability] = {"hidden", "fork"}
        text = hf_model.config.get_text_config()
        if list_of_layers(hf_model) and not any(getattr(text, name, None) for name in WHOLE):
            abilities |= {"partial", "resume"}
        abilities |= {"embeddings_and_head"} if final_norm(hf_model) else set()
        takes = inspect.signature(hf_model.forward).parameters
        abilities |= {"embeddings"} if "inputs_embeds" in takes else set()
        if has_mtp(hf_model):
            self.read_mtp = _read_mtp
            abilities.add("mtp")
        attentions = attention_windows(hf_model)
        abilities |= {"window", "cache"} if set(attentions.values()) == {None} else set()
        sizes = text.num_hidden_layers, text.hidden_size
        super().__init__(text, pool, abilities, *sizes, hf_model.device)
        self.hf_model = hf_model
        self.network = hf_model
        self.attentions = attentions
        self.takes_logits_to_keep = "logits_to_keep" in takes
        self._smaller: dict[frozenset[int], PreTrainedModel] = {}
        self._parts: dict[frozenset[int], tuple[PreTrainedModel, dict[int, GoingOn]]] = {}
        self.masks_by_place = False
        if not self.holds_states:  # running states follow the order of a tree, not places
            masking = masking_of(hf_model, pool, self._logits)
            self.masks_by_place = masking.is_by_place
            if masking.shows_later and not masking.is_by_place:
                self.abilities = frozenset[Ability]({*self.abilities, "rows"})

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        if "embeddings_and_head" not in self.abilities:
            return NoEmbeddingsAndHead(self)
        return ModuleEmbeddingsAndHead(self.hf_model)

    @property
    def end_tokens(self) -> frozenset[int]:
        return end_tokens(self.hf_model)

    def run(self, parts: Sequence[Packed]) -> list[Any]:
        groups = [[part] for part in parts] if self.masks_by_place else [parts]
        with on_one_thread(self.hf_model, sum(part.place.count for part in parts)):
            return [
                output for group in groups for output in super(TransformersModel, self).run(group)
            ]

    def check(self, layers: Layers) -> None:
        super().check(layers)
        if layers.without_attention != layers.without_mlp:
            raise ValueError(
                "the general path leaves out whole layers only, asked to leave out the attention of"
                f" {sorted(layers.without_attention)} and the MLP of {sorted(layers.without_mlp)};"
                " name the same layers twice, or use a model of the lean path"
            )

    @torch.no_grad()
    def compute(self, parts: Sequence[PackedInput], hidden: Sequence[int]) -> list[ModelOutput]:
        """One padded forward pass of Transformers over the parts."""
        given = [TensorInput.of(part) for part in parts]
        layers = given[0].layers
        skipped, stop = layers.without_mlp, layers.stop
        if layers.start or stop is not None:
            return self._between(given, hidden)
        if skipped and hidden:  # Transformers would count layers again, and record twice afterwards
            raise ValueError(
                "the general path gives no hidden states of passes that leave out layers, asked for"
                f" {list(hidden)}; take those of a pass through all layers, or a model of the"
                " lean path"
            )
        options: dict[str, object] = {"output_hidden_states": True} if hidden else {}
        is_short = len(given) == 1 and given[0].keep != "all" and self.takes_logits_to_keep
        if is_short:
            options["logits_to_keep"] = 1
        network = self._without(skipped) if skipped else self.network
        out = self.run_padded(network, given, options, self._cache(given))
        outputs = []
        for row, part in enumerate(given):
            count = part.place.count
            end = 1 if is_short else count
            logits = out.logits[row, end - part.wanted : end]
            states = {layer: out.hidden_states[layer][row, :count] for layer in hidden}
            outputs.append(ModelOutput(logits, states))
        return outputs

    def _logits(self, parts: Sequence[TensorInput], cache: RunCache) -> Tensor:
        return self.run_padded(self.network, parts, {}, cache).logits

    def run_padded(
        self,
        model: PreTrainedModel,
        parts: Sequence[TensorInput],
        options: Mapping[str, object],
        cache: RunCache,
    ) -> Any:
        """Run the parts in Transformers, as rows of one pass [parts longest ...].

        Args:
            model: the whole one, or some of its layers.
            options: more of its call.
            cache: of these parts.
        """
        tokens, positions = (
            _padded(rows).to(self.device, non_blocking=True)
            for rows in ([part.tokens for part in parts], [part.positions for part in parts])
        )
        vectors = parts[0].embeddings  # of a prompt, which is run by itself
        given: dict[str, Tensor] = {"input_ids": tokens}
        if vectors is not None:
            given = {"inputs_embeds": vectors[None].to(self.device, self.pool.dtype)}
        out = model(
            **given,
            position_ids=positions,
            attention_mask=self._masks(parts, cache.width),
            use_cache=True,
            **{self.takes_cache_as: cache},
            **options,
        )
        cache.finish()
        return out

    def _between(self, parts: Sequence[TensorInput], hidden: Sequence[int]) -> list[ModelOutput]:
        """A pass that starts or stops between layers: others are left out, and what the first one
        reads comes from the pass before.
        """
        layers = parts[0].layers
        stop = self.layers if layers.stop is None else layers.stop
        left_out = frozenset(range(self.layers)) - frozenset(range(layers.start, stop))
        model, kept = self._part(left_out | layers.without_mlp)
        if layers.start:
            stream = _padded([part.stream for part in parts if part.stream is not None])
            next(iter(kept.values())).stream = stream
        try:
            logits = self.run_padded(model, parts, {}, self._cache(parts)).logits
            states = {layer: self._state(kept, layer) for layer in hidden}
        finally:
            for layer in kept.values():
                layer.forget()
        return [
            ModelOutput(
                logits[row, part.place.count - part.wanted : part.place.count],
                {layer: state[row, : part.place.count] for layer, state in states.items()},
            )
            for row, part in enumerate(parts)
        ]

    def _state(self, kept: Mapping[int, GoingOn], layer: int) -> Tensor:
        """A hidden state of the pass that these layers have just run."""
        reader = next((each for index, each in kept.items() if index >= layer), None)
        state = list(kept.values())[-1].gave if reader is None else reader.read
        assert state is not None
        if layer < self.layers:
            return state
        norm = final_norm(self.hf_model)
        if norm is None:
            raise ValueError(
                f"the final norm of {type(self.hf_model).__name__} is unknown, so a pass that goes"
                " on between layers has no hidden state behind the last one; leave it out"
            )
        return norm(state)

    def _part(self, skipped: frozenset[int]) -> tuple[PreTrainedModel, dict[int, GoingOn]]:
        if skipped not in self._parts:
            self._parts[skipped] = going_on(self.hf_model, skipped)
        return self._parts[skipped]

    def _cache(self, parts: Sequence[TensorInput]) -> RunCache:
        """Wrap the pool for a pass of Transformers over the parts."""
        return RunCache(self.pool, [part.place for part in parts])

    def _without(self, skipped: frozenset[int]) -> PreTrainedModel:
        """The model without some layers; the pool's lock is held."""
        found = self._smaller.pop(skipped, None) or without_layers(self.hf_model, skipped)
        self._smaller[skipped] = found  # the newest
        if len(self._smaller) > MOST_SMALLER:
            del self._smaller[next(iter(self._smaller))]
        return found

    def _masks(self, parts: Sequence[TensorInput], width: int) -> Tensor | dict[str, Tensor]:
        masks = {}
        for attention, window in self.attentions.items():
            longest = max(part.place.count for part in parts)
            sees = torch.zeros(len(parts), 1, longest, width, dtype=torch.bool, device=self.device)
            # rows of padding must see something, or their softmax is not a number
            sees[..., 0] = True
            for row, part in enumerate(parts):
                seen = part.within(window).to(self.device, non_blocking=True)
                sees[row, 0, : part.place.count, : seen.shape[1]] = seen
            mask = torch.zeros(sees.shape, dtype=self.pool.dtype, device=self.device)
            masks[attention] = mask.masked_fill_(~sees, torch.finfo(mask.dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))


def _read_mtp(model: TransformersModel) -> Any:
    from draftwood_torch.heads.mtp import mtp_of

    return mtp_of(model.hf_model)


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return (
        rows[0][None] if len(rows) == 1 else nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    )


@torch.no_grad()
def layer_shapes(hf_model: PreTrainedModel) -> list[LayerShape]:
    """Shapes of the keys and values each layer caches, found by running one token.

    Raises:
        ValueError: for a model that does not run, or that caches something else.
    """
    cache, token = DynamicCache(), torch.zeros(1, 1, dtype=torch.long, device=hf_model.device)
    try:
        hf_model(input_ids=token, past_key_values=cache)
    except TypeError as error:  # a value of a wrong kind that its configuration lets through
        name = type(hf_model).__name__
        raise ValueError(f"{name} does not run as it is configured: {error}") from error
    shapes = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.ndim != 4:
            raise ValueError(
                f"{type(hf_model).__name__} has a layer that caches no keys and values; it cannot"
                " be used"
            )
        shapes.append(
            LayerShape((keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3]))
        )
    return shapes
