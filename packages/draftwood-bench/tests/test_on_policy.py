"""Answers that a draft LM writes: its own distribution, the target's states, and a file that goes
on.
"""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks.training.on_policy import (
    DraftedDataset,
    DraftedTexts,
    answers,
    read_answers,
    write_answers,
)
from draftwood.testing import tiny_llama
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.lean.model import LeanModel
from draftwood_train.data.dataset import Texts
from draftwood_train.data.states import states_of
from tiny_heads import tiny_eagle, tiny_lm

PROMPT = [2, 0, 1, 1]


@pytest.fixture(scope="module")
def model() -> LeanModel:
    return LeanModel(tiny_llama(3, layers=1, vocab=4))


def some_texts(count: int, length: int = 9) -> Texts:
    tokens = [(torch.arange(length) + number) % 4 for number in range(count)]
    return cast(Texts, [SimpleNamespace(tokens=each, answer=4) for each in tokens])


def test_answers_are_drawn_from_the_lm(model: LeanModel) -> None:
    """The pairs that follow a prompt, beside the LM's own probabilities of them."""
    trained = tiny_lm(model, [0, 1, 3])
    drawn, count = torch.Generator().manual_seed(0), 1500
    found = Counter(tuple(answers(trained, model, PROMPT, 2, drawn)) for _ in range(count))
    head: Any = trained.network

    def law(text: list[int]) -> dict[int, float]:
        cache = HeadCache(head.config.layers, head.config.sizes, head.proj.weight)
        embedded = model.embeddings_and_head.embed(torch.tensor(text)).float()
        states = head(embedded, torch.arange(len(text)), cache.attend(causal(len(text))))
        logits = model.embeddings_and_head.logits(states[-1:], torch.tensor([0, 1, 3]), normed=True)
        return dict(zip([0, 1, 3], logits.softmax(-1)[0].tolist(), strict=True))

    wanted = {(a, b): p * q for a, p in law(PROMPT).items() for b, q in law([*PROMPT, a]).items()}
    off = sum(abs(found[pair] / count - wanted[pair]) for pair in wanted) / 2
    assert sum(found[pair] for pair in wanted) == count
    assert off < 0.06
    even = sum(abs(1 / 9 - chance) for chance in wanted.values()) / 2
    assert even > 2 * off  # a control: another law is told from it


def test_texts_have_the_targets_states(model: LeanModel) -> None:
    texts = DraftedTexts([([2, 0, 1, 3, 3], 3), ([1, 1], 1)], (0, 1), model)
    assert (len(texts), texts.lengths, texts.answers, texts.tokens) == (2, [5, 2], [3, 1], 7)
    text, (states, normalizers) = texts[0], states_of(model, torch.tensor([2, 0, 1, 3, 3]), (0, 1))
    assert (text.answer, text.source, text.is_greedy) == (3, "drafted", False)
    torch.testing.assert_close(text.states, states)
    torch.testing.assert_close(text.log_normalizer, normalizers)
    assert len(texts[1:]) == 1


def test_a_file_that_was_cut_off_goes_on_where_it_was(model: LeanModel, tmp_path: Path) -> None:
    trained, texts = tiny_lm(model), some_texts(6)
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert write_answers(whole, texts, trained, model, 30) >= 30
    assert 3 < len(read_answers(whole)) <= 6
    for text, (tokens, answer) in zip(texts, read_answers(whole), strict=False):
        assert answer == 4
        assert tokens[:4] == text.tokens[:4].tolist()
        assert 5 <= len(tokens) <= 9
    part.write_text(whole.read_text()[:60])
    write_answers(part, texts, trained, model, 30)
    assert part.read_text() == whole.read_text()
    with pytest.raises(ValueError, match="all 6 prompts give"):
        write_answers(whole, texts, trained, model, 1000)
    with pytest.raises(ValueError, match="does not draft with a drafter of the kind"):
        write_answers(tmp_path / "new.jsonl", texts, tiny_eagle(model), model, 30)


def test_only_training_texts_are_drafted(model: LeanModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_answers(path, some_texts(4), tiny_lm(model), model, 10)
    manifest: Any = SimpleNamespace(options=SimpleNamespace(layers=(0, 1)))
    whole: Any = SimpleNamespace(manifest=manifest, shards=(), model=model)
    drafted = DraftedDataset(whole, path)
    assert len(drafted.texts("train")) == len(read_answers(path))
    assert not len(drafted.texts("held-out"))
    whole.model = None
    with pytest.raises(ValueError, match="come from the target"):
        DraftedDataset(whole, path).texts("train")
