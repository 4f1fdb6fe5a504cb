"""Adapters of PEFT that depend on rows or places, and offloaded weights, inside ``generate``."""

from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, PeftModel, get_peft_model

import draftwood
from draftwood.stats import Stats
from draftwood.testing import tiny_llama
from draftwood_torch.models.transformers import TransformersModel

INVOCATION = [7, 8, 9, 10, 11, 12]
PROMPT = torch.tensor([[5, 9, 5, 9, 5, 9, *INVOCATION]])
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20}


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
        **options,
    )


def with_adapters(*settings: LoraConfig) -> PeftModel:
    """A tiny Llama with adapters of random weights, ``first`` and ``second``."""
    torch.manual_seed(1)
    model: Any = get_peft_model(tiny_llama(0, layers=3), settings[0], adapter_name="first")
    for each in settings[1:]:
        model.add_adapter("second", each)
    return model.eval()


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (with_adapters(lora(alora_invocation_tokens=INVOCATION)), {"input_ids": PROMPT}),
        (
            with_adapters(lora(), lora()),
            {"input_ids": torch.cat([PROMPT, PROMPT + 1]), "adapter_names": ["first", "second"]},
        ),
    ],
    ids=["activated", "by row"],
)
def test_adapters_by_rows_or_places_run_without_drafts(
    model: PeftModel, inputs: dict[str, Any]
) -> None:
    wanted, reports = model.generate(**inputs, **GREEDY), list[Stats]()
    hook = draftwood.custom_generate("recycling", report=reports.append)
    with pytest.warns(UserWarning, match="without drafts: PEFT chooses adapters by rows"):
        given = model.generate(**inputs, **GREEDY, custom_generate=hook)
    assert torch.equal(given, wanted)
    assert reports[0].drafted == 0


def test_other_adapters_run_with_drafts() -> None:
    model, reports = with_adapters(lora()), list[Stats]()
    hook = draftwood.custom_generate("recycling", report=reports.append)
    wanted = model.generate(input_ids=PROMPT, **GREEDY)
    assert torch.equal(model.generate(input_ids=PROMPT, **GREEDY, custom_generate=hook), wanted)
    assert reports[0].drafted > 0


def test_offloaded_models_run_without_drafts_inside_generate_alone() -> None:
    model = cpu_offload(tiny_llama(0), execution_device=torch.device("cpu"))
    wanted = model.generate(PROMPT, **GREEDY)
    with pytest.warns(UserWarning, match="some of the model's weights are offloaded"):
        given = model.generate(
            PROMPT, **GREEDY, custom_generate=draftwood.custom_generate("recycling")
        )
    assert torch.equal(given, wanted)
    with pytest.raises(ValueError, match="has weights that are not in memory; load it without"):
        TransformersModel(model)
