"""Trees on any causal language model give what the model itself gives on each branch, on the
general and lean path.
"""

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from draftwood import engine
from draftwood.drafters import DraftModel, Nothing
from draftwood.engine import Options, generate, generate_batch
from draftwood.methods import Method, build
from draftwood.models.model import ForwardInput, Layers
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Rejection
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models import support
from draftwood_torch.models.transformers import MOST_SMALLER, TransformersModel
from families import (
    DIFFERENT,
    FAMILIES,
    GROUPED,
    LEAN_PATHS,
    SIZES,
    SOME,
    TOLERANCE,
    VOCAB,
    AnyModel,
    assert_close,
    at_nodes,
    deepest_path,
    hf_model,
    model_of,
    plainly,
    skipping,
    some_tokens,
    some_tree,
    text_to,
    through,
)

OTHERS = ("gemma2/lean", "mixtral/lean", "gemma2/native", "qwen3-experts/native")

# One sequence


def test_of_many_sets_of_layers_the_newest_are_kept() -> None:
    model = TransformersModel(tiny_llama(0, layers=8))
    with model.pool.lock:
        first, *_ = made = [
            model._without(frozenset(layer for layer in range(8) if bits >> layer & 1))
            for bits in range(1, 100)
        ]
        assert len(model._smaller) == MOST_SMALLER
        assert model._without(frozenset({0})) is not first
        assert model._without(frozenset({0, 1, 5, 6})) is made[-1]


@pytest.mark.parametrize("family", [*FAMILIES, *LEAN_PATHS])
def test_every_node_of_two_trees_equals_the_models_own_forward(family: str) -> None:
    model, session = hf_model(family), model_of(family).start()
    text = some_tokens(12, seed=1)
    session.extend(text[:5])
    last = session.extend(text[5:], keep="last").logits
    assert_close(last, plainly(model, text)[-1:])
    for seed in (2, 3):
        tree = some_tree(14, seed)
        whole = session.forward(tree).logits
        assert_close(whole, at_nodes(model, text, tree))
        session.commit(path := deepest_path(tree))
        assert path != list(range(len(path)))  # otherwise keeping would be no work
        text += [tree.token_list[node] for node in path]
        assert session.length == len(text)
    assert_close(session.extend([7]).logits, plainly(model, [*text, 7])[-1:])


