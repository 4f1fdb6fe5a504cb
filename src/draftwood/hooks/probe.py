"""Whether a model steps here as it does in its own ``generate``: looked at, not listed."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from draftwood.hooks.prefill import adopt, plain_cache
from draftwood.models.transformers import TransformersModel
from draftwood.tree import DraftTree

PROMPT = 6
CLOSE = {torch.float64: 1e-3, torch.float32: 0.02}  # of the logits' spread; rounding alone stays far below
CLOSE_IN_16_BITS = 0.25


@torch.no_grad()
def require_same_steps(target: TransformersModel) -> None:
    """Raise ValueError unless a small tree gives the logits that the model's own steps give behind the same prompt."""
    model = target.hf_model
    name = type(model).__name__
    try:
        here, there = _logits(target, model)
    except Exception as error:
        raise ValueError(
            f"{name} cannot run a draft tree behind its own prompt ({type(error).__name__}: {error}); call generate "
            "without custom_generate, or use a causal language model"
        ) from error
    close = CLOSE.get(model.dtype, CLOSE_IN_16_BITS)
    if here.shape != there.shape or not bool(((here - there).norm(dim=-1) <= close * _spread(there)).all()):
        raise ValueError(
            f"{name} gives other logits for a draft tree than for its own steps in generate, so its texts would change; "
            "call generate without custom_generate, or use a causal language model"
        )


def _spread(logits: Tensor) -> Tensor:
    return (logits - logits.mean(-1, keepdim=True)).norm(dim=-1)


def _logits(target: TransformersModel, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Logits at the nodes of a path, among other nodes of a tree here and step by step there."""
    tokens = _plain_tokens(target)
    own = _Steps(model, tokens[:PROMPT])
    if not plain_cache(own.cache):
        raise ValueError("its cache keeps more than keys and values")
    session = target.start()
    try:
        adopt(session, own.cache, 0, PROMPT)
        root, good, bad, behind, last = tokens[PROMPT : PROMPT + 5]
        logits = session.forward(DraftTree.of([root, bad, good, bad, behind], [-1, 0, 0, 1, 2])).logits
        session.commit([0, 2, 4])
        here = [logits[0], logits[2], logits[4], session.forward(DraftTree.of([last, bad], [-1, 0])).logits[0]]
    finally:
        session.close()
    there = [own.step(token) for token in (root, good, behind, last)]
    return torch.stack(here).float(), torch.stack(there).float()


def _plain_tokens(target: TransformersModel) -> list[int]:
    """Tokens without a meaning of their own to the model, as far as its configuration tells."""
    special: set[int] = set()
    for config in {id(c): c for c in (target.hf_model.config, target.config)}.values():
        for name, value in config.to_dict().items():
            if name.endswith(("token_id", "token_index")) and value is not None:
                special |= set(value if isinstance(value, list) else [value])
    needed = PROMPT + 5
    plain = [token for token in range(min(target.vocab_size, 1000)) if token not in special] or [0]
    return [plain[(7 * place + 3) % len(plain)] for place in range(needed)]


class _Steps:
    """The model's own way from token to token, as ``generate`` takes it."""

    def __init__(self, model: PreTrainedModel, prompt: list[int]) -> None:
        self.model = model
        self.ids = torch.tensor([prompt], device=model.device)
        self.cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
        self.inputs: dict[str, Any] = {
            "attention_mask": None,
            "position_ids": torch.arange(len(prompt), device=model.device)[None],
            "past_key_values": self.cache,
            "use_cache": True,
        }
        self._run(first=True)

    def step(self, token: int) -> Tensor:
        self.ids = torch.cat([self.ids, self.ids.new_tensor([[token]])], dim=1)
        return self._run(first=False)

    def _run(self, first: bool) -> Tensor:
        inputs = self.model.prepare_inputs_for_generation(
            self.ids, next_sequence_length=None if first else 1, is_first_iteration=first, **self.inputs
        )
        output = self.model(**inputs, return_dict=True)
        self.inputs = self.model._update_model_kwargs_for_generation(output, self.inputs)
        self.cache = self.inputs["past_key_values"]
        return output.logits[0, -1]
