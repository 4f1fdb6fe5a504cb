"""Keys and values in 8 bits: close to floats, rows of their own, half of the memory."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

import draftwood
import families
from draftwood.loading.models import load_model, model_for
from draftwood.models.model import ForwardInput, Layers
from draftwood.models.native import NativeModel
from draftwood.models.native import model as native
from draftwood.native import library
from draftwood.testing import tiny_llama
from draftwood_bench.run.formats import load_format
from models.test_attention import BLOCK, CHAIN, TREE, hf_model, some

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
LENGTHS = (2, BLOCK - 3, BLOCK + 37)


def in_bytes(head_dim: int, window: int | None = None) -> NativeModel:
    return NativeModel(hf_model(head_dim, window), cache="int8")


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=2))


def after(model: NativeModel, length: int) -> tuple[Tensor, Tensor]:
    """Logits of a text, and of a tree behind it."""
    session = model.start()
    return session.extend(some(length)).logits, session.forward(TREE).logits


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_logits_are_close_to_those_of_a_float_cache(head_dim: int, window: int | None) -> None:
    model, exact = in_bytes(head_dim, window), NativeModel(hf_model(head_dim, window))
    for length in LENGTHS:
        for own, other in zip(after(model, length), after(exact, length), strict=True):
            assert not torch.equal(own, other)
            assert (own - other).abs().max() < 0.15 * other.std()
            assert (own - other).square().mean().sqrt() < 0.02 * other.std()


@pytest.mark.parametrize("family", ["gpt-oss", "gemma2"])  # sinks, and capped scores
def test_what_families_do_to_scores_is_done_to_bytes_too(family: str) -> None:
    tokens, hf = families.some_tokens(40, seed=1), families.hf_model(family).float()
    floats, in_bytes = (
        NativeModel(hf, "float32", cache=cache).start().extend(tokens).logits
        for cache in (None, "int8")
    )
    assert not torch.equal(floats, in_bytes)
    assert (floats - in_bytes).square().mean().sqrt() < 0.05 * floats.std()


@pytest.mark.parametrize(("head_dim", "window"), [(8, None), (64, 40), (80, None), (64, None)])
def test_a_row_is_its_own(head_dim: int, window: int | None) -> None:
    model = in_bytes(head_dim, window)
    for length in LENGTHS:
        text = some(length)
        session, alone, other = model.start(), model.start(), model.start()
        session.extend(text)
        other.extend(text[::-1] * 2)
        for start in range(0, length, 51):
            alone.extend(text[start : start + 51])
        found = session.forward(TREE).logits
        beside = model.forward([ForwardInput(other, TREE), ForwardInput(alone, TREE)])[1].logits
        assert torch.equal(found, beside)
        for node in CHAIN:
            single = alone.extend([int(TREE.tokens[node])]).logits[0]
            assert torch.equal(single, found[node]), node


def test_numbers_of_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = in_bytes(64), []
    for count in (1, 2, 5):
        monkeypatch.setattr(native, "threads", lambda count=count: count)
        found.append(after(model, 2 * BLOCK + 9))
    for each in found[1:]:
        assert all(torch.equal(own, first) for own, first in zip(each, found[0], strict=True))


def test_commits_forks_and_growth_move_bytes_with_their_scales() -> None:
    model = in_bytes(64)
    session = model.start()
    session.extend(some(100))
    session.forward(TREE)
    session.commit(CHAIN)
    fork = session.fork()  # makes room for a second slot
    fork.extend(some(200, 1))  # and for longer texts
    fork.close()
    text = [*some(100), *(int(TREE.tokens[node]) for node in CHAIN)]
    assert torch.equal(session.forward(TREE).logits, _behind(model, text))


def _behind(model: NativeModel, text: list[int]) -> Tensor:
    session = model.start()
    session.extend(text)
    return session.forward(TREE).logits


def test_layers_may_be_left_out() -> None:
    model = in_bytes(64)
    session = model.start()
    layers = Layers(without_attention=frozenset({1}), without_mlp=frozenset({1}))
    session.extend(some(40))
    drafted = model.forward([ForwardInput(session, TREE, layers=layers)])[0].logits
    assert torch.equal(session.forward(TREE).logits, _behind(model, some(40)))
    assert not torch.equal(drafted, session.forward(TREE).logits)


def test_it_takes_half_of_the_memory() -> None:
    halves = NativeModel(hf_model(64, None).bfloat16())
    model = NativeModel(hf_model(64, None).bfloat16(), cache="int8")
    for each in (halves, model):
        each.start().extend(some(300))
    assert model.pool.bytes == halves.pool.bytes * (64 + 4) / (2 * 64)


@pytest.mark.parametrize("method", ["auto", "layer-skip"])
def test_greedy_texts_with_drafts_are_the_plain_ones(method: str) -> None:
    plain, prompts = language_model("plain"), ["w1 w2 w3 w1 w2", "w7 w8 w7 w8", "w5"]
    drafted, asked = plain.with_method(method), {"max_new_tokens": 24, "ignore_eos": True}
    texts = [plain.generate(prompt, **asked).token_ids for prompt in prompts]
    assert [drafted.generate(prompt, **asked).token_ids for prompt in prompts] == texts
    together = drafted.generate(prompts, **asked)
    assert [result.token_ids for result in together] == texts


def language_model(method: str) -> draftwood.LanguageModel:
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    made = draftwood.load(tiny_llama(0, layers=6), tokenizer, method="plain")
    made.model = NativeModel(tiny_llama(0, layers=6), cache="int8")
    return made.with_method(method)


def test_a_folder_is_loaded_with_it_and_the_label_says_so(tmp_path: Path) -> None:
    tiny_llama(0).save_pretrained(tmp_path)
    language_model("plain").tokenizer.save_pretrained(tmp_path)
    name = str(tmp_path)
    for loaded in (
        load_model(name, "float32", "cpu", cache="int8"),
        load_format(name, "float32+int8-cache", "cpu"),
    ):
        assert loaded.dtype == "float32+int8-cache"
        assert isinstance(loaded.model, NativeModel)
        assert loaded.model.cache == "int8"
    assert load_format(name, "float32", "cpu").dtype == "float32"


def test_bad_options_name_the_cure() -> None:
    with pytest.raises(ValueError, match="cache is int8, or left out"):
        load_model("nowhere", cache="int4")
    with pytest.raises(ValueError, match="CPUs, not on meta; leave cache out"):
        load_model("nowhere", device="meta", cache="int8")
    with pytest.raises(ValueError, match=r"is no format; take a dtype, or .* int8\+int8-cache"):
        load_format("nowhere", "int8+int8")
    with pytest.raises(ValueError, match="give the model by its name or folder"):
        draftwood.load(tiny_llama(0), language_model("plain").tokenizer, cache="int8")
    with pytest.raises(ValueError, match="leave cache out"):
        model_for(gpt2(), cache="int8")


def test_values_of_zero_stay_zero() -> None:
    hf = tiny_llama(0)
    for name, weight in hf.named_parameters():
        if "v_proj" in name:
            weight.data.zero_()
    exact, own = NativeModel(hf), NativeModel(hf, cache="int8")
    text = [1, 2, 3]
    assert torch.equal(own.start().extend(text).logits, exact.start().extend(text).logits)
