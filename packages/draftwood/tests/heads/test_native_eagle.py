"""The library's head computes what PyTorch's computes."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.heads.eagle import EagleConfig
from draftwood.heads.packed import native_head
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.formats import Products
from draftwood.native.head_session import HeadSession
from draftwood.native.matrix import Matrix
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.heads.layers import HeadCache, attended, causal
from families import FAMILIES, random_model
from native_heads import (
    CONFIGS,
    SMOLLM2,
    TINY,
    VOCABULARY,
    a_head,
    a_native,
    features_of,
    some,
)
from reference.successors import found_of
from tiny_heads import tiny_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


def floats(stored: Matrix) -> Tensor:
    """The weights of a matrix as a tensor."""
    return torch.from_numpy(stored.floats())


def logits_of(session: HeadSession) -> Tensor:
    return torch.from_numpy(session.logits())


class Reference:
    """The same head in PyTorch, run on a whole text each time it is asked."""

    def __init__(
        self, head: EagleHead, rows: Tensor, embedding: Tensor, products: Products
    ) -> None:
        self.head, self.lm_rows, self.embedding = head, rows, embedding.float()
        self.products: Products = products
        self.features, self.tokens = torch.empty(0), list[int]()

    def take(self, features: Tensor, tokens: list[int]) -> Tensor:
        self.features = torch.cat([self.features, features]) if self.tokens else features
        self.tokens = self.tokens + tokens
        return self.logits([])

    def keep(self, length: int) -> None:
        self.features, self.tokens = self.features[:length], self.tokens[:length]

    @torch.no_grad()
    def logits(self, path: list[int]) -> Float[Tensor, " draft_vocab"]:
        """Behind drafted tokens that follow the last committed row."""
        config, before = self.head.config, len(self.tokens)
        cache = HeadCache(config.layers, config.sizes, self.embedding)
        state, normed = self.head(
            self.embedding[self.tokens],
            self.head.combine(self.features.float()),
            torch.arange(before),
            cache.attend(causal(before, window=config.window)),
        )
        for number, token in enumerate(path, before):
            attend = cache.attend(causal(1, number, config.window))
            place = torch.tensor([number])
            state, normed = self.head(self.embedding[token][None], state[-1:], place, attend)
        return (as_multiplied(normed, self.products) @ self.lm_rows.T)[-1]


def as_multiplied(rows: Tensor, products: Products) -> Tensor:
    """Rows as products read them: in 8 bits each 32 share a scale."""
    if products in ("float32", "bfloat16"):
        return rows.to(getattr(torch, products)).float()
    width = rows.shape[-1]
    groups = nn.functional.pad(rows, (0, -width % 32)).unflatten(-1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / scale).nan_to_num().round() * scale).flatten(-2)[..., :width]


def as_stored(head: EagleHead, products: Products) -> EagleHead:
    """The head in PyTorch with the weights that the library stores, and rows rounded as there."""
    stored = copy.deepcopy(head)
    for module in stored.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = torch.from_numpy(
                Matrix.pack(module.weight.detach(), None, products).floats()
            )
            module.register_forward_pre_hook(lambda _, rows: as_multiplied(rows[0], products))
    return stored


def both(
    config: EagleConfig, products: Products, embedding: Tensor, ranks: int = 4
) -> tuple[HeadSession, Reference]:
    head, rows = a_head(config)
    stored = floats(Matrix.pack(rows, None, products))
    native = a_native(config, products, embedding)
    return native.start(ranks), Reference(as_stored(head, products), stored, embedding, products)


def error(found: Tensor, wanted: Tensor) -> float:
    """The root of the mean square of errors, as a part of the logits' spread."""
    return float((found - wanted).pow(2).mean().sqrt() / wanted.std())


def errors_on_the_way(
    native: HeadSession, reference: Reference, config: EagleConfig
) -> list[float]:
    """A prompt, then steps that keep one, three and two tokens, each with a drafted tree; at last a
    shorter text.
    """
    errors = []
    for seed, count in enumerate((11, 1, 3, 2)):
        features = features_of(config, count, seed)
        tokens = torch.randint(VOCABULARY, (count,)).tolist()
        native.take(features, tokens)
        errors.append(error(logits_of(native)[0], reference.take(features, tokens)))
        a, b, c = found_of(native).tokens[0][:3]
        for parents, level, paths in (
            ([-1, -1, -1], [a, b, c], ([a], [b], [c])),
            ([0, 2, 0], [b, c, c], ([a, b], [c, c], [a, c])),
            ([4], [a], ([c, c, a],)),
        ):
            native.level(parents, level)
            for row, path in enumerate(paths):
                errors.append(error(logits_of(native)[row], reference.logits(list(path))))
    native.keep(9)
    reference.keep(9)
    features = features_of(config, 2)
    native.take(features, [5, 6])
    errors.append(error(logits_of(native)[0], reference.take(features, [5, 6])))
    assert native.length == 11
    return errors