@pytest.mark.parametrize("family", DIFFERENT)
def test_a_forgotten_branch_or_window_would_be_noticed(family: str) -> None:
    """Negative control: what the model says does depend on the path, and differs where nodes see
    other branches.
    """
    model, text, tree = hf_model(family), some_tokens(12, seed=1), some_tree(14, seed=2)
    session = model_of(family).start()
    session.extend(text)
    as_chain = session.forward(DraftTree.chain(tree.token_list)).logits
    assert (as_chain - at_nodes(model, text, tree)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", DIFFERENT)
def test_a_tree_run_piece_by_piece_equals_the_whole(family: str) -> None:
    model = model_of(family)
    session, tree = model.start(), some_tree(15, seed=4)
    session.extend(some_tokens(9, seed=5))
    whole = session.forward(tree).logits
    pieces, ends = [], [1, 2, 7, 15]
    for first, end in zip([0, *ends], ends, strict=False):
        part = tree.keep(range(end))
        pieces.append(session.forward(part, first).logits)
    assert_close(torch.cat(pieces), whole)


@pytest.mark.parametrize("family", DIFFERENT)
def test_rewound_tokens_can_be_run_over_and_continued(family: str) -> None:
    model, session = hf_model(family), model_of(family).start()
    text = some_tokens(13, seed=6)
    session.extend(text)
    session.rewind(3)
    assert session.length == 10
    tail = DraftTree.of([*text[10:], 1, 2, 3], [-1, 0, 1, 2, 2, 0])
    assert_close(session.forward(tail, first=3).logits, at_nodes(model, text[:10], tail)[3:])
    session.rewind(4)
    assert_close(session.extend([8, 9]).logits, plainly(model, [*text[:6], 8, 9])[-2:])


@pytest.mark.parametrize("family", DIFFERENT)
def test_hidden_states_are_the_models_own(family: str) -> None:
    model, session = hf_model(family), model_of(family).start()
    text, tree = some_tokens(8, seed=7), some_tree(8, seed=8)
    layers = (0, 2, 4)
    given = session.extend(text, hidden=layers).hidden
    at_tree = session.forward(tree, hidden=layers).hidden
    with torch.no_grad():
        own = model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
    for layer in layers:
        assert_close(given[layer], own[layer][0])
    for node in range(len(tree)):
        path = torch.tensor([[*text, *text_to(tree, node)]])
        with torch.no_grad():
            own = model(path, output_hidden_states=True, use_cache=False).hidden_states
        for layer in layers:
            assert_close(at_tree[layer][node], own[layer][0, -1])


def test_hidden_states_only_on_request() -> None:
    assert model_of("llama").start().extend([1, 2]).hidden == {}


def test_the_cache_grows_in_mid_sequence_without_a_trace() -> None:
    model, long = hf_model("llama"), some_tokens(120, seed=9)
    lean = model_of("llama")
    session, tree = lean.start(), some_tree(14, seed=10)
    session.extend(long[:60])
    assert lean.pool.capacity == 128
    session.extend(long[60:])
    logits = session.forward(tree).logits  # needs place 134
    assert lean.pool.capacity == 256
    assert_close(logits, at_nodes(model, long, tree)[: len(tree)])


def test_logits_are_those_of_a_half_precision_model_up_to_its_rounding() -> None:
    model = copy.deepcopy(hf_model("llama")).to(torch.bfloat16)
    session, text, tree = (
        TransformersModel(model).start(),
        some_tokens(12, seed=1),
        some_tree(14, seed=2),
    )
    session.extend(text)
    here, there = session.forward(tree).logits.float(), at_nodes(model, text, tree).float()
    assert (here - there).norm() < 0.03 * there.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("family", DIFFERENT)
def test_trees_on_a_device_equal_those_on_the_cpu(family: str) -> None:
    here, moved = model_of(family), copy.deepcopy(hf_model(family)).to("cuda")
    there = LeanModel(moved) if "/" in family else TransformersModel(moved)
    runs: list[list[ForwardInput]] = [[], []]
    for model, own in zip((here, there), runs, strict=True):
        for seed, length in enumerate((12, 3, 20)):
            session = model.start()
            session.extend(some_tokens(length, seed))
            first = some_tree(9, seed)
            session.forward(first)
            session.commit(deepest_path(first))
            own.append(ForwardInput(session, some_tree(6 + 2 * seed, seed + 10)))
    for own, other in zip(here.forward(runs[0]), there.forward(runs[1]), strict=True):
        assert other.logits.device.type == "cuda"
        assert_close(other.logits.cpu(), own.logits)


# Order of calls


def test_wrong_orders_of_calls_are_refused() -> None:
    session = model_of("llama").start()
    session.extend([1, 2, 3])
    tree = some_tree(4, seed=0)
    with pytest.raises(ValueError, match="nodes before 2 must be run first; 0 were run"):
        session.forward(tree, first=2)
    session.forward(tree)
    with pytest.raises(ValueError, match="node 4 cannot be kept: only 4 nodes were run"):
        session.commit([0, 4])
    session.commit([0])
    with pytest.raises(ValueError, match="nodes before 1"):
        session.forward(tree, first=1)
    with pytest.raises(ValueError, match="cannot take back 5 of 4 tokens"):
        session.rewind(5)
    with pytest.raises(ValueError, match="at least one token"):
        session.extend([])


def test_sessions_of_another_model_are_refused() -> None:
    here, there = model_of("llama"), model_of("llama")
    with pytest.raises(ValueError, match="must belong to the model"):
        here.forward([ForwardInput(there.start(), DraftTree.chain([1]))])


# Several sequences at once


class Pair:
    """A session in a shared model and its double alone in a model of its own."""

    def __init__(self, family: str, shared: AnyModel, length: int, seed: int) -> None:
        self.shared, self.alone = shared.start(), model_of(family).start()
        self.seed, self.tree = seed, some_tree(1, seed)
        text = some_tokens(length, seed)
        assert_close(self.shared.extend(text).logits, self.alone.extend(text).logits)

    def run(self, nodes: int, seed: int, first: int = 0) -> ForwardInput:
        """Nodes before ``first`` are run beforehand, in both."""
        self.tree = some_tree(nodes, seed)
        self.first = first
        if first:
            self.shared.forward(self.tree.keep(range(first)))
            self.alone.forward(self.tree.keep(range(first)))
        return ForwardInput(self.shared, self.tree, first)

    def settle(self, logits: Tensor) -> None:
        assert_close(logits, self.alone.forward(self.tree, self.first).logits)
        for session in (self.shared, self.alone):
            session.commit(deepest_path(self.tree))


def run_together(model: AnyModel, pairs: Sequence[Pair], runs: Sequence[ForwardInput]) -> None:
    for pair, output in zip(pairs, model.forward(runs), strict=True):
        pair.settle(output.logits)


@pytest.mark.parametrize("family", [*SOME, *OTHERS, "gpt2", "gpt-oss", "deepseek-v3"])
def test_sequences_run_together_equal_each_alone(family: str) -> None:
    model = model_of(family)
    pairs = [Pair(family, model, length, seed) for seed, length in enumerate((3, 17, 1, 9))]
    run_together(model, pairs, [pair.run(4 + 3 * i, seed=i) for i, pair in enumerate(pairs)])
    run_together(
        model,
        pairs,
        [
            pair.run(n, 20 + n, first)
            for pair, n, first in zip(pairs, (9, 1, 12, 6), (4, 0, 11, 0), strict=True)
        ],
    )
    apart = [pairs[3], pairs[0], pairs[2]]  # slots neither adjacent nor in order
    run_together(model, apart, [pair.run(5 + i, seed=40 + i) for i, pair in enumerate(apart)])
    pairs[1].shared.close()
    newcomer = Pair(family, model, 6, seed=50)  # takes the slot with what was left in it
    assert newcomer.shared.slot == pairs[1].shared.slot
    apart = [newcomer, pairs[3], pairs[0]]
    run_together(model, apart, [pair.run(7, seed=60 + i) for i, pair in enumerate(apart)])
    slots = len(model.pool.used)
    # more slots are needed
    apart += [Pair(family, model, 4, seed=70), Pair(family, model, 11, seed=71)]
    assert len(model.pool.used) > slots
    run_together(model, apart, [pair.run(3 + i, seed=80 + i) for i, pair in enumerate(apart)])


@pytest.mark.parametrize("family", ["llama", "mistral-window", "mistral-window/lean"])
def test_the_cache_grows_under_several_sequences(family: str) -> None:
    model = model_of(family)
    pairs = [Pair(family, model, length, seed) for seed, length in enumerate((5, 118, 30))]
    assert model.pool.capacity == 128
    run_together(model, pairs, [pair.run(12, seed=i) for i, pair in enumerate(pairs)])
    assert model.pool.capacity == 256
    run_together(model, pairs, [pair.run(6, seed=10 + i) for i, pair in enumerate(pairs)])


def test_hidden_states_of_sequences_run_together() -> None:
    model = model_of("llama")
    pairs = [Pair("llama", model, length, seed) for seed, length in enumerate((3, 9))]
    runs = [pair.run(5 + i, seed=i) for i, pair in enumerate(pairs)]
    for pair, output in zip(
        pairs,
        model.forward([dataclasses.replace(each, hidden=(1, 3)) for each in runs]),
        strict=True,
    ):
        alone = pair.alone.forward(pair.tree, hidden=(1, 3))
        for layer in (1, 3):
            assert_close(output.states(layer), alone.states(layer))


def test_swapped_sequences_would_be_noticed() -> None:
    """Negative control: the sequences of a batch say different things."""
    model = model_of("llama")
    pairs = [Pair("llama", model, length, seed) for seed, length in enumerate((8, 9))]
    here, there = model.forward([pair.run(5, seed=1) for pair in pairs])
    assert (here.logits - there.logits).abs().max() > 100 * TOLERANCE


def drafted(name: str, target: AnyModel) -> Method:
    if name in ("rsd-s", "rsd-c", "specinfer"):
        return build(name, target, TransformersModel(hf_model("qwen2")))
    return build(name, target)


PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], some_tokens(21, seed=3)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("family", "method"),
    [
        (family, name)
        for family in ("llama", "llama/native")
        for name in ("lookup", "recycling", "layer-skip", "rsd-s")
    ]
    + [
        ("mistral-window", "rsd-c"),
        ("mistral-window/lean", "rsd-c"),
        ("mistral-window/native", "rsd-c"),
    ],
)
def test_a_batch_writes_what_each_prompt_writes_alone(
    family: str, method: str, temperature: float
) -> None:
    def sequences(target: AnyModel) -> list[engine.Sequence]:
        chosen = drafted(method, target)
        return [
            engine.Sequence(
                target,
                chosen.drafter,
                chosen.verifier,
                prompt,
                Options(sampling, 4 + 2 * seed, seed=seed),
            )
            for seed, prompt in enumerate(PROMPTS)
        ]

    sampling = Sampling(temperature=temperature)
    together: list[list[int]] = [[] for _ in PROMPTS]
    for number, step in generate_batch(sequences(model_of(family))):
        together[number] += step.tokens
    for number, sequence in enumerate(sequences(model_of(family))):
        alone = [token for _, step in generate_batch([sequence]) for token in step.tokens]
        assert together[number] == alone
        assert len(alone) == 4 + 2 * number


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("llama", "lookup"),
        ("mistral-window", "recycling"),
        ("gemma3", "layer-skip"),
        ("gpt2", "rsd-s"),
        ("llama/native", "recycling"),
        ("mistral-window/lean", "lookup"),
        ("llama/recorded", "rsd-s"),
        ("mistral-window/recorded", "recycling"),
        ("qwen2/recorded", "lookup"),
        ("qwen3/recorded", "layer-skip"),
        ("stablelm/recorded", "recycling"),
        ("mistral-window/native", "lookup"),
        ("qwen3/native", "layer-skip"),
        ("stablelm/native", "rsd-s"),
    ],
)
def test_greedy_trees_write_what_plain_decoding_writes(family: str, method: str) -> None:
    target = model_of(family)
    chosen = drafted(method, target)
    for prompt in PROMPTS:
        steps = generate(
            target, chosen.drafter, chosen.verifier, prompt, Options(max_new_tokens=12)
        )
        tokens = [token for step in steps for token in step.tokens]
        assert len(tokens) == 12
        likeliest = plainly(hf_model(family), [*prompt, *tokens]).argmax(-1).tolist()
        assert tokens == likeliest[len(prompt) - 1 : -1]


