"""Recorded runs equal runs that are not recorded, whatever happened to the cache between them."""

import copy
import random
import warnings
from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwood.drafters import DraftModel, Nothing
from draftwood.engine import Options, Sequence, generate
from draftwood.models.model import ForwardInput, Layers
from draftwood.sampling import Sampling
from draftwood.shapes import StochasticBeam
from draftwood.verifiers import Match
from draftwood_torch.lean import graphs
from draftwood_torch.lean.graphs import LEAST_CONTEXT, MOST_ROWS, CudaRecord, Graphs
from draftwood_torch.lean.model import LeanModel
from families import some_tokens, some_tree
from tape import record

VOCAB = 40
TOLERANCE = 1e-4
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "mistral-window": ("MistralConfig", {"sliding_window": 7}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "stablelm": ("StableLmConfig", {}),
}


@cache
def hf_model(family: str) -> PreTrainedModel:
    name, options = FAMILIES[family]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(getattr(transformers, name)(**SIZES, **options)).eval()


def recorded(family: str = "llama", recorder: Callable = record) -> LeanModel:
    model = LeanModel(hf_model(family))
    model.graphs = Graphs(recorder)
    return model


def far_apart(here: Tensor, there: Tensor) -> float:
    assert here.shape == there.shape
    return float((here - there).abs().max())


