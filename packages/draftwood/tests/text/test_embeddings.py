"""Embeddings are Transformers' hidden states, pooled; texts beside each other change nothing."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import draftwood
from draftwood.models.model import CHUNK, CacheFullError
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama
from draftwood.text.embeddings import EmbeddingTask
from draftwood.text.language_model import LanguageModel
from families import hf_model, some_tokens
from letters import LETTERS, letters

FAMILIES = ("llama", "qwen2", "gemma3", "gpt2")  # the last one runs in Transformers' code
TEXTS = [some_tokens(count, seed=count) for count in (1, 7, 30)]


def saved(folder: Path, model: Any) -> LanguageModel:
    tokenizer = letters()
    tokenizer.save_pretrained(folder)
    copy.deepcopy(model).save_pretrained(folder)
    return draftwood.load(str(folder), method="plain", device="cpu")


@torch.no_grad()
def states_of(model: Any, tokens: list[int]) -> np.ndarray:
    """Transformers' last hidden states, which the final norm has made."""
    return model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_the_hidden_states_of_transformers(family: str, tmp_path: Path) -> None:
    model = hf_model(family)
    lm = saved(tmp_path, model)
    assert isinstance(lm.model, NativeModel) == (family != "gpt2")
    states = [states_of(model, each) for each in TEXTS]
    mean = lm.embed(TEXTS, normalize=False)
    assert mean.dtype == np.float32
    assert np.abs(mean - np.stack([each.mean(0) for each in states])).max() < 1e-3
    last = lm.embed(TEXTS, pooling="last", normalize=False)
    assert np.abs(last - np.stack([each[-1] for each in states])).max() < 1e-3
    assert np.abs(mean - last)[1:].max() > 0.1
    unit = lm.embed(TEXTS)
    assert np.abs(unit - mean / np.linalg.norm(mean, axis=1, keepdims=True)).max() < 1e-6


def test_a_batch_gives_what_each_text_gives_alone_however_long(tmp_path: Path) -> None:
    model = tiny_llama(layers=2, vocab=len(LETTERS), context=4 * CHUNK)
    lm = saved(tmp_path, model)
    texts = [some_tokens(count, seed=count) for count in (3, 2 * CHUNK + 9, 5, CHUNK)]
    together = lm.embed(texts, normalize=False)
    for text, found in zip(texts, together, strict=True):
        assert np.abs(lm.embed([text], normalize=False)[0] - found).max() < 1e-6
        assert np.abs(states_of(model, text).mean(0) - found).max() < 1e-3
    said = lm.embed("hello")
    assert said.shape == (1, model.config.hidden_size)
    assert np.array_equal(said, lm.embed(["hello", "worlds"])[:1])


def test_texts_that_are_written_meanwhile_stay_the_same(tmp_path: Path) -> None:
    lm = saved(tmp_path, tiny_llama(layers=2, vocab=len(LETTERS), context=4 * CHUNK))
    how: Any = {"max_new_tokens": 60, "temperature": 1.0, "seed": 4}
    wanted, task = lm.generate("hello", **how).text, None
    pieces = []
    for piece in lm.stream("hello", **how):
        if task is None or task.done:
            task = EmbeddingTask(lm.model, [some_tokens(700, seed=1)])
        task.step()
        pieces.append(piece)
    assert "".join(pieces) == wanted


def test_a_pass_may_be_over_few_tokens(tmp_path: Path) -> None:
    lm = saved(tmp_path, tiny_llama(layers=2, vocab=len(LETTERS), context=4 * CHUNK))
    texts = [some_tokens(count, seed=count) for count in (90, 7)]
    task, passes = EmbeddingTask(lm.model, texts), 1
    while task.step(40):
        passes += 1
    assert passes == 3  # of 40, 40, and 10 with the other text
    assert np.abs(task.unit_vectors() - lm.embed(texts)).max() < 1e-6


def test_a_full_cache_leaves_nothing_behind(tmp_path: Path) -> None:
    lm = saved(tmp_path, tiny_llama(layers=2, vocab=len(LETTERS), context=4 * CHUNK))
    assert isinstance(lm.model, NativeModel)
    pool, text = lm.model.pool, some_tokens(2 * CHUNK, seed=1)
    wanted = lm.embed([text])
    before, limit = pool.used_blocks, pool.limit
    pool.limit = pool.block_bytes * (pool.blocks_for(CHUNK) + 2)
    task = EmbeddingTask(lm.model, [text])
    assert task.step()
    with pytest.raises(CacheFullError):
        task.step()
    assert pool.used_blocks == before
    pool.limit = limit
    while task.step():
        pass
    assert np.allclose(lm.embed([text]), wanted)
    other = EmbeddingTask(lm.model, [text])
    other.step()
    other.close()
    assert pool.used_blocks == before


def test_between_passes_the_cache_holds_parts_of_long_texts_alone(tmp_path: Path) -> None:
    lm = saved(tmp_path, tiny_llama(layers=2, vocab=len(LETTERS), context=4 * CHUNK))
    assert isinstance(lm.model, NativeModel)
    pool, before = lm.model.pool, lm.model.pool.used_blocks
    counts = (CHUNK - 9, 300, 300, CHUNK + 9, 5)
    task = EmbeddingTask(lm.model, [some_tokens(count, seed=count) for count in counts])
    held, begun = list[bool](), list[bool]()
    while task.step():
        held.append(pool.used_blocks > before)
        begun.append(task.is_amid_text)
    assert held == begun == [False, False, False, True]
    assert not task.is_amid_text


def test_what_cannot_be_embedded_is_refused(tmp_path: Path) -> None:
    lm = saved(tmp_path, tiny_llama(layers=2, vocab=len(LETTERS), context=64))
    with pytest.raises(ValueError, match="text 1 is empty"):
        lm.embed(["a", ""])
    with pytest.raises(ValueError, match="text 0 has 65 tokens, and the model takes 64"):
        lm.embed("a" * 65)
    with pytest.raises(ValueError, match="pooling is mean or last"):
        lm.embed("a", pooling="max")
    for strange in (9999, -1, 2**70):
        with pytest.raises(ValueError, match="token ids must be 0 to"):
            lm.embed([[1, strange]])
    with pytest.raises(TypeError, match="token ids"):
        lm.embed([{"role": "user", "content": "a"}])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="surrogate"):
        lm.embed("\ud800")
    with pytest.raises(TypeError, match="a str or a list of token ids"):
        lm.embed(None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(lm.embed([1, 2, 3]), lm.embed([[1, 2, 3]]))
    assert lm.embed([]).shape == (0, lm.model.hidden_size)
