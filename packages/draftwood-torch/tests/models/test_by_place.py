"""Models that mask by places in the cache, or fail side by side, are found by running them, and
write their own texts.
"""

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.bark.modeling_bark import BarkCausalModel

from draftwood.engine import Options, Sequence, generate_batch
from draftwood.methods import build
from draftwood.models.model import ForwardInput
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.models.transformers import TransformersModel
from families import DIFFERENT, model_of, some_tokens

BARK: dict[str, Any] = {
    "input_vocab_size": 40,
    "output_vocab_size": 40,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "block_size": 128,
}
NEO: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "max_position_embeddings": 128,
    "window_size": 16,
}
JAPANESE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_multiple_size": 2,
    "max_position_embeddings": 128,
}
"""Sizes of a model that reads its keys as a view, which rows of one pool are not."""
PROMPTS = ([5, 9, 5, 9, 5, 9, 7], [1, 2, 3] * 6 + [4, 4, 5, 6, 1, 2], [8])
LONG = 20


@cache
def by_place(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "gpt-neo":
        config = transformers.GPTNeoConfig(**NEO, attention_types=[[["global"], 2]])
        model = transformers.GPTNeoForCausalLM(config).eval()
    elif name == "gpt-neox-japanese":
        model = transformers.GPTNeoXJapaneseForCausalLM(
            transformers.GPTNeoXJapaneseConfig(**JAPANESE)
        ).eval()
    elif name == "bark":
        model = BarkCausalModel(transformers.BarkCoarseConfig(**BARK)).eval()
    else:
        model = transformers.BarkSemanticModel(transformers.BarkSemanticConfig(**BARK)).eval()
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=0.25)
    return model


def texts(model: TransformersModel, method: str, count: int) -> list[list[int]]:
    """Greedy texts of so many prompts in one batch."""
    made = build(method, model)
    sequences = [
        Sequence(model, made.drafter, made.verifier, prompt, Options(max_new_tokens=LONG))
        for prompt in PROMPTS[:count]
    ]
    found = [list[int]() for _ in sequences]
    for number, step in generate_batch(sequences):
        found[number] += step.tokens
    return found


@torch.no_grad()
def own_texts(model: PreTrainedModel, count: int) -> list[list[int]]:
    """Texts of the model without any cache."""
    found = []
    for prompt in PROMPTS[:count]:
        text = list(prompt)
        for _ in range(LONG):
            text.append(int(model(input_ids=torch.tensor([text])).logits[0, -1].argmax()))
        found.append(text[len(prompt) :])
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", ["recycling", "lookup"])
@pytest.mark.parametrize("name", ["bark", "bark-semantic", "gpt-neo", "gpt-neox-japanese"])
def test_texts_in_batches_are_the_models_own(name: str, method: str, count: int) -> None:
    model = TransformersModel(by_place(name))
    assert model.masks_by_place
    assert texts(model, method, count) == own_texts(by_place(name), count)


def test_one_pass_over_unequal_trees_would_be_noticed() -> None:
    """Negative control: rows of such a model do come out otherwise side by side."""
    model, trees = TransformersModel(by_place("bark")), (DraftTree.of([3], [-1]), _star(6))
    sessions = [model.start() for _ in trees]
    for session, seed in zip(sessions, (1, 2), strict=True):
        session.extend(some_tokens(9 if seed == 1 else 2, seed))
    inputs = [ForwardInput(*pair) for pair in zip(sessions, trees, strict=True)]
    apart = [each.logits for each in model.forward(inputs)]
    model.masks_by_place = False
    together = [each.logits for each in model.forward(inputs)]
    alone = [model.forward([each])[0].logits for each in inputs]
    assert all(torch.equal(one, other) for one, other in zip(apart, alone, strict=True))
    assert (together[0] - alone[0]).abs().max() > 0.1


def test_own_windows_by_place_are_refused() -> None:
    model = transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(**NEO, attention_types=[[["global", "local"], 1]])
    ).eval()
    with pytest.raises(ValueError, match="its own causal mask with a window by places"):
        TransformersModel(model)


class UnheardOfConfig(transformers.BarkCoarseConfig):
    model_type = "unheard-of"


class UnheardOfModel(BarkCausalModel):
    """A model whose name nobody knows."""


def test_no_name_says_it() -> None:
    model = UnheardOfModel(UnheardOfConfig(**BARK)).eval()
    assert TransformersModel(model).masks_by_place
    assert not TransformersModel(tiny_llama(0)).masks_by_place


@pytest.mark.parametrize("family", [each for each in DIFFERENT if "/" not in each])
def test_other_models_share_their_passes(family: str) -> None:
    model = model_of(family)
    assert isinstance(model, TransformersModel)
    assert not model.masks_by_place


def _star(nodes: int) -> DraftTree:
    return DraftTree.of(some_tokens(nodes, seed=3), [-1, *[0] * (nodes - 1)])