class Walk:
    """The same random calls on two models, whose answers are compared."""

    def __init__(self, here: LeanModel, there: LeanModel, seed: int) -> None:
        self.models, self.chance = (here, there), random.Random(seed)
        self.pairs: list[tuple] = []
        self.ran: list[int] = []  # nodes of each pair of sessions behind its committed tokens

    def start(self) -> None:
        self.pairs.append(tuple(model.start() for model in self.models))
        self.ran.append(0)
        self.extend(len(self.pairs) - 1)

    def extend(self, number: int) -> None:
        tokens = some_tokens(
            self.chance.choice([1, 2, 5, 30, 100, 140]), self.chance.randrange(1000)
        )
        keep = self.chance.choice(["all", "last"])
        self.compare(
            *(session.extend(tokens, keep, hidden=(1, 3)) for session in self.pairs[number])
        )
        self.ran[number] = 0

    def forward(self, number: int) -> None:
        tree = some_tree(
            self.chance.choice([1, 2, 3, 7, 8, 9, 40, 64, 130]), self.chance.randrange(1000)
        )
        first = self.chance.choice([0, 0, len(tree) // 2, len(tree) - 1])
        if first:
            self.compare(
                *(session.forward(tree.keep(range(first))) for session in self.pairs[number])
            )
        self.compare(*(session.forward(tree, first) for session in self.pairs[number]))
        self.ran[number] = len(tree)

    def commit(self, number: int) -> None:
        path = sorted(self.chance.sample(range(self.ran[number]), min(self.ran[number], 4)))
        for session in self.pairs[number]:
            session.commit(path)
        self.ran[number] = 0

    def rewind(self, number: int) -> None:
        count = self.chance.randrange(min(3, self.pairs[number][0].length) + 1)
        for session in self.pairs[number]:
            session.rewind(count)
        self.ran[number] = count

    def skip(self, number: int) -> None:
        tree = some_tree(self.chance.choice([1, 6]), self.chance.randrange(1000))
        layers = self.chance.choice(
            [
                Layers(without_attention=frozenset({1}), without_mlp=frozenset({1})),
                Layers(without_attention=frozenset({0})),
                Layers(without_mlp=frozenset({0, 2})),
            ]
        )
        self.compare(
            *(
                model.forward([ForwardInput(session, tree, 0, (1, 2), layers)])[0]
                for model, session in zip(self.models, self.pairs[number], strict=True)
            )
        )
        self.ran[number] = 0

    def together(self, number: int) -> None:
        trees = [some_tree(6, seed) for seed in range(len(self.pairs))]
        answers = [
            model.forward(
                [
                    ForwardInput(pair[side], tree)
                    for pair, tree in zip(self.pairs, trees, strict=True)
                ]
            )
            for side, model in enumerate(self.models)
        ]
        for here, there in zip(*answers, strict=True):
            self.compare(here, there)
        self.ran = [6] * len(self.pairs)

    def close(self, number: int) -> None:
        for session in self.pairs.pop(number):
            session.close()
        del self.ran[number]

    def compare(self, here, there) -> None:
        assert far_apart(here.logits, there.logits) <= TOLERANCE
        assert here.hidden.keys() == there.hidden.keys()
        for layer in here.hidden:
            assert far_apart(here.states(layer), there.states(layer)) <= TOLERANCE

    def step(self) -> None:
        if not self.pairs or (len(self.pairs) < 3 and self.chance.random() < 0.1):
            self.start()
        acts = [self.forward] * 5 + [self.commit] * 3 + [self.extend] * 2
        acts += [
            self.rewind,
            self.skip,
            self.together,
            *([self.close] if len(self.pairs) > 1 else []),
        ]
        self.chance.choice(acts)(self.chance.randrange(len(self.pairs)))


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_runs_equal_others_whatever_lies_between(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees, pieces of trees, rewinds, skipped layers, hidden states, several sequences, a cache
    that grows.
    """
    monkeypatch.setattr(graphs, "STRETCH", 128)
    here, there = recorded(family), LeanModel(hf_model(family))
    walk = Walk(here, there, seed=len(family))
    layouts = set()
    with torch.no_grad():
        for _ in range(40):
            walk.step()
            layouts.add((here.pool.slots, here.pool.capacity))
    assert len(layouts) >= 3
    assert here.graphs is not None
    assert not here.graphs.failed
    assert here.graphs.recorded


def test_trees_of_all_sizes_at_the_edges_of_buckets() -> None:
    here, there = recorded(), LeanModel(hf_model("llama"))
    assert here.graphs is not None
    sessions = here.start(), there.start()
    contexts = set()
    for length in (1, 190, 255, 256, 480, 1020, 2000):  # the last ones in two and more stretches
        more = length - sessions[0].length
        for session in sessions:
            for piece in torch.tensor(some_tokens(more, seed=length)).split(500):
                session.extend(piece.tolist())
        for nodes in (*range(1, 10), 15, 16, 17, 33, 64, MOST_ROWS):
            answers = [session.forward(some_tree(nodes, seed=nodes)).logits for session in sessions]
            assert far_apart(*answers) <= TOLERANCE
        contexts |= {bucket.context for bucket in here.graphs.recorded}
    assert contexts == {256, 512, 1024, 2048, 4096}


def test_a_bucket_is_recorded_once_and_anew_when_the_cache_moves() -> None:
    times: list[int] = []

    def counting(work: Callable[[], None]) -> Callable[[], None]:
        times.append(1)
        return record(work)

    model = recorded(recorder=counting)
    assert model.graphs is not None
    session = model.start()
    session.extend(some_tokens(5))  # 8 rows
    for nodes in (5, 6, 7, 8):
        session.forward(some_tree(nodes))
    assert len(times) == 1
    session.forward(some_tree(9))
    session.forward(some_tree(16))
    assert len(times) == 2
    assert model.pool.capacity == LEAST_CONTEXT
    other = model.start()  # a second slot
    session.forward(some_tree(8))
    assert len(times) == 3
    other.extend(some_tokens(8))
    assert len(times) == 4
    assert len(model.graphs.recorded) == 2


def test_graphs_of_a_cache_that_moved_would_be_noticed() -> None:
    """Negative control: played back over the old cache, a run misses what came after it moved."""
    here, there = recorded(), LeanModel(hf_model("llama"))
    assert here.graphs is not None
    sessions, tree = (here.start(), there.start()), some_tree(7)
    for session in sessions:
        session.extend(some_tokens(20))
        session.forward(tree)
    old = dict(here.graphs.recorded)
    assert here.start().slot == 1  # moves the cache
    for session in sessions:
        session.extend(some_tokens(3, seed=5))
    assert far_apart(*(session.forward(tree).logits for session in sessions)) <= TOLERANCE
    here.graphs.recorded = old
    assert far_apart(*(session.forward(tree).logits for session in sessions)) > 100 * TOLERANCE


def test_an_open_mask_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: rows see neither padding nor what is left in the cache behind them."""
    monkeypatch.setattr(graphs, "_MASKED", 0.0)
    sessions = recorded().start(), LeanModel(hf_model("llama")).start()
    for session in sessions:
        session.extend(some_tokens(20))
    assert (
        far_apart(*(session.forward(some_tree(7)).logits for session in sessions)) > 100 * TOLERANCE
    )


def test_a_run_writes_only_behind_what_is_live() -> None:
    model = recorded()
    first, second = model.start(), model.start()
    for session in (first, second):
        session.extend(some_tokens(20, session.slot))
    tree = some_tree(9)
    first.forward(tree.keep(range(4)))
    before = [half.clone() for half in model.pool.layer(1)]
    first.forward(tree, 4)  # five rows in a bucket of eight
    for old, new in zip(before, model.pool.layer(1), strict=True):
        assert torch.equal(old[1], new[1])
        assert torch.equal(old[0, :24], new[0, :24])
        changed = (old[0] != new[0]).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == list(range(24, 32))


def test_what_a_run_gave_stays_as_it_is() -> None:
    session = recorded().start()
    session.extend(some_tokens(20))
    output = session.forward(some_tree(6, seed=1), hidden=(0, 2, 3))
    logits, hidden = (
        output.logits.clone(),
        {layer: state.clone() for layer, state in output.hidden.items()},
    )
    other = session.forward(some_tree(6, seed=2), hidden=(0, 2, 3))
    assert not torch.equal(other.logits, logits)
    assert torch.equal(output.logits, logits)
    for layer, state in hidden.items():
        assert not torch.equal(other.states(layer), state)
        assert torch.equal(output.states(layer), state)


def test_prompts_large_trees_and_batches_are_not_recorded() -> None:
    model = recorded()
    assert model.graphs is not None
    first, second = model.start(), model.start()
    for session in (first, second):
        session.extend(some_tokens(MOST_ROWS + 1))
    first.forward(some_tree(MOST_ROWS + 1))
    model.forward([ForwardInput(first, some_tree(3)), ForwardInput(second, some_tree(4))])
    assert not model.graphs.recorded
    first.forward(some_tree(MOST_ROWS))
    assert len(model.graphs.recorded) == 1


def test_the_graphs_not_used_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    model = recorded()
    assert model.graphs is not None
    session = model.start()
    for nodes in (1, 2, 1, 4):
        session.forward(some_tree(nodes))
    assert [bucket.rows for bucket in model.graphs.recorded] == [1, 4]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run asks the device for a number."""
    usual = LeanModel._decode

    def decode(model: LeanModel, tokens: Tensor, *rest: object) -> graphs.Layers:
        assert tokens.max().item() < VOCAB
        return usual(model, tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(LeanModel, "_decode", decode)


def full_memory(work: Callable[[], None]) -> Callable[[], None]:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.usefixtures("waiting")
def test_where_recording_fails_decoding_goes_on_after_one_warning() -> None:
    check_fallback(record, "waits for the device")


def test_where_memory_is_short_decoding_goes_on_after_one_warning() -> None:
    check_fallback(full_memory, "CUDA out of memory")


def check_fallback(recorder: Callable, reason: str) -> None:
    sessions = recorded(recorder=recorder).start(), LeanModel(hf_model("llama")).start()
    with pytest.warns(UserWarning, match=f"slower than it could, without CUDA graphs: .*{reason}"):
        answers = [session.extend(some_tokens(9)).logits for session in sessions]
    assert far_apart(*answers) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers = Layers(without_attention=frozenset({1}), without_mlp=frozenset({1}))
        answers = [
            session.model.forward([ForwardInput(session, some_tree(9), layers=layers)])[0].logits
            for session in sessions
        ]
    assert far_apart(*answers) == 0


# Attention


def scattered(
    heads: int, rows: int, context: int, dim: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values, and a bias by which rows see only a few places, all in the first
    and last hundred.
    """
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(heads, rows, dim, generator=draw) * 3
    keys, values = (torch.randn(context, heads, dim, generator=draw) for _ in range(2))
    sees = torch.rand(rows, context, generator=draw) < 0.2
    sees[:, 100:-100] = False
    sees[0, 100:] = False
    return query, keys, values, torch.zeros(rows, context).masked_fill(~sees, graphs._MASKED)


@pytest.mark.parametrize("context", [256, 512, 1024, 4096])
def test_stretches_of_the_context_add_up(context: int) -> None:
    query, keys, values, bias = scattered(heads=3, rows=10, context=context, dim=8)
    own = graphs.attention(query, keys, values, bias)
    usual = (query, keys.transpose(0, 1), values.transpose(0, 1), bias)
    assert far_apart(own, functional.scaled_dot_product_attention(*usual)) < 1e-5


def test_stretches_that_count_alike_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a stretch of which a row sees nothing must not count."""
    query, keys, values, bias = scattered(heads=3, rows=10, context=1024, dim=8)
    own = graphs.attention(query, keys, values, bias)
    fused = graphs._fused
    monkeypatch.setattr(graphs, "_fused", lambda *given: (fused(*given)[0], torch.zeros(2, 3, 10)))
    assert far_apart(own, graphs.attention(query, keys, values, bias)) > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cuda_kernels_are_given_what_they_ask_for(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: equal types, rows at multiples of 16 bytes, shapes that the kernel takes."""
    monkeypatch.setattr(graphs, "STRETCH", 128)
    fused, calls = graphs._fused, []

    def checked(*given: Tensor) -> tuple[Tensor, Tensor]:
        for tensor in given:
            assert tensor.dtype == dtype
            assert tensor.stride(-1) == 1
            assert all(stride * tensor.element_size() % 16 == 0 for stride in tensor.stride()[:-1])
            assert tensor.data_ptr() % 16 == 0
        mixed, sums = fused(*given)
        on_meta = (tensor.to("meta") for tensor in given)
        there, more_sums, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            *on_meta, True
        )
        assert there.shape == mixed.shape
        assert more_sums[..., : given[0].shape[2]].shape == sums.shape
        calls.append(len(given[1]))
        return mixed, sums

    monkeypatch.setattr(graphs, "_fused", checked)
    model = LeanModel(copy.deepcopy(hf_model("mistral-window")).to(dtype))
    model.graphs = Graphs(record)
    session = model.start()
    session.extend(some_tokens(300))
    session.forward(some_tree(5))
    assert set(calls) == {4}


# On a GPU


def on_gpu(family: str, dtype: torch.dtype = torch.float32) -> LeanModel:
    return LeanModel(copy.deepcopy(hf_model(family)).to("cuda", dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_runs_equal_others(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "STRETCH", 128)
    here, there = on_gpu(family), on_gpu(family)
    there.graphs = None
    walk = Walk(here, there, seed=1)
    for _ in range(60):
        walk.step()
    assert here.graphs is not None
    assert isinstance(here.graphs.record, CudaRecord)
    assert not here.graphs.failed
    assert here.graphs.recorded


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_captured_runs_in_halves_round_as_others_do(dtype: torch.dtype) -> None:
    """Both are as far from float32; each rounds in its own order."""
    models = on_gpu("llama", dtype), on_gpu("llama", dtype), on_gpu("llama")
    models[1].graphs = None
    sessions = [model.start() for model in models]
    for session in sessions:
        for piece in torch.tensor(some_tokens(1500)).split(500):
            session.extend(piece.tolist())
    for nodes in (1, 5, 64):
        own, other, truth = (session.forward(some_tree(nodes)).logits for session in sessions)
        assert (own - truth).norm() < 1.5 * (other - truth).norm()
        assert (other - truth).norm() < 0.3 * truth.norm()


@pytest.mark.gpu
def test_greedy_texts_by_graphs_are_those_without() -> None:
    texts = []
    for with_graphs in (True, False):
        model, draft = on_gpu("llama"), on_gpu("qwen3")
        if not with_graphs:
            model.graphs = draft.graphs = None
        for drafter in (Nothing(), DraftModel(draft, StochasticBeam(3, 3))):
            steps = generate(model, drafter, Match(), [1, 2, 3], Options(max_new_tokens=300))
            texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_recorded_pass_does_not_wait_for_the_device() -> None:
    model = on_gpu("llama")
    drafter = DraftModel(on_gpu("qwen3"), StochasticBeam(3, 3))
    sequence = Sequence(model, drafter, Match(), [1, 2, 3], Options(Sampling(1.0), 30, seed=0))
    for _ in range(4):  # the prompt, then trees; records
        sequence.commit(model.forward(sequence.plan()), 0.0)
    inputs = sequence.plan()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outputs = model.forward(inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (step,) = sequence.commit(outputs, 0.0)
    assert step is not None
    assert step.tokens


@pytest.mark.gpu
@pytest.mark.usefixtures("waiting")
def test_where_capturing_fails_decoding_goes_on() -> None:
    here, there = on_gpu("llama"), on_gpu("llama")
    there.graphs = None
    sessions = here.start(), there.start()
    with pytest.warns(UserWarning, match="slower than it could, without CUDA graphs"):
        answers = [session.extend(some_tokens(9)).logits for session in sessions]
    assert far_apart(*answers) <= TOLERANCE
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
