"""Trees on models with running states say what the models themselves say, token by token."""

import copy
import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, JambaConfig, MambaConfig, OlmoHybridConfig

from draftwood import methods
from draftwood.engine import Options, generate
from draftwood.methods import lossless_names
from draftwood.models.model import ForwardInput
from draftwood.models.session import PooledSession
from draftwood.tree import DraftTree
from draftwood_torch.general import general_model
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.recurrences.hybrid import HybridModel
from draftwood_torch.recurrences.memory import RecurrentMemory
from draftwood_torch.recurrences.pool import MOST_ROWS
from families import TOLERANCE, assert_close, deepest_path, some_tokens, some_tree
from hybrids import HYBRIDS, at_nodes, hf_model, model_of, stepped, widened

PROMPT = some_tokens(20, seed=1)
SOME = ("lfm2", "bamba", "qwen3-next")  # each recurrence, with attention beside it


def settle(session: PooledSession, rounds: int, seed: int) -> list[int]:
    """Run random trees and keep a path of each; the tokens that were kept."""
    chance, text = random.Random(seed), list[int]()
    for number in range(rounds):
        tree = some_tree(chance.randrange(1, 16), seed + number)
        session.forward(tree)
        path = deepest_path(tree)[: 1 + chance.randrange(8)]
        session.commit(path)
        text += [tree.token_list[node] for node in path]
    return text


def difference(here: Tensor, there: Tensor) -> float:
    assert here.shape == there.shape
    return float((here - there).abs().max())


@pytest.mark.parametrize("family", HYBRIDS)
def test_every_node_of_trees_and_chains_equals_single_steps(family: str) -> None:
    """Round by round, until many tokens became part of the state."""
    session, model = model_of(family).start(), hf_model(family)
    session.extend(PROMPT)
    since = settle(session, 12, seed=2)
    assert len(since) > MOST_ROWS
    for tree in (some_tree(64, seed=3), DraftTree.chain(some_tokens(64, seed=4))):
        assert_close(session.forward(tree).logits, at_nodes(model, PROMPT, since, tree))


