"""A decoder read from a configuration and arrays is the one read from Transformers, bit by bit."""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from draftwood.arrays import as_floats, bits_of
from draftwood.models.configuration import (
    Configuration,
    UnknownConfigurationError,
    end_tokens_of,
    why_not_native,
)
from draftwood.models.configuration_defaults import CLASSES
from draftwood.models.context import context_length
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.native import NativeModel
from draftwood.models.rotary import RUN, power
from draftwood.native.matrix import Blocks
from draftwood.pytorch.loading.skeleton import skeleton
from draftwood.pytorch.models import experts
from draftwood.pytorch.models.reading import read_decoder
from families import FAMILIES, GROUPED, LEAN, ROUTED, hf_model, random_model, some_tokens

NATIVE = (*LEAN, *ROUTED, "gemma3-images")
VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"


def arrays_of(model: Any) -> Callable[[str], Any]:
    """The tensors of a model as ``describe`` asks for them."""
    state, mixtures = model.state_dict(), experts.mixtures(model)

    def tensor(name: str) -> Any:
        at, _, rest = name.partition(".experts.")
        if rest:
            module, (part, kind) = mixtures[f"{at}.experts"], rest.split(".")
            if kind == "weight":
                return array_of(experts.stacked(module)[part])
            if part == "down":
                return array_of(module.down_proj_bias)
            return array_of(experts.split(module, module.gate_up_proj_bias)[part == "up"])
        return array_of(state[name]) if name in state else None

    return tensor


def array_of(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return bits_of(tensor) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def told(model: Any) -> dict[str, Any]:
    """What its config.json says."""
    return json.loads(model.config.to_json_string(use_diff=True))


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Places where two decoders are not the same, to the bit."""
    if is_dataclass(ours) and not isinstance(ours, Blocks):
        if type(ours) is not type(theirs):
            yield at
            return
        for each in fields(ours):
            one, other = (getattr(part, each.name) for part in (ours, theirs))
            yield from differences(one, other, f"{at}.{each.name}")
    elif isinstance(ours, tuple) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{at}.{number}")
    elif isinstance(ours, np.ndarray) and theirs is not None:
        one, other = as_floats(ours), as_floats(theirs)
        same = one.shape == other.shape and one.tobytes() == other.tobytes()
        yield from () if same else (at,)
    elif ours != theirs:
        yield at


def described(model: Any) -> Decoder:
    return describe(told(model), arrays_of(model))


@pytest.mark.parametrize("family", NATIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_part_is_that_of_transformers(family: str, dtype: torch.dtype) -> None:
    model: Any = random_model(*FAMILIES[family])
    for parameter in model.parameters():  # tables of frequencies are float32 in every type
        parameter.data = parameter.data.to(dtype)
    assert list(differences(described(model), read_decoder(model))) == []
