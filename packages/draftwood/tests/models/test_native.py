"""Promises of the native path beyond equal answers: single rows, small errors, clear refusals."""

import math
import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwood.loading.models import load_model, model_for
from draftwood.models.model import StepInput
from draftwood.models.native import NativeModel, has_int8, require_int8
from draftwood.native import compiler, library
from draftwood.native.drafting import Costs
from draftwood.native.step import NativeDraft, StepCaller
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel

CPU = torch.device("cpu")
needs_int8 = pytest.mark.skipif(not has_int8(CPU), reason="this CPU has no fast 8-bit products")
CHAIN = [5, 17, 30, 22, 9]
TYPES = ["float32", "bfloat16", pytest.param("int8", marks=needs_int8)]


def beside_others(chain: list[int], nodes: int) -> tuple[DraftTree, list[int]]:
    """A tree of so many nodes with three children each, in which the last children spell the chain,
    and where.
    """
    tokens, parents = (
        [1 + node % 7 for node in range(nodes)],
        [-1] + [node // 3 for node in range(nodes - 1)],
    )
    path = [0]
    for token in chain[1:]:
        children = [node for node, parent in enumerate(parents) if parent == path[-1]]
        if not children:
            break
        path.append(children[-1])
        tokens[path[-1]] = token
    tokens[0] = chain[0]
    return DraftTree.of(tokens, parents), path


def logits_alone_and_in_runs(
    model: LeanModel | NativeModel,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the chain token by token, in one run, and on its way through a tree of 64 nodes."""
    session = model.start()
    session.extend([3, 1, 4, 1, 5, 9, 2, 6] * 3)
    alone = torch.cat([session.extend([token]).logits for token in CHAIN])
    session.rewind(len(CHAIN))
    together = session.forward(DraftTree.chain(CHAIN)).logits
    tree, path = beside_others(CHAIN, 64)
    return alone, together, session.forward(tree).logits[path]


@pytest.mark.model
@pytest.mark.parametrize("dtype", TYPES)
def test_a_node_gives_the_same_bits_alone_in_a_chain_and_in_a_tree(dtype: str) -> None:
    model = load_model("smollm2-135m", dtype).model
    assert isinstance(model, NativeModel)
    alone, together, within = logits_alone_and_in_runs(model)
    assert torch.equal(alone, together)
    assert torch.equal(alone[: len(within)], within)


@pytest.mark.model
def test_library_products_make_no_such_promise() -> None:
    """Negative control: oneDNN's products round differently beside other rows, so equality is not
    for free.
    """
    from draftwood.loading.hub import load_pretrained

    alone, together, _ = logits_alone_and_in_runs(
        LeanModel(load_pretrained("smollm2-135m", dtype="bfloat16").model)
    )
    assert not torch.equal(alone, together)


@needs_int8
def test_in_int8_logits_and_hidden_states_stay_near_those_of_floats() -> None:
    exact, rounded = (
        NativeModel(tiny_llama(0, layers=4), kind).start() for kind in ("float32", "int8")
    )
    here, there = (session.extend(CHAIN, hidden=(0, 2, 4)) for session in (rounded, exact))
    assert not torch.equal(here.logits, there.logits)
    assert (here.logits - there.logits).norm() < 0.1 * there.logits.norm()
    for layer in (0, 2, 4):
        assert (here.states(layer) - there.states(layer)).norm() < 0.1 * there.states(layer).norm()


@pytest.mark.model
@pytest.mark.parametrize("path", [LeanModel, NativeModel])
def test_logits_of_the_real_model_equal_those_of_transformers(path: type) -> None:
    from draftwood.loading.hub import load_pretrained

    loaded = load_pretrained("smollm2-135m", dtype="float32")
    here, there = path(loaded.model).start(), TransformersModel(loaded.model).start()
    text = loaded.tokenizer("The old man went out to sea again, and this time he came back with")[
        "input_ids"
    ]
    tree, _ = beside_others(CHAIN, 16)
    for act in (lambda s: s.extend(text), lambda s: s.forward(tree), lambda s: s.extend([7])):
        own, exact = act(here).logits, act(there).logits
        assert (own - exact).abs().max() <= 1e-5 * exact.abs().max()  # 1e-4 on logits of up to 30


@needs_int8
@pytest.mark.model
def test_weights_that_came_in_four_bits_are_kept_in_four_bits() -> None:
    model = load_model("smollm2-135m", "int8").model
    assert isinstance(model, NativeModel)
    # bits per weight, scales included; the head came in eight
    assert 5.5 < 8 * model.weight_bytes / 134.5e6 < 6.0


@pytest.mark.parametrize("ids", [[3, -1], [40], [2**40], [7, 10**9, 41]])
def test_tokens_beyond_the_vocabulary_are_refused_and_nothing_is_run(ids: list[int]) -> None:
    model = NativeModel(tiny_llama(0, vocab=40))
    session, fresh = model.start(), model.start()
    session.extend(CHAIN)
    fresh.extend(CHAIN)
    named = ", ".join(map(str, sorted({i for i in ids if not 0 <= i < 40})))
    with pytest.raises(
        ValueError, match=f"token ids must be 0 to 39, the model's vocabulary, got {named};"
    ):
        session.extend(ids)
    with pytest.raises(ValueError, match=named):
        session.forward(DraftTree.chain([1, *ids]))
    # the first and the last
    assert torch.equal(session.extend([0, 39]).logits, fresh.extend([0, 39]).logits)


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16])
def test_weights_saved_in_halves_run_in_float32_as_in_transformers(
    saved: torch.dtype, tmp_path
) -> None:
    tiny_llama(0, layers=4).to(saved).save_pretrained(tmp_path)
    hf_model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert hf_model.dtype == torch.float32
    with torch.no_grad():
        exact = hf_model(torch.tensor([CHAIN * 4])).logits[0]
    own = NativeModel(hf_model).start().extend(CHAIN * 4).logits
    rounded = NativeModel(hf_model, "bfloat16").start().extend(CHAIN * 4).logits
    assert (own - exact).abs().max() <= 1e-5 * exact.std()
    assert (rounded - exact).abs().max() > 1e-3 * exact.std()  # what rounding anywhere would show


def test_a_cpu_without_fast_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="int8 runs on CPUs only, not on cuda"):
        require_int8(torch.device("cuda"))
    monkeypatch.setattr(library, "instructions", lambda of_bytes: None)
    with pytest.raises(ValueError, match="AVX2 or better"):
        require_int8(CPU)
    assert not has_int8(CPU)


def test_without_a_compiler_floats_go_on_with_a_warning_and_int8_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    forget()
    try:
        with pytest.warns(
            UserWarning,
            match=r"PyTorch, about 4 times slower .*: \$CXX names no-such-compiler.*; correct it",
        ):
            assert isinstance(model_for(tiny_llama(0)), LeanModel)
        with pytest.raises(ValueError, match=r"\$CXX names no-such-compiler"):
            NativeModel(tiny_llama(0), "int8")
        assert not has_int8(CPU)
        assert not list((tmp_path / "kernels").glob("*/*"))  # nothing half-made is left
    finally:
        forget()


def test_a_home_that_takes_no_library_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    (tmp_path / "home").write_text("a file in the way")
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    forget()
    try:
        with pytest.warns(UserWarning, match=r"4 times slower .*: cannot write .*DRAFTWOOD_HOME"):
            assert isinstance(model_for(tiny_llama(0)), LeanModel)
    finally:
        forget()


def forget() -> None:
    library.library.cache_clear()
    library.available.cache_clear()
    library.key.cache_clear()


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "--no-such-flag"))
    forget()
    try:
        with pytest.raises(
            library.CompilerError, match=r"could not compile the decoder .*no-such-flag"
        ):
            library.library()
    finally:
        forget()


def test_a_library_in_use_counts_as_new() -> None:
    folder = library._compiled().parent
    os.utime(folder, (1, 1))
    assert library._compiled().parent == folder
    assert folder.stat().st_mtime > 1


def test_only_the_newest_libraries_are_kept(tmp_path) -> None:
    for number in range(library.MOST_KEPT + 3):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / library.LIBRARY).touch()
        os.utime(tmp_path / str(number), (number, number))
    (tmp_path / "something else").mkdir()
    library._forget_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["something else", *(str(number) for number in range(3, library.MOST_KEPT + 3))]
    )


def test_a_step_of_the_library_hands_out_the_hidden_states_of_a_forward_pass() -> None:
    model = NativeModel(tiny_llama(0, layers=3))
    one, two = model.start(), model.start()
    for session in (one, two):
        session.extend([1, 2, 3])
    caller = StepCaller(key=0, temperature=0.0)

    def step(draft: NativeDraft, root: int) -> StepInput:
        caller.prepare(draft, root, place=0, max_draft_len=8)
        return StepInput(two, caller, draft.most, draft.hidden, expected_rows=1)

    root = 4
    for max_draft_len, hidden in ((1, (0, 2, 3)), (4, (0, 2, 3)), (2, (3,)), (2, ())):
        costs = Costs([1.0] * max_draft_len, [1.0] * (max_draft_len - 1) + [math.inf])
        draft = NativeDraft(costs, hidden=hidden)
        (made,) = model.forward([step(draft, root)])
        wanted = one.forward(DraftTree.chain([root]), hidden=hidden)
        assert set(made.hidden) == set(hidden)
        for layer in hidden:
            assert torch.equal(made.states(layer)[:1], wanted.states(layer))
        for session in (one, two):
            session.commit([0])
        root = made.steps[0].next_token
    with pytest.raises(ValueError, match="hidden states 0 to 3"):
        model.forward([step(NativeDraft(hidden=(4,)), root)])