@pytest.mark.parametrize("family", HYBRIDS)
def test_they_are_equal_to_nine_places_in_float64(family: str) -> None:
    tree = some_tree(64, seed=3)
    with widened():
        session = model_of(family, torch.float64).start()
        session.extend(PROMPT)
        since = settle(session, 8, seed=2)
        here = session.forward(tree).logits
        there = at_nodes(hf_model(family, torch.float64), PROMPT, since, tree)
    assert here.dtype == torch.float64
    assert difference(here, there) <= 1e-9


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_state_that_is_not_rolled_back_would_be_noticed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: rejected nodes stay in the state, as they do in a cache that was cropped
    where it has keys and values alone.
    """
    session, model, tree = model_of(family).start(), hf_model(family), some_tree(14, seed=5)
    session.extend(PROMPT)
    session.forward(tree)
    path = deepest_path(tree)
    since = [tree.token_list[node] for node in path]
    assert len(path) < len(tree)
    keep = RecurrentMemory.keep

    def keeps_the_last(
        self: RecurrentMemory, start: int, path: Sequence[int], before: int
    ) -> object:
        last = len(self.index) - before - (start - self.base)
        return keep(self, start, range(last - len(path), last), before)

    monkeypatch.setattr(RecurrentMemory, "keep", keeps_the_last)
    session.commit(path)
    next_tree = some_tree(8, seed=6)
    there = at_nodes(model, PROMPT, since, next_tree)
    assert difference(session.forward(next_tree).logits, there) > 100 * TOLERANCE


@pytest.mark.parametrize("family", SOME)
def test_long_prompts_in_chunks_equal_the_models_own_pass(family: str) -> None:
    session, model = model_of(family).start(), hf_model(family)
    text = some_tokens(300, seed=7)
    with torch.no_grad():
        own = model(torch.tensor([text])).logits[0]
    ends = [0, 1, 3, 36, 250, 251, 300]
    given = [session.extend(text[start:end]).logits for start, end in pairwise(ends)]
    assert_close(torch.cat(given), own)


@pytest.mark.parametrize("family", SOME)
def test_a_tree_run_piece_by_piece_equals_the_whole(family: str) -> None:
    session, tree = model_of(family).start(), some_tree(15, seed=4)
    session.extend(PROMPT)
    settle(session, 3, seed=8)
    whole = session.forward(tree).logits
    pieces, ends = [], [1, 2, 7, 15]
    for first, end in zip([0, *ends], ends, strict=False):
        pieces.append(session.forward(tree.keep(range(end)), first).logits)
    assert_close(torch.cat(pieces), whole)


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("count", [1, 5, 40, 119])
def test_tokens_that_are_taken_back_never_were(family: str, count: int) -> None:
    """Few are out of the state still, many are not."""
    session, model, text = model_of(family).start(), hf_model(family), some_tokens(120, seed=9)
    session.extend(text)
    session.rewind(count)
    left, back = text[: 120 - count], text[120 - count :][:3]
    tree = DraftTree.of([*back, 1, 2, 3], [*range(-1, len(back) - 1), 0, 0, 0])
    here = session.forward(tree, first=len(back)).logits
    assert_close(here, at_nodes(model, left, [], tree)[len(back) :])
    session.commit([0])
    session.rewind(1)
    assert_close(session.extend([8, 9]).logits, stepped(model, left, [[8, 9]])[0])


@pytest.mark.parametrize("family", SOME)
def test_forks_go_on_by_themselves(family: str) -> None:
    origin, model, text = model_of(family).start(), hf_model(family), some_tokens(90, seed=10)
    origin.extend(text)
    origin.forward(some_tree(6, seed=11))  # nodes are not copied
    for length in (90, 86, 30):
        fork, tree = origin.fork(length=length), some_tree(9, seed=length)
        assert_close(fork.forward(tree).logits, at_nodes(model, text[:length], [], tree))
        fork.close()
    again = origin.fork(length=30)
    again.rewind(3)
    again.commit([0, 1])
    assert_close(again.forward(tree).logits, at_nodes(model, text[:29], [], tree))
    origin.commit([])
    tree = some_tree(9, seed=12)
    assert_close(origin.forward(tree).logits, at_nodes(model, text, [], tree))


@pytest.mark.parametrize("family", SOME)
def test_states_go_back_with_their_sequences_and_hold_no_others(family: str) -> None:
    model = general_model(hf_model(family))
    sessions = [model.start() for _ in range(8)]
    for number, session in enumerate(sessions):
        session.extend(some_tokens(6 + number, seed=number))
    tree = DraftTree.chain([1, 2, 3])
    model.forward([ForwardInput(session, tree) for session in sessions])
    assert isinstance(model, HybridModel)
    rows = [each for memory in model.states._memories.values() for each in memory.rows]
    for each in rows:
        assert each.untyped_storage().nbytes() == each.numel() * each.element_size()
    for session in sessions:
        session.close()
    assert model.states.used == set()
    assert not model.states._memories
    assert not model.states._tokens


@pytest.mark.parametrize("family", SOME)
def test_sequences_run_together_equal_each_alone(family: str) -> None:
    model, lengths = model_of(family), (3, 50, 1, 20)
    shared = [model.start() for _ in lengths]
    alone = [model_of(family).start() for _ in lengths]
    for sessions in (shared, alone):
        for number, (session, length) in enumerate(zip(sessions, lengths, strict=True)):
            session.extend(some_tokens(length, seed=number))
            settle(session, number, seed=20 + number)
    for turn in range(3):
        trees = [some_tree(4 + 3 * number, seed=30 + turn) for number in range(len(lengths))]
        inputs = [ForwardInput(*pair) for pair in zip(shared, trees, strict=True)]
        for session, own, tree, output in zip(
            shared, alone, trees, model.forward(inputs), strict=True
        ):
            assert_close(output.logits, own.forward(tree).logits)
            session.commit(path := deepest_path(tree))
            own.commit(path)


def test_a_pass_that_fails_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("bamba")
    session, tree = model.start(), some_tree(9, seed=13)
    session.extend(PROMPT)
    settle(session, 6, seed=14)
    expected = session.forward(tree).logits
    head = model.hf_model.get_output_embeddings()
    for failing in (
        lambda: session.forward(tree),
        lambda: session.extend(some_tokens(80, seed=15)),
    ):
        handle = head.register_forward_pre_hook(_fail)
        with pytest.raises(KeyboardInterrupt):
            failing()
        handle.remove()
        assert_close(session.forward(tree).logits, expected)


def _fail(*given: object) -> None:
    raise KeyboardInterrupt


def test_a_slot_that_comes_back_begins_empty() -> None:
    model, own = model_of("qwen3-next"), hf_model("qwen3-next")
    first = model.start()
    first.extend(PROMPT)
    taken = model.pool.bytes
    first.close()
    second = model.start()
    assert second.slot == first.slot
    assert model.pool.bytes < taken
    tree = some_tree(9, seed=16)
    second.extend([5, 6])
    assert_close(second.forward(tree).logits, at_nodes(own, [5, 6], [], tree))
    second.clear()
    second.extend([7, 8])
    assert_close(second.forward(tree).logits, at_nodes(own, [7, 8], [], tree))


# Texts


LENGTH = 28
METHODS = [name for name in lossless_names() if not {"head", "layers"} & methods.spec(name).needs]


@pytest.mark.parametrize("method", METHODS)
def test_greedy_texts_are_those_of_transformers(method: str) -> None:
    """With itself as the draft model, whose state is rolled back too."""
    for family in SOME:
        target = model_of(family)
        draft = target if "draft-model" in methods.spec(method).needs else None
        chosen = methods.build(method, target, draft, curve=lambda nodes: 1.0 + 0.02 * nodes)
        assert greedy(chosen, target, PROMPT) == plain_text(family, PROMPT)


@pytest.mark.parametrize("family", HYBRIDS)
def test_greedy_trees_of_every_class_write_what_transformers_writes(family: str) -> None:
    target = model_of(family)
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    for method, draft in (("lookup", None), ("rsd-s", target)):
        assert greedy(methods.build(method, target, draft), target, prompt) == plain_text(
            family, prompt
        )


def greedy(method: methods.Method, target: HybridModel, prompt: list[int]) -> list[int]:
    options = Options(max_new_tokens=LENGTH)
    steps = generate(target, method.drafter, method.verifier, prompt, options)
    return [token for step in steps for token in step.tokens]


def plain_text(family: str, prompt: list[int]) -> list[int]:
    """By the model's own ``generate``."""
    return list(_plain_text(family, tuple(prompt)))


