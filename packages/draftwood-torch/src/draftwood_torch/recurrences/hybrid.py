"""Models of Transformers with running states in some or all layers, over trees."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from draftwood.models.model import ModelOutput, chunks
from draftwood.models.parts import PackedInput
from draftwood.models.requirements import require_ability
from draftwood_torch.models.pool import LayerShape
from draftwood_torch.models.submodules import list_of_layers, replaced
from draftwood_torch.models.support import require_tree_support
from draftwood_torch.models.tensor_input import TensorInput
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.recurrences.cache import RecurrentCache
from draftwood_torch.recurrences.known import over_trees, recurrent_layers
from draftwood_torch.recurrences.pool import RecurrentPool


class HybridModel(TransformersModel):
    """A state-space or hybrid model: its own code, in which recurrences scan trees (Wu et al. 2025,
    arXiv:2505.14969).

    No state is kept per node. A pass goes from the last state that is sure, by what the nodes'
    ancestors fed to the recurrence; committing a path keeps these rows, which later become part of
    the state. So what a rejected node did never happened. Attention, networks, norms and
    multipliers stay the model's own.

    Tokens may be taken back one by one; where that reaches into the state, what is left of the text
    is run again, as Transformers runs a prompt. Where it clamps the time steps of prompts alone
    (``time_step_limit`` of Zamba2 and Nemotron-H), tokens that were decoded then say something
    slightly else.

    Args:
        hf_model: the model, in eval mode; it is not changed.

    Raises:
        ValueError: for recurrences that are not known, by name.
    """

    holds_states = True

    def __init__(self, hf_model: PreTrainedModel) -> None:
        require_tree_support(hf_model, self.holds_states)
        layers = recurrent_layers(hf_model)
        recurrences = [over_trees(layer, number) for number, layer in enumerate(layers)]
        takes = inspect.signature(hf_model.forward).parameters
        self.takes_cache_as = "cache_params" if "cache_params" in takes else "past_key_values"
        shapes, has_hidden = self._look_at(hf_model)
        pool = RecurrentPool(shapes, recurrences, hf_model.dtype, hf_model.device)
        super().__init__(hf_model, pool)
        # which layers and places a pass leaves out would have to be known to the states, and some
        # heads read multipliers of the model around them; tokens taken back are run again
        self.abilities -= {"partial", "resume", "window", "cache", "embeddings_and_head"}
        self.abilities -= {"embeddings"}
        self.abilities -= set() if has_hidden else {"hidden"}
        self.states = pool
        for layer, recurrence in zip(layers, recurrences, strict=True):
            self.network = replaced(self.network, layer, recurrence)  # type: ignore[assignment]

    @torch.no_grad()
    def compute(self, parts: Sequence[PackedInput], hidden: Sequence[int]) -> list[ModelOutput]:
        if hidden:
            require_ability(self, "hidden", f"a pass that gives hidden states {list(hidden)}")
        for part in parts:
            start, tokens = self.states.missing(part)
            for chunk in chunks(tokens):
                again = PackedInput.of_prompt(part.place.slot, start, chunk, "none")
                super().compute([again], ())
                start += len(chunk)
        return super().compute(parts, hidden)

    def _cache(self, parts: Sequence[TensorInput]) -> RecurrentCache:
        return RecurrentCache(self.states, parts)

    @torch.no_grad()
    def _look_at(self, hf_model: PreTrainedModel) -> tuple[dict[int, LayerShape], bool]:
        """Shapes of the keys and values that layers cache, and whether hidden states are numbered
        as elsewhere, found by running one token.
        """
        cache = DynamicCache(config=hf_model.config.get_text_config())
        entered: list[Tensor] = []
        named = list_of_layers(hf_model)
        assert named is not None
        hook = named[1][0].register_forward_pre_hook(lambda module, given: entered.append(given[0]))
        token = torch.zeros(1, 1, dtype=torch.long, device=hf_model.device)
        try:
            options: dict[str, Any] = {self.takes_cache_as: cache, "output_hidden_states": True}
            out = hf_model(input_ids=token, use_cache=True, **options)
        finally:
            hook.remove()
        shapes = {}
        for number, layer in enumerate(cache.layers):
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
            if keys is not None and values is not None:
                shapes[number] = LayerShape(
                    (keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3])
                )
        return shapes, torch.equal(out.hidden_states[0], entered[0])
