"""Sums that a small model writes: its greedy texts are those of Transformers, sum by sum."""

from pathlib import Path

import pytest
import torch

import draftwood
from benchmarks import search_sums
from benchmarks.search_sums import Trainer
from draftwood_choices.solving.run import PLAIN, SolvedRecord

COUNT = 12


@pytest.fixture
def trainer() -> Trainer:
    """A model that has learnt nothing, so that its texts depend on every bit of the prompt."""
    made = Trainer()
    with torch.no_grad():
        for weight in made.model.parameters():
            weight.mul_(4.0)
    return made


def records(texts: list[str]) -> list[SolvedRecord]:
    costs = (0.0, 0.0, 0.0, 1, 1, 0, 0.0)
    return [SolvedRecord(PLAIN, str(at), *costs, text) for at, text in enumerate(texts, start=1)]


def test_greedy_texts_are_those_of_transformers(trainer: Trainer, tmp_path: Path) -> None:
    trainer.model.save_pretrained(tmp_path)
    trainer.tokenizer.save_pretrained(tmp_path)
    lm = draftwood.load(str(tmp_path), dtype="float32", method="plain")
    terms = search_sums.sums(search_sums.ASKED_SEED, COUNT)
    length = {"max_new_tokens": search_sums.LENGTH, "temperature": 0.0}
    texts = [lm.generate(search_sums.asked(each), **length).text for each in terms]
    assert len({*texts}) > COUNT // 2
    told = search_sums.beside_transformers(tmp_path, records(texts))
    assert told.endswith(f"of the same {COUNT} sums; 0 texts differ")
    others = search_sums.sums(2, COUNT)  # the control: the same model, other sums
    texts = [lm.generate(search_sums.asked(each), **length).text for each in others]
    differing = int(search_sums.beside_transformers(tmp_path, records(texts)).split()[-3])
    assert differing > COUNT // 2


def test_a_sum_is_solved_by_its_last_line() -> None:
    terms = [[1, 2, 3], [4, 5, 6]]
    worked = [search_sums.worked(each) for each in terms]
    assert worked[0] == "1+2=3\n3+3=6"
    assert search_sums.share_solved(worked, terms) == 1.0
    assert search_sums.share_solved([worked[0] + "+", worked[1]], terms) == 0.5