@cache
def _plain_text(family: str, prompt: tuple[int, ...]) -> list[int]:
    text: Any = hf_model(family).generate(  # type: ignore[operator]
        torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False
    )
    return text[0, len(prompt) :].tolist()


# Abilities and refusals


@pytest.mark.parametrize("family", HYBRIDS)
def test_hidden_states_are_the_models_own_or_not_offered(family: str) -> None:
    model, own, text = model_of(family), hf_model(family), some_tokens(8, seed=17)
    if "hidden" not in model.abilities:
        with pytest.raises(ValueError, match="gives hidden states"):
            model.start().extend(text, hidden=(0,))
        return
    layers = (0, 2, model.layers)
    given = model.start().extend(text, hidden=layers).hidden
    with torch.no_grad():
        states = own(torch.tensor([text]), output_hidden_states=True).hidden_states
    for layer in layers:
        assert_close(given[layer], states[layer][0])


def test_layers_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="leave out decoder layers"):
        methods.build("layer-skip", model_of("bamba"))


def test_16_bits_are_close() -> None:
    for family in SOME:
        model = copy.deepcopy(hf_model(family)).bfloat16()
        session, tree = HybridModel(model).start(), some_tree(14, seed=2)
        session.extend(PROMPT)
        here = session.forward(tree).logits.float()
        there = at_nodes(hf_model(family), PROMPT, [], tree)
        assert (here - there).norm() < 0.1 * there.norm()


def test_recurrences_that_are_not_known_are_refused_by_name() -> None:
    sizes: Any = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2}
    more: Any = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    for config, named in (
        (MambaConfig(**sizes), "MambaForCausalLM has layers .MambaMixer. that keep"),
        (JambaConfig(**sizes, **more), "JambaForCausalLM has layers .JambaMambaMixer. that keep"),
        (
            OlmoHybridConfig(**sizes, **more, pad_token_id=None),
            ".OlmoHybridGatedDeltaNet. that keep.*attention or of the kinds Lfm2ShortConv, Lfm2Moe",
        ),
    ):
        model = AutoModelForCausalLM.from_config(config)
        with pytest.raises(ValueError, match=named):
            general_model(model)


def test_other_classes_refuse_hybrids() -> None:
    with pytest.raises(ValueError, match="BambaForCausalLM keeps running states"):
        TransformersModel(hf_model("bamba"))


def test_the_model_itself_stays_as_it_was() -> None:
    own = hf_model("zamba2")
    modules = dict(own.named_modules())
    session = model_of("zamba2").start()
    session.extend(PROMPT, hidden=(1,))
    assert dict(own.named_modules()) == modules
    with torch.no_grad():
        states = own(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    assert len(states) == own.config.num_hidden_layers + 1
