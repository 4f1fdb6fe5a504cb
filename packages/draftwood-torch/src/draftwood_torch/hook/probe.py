"""Check that a model steps here as it does in its own ``generate``: by trial, not by a list."""

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from draftwood.models.model import ForwardInput
from draftwood.tree import DraftTree
from draftwood_torch.hook.prefill import adopt, plain_cache
from draftwood_torch.models.transformers import TransformersModel

PROMPT, PADDING = 6, 2
# of the logits' spread; rounding alone stays far below
CLOSE = {torch.float64: 1e-3, torch.float32: 0.02}
CLOSE_IN_16_BITS = 0.25

_found: WeakKeyDictionary[PreTrainedModel, dict[Hashable, bool]] = WeakKeyDictionary()


def takes_batches(target: TransformersModel) -> bool:
    """True if small trees after several prompts give the model's own logits.

    They are compared with the model's own steps, padding among the prompts.

    Raises:
        ValueError: where not even a tree after a single prompt does.
    """
    model = target.hf_model
    verdicts = _found.setdefault(model, {})
    state = (model.dtype, model.device, model.config._attn_implementation)
    if state not in verdicts:
        verdicts[state] = _why_not(target, [PADDING, 0]) is None
        reason = None if verdicts[state] else _why_not(target, [0])
        if reason is not None:
            del verdicts[state]
            raise ValueError(
                f"{type(model).__name__} {reason}; call generate without custom_generate, or use"
                " another model"
            )
    return verdicts[state]


@torch.no_grad()
def _why_not(target: TransformersModel, padding: list[int]) -> str | None:
    """Reason why rows with this padding cannot use drafts; None if they can."""
    try:
        here, there = _logits(target, padding)
    except Exception as error:
        return f"cannot run a draft tree behind its own prompt ({type(error).__name__}: {error})"
    close = CLOSE.get(there.dtype, CLOSE_IN_16_BITS)
    here, there = here.float(), there.float()
    spread = (there - there.mean(-1, keepdim=True)).norm(dim=-1)
    if here.shape != there.shape or not bool(((here - there).norm(dim=-1) <= close * spread).all()):
        return (
            "gives other logits for a draft tree than in its own generate, so its texts would"
            " change"
        )
    return None


def _logits(target: TransformersModel, padding: list[int]) -> tuple[Tensor, Tensor]:
    """Logits at the nodes of a path [rows nodes vocab].

    Here the path is among other nodes of a tree; there it is run step by step.
    """
    rows = [_plain_tokens(target, row) for row in range(len(padding))]
    own = _Steps(target.hf_model, torch.tensor([row[:PROMPT] for row in rows]), padding)
    if not plain_cache(own.cache):
        raise ValueError("its cache keeps more than keys and values")
    sessions = [target.start() for _ in rows]
    try:
        for number, session in enumerate(sessions):
            adopt(session, own.cache, number, PROMPT - padding[number])
        trees = [
            DraftTree.of([row[6], row[8], row[7], row[8], row[9]], [-1, 0, 0, 1, 2]) for row in rows
        ]
        first = target.forward([ForwardInput(*pair) for pair in zip(sessions, trees, strict=True)])
        for session in sessions:
            session.commit([0, 2, 4])
        trees = [DraftTree.of([row[10], row[8]], [-1, 0]) for row in rows]
        second = target.forward([ForwardInput(*pair) for pair in zip(sessions, trees, strict=True)])
    finally:
        for session in sessions:
            session.close()
    here = [
        torch.cat([a.logits[[0, 2, 4]], b.logits[:1]]) for a, b in zip(first, second, strict=True)
    ]
    there = [own.step([row[place] for row in rows]) for place in (6, 7, 9, 10)]
    return torch.stack(here), torch.stack(there, dim=1)


def _plain_tokens(target: TransformersModel, row: int) -> list[int]:
    """Tokens without a special meaning, as far as the model's configuration tells."""
    special: set[int] = set()
    for config in (target.hf_model.config, target.config):
        for name, value in config.to_dict().items():
            if name.endswith(("token_id", "token_index")) and value is not None:
                special |= set(value if isinstance(value, list) else [value])
    plain = [token for token in range(min(target.vocab_size, 1000)) if token not in special] or [0]
    return [plain[(7 * place + 5 * row + 3) % len(plain)] for place in range(PROMPT + 5)]


class _Steps:
    """Single steps of the model, as ``generate`` makes them."""

    def __init__(self, model: PreTrainedModel, prompts: Tensor, padding: list[int]) -> None:
        self.model: Any = model
        self.ids = prompts.to(model.device)
        mask = torch.ones_like(self.ids)
        for row, count in enumerate(padding):
            mask[row, :count] = 0
        self.cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
        self.inputs: dict[str, Any] = {
            "attention_mask": mask if any(padding) else None,
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
            "past_key_values": self.cache,
            "use_cache": True,
        }
        self._run(first=True)

    def step(self, tokens: list[int]) -> Tensor:
        """The logits [rows vocab] after one more token each."""
        self.ids = torch.cat([self.ids, self.ids.new_tensor(tokens)[:, None]], dim=1)
        return self._run(first=False)

    def _run(self, first: bool) -> Tensor:
        inputs = self.model.prepare_inputs_for_generation(
            self.ids,
            next_sequence_length=None if first else 1,
            is_first_iteration=first,
            **self.inputs,
        )
        output = self.model(**inputs, return_dict=True)
        self.inputs = self.model._update_model_kwargs_for_generation(output, self.inputs)
        self.cache = self.inputs["past_key_values"]
        return output.logits[:, -1]
