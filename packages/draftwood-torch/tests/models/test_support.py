"""Models that cannot run trees are refused in one line that says why."""

import subprocess
import sys

import pytest
import torch
from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration, T5GemmaModuleConfig

from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.models.support import require_tree_support
from draftwood_torch.models.transformers import TransformersModel
from families import FAMILIES, GROUPED, assert_close, random_model

LLAMA4: dict[str, object] = {
    **{**GROUPED, "head_dim": 8, "intermediate_size_mlp": 48, "moe_layers": []},
    **{"layer_types": ["full_attention"] * 4, "no_rope_layers": [1, 0, 1, 0]},
    **{"attn_temperature_tuning": True, "floor_scale": 2, "attn_scale": 0.5},
}


def test_an_encoder_decoder_whose_text_part_is_a_decoder_is_refused() -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    part = T5GemmaModuleConfig(**sizes, vocab_size=32, num_key_value_heads=2, head_dim=8)
    model = T5GemmaForConditionalGeneration(
        T5GemmaConfig(encoder=part, decoder=part, vocab_size=32)
    )
    with pytest.raises(ValueError, match="T5GemmaForConditionalGeneration is an encoder-decoder"):
        require_tree_support(model)


@pytest.mark.parametrize(
    ("family", "change"),
    [("llama", {"is_causal": False}), ("gemma3", {"use_bidirectional_attention": True})],
)
def test_a_model_that_sees_what_comes_after_a_token_is_refused(
    family: str, change: dict[str, bool]
) -> None:
    name, options = FAMILIES[family]
    model = random_model(name, {**options, **change})
    with pytest.raises(ValueError, match="sees what comes after a token; use a causal language"):
        TransformersModel(model)


@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({}, True),
        ({"attn_temperature_tuning": False}, False),
        ({"no_rope_layers": [1, 1, 1, 1]}, False),
    ],
)
def test_llama4_scales_queries_by_rows_of_the_cache(
    change: dict[str, object], is_refused: bool
) -> None:
    """Its layers without rotary positions count siblings as if they came one after another."""
    model = random_model("Llama4TextConfig", {**LLAMA4, **change})
    given, tree = [1, 2, 3, 4, 5], DraftTree.of([9, 10, 11, 12], [-1, 0, 0, 0])
    if is_refused:
        with pytest.raises(ValueError, match="does not take position_ids as they are, so the"):
            TransformersModel(model)
        return
    session = TransformersModel(model).start()
    session.extend(given)
    found = session.forward(tree).logits
    with torch.no_grad():
        for node, path in enumerate(([9], [9, 10], [9, 11], [9, 12])):
            assert_close(found[node], model(torch.tensor([given + path])).logits[0, -1])


def test_a_model_that_cannot_run_is_refused() -> None:
    name, options = FAMILIES["cohere"]
    model = random_model(name, {**options, "logit_scale": None})
    with pytest.raises(ValueError, match="CohereForCausalLM does not run as it is configured"):
        TransformersModel(model)


class PeftModel:
    """PEFT's wrapper as far as it matters here."""

    def get_base_model(self) -> object:
        return tiny_llama(0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            PeftModel(),
            (
                r"PeftModel wraps a model with adapters or learned"
                r" prompts.*model\.merge_and_unload\(\)"
            ),
        ),
        (object(), "object is no model of Transformers; give a PreTrainedModel, or a name"),
    ],
)
def test_what_is_no_model_of_transformers_is_refused(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_tree_support(given)


def test_load_says_it_in_one_line() -> None:
    code = """if True:
        import draftwood
        class PeftModel:
            def get_base_model(self): ...
        class Tokenizer:
            chat_template = None
        try:
            draftwood.load(PeftModel(), tokenizer=Tokenizer())
        except ValueError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("PeftModel wraps a model with adapters or learned prompts")
