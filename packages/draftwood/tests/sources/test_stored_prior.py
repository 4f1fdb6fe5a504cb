"""Bigram priors are taken from a model once and found again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from draftwood import methods
from draftwood.costs import disturbance
from draftwood.sources import stored_prior
from draftwood.sources.stored_prior import StoredPrior
from draftwood.testing import tiny_llama
from draftwood_torch.models.transformers import TransformersModel
from reference.bigram_prior import row_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def model() -> TransformersModel:
    return TransformersModel(tiny_llama())


def test_a_prior_is_measured_once_and_read_later(folder: Path, model: TransformersModel) -> None:
    first = StoredPrior(model, [1], folder)
    assert first.path is not None
    assert not first.path.exists()
    assert first.table is first.table
    assert first.path.exists()
    other = StoredPrior(TransformersModel(tiny_llama(5)), [1], folder)  # not asked
    assert np.array_equal(other.table.tokens, first.table.tokens)


def test_other_weights_have_another_prior(folder: Path, model: TransformersModel) -> None:
    path = StoredPrior(model, [1], folder).path
    assert StoredPrior(model, [2], folder).path != path
    tiny_llama(3, layers=3).save_pretrained(folder)
    assert StoredPrior(model, [1], folder).path != path


def test_weights_written_over_others_of_the_same_size_and_time_have_another_prior(
    folder: Path, model: TransformersModel
) -> None:
    path, weights = StoredPrior(model, [1], folder).path, folder / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(weights.read_bytes()[::-1])
    os.utime(weights, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size
    assert StoredPrior(model, [1], folder).path != path


def test_damaged_files_are_written_anew(folder: Path, model: TransformersModel) -> None:
    prior = StoredPrior(model, [1], folder)
    assert prior.path is not None
    prior.path.parent.mkdir(exist_ok=True)
    prior.path.write_text("damaged")
    assert row_of(prior.table, 3)
    assert np.array_equal(StoredPrior(model, [1], folder).table.tokens, prior.table.tokens)


def test_a_disk_that_refuses_costs_nothing_but_time(
    folder: Path, model: TransformersModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr("draftwood.storage.weights.home", lambda: tmp_path / "file")
    assert row_of(StoredPrior(model, [1], folder).table, 3)


def test_time_that_is_up_leaves_a_shorter_table(model: TransformersModel) -> None:
    table = StoredPrior(model).grow(0.0)
    assert 0 < len(table.tokens) < model.vocab_size
    assert StoredPrior(model).path is None
    assert row_of(table, model.vocab_size - 1) == {}


def test_a_table_grows_by_what_it_lacks_in_the_order_asked_for(
    folder: Path, model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = model.vocab_size - 1
    prior = StoredPrior(model, [1], folder, lambda: [last, last, 3, 10**6])
    first = prior.grow(0.0)
    assert first.ids[:3].tolist() == [last, 3, 0]
    whole = StoredPrior(model, [1], folder).grow()
    assert whole.ids[: len(first.ids)].tolist() == first.ids.tolist()
    assert sorted(whole.ids.tolist()) == list(range(model.vocab_size))
    assert row_of(StoredPrior(model, [1], folder).table, 30) == pytest.approx(
        row_of(whole, 30), abs=1e-3
    )
    monkeypatch.setattr(stored_prior.BigramPrior, "of", None)  # nothing is left to ask for
    monkeypatch.setattr(stored_prior, "write_file", None)  # nor to write
    assert len(StoredPrior(model, [1], folder).grow().ids) == model.vocab_size


def test_a_rough_table_is_taken_as_it_is_until_there_is_time(
    folder: Path, model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_prior, "STORED_SECONDS", 0.0)
    monkeypatch.setattr(disturbance, "is_disturbed", lambda share: True)
    rough = StoredPrior(model, [1], folder).table
    assert rough.is_rough
    assert len(StoredPrior(model, [1], folder).ready(measures=False).ids) == len(rough.ids)
    monkeypatch.setattr(disturbance, "is_disturbed", lambda share: False)
    longer = StoredPrior(model, [1], folder).table
    assert len(longer.ids) == 2 * len(rough.ids)
    assert not longer.is_rough
    assert len(StoredPrior(model, [1], folder).table.ids) == len(longer.ids)  # not asked again


def test_a_table_that_another_process_stored_meanwhile_is_taken(
    folder: Path, model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def waited(place: Path) -> Iterator[None]:
        stored.save(place)
        yield

    stored, prior = StoredPrior(model, [1]).grow(0.0), StoredPrior(model, [1], folder)
    assert prior.path is not None
    prior.path.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(stored_prior, "locked_where_possible", waited)
    monkeypatch.setattr(stored_prior.BigramPrior, "of", None)
    assert np.array_equal(prior.table.ids, stored.ids)


def test_a_beginning_that_changes_from_day_to_day_finds_the_same_table(
    folder: Path, model: TransformersModel
) -> None:
    days = [StoredPrior(model, [day], folder, kind="with a date") for day in (1, 2)]
    assert days[0].path == days[1].path
    assert days[0].path != StoredPrior(model, [1], folder, kind="without").path


def test_no_table_grows_beyond_what_memory_is_meant_for(
    model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_prior, "MOST_KNOWN", 20)
    assert len(StoredPrior(model).grow().ids) == 20


def test_auto_guesses_with_it(model: TransformersModel) -> None:
    drafter = methods.build("auto", model, prior=StoredPrior(model).table).drafter
    assert [source.name for source in drafter.sources] == ["suffix", "n-grams", "bigram-prior"]
    assert [source.name for source in methods.build("auto", model).drafter.sources] == [
        "suffix",
        "n-grams",
    ]