def test_slots_come_back_when_a_text_ends_or_is_dropped() -> None:
    target = model_of("llama")
    # drafts with itself: two slots per request
    method = Method(DraftModel(target, Widths((2, 1))), Rejection())
    for _ in range(3):
        for _ in generate(
            target, method.drafter, method.verifier, [1, 2], Options(max_new_tokens=4)
        ):
            pass
    slots = target.pool.slots
    stream = generate(target, Nothing(), Rejection(), [1, 2], Options(max_new_tokens=4))
    next(stream)
    stream.close()
    session = target.start()
    del session
    assert target.pool.slots == slots
    assert not target.pool.used


# Layers left out


def deleted(model: PreTrainedModel, skipped: frozenset[int]) -> PreTrainedModel:
    """A deep copy with these layers really gone and the others renumbered."""
    smaller = copy.deepcopy(model)
    layers = smaller.model.layers
    kept = [layer for index, layer in enumerate(layers) if index not in skipped]
    for index, layer in enumerate(kept):
        layer.self_attn.layer_idx = index
    smaller.model.layers = torch.nn.ModuleList(kept)
    kinds = getattr(smaller.config, "layer_types", None)
    smaller.config.num_hidden_layers = len(kept)
    if kinds is not None:
        smaller.config.layer_types = [
            kind for index, kind in enumerate(kinds) if index not in skipped
        ]
    return smaller


