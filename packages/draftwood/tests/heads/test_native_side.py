"""CTC, Medusa and Hydra heads compute in the library what they compute in PyTorch."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.heads.ctc import CtcConfig
from draftwood.heads.folder import load, save
from draftwood.heads.native_side import native_frames, native_medusa
from draftwood.heads.shapes import BlockFormat, StoredWeights, as_stored, encoded
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import frames, library
from draftwood.native.formats import HeadSizes, Products
from draftwood.native.frames import FrameShape, NativeFrames
from draftwood.native.matrix import Blocks
from draftwood.testing import tiny_llama
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.layers import Attention, HeadCache, Mlp, RmsNorm
from draftwood_torch.heads.medusa import MedusaHead
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.tensors import as_tensor
from native_heads import some
from tiny_heads import tiny_ctc, tiny_medusa

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

DIM = 32
EVEN = list(range(0, 64, 2))
TOLERANCE = 1e-3
CONFIGS: dict[str, dict[str, Any]] = {
    "layer": {},
    "window": {"window": 5},
    "linear": {"form": "linear"},
    "no root, no blank": {"reads_root": False, "has_blank": False},
    "many frames": {"frames": 9},
}


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=4))


def text(count: int) -> tuple[Tensor, list[int]]:
    """States of a text, and the token behind each."""
    return some(count, DIM, seed=count), torch.arange(count).mul(7).remainder(64).tolist()


class Reference:
    """The head in PyTorch, with its cache."""

    def __init__(self, head: CtcHead, target: Model) -> None:
        self.head, self.target = head, target
        self.cache = HeadCache(1, head.config.sizes, head.frame_weight)

    @torch.no_grad()
    def log_probs(self, states: Tensor, tokens: list[int]) -> Float[Tensor, "frames symbols"]:
        ends = self.target.embeddings_and_head
        embedded = ends.embed(torch.tensor(tokens)).float()
        found = self.head.draft(self.cache, self.head.rows(states, embedded))
        return self.head.log_probs(found, as_tensor(ends.weights().head)[EVEN].float())


def off(target: NativeModel, native: NativeFrames, head: CtcHead, lengths: list[int]) -> float:
    """Largest difference of log-probabilities between library and PyTorch, over several drafts."""
    states, tokens = text(sum(lengths))
    session, reference, first, errors = native.start(), Reference(head, target), 0, [0.0]
    for length in lengths:
        part = slice(first, first + length)
        said = session.probs([states], list(range(first, first + length)), tokens[part])
        wanted = reference.log_probs(states[part], tokens[part])
        errors.append(float((torch.from_numpy(said).log() - wanted).abs().max()))
        first += length
    return max(errors)


@pytest.mark.parametrize("lengths", [[9, 1, 3], [300, 1, 40]], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_frames_say_what_pytorch_says(
    target: NativeModel, config: dict[str, Any], lengths: list[int]
) -> None:
    trained = tiny_ctc(target, EVEN, **config)
    native = native_frames(trained, target)
    assert native is not None
    assert isinstance(trained.network, CtcHead)
    assert off(target, native, trained.network, lengths) < TOLERANCE


@pytest.mark.skipif(not library.instructions(True), reason="needs fast 8-bit products")
@pytest.mark.parametrize("format", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("products", ["float32", "int8"])
def test_frames_of_a_packed_head_are_those_of_its_floats(
    format: BlockFormat, products: Products, tmp_path: Path
) -> None:
    model = NativeModel(tiny_llama(0, layers=4), products)
    stored = load(save(tmp_path / "head", tiny_ctc(model, EVEN), "", dtype=format))
    blocks = as_stored(stored.weights)
    assert isinstance(blocks["frame_weight"], Blocks)
    table = encoded("frame_bias.weight", stored.weights["frame_bias"], format)
    older = StoredWeights({"frame_bias": table}, format)  # as packed heads once had it
    older_blocks = {**blocks, **as_stored(older)}
    floats = {name: stored.weights[name] for name in stored.weights}
    states, tokens = text(12)

    def said(weights: Any) -> Any:
        native = native_frames(replace(stored, weights=weights), model)
        assert native is not None
        return native.start().probs([states], list(range(12)), tokens).copy()

    assert np.array_equal(said(blocks), said(floats))
    assert np.array_equal(said(older_blocks), said({**floats, **older}))
    assert not np.array_equal(said(blocks), said(older_blocks))


@pytest.mark.parametrize("wrong", ["window", "frame_bias", "blank", "norm.weight"])
def test_a_head_that_differs_a_little_is_found(target: NativeModel, wrong: str) -> None:
    trained = tiny_ctc(target, EVEN, window=5)
    native, head = native_frames(trained, target), copy.deepcopy(trained.network)
    assert native is not None
    assert isinstance(head, CtcHead)
    if wrong == "window":
        head.config = replace(head.config, window=4)
    else:
        dict(head.named_parameters())[wrong].data.flatten()[-1] += 0.1
    assert off(target, native, head, [9, 1, 3]) > TOLERANCE


@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_frames_are_the_same_bits_however_the_context_came(
    products: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "threads", lambda: threads)
    model = NativeModel(tiny_llama(0, layers=4), products)
    native = native_frames(tiny_ctc(model, EVEN), model)
    assert native is not None
    assert native.products == ("int4" if products == "int8" else products)
    states, tokens = text(600)
    whole, parts = native.start(), native.start()
    wanted = whole.probs([states], list(range(600)), tokens).copy()
    for first, last in ((0, 1), (1, 258), (258, 260), (260, 599)):
        parts.take([states], list(range(first, last)), tokens[first:last])
    backwards = states.flip(0)  # the same rows elsewhere
    found = parts.probs([backwards], [0], tokens[599:]).copy()
    assert (found == wanted).all()
    assert (found != parts.probs([backwards], [0], tokens[599:])).any()  # frames moved on


class Deep(nn.Module):
    """A head of several states and layers, each of which reads the same rows of the context."""

    def __init__(self, sizes: HeadSizes, config: CtcConfig, reads: int, layers: int) -> None:
        super().__init__()
        dim = sizes.hidden
        self.fc_norm = nn.ModuleList(RmsNorm(dim, sizes.epsilon) for _ in range(reads))
        self.fc = nn.Linear(reads * dim, dim, bias=False)
        self.layers = nn.ModuleList(nn.Module() for _ in range(layers))
        for layer in self.layers:
            layer.input_layernorm = RmsNorm(dim, sizes.epsilon)
            layer.self_attn = Attention(sizes, dim)
            layer.post_attention_layernorm = RmsNorm(dim, sizes.epsilon)
            layer.mlp = Mlp(sizes)
        self.frame_weight = nn.Parameter(some(config.frames, dim, dim) * dim**-0.5)
        self.frame_bias = nn.Parameter(some(config.frames, dim, seed=1))
        self.norm = RmsNorm(dim, sizes.epsilon)
        self.blank = nn.Parameter(some(dim, seed=2))
        self.config, self.sizes = config, sizes

    @torch.no_grad()
    def log_probs(self, states: list[Tensor], rows: Tensor) -> Float[Tensor, "frames symbols"]:
        normed = [norm(each) for norm, each in zip(self.fc_norm, states, strict=True)]
        context: Any = states[-1] + self.fc(torch.cat(normed, dim=-1))
        count, number = len(context), self.config.frames
        drafted = torch.einsum("i,foi->fo", context[-1], self.frame_weight) + self.frame_bias
        positions = torch.cat([torch.arange(count), count + 1 + torch.arange(number)])
        for layer in self.layers:
            cache = HeadCache(1, self.sizes, context)
            attend = cache.attend(torch.ones(count + number, count + number, dtype=torch.bool))
            both: Any = layer.input_layernorm(torch.cat([context, drafted]))  # type: ignore[operator]
            seen = layer.self_attn(both, positions, 0, attend)  # type: ignore[operator]
            drafted = drafted + seen[count:]
            more = layer.mlp(layer.post_attention_layernorm(drafted))  # type: ignore[operator]
            drafted = drafted + more
        head = torch.cat([rows, self.blank[None]])
        return (self.norm(drafted) @ head.T).log_softmax(-1)


def test_several_states_and_layers_are_taken_too() -> None:
    torch.manual_seed(3)
    sizes = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=8)
    config = CtcConfig(sizes, frames=5, reads_root=False)
    head = Deep(sizes, config, reads=3, layers=2)
    rows, embedding = some(11, 32), some(40, 32, seed=4)
    shape = FrameShape(
        *(32, 48, 4, 2, 8, sizes.rope_theta, sizes.epsilon),
        frames=5,
        layers=("layers.0.", "layers.1."),
        reads=3,
        norms_features=True,
        reads_root=False,
        has_blank=True,
        window=None,
    )
    weights = {name: weight.detach() for name, weight in head.state_dict().items()}
    native = NativeFrames(
        shape, weights, draft_tokens=torch.arange(11), lm_rows=rows, embedding=embedding,
        products="float32",
    )  # fmt: skip
    states = list(some(3, 280, 32, seed=5))
    session = native.start()
    session.take(states, list(range(270)), [0] * 270)
    for last in (279, 280):
        first = 270 if last == 279 else 279
        found = torch.from_numpy(
            session.probs(states, list(range(first, last)), [0] * (last - first))
        )
        wanted = head.log_probs([each[:last] for each in states], rows)
        assert float((found.log() - wanted).abs().max()) < TOLERANCE
        other = head.log_probs([each[:last] for each in (*states[1:], states[0])], rows)
        assert float((found.log() - other).abs().max()) > TOLERANCE


@pytest.mark.parametrize(
    "settings", [{}, {"reads_root": True}, {"sees_drafted": True}], ids=["medusa", "root", "hydra"]
)
def test_medusas_heads_say_what_pytorch_says(target: NativeModel, settings: dict[str, Any]) -> None:
    trained = tiny_medusa(target, EVEN, **settings)
    native, head = native_medusa(trained, target), trained.network
    assert native is not None
    assert isinstance(head, MedusaHead)
    ends, states = target.embeddings_and_head, some(5, DIM)
    levels = [0, 1, 1, 3]
    tokens = [[3, 9, 60, 2][: head.config.tokens(level)] for level in levels]
    if tokens[1]:
        tokens[2] = [40, *tokens[1][1:]]
    found = torch.from_numpy(native.logits([states], 2, levels, tokens, room(native, 6)))
    lm_rows = as_tensor(ends.weights().head)[EVEN].float()
    for row, level, read in zip(found, levels, tokens, strict=True):
        embedded = ends.embed(torch.tensor(read, dtype=torch.long)).float()
        wanted = lm_rows @ head(level, states[2], embedded)
        assert float((row - wanted).abs().max()) < TOLERANCE
        other = lm_rows @ head(level, states[3], embedded)
        assert float((row - other).abs().max()) > TOLERANCE
    alone = native.logits([states], 2, levels[2:3], tokens[2:3], room(native, 1))
    assert torch.equal(torch.from_numpy(alone)[0], found[2])


def room(native: Any, rows: int) -> Any:
    return torch.empty(rows, native.vocab_size).numpy()


def test_states_that_are_no_numbers_are_told(target: NativeModel) -> None:
    native, heads = native_frames(tiny_ctc(target, EVEN), target), tiny_medusa(target, EVEN)
    side = native_medusa(heads, target)
    assert native is not None
    assert side is not None
    for value in (torch.nan, torch.inf):
        states, tokens = text(6)
        states[4, 7] = value
        session = native.start()
        assert (session.probs([states], [0, 1], tokens[:2]) >= 0.0).all()
        session.take([states], [4], tokens[4:5])
        said = torch.from_numpy(session.probs([states], [5], tokens[5:]))
        assert bool(said.isnan().all())
        rows = side.logits([states], 4, [0, 1], [[], []], room(side, 2))
        assert bool(torch.from_numpy(rows).isnan().all())


@pytest.mark.parametrize(
    ("states", "rows", "tokens", "message"),
    [
        (some(3, DIM), [0], [64], "token 64 is beyond the vocabulary of 64"),
        (some(3, DIM), [0], [-1], "token -1 is beyond the vocabulary"),
        (some(3, DIM), [3], [1], "rows of 32 entries"),
        (some(3, 30), [0], [1], "rows of 32 entries"),
        (some(3, DIM), [0, 1], [1], "each of 1 tokens needs a row"),
        (some(3, DIM), [], [], "each of 0 tokens needs a row"),
    ],
)
def test_bad_calls_are_refused_and_change_nothing(
    target: NativeModel, states: Tensor, rows: list[int], tokens: list[int], message: str
) -> None:
    native = native_frames(tiny_ctc(target, EVEN), target)
    assert native is not None
    session, other, (good, following) = native.start(), native.start(), text(4)
    with pytest.raises(ValueError, match=message):
        session.probs([states], rows, tokens)
    wanted = other.probs([good], [0, 1, 2, 3], following)
    assert (session.probs([good], [0, 1, 2, 3], following) == wanted).all()
    side = native_medusa(tiny_medusa(target, EVEN, reads_root=True), target)
    assert side is not None
    with pytest.raises(ValueError, match="beyond the vocabulary of 64"):
        side.logits([good], 0, [0], [[64]], room(side, 1))
    with pytest.raises(ValueError, match="other numbers of tokens"):
        side.logits([good], 0, [0], [[]], room(side, 1))


def test_pytorch_runs_what_the_library_cannot(target: NativeModel) -> None:
    lean = LeanModel(tiny_llama(0, layers=4))
    assert native_frames(tiny_ctc(lean, EVEN), lean) is None
    torn = tiny_medusa(target, EVEN)
    next(torn.network.parameters()).data[0, 0] = torch.nan
    assert native_medusa(torn, target) is None
