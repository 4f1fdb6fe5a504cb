"""Texts of a model with an adapter are its own, however they are drafted."""

from pathlib import Path
from typing import Any

import pytest

import draftwood
from adapters import save_adapter
from draftwood.loading import hub


@pytest.mark.model
def test_texts_of_the_built_in_model_with_an_adapter_are_those_of_plain_decoding(
    tmp_path: Path,
) -> None:
    base = hub.load_pretrained("smollm2-135m", dtype="float32").model
    save_adapter(tmp_path / "a", base, ["q_proj", "v_proj", "down_proj"], 0.02, r=8)
    lm = draftwood.load("smollm2-135m", adapter=str(tmp_path / "a"))
    plain, drafted, question = lm.with_method("plain"), 0, "What are the months of the year?"
    for temperature, seed in ((0.0, None), (1.0, 0), (1.0, 1), (1.0, 2)):
        how: Any = {"temperature": temperature, "seed": seed, "max_new_tokens": 40}
        text = lm.generate(question, **how)
        assert text.token_ids == plain.generate(question, **how).token_ids
        drafted += text.stats.accepted
    assert lm.method.name == "auto"
    assert drafted > 0
    assert lm.method.drafter.learnable is not None  # the base's head drafts
    without = draftwood.load("smollm2-135m").with_method("plain").generate(question)
    assert without.text != plain.generate(question).text