PRODUCTS: tuple[Products, ...] = ("float32", "bfloat16", "int8", "int4")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("products", PRODUCTS)
def test_the_library_computes_what_pytorch_computes(name: str, products: Products) -> None:
    config = CONFIGS[name]
    embedding = some(VOCABULARY, config.sizes.hidden, seed=4)
    found = errors_on_the_way(*both(config, products, embedding), config)
    assert max(found) < (1e-4 if products == "float32" else 1e-2)


@pytest.mark.parametrize("name", ["tiny", "two layers, window"])
def test_a_cache_in_bfloat16_changes_little(name: str) -> None:
    config = CONFIGS[name]
    embedding = some(VOCABULARY, config.sizes.hidden, seed=4).bfloat16()
    found = errors_on_the_way(*both(config, "float32", embedding), config)
    assert 1e-5 < sum(found) / len(found) < 3e-2


@pytest.mark.parametrize("products", ["float32", "int8"])
def test_sizes_of_smollm2(products: Products) -> None:
    config = EagleConfig(SMOLLM2, reads=(2, 15, 27))
    embedding = some(VOCABULARY, 576, seed=4)
    native, reference = both(config, products, embedding)
    features, tokens = features_of(config, 5), [1, 2, 3, 4, 5]
    native.take(features, tokens)
    best = found_of(native).tokens[0][0]
    assert error(logits_of(native)[0], reference.take(features, tokens)) < 1e-3
    native.level([-1], [best])
    assert error(logits_of(native)[0], reference.logits([best])) < 1e-3


def test_a_head_that_is_told_otherwise_computes_otherwise() -> None:
    """Every switch and every weight counts, so that the tests above look at all of them."""
    config = CONFIGS["tiny"]
    embedding = some(VOCABULARY, 32, seed=4)
    features, tokens = features_of(config, 6), [1, 2, 3, 4, 5, 6]
    native = a_native(config, embedding=embedding).start()
    native.take(features, tokens)
    native.level([-1], [7])
    own = logits_of(native)[0]

    def of(net: EagleHead) -> Tensor:
        reference = Reference(net, a_head(config)[1], embedding, "float32")
        reference.take(features, tokens)
        return reference.logits([7])

    head = a_head(config)[0]
    assert error(own, of(head)) < 1e-4
    for other in (
        replace(config, norms_features=False),
        replace(config, feeds_normed=False),
        replace(config, norm_before_residual=True),
        replace(config, window=2),
        replace(config, sizes=replace(TINY, rope_theta=10.0)),
        replace(config, sizes=replace(TINY, epsilon=0.1)),
    ):
        net = EagleHead(other)
        net.load_state_dict(head.state_dict(), strict=False)
        assert error(own, of(net)) > 5e-3, other
    for name in head.state_dict():
        net = a_head(config)[0]
        net.get_parameter(name).data[:] *= 1.5
        assert error(own, of(net)) > 1e-3, name


@pytest.mark.parametrize("family", ["granite", "cohere"])
def test_rows_of_a_target_are_scaled_as_its_logits_are(family: str) -> None:
    """Heads are trained on scaled ones."""
    target = NativeModel(random_model(*FAMILIES[family]), "float32")
    assert target.weights.structure.logit_scale == 0.25
    trained = tiny_eagle(target, range(target.vocab_size))
    head = native_head(trained, target)
    assert head is not None
    network: EagleHead = trained.network
    states = torch.randn(1, len(trained.config.reads), target.hidden_size)
    session = head.start(4)
    session.take(states.numpy(), [3])
    embedded = torch.from_numpy(target.embeddings_and_head.embed(np.array([3])))

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return attended(queries, keys, values, torch.ones(1, 1, dtype=torch.bool))

    with torch.no_grad():
        _, normed = network(embedded, network.combine(states), torch.arange(1), attend)
    wanted = target.embeddings_and_head.logits(normed.numpy(), normed=True)
    assert logits_of(session)[0].tolist() == pytest.approx(wanted[0].tolist(), rel=1e-3, abs=1e-5)