@torch.no_grad()
def with_cache_of(
    model: PreTrainedModel,
    smaller: PreTrainedModel,
    skipped: frozenset[int],
    before: list[int],
    path: list[int],
) -> Tensor:
    """The smaller model's logits after ``path``, reading the keys and values the whole model has of
    ``before``.
    """
    full, part = DynamicCache(), DynamicCache()
    model(torch.tensor([before]), past_key_values=full)
    kept = [layer for index, layer in enumerate(full.layers) if index not in skipped]
    for index, layer in enumerate(kept):
        part.update(layer.keys, layer.values, index)
    return smaller(torch.tensor([path]), past_key_values=part).logits[0, -1]


@pytest.mark.parametrize("skipped", [{1}, {0, 2}, {3}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize(
    "family", ["llama", "llama-eager", "qwen3", "gemma3", "mistral-window", "qwen3/recorded"]
)
def test_skipping_equals_a_really_smaller_model(family: str, skipped: set[int]) -> None:
    layers = frozenset(skipped)
    model, session = hf_model(family), model_of(family).start()
    smaller, text, tree = deleted(model, layers), some_tokens(12, seed=1), some_tree(10, seed=2)
    session.extend(text)
    logits = through(session, tree, skipping(*skipped)).logits
    for node in range(len(tree)):
        assert_close(logits[node], with_cache_of(model, smaller, layers, text, text_to(tree, node)))
    assert (
        logits[0] - plainly(model, [*text, tree.token_list[0]])[-1]
    ).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", [*DIFFERENT, "gpt-neox", "phi", "falcon"])
def test_skipping_leaves_the_target_as_it_was(family: str) -> None:
    model = hf_model(family)
    text, tree = some_tokens(12, seed=1), some_tree(10, seed=2)
    config, modules = model.config.to_dict(), dict(model.named_modules())
    before, expected = plainly(model, text), at_nodes(model, text, tree)
    session = model_of(family).start()
    session.extend(text)
    lone = through(session, DraftTree.chain([tree.token_list[0]]), skipping(1, 2)).logits
    assert_close(through(session, tree, skipping(1, 2)).logits[:1], lone)
    assert session.length == 12
    assert_close(session.forward(tree).logits, expected)
    session.commit(deepest_path(tree))
    assert session.length > 12
    assert model.config.to_dict() == config
    assert dict(model.named_modules()) == modules
    assert torch.equal(plainly(model, text), before)


@pytest.mark.parametrize("family", SOME)
def test_nodes_that_skipped_layers_are_neither_kept_nor_built_upon(family: str) -> None:
    session, tree = model_of(family).start(), some_tree(6, seed=2)
    session.extend([1, 2, 3])
    through(session, tree, skipping(1))
    with pytest.raises(ValueError, match="node 0 cannot be kept: only 0 nodes were run through"):
        session.commit([0])
    for other in (Layers(), skipping(2)):
        with pytest.raises(ValueError, match=r"nodes before 4 .*; 0 .* these layers"):
            through(session, tree, other, first=4)
    through(session, tree, skipping(1), first=4)  # their own tree may go on
    session.forward(tree)
    with pytest.raises(ValueError, match="nodes before 4"):
        through(session, tree, skipping(1), first=4)
    session.commit([0])
    assert session.length == 4


@pytest.mark.parametrize("family", SOME)
def test_tokens_are_appended_and_taken_back_after_a_pass_that_skips(family: str) -> None:
    model, session = hf_model(family), model_of(family).start()
    text, tree = some_tokens(12, seed=1), some_tree(6, seed=2)
    session.extend(text)
    through(session, tree, skipping(1))
    assert_close(session.extend([7, 8]).logits, plainly(model, [*text, 7, 8])[-2:])
    through(session, tree, skipping(1))
    session.rewind(3)
    assert_close(session.extend([9]).logits, plainly(model, [*text[:11], 9])[-1:])


def test_nodes_a_draft_has_overwritten_cannot_be_kept() -> None:
    session = model_of("llama").start()
    session.extend([1, 2, 3])
    session.forward(DraftTree.chain([4, 5]))
    through(session, DraftTree.chain([4]), skipping(1))
    with pytest.raises(ValueError, match="cannot be kept"):
        session.commit([0])


@pytest.mark.parametrize("layers", [{0, 1, 2, 3}, {4}, {-1}, {1, 4}], ids=str)
@pytest.mark.parametrize("family", ["llama", "llama/lean", "llama/native"])
def test_bad_sets_of_layers_are_refused(family: str, layers: set[int]) -> None:
    session = model_of(family).start()
    with pytest.raises(ValueError, match=r"must be some of 0\.\.3 and not all"):
        through(session, DraftTree.chain([1]), skipping(*layers))


# What cannot run trees

SMALL = {
    key: SIZES[key]
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "initializer_range")
}
RUNNING_STATE = {
    "MambaConfig": SMALL,
    "JambaConfig": {
        **GROUPED,
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "Llama4TextConfig": {**GROUPED, "head_dim": 8, "num_local_experts": 2},
}
REFUSED = {
    **{
        name: (name, options, "running state .* rejected nodes")
        for name, options in RUNNING_STATE.items()
    },
    "bloom": (
        "BloomConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "position_ids",
    ),
    "falcon-alibi": ("FalconConfig", {**SIZES, "alibi": True}, "position_ids as they are"),
    "roberta": (
        "RobertaConfig",
        {**SIZES, "is_decoder": True, "pad_token_id": 1},
        "position_ids as they are",
    ),
    "bert": ("BertConfig", {**SIZES, "pad_token_id": 0}, "is an encoder"),
    "gpt-neo": (
        "GPTNeoConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
        },
        "its own causal mask",
    ),
    "openai-gpt": (
        "OpenAIGPTConfig",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4},
        "no KV cache",
    ),
    "xlm": (
        "XLMConfig",
        {"vocab_size": VOCAB, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
        "no KV cache",
    ),
    "flex": (
        "LlamaConfig",
        {**GROUPED, "attn_implementation": "flex_attention"},
        "takes no tree mask; load it with",
    ),
}


def test_a_cache_of_another_name_is_that_of_a_newer_transformers(monkeypatch: Any) -> None:
    model = AutoModelForCausalLM.from_config(transformers.LlamaConfig(**GROUPED)).eval()

    def forward(input_ids: Any, position_ids: Any = None, cache: Any = None) -> None: ...

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ValueError, match="has no KV cache"):
        TransformersModel(model)
    monkeypatch.setattr(support.transformers, "__version__", "5.24.0.dev0")
    with pytest.raises(ValueError, match=r"install 'transformers<5\.24'"):
        TransformersModel(model)


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_run_trees_are_refused_with_the_reason(case: str) -> None:
    name, options, reason = REFUSED[case]
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**options)).eval()
    with pytest.raises(ValueError, match=reason) as refusal:
        TransformersModel(model)
    assert str(refusal.value).startswith(type(model).__name__)


def test_encoder_decoders_are_refused() -> None:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        TransformersModel(transformers.T5ForConditionalGeneration(config).eval())


ROPE = {"rope_theta": 1e4, "factor": 4.0}
SHORT_AND_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
}


@pytest.mark.parametrize(
    ("name", "options", "length"),
    [
        ("LlamaConfig", {"rope_parameters": {**ROPE, "rope_type": "linear"}}, 128),
        ("LlamaConfig", {"rope_parameters": {**ROPE, "rope_type": "dynamic"}}, 128),
        (
            "Phi3Config",
            {"rope_parameters": SHORT_AND_LONG, "original_max_position_embeddings": 16},
            16,
        ),
    ],
)
def test_contexts_end_where_the_rotary_frequencies_would_change(
    name: str, options: dict[str, object], length: int
) -> None:
    config = getattr(transformers, name)(**{**GROUPED, "pad_token_id": 0, **options})
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config).eval()
    model = TransformersModel(hf)
    assert model.context_length == length
    session, tree = model.start(), some_tree(4, seed=3)
    text = some_tokens(min(length, 40) - 1 - tree.depth, seed=1)
    session.extend(text)
    assert_close(session.forward(tree).logits, at_nodes(hf, text, tree))
