"""PyTorch, its models and what needs them where they are at hand; where not, what tests take in
their place.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np
import pytest

from checkout import SOURCES
from draftwood.models.configuration import ModelConfiguration
from draftwood.models.decoder_model import DescribedModel
from draftwood.models.description import describe
from draftwood.models.model import Cpu
from draftwood.models.shapes import tensor_shapes

try:
    import torch

    from draftwood.testing import tiny_llama
    from draftwood_torch.lean.model import LeanModel
    from draftwood_torch.models.transformers import TransformersModel
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]

    class LeanModel:  # type: ignore[no-redef]
        """In the place of a road through PyTorch."""

        def __init__(self, network: object) -> None:
            pytest.skip("this road needs PyTorch")

    class TransformersModel(LeanModel):  # type: ignore[no-redef]
        """Likewise."""

    def tiny_llama(*args: Any, **named: Any) -> Any:  # type: ignore[no-redef]
        return described_llama(*args, **named)


def head_of(network: Any) -> np.ndarray:
    """The weights of a tiny Llama's output head, which may be changed in place."""
    if isinstance(network, DescribedModel):
        return network.decoder.lm_head.weight
    return network.lm_head.weight.detach().numpy()


def with_noise(network: Any, size: float) -> Any:
    """A tiny Llama after noise of this size is added to its weights in place."""
    if isinstance(network, DescribedModel):
        chance, layers = np.random.default_rng(1), network.decoder.layers
        parts = [part for layer in layers for part in (layer.query, layer.value, layer.down)]
        for part in [*parts, network.decoder.lm_head]:
            part.weight[:] += size * chance.normal(size=part.weight.shape)
        return network
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for weight in network.parameters():
            weight.add_(size * torch.randn_like(weight))
    return network


def of_file(module: str, *names: str) -> list[Any]:
    """Classes of a module of draftwood-methods that is imported by itself."""
    path = SOURCES["draftwood-methods"] / "draftwood_methods" / f"{module}.py"
    spec = spec_from_file_location(f"{module}_by_itself", path)
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(found)
    return [getattr(found, f"NGram{name}") for name in names]


try:
    from draftwood_methods.drafters.aded import Aded
    from draftwood_methods.drafters.cascade import Cascade, LenientCascade
    from draftwood_methods.drafters.dynamic_exit import DynamicExit
    from draftwood_methods.drafters.early_exit import EarlyExit
    from draftwood_methods.drafters.input_guided import InputGuided
    from draftwood_methods.drafters.jacobi import Jacobi
    from draftwood_methods.drafters.layer_search import LayerSearch
    from draftwood_methods.drafters.layer_skip import LayerSkip
    from draftwood_methods.drafters.lookahead import Lookahead
    from draftwood_methods.drafters.merged import MergedDrafters, MergedDrawn
    from draftwood_methods.drafters.per_level import PerLevel
    from draftwood_methods.drafters.pruned import Pruned
    from draftwood_methods.drafters.stand import Stand
    from draftwood_methods.drafters.token_recycling import TokenRecycling
    from draftwood_methods.drafters.windowed import Windowed
    from draftwood_methods.exits import Exits
    from draftwood_methods.n_grams import NGramSession, NGramSource, NGramTables
    from draftwood_methods.shapes import Until
    from draftwood_methods.shapes.merged_graph import MergedGraph
except ModuleNotFoundError:

    class Absent:  # of a package that needs PyTorch
        """In the place of a part; a test that uses it is skipped."""

        name = "absent"

        def __init__(self, *args: object, **named: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            pytest.skip(f"{name} of a part of draftwood-methods, which needs PyTorch")

    Aded = Absent
    Cascade = Absent
    DynamicExit = Absent
    EarlyExit = Absent
    Exits = Absent
    InputGuided = Absent
    Jacobi = Absent
    LayerSearch = Absent
    LayerSkip = Absent
    LenientCascade = Absent
    Lookahead = Absent
    MergedDrafters = Absent
    MergedDrawn = Absent
    MergedGraph = Absent
    PerLevel = Absent
    Pruned = Absent
    Stand = Absent
    TokenRecycling = Absent
    Until = Absent
    Windowed = Absent
    # these need none of the package's others
    NGramSession, NGramSource, NGramTables = of_file("n_grams", "Session", "Source", "Tables")


def normals(seed: int, *shapes: tuple[int, ...], stream: int = 7) -> list[Any]:
    """Normal numbers in float32: tensors where PyTorch is at hand, or arrays.

    Args:
        stream: of NumPy's numbers; that of each test is one in whose tables wrong rules show.
    """
    if torch is None:
        chance = np.random.default_rng([seed, stream])
        return [chance.normal(size=shape).astype(np.float32) for shape in shapes]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def numbers(values: Any) -> Any:
    """Numbers in float32: a tensor where PyTorch is at hand, or an array."""
    array = np.array(values, np.float32)
    return array if torch is None else torch.from_numpy(array)


def described_llama(
    seed: int = 0,
    layers: int = 2,
    vocab: int = 64,
    dim: int = 32,
    heads: int = 4,
    context: int = 512,
) -> DescribedModel:
    """A random Llama as ``tiny_llama`` makes it, of other numbers."""
    told = {
        **{"model_type": "llama", "vocab_size": vocab, "hidden_size": dim},
        **{"intermediate_size": 2 * dim, "num_hidden_layers": layers},
        **{"num_attention_heads": heads, "num_key_value_heads": max(1, heads // 2)},
        **{"max_position_embeddings": context, "tie_word_embeddings": False},
    }
    config, chance = ModelConfiguration(told), np.random.default_rng(seed)
    weights = {
        name: chance.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in tensor_shapes(config).items()
    }
    decoder = describe(told, weights.get)
    return DescribedModel(decoder, config, frozenset(), "float32", Cpu())
