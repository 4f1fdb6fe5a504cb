"""Data of the built-in model, on the path that decoding takes."""

import json

import pytest
import torch

import draftwood
from draftwood_train.data import make
from draftwood_train.data.dataset import Dataset
from draftwood_train.data.jobs import OWN, UserTurn
from draftwood_train.data.make import Maker
from draftwood_train.data.options import DataOptions
from draftwood_train.data.prompts import number_of
from draftwood_train.data.states import default_layers, states_of


@pytest.mark.model
def test_the_built_in_model_writes_what_it_decodes(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "measured_prompts", lambda: [])
    lm = draftwood.load(method="plain")
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "Why is the sky blue?"}) + "\n")
    layers = default_layers(lm.model.layers)
    options = DataOptions(
        layers, sets=(), files=(str(file),), max_answer_tokens=12, prompts_per_shard=2
    )
    Maker(tmp_path / "data", lm, options).run(1, 2)

    collected, own = Dataset.open(tmp_path / "data", lm.model).texts("train")
    assert (collected.source, own.source) == (str(file), OWN)
    before = UserTurn.of(lm).before
    for number, text in enumerate((collected, own)):
        prompt, answer = text.tokens[: text.answer].tolist(), text.tokens[text.answer :].tolist()
        assert tuple(prompt[: len(before)]) == before
        alone = lm.generate(
            prompt,
            max_new_tokens=12,
            temperature=0.0 if text.is_greedy else 1.0,
            seed=number_of(0, "answer", number, 0),
        )
        assert list(alone.token_ids) == answer
        states, normalizers = states_of(lm.model, text.tokens, layers)
        assert torch.equal(text.log_normalizer, normalizers)
        error = (text.states - states).norm(dim=-1) / states.norm(dim=-1)
        assert text.states.shape == (len(text.tokens), 4, 576)
        assert float(error.max()) < 0.1
