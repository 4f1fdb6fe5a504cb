"""PyTorch's default type of floats is the user's affair: no text depends on it, and no tensor of
ours takes it.
"""

from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import draftwood
from draftwood import methods
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from thinning import thinned

PATHS = {"native": NativeModel, "lean": LeanModel, "general": TransformersModel}
METHODS = ["plain", "auto", "rsd-s", "layer-skip"]
TYPES = [torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def usual_type_afterwards() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@lru_cache
def hf_model(seed: int, layers: int) -> PreTrainedModel:
    """Weights are drawn in the default type, so they are made while it is the usual one."""
    assert torch.get_default_dtype() == torch.float32
    return tiny_llama(seed, layers=layers)


def language_model(path: str, method: str) -> draftwood.LanguageModel:
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    target = PATHS[path](hf_model(0, 6))
    lm = draftwood.LanguageModel(target, tokenizer, methods.build("plain", target), "tiny")
    needed = "draft-model" in methods.spec(method).needs
    draft: Model | None = PATHS[path](hf_model(1, 1)) if needed else None
    return lm.with_method(method, draft)


def texts(lm: draftwood.LanguageModel) -> list[list[int]]:
    prompt, asked = "w1 w2 w3 w1 w2", {"max_new_tokens": 16, "ignore_eos": True}
    return [lm.generate(prompt, temperature=t, seed=3, **asked).token_ids for t in (0.0, 1.0)]


CASES = [  # what drafts is the same code on every path
    (path, method) for path in PATHS for method in (METHODS if path == "native" else METHODS[-2:])
]


@pytest.mark.parametrize(("path", "method"), thinned(CASES, 4))
def test_texts_are_the_same_whatever_the_default_type_is(path: str, method: str) -> None:
    hf_model(0, 6), hf_model(1, 1)
    before = language_model(path, method)
    expected = texts(before)
    for dtype in TYPES:
        torch.set_default_dtype(dtype)
        assert texts(before) == expected, f"{dtype} set after the load"
        assert texts(language_model(path, method)) == expected, f"{dtype} set before the load"


class Watch(TorchDispatchMode):
    """Notes operations that give a type which nothing around them asked for."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.found = dtype, set[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = result if isinstance(result, (tuple, list)) else (result,)
        if any(isinstance(part, torch.Tensor) and part.dtype == self.dtype for part in given):
            self.found.add(str(func))
        return result


@pytest.mark.parametrize("method", thinned([*METHODS, "stand", "traversal", "sequoia", "aded"], 6))
@pytest.mark.parametrize("path", PATHS)
def test_no_tensor_takes_the_default_type(path: str, method: str) -> None:
    lm = language_model(path, method)
    torch.set_default_dtype(torch.float16)
    with Watch(torch.float16) as watch:
        texts(lm)
    assert not watch.found


def test_the_watch_sees_one_that_does() -> None:
    torch.set_default_dtype(torch.float16)
    with Watch(torch.float16) as watch:
        torch.zeros(2)
    assert watch.found
