"""Texts that a model writes itself: what begins them, and shards that are written again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import draftwood
from conversions import write_model
from draftwood_diffusion.training import own_texts
from draftwood_diffusion.training.loop import ConversionSettings
from draftwood_diffusion.training.own_texts import OwnTexts, beginning, read_shard
from draftwood_diffusion.training.rows import TextRows
from draftwood_diffusion.training.stage import Stage
from draftwood_diffusion.training.teacher import Teacher


def changed(path: Path, **told: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **told}))


def without_beginning(folder: Path, bos: str | None, config: int | None, eos: str | None) -> Path:
    """A model whose tokenizer puts nothing before a text.

    Args:
        bos, eos: of the tokenizer.
        config: begin token of config.json.
    """
    write_model(folder)
    changed(folder / "tokenizer.json", post_processor=None)
    changed(folder / "tokenizer_config.json", bos_token=bos, eos_token=eos)
    ends = None if eos is None else 2
    for name in ("config.json", "generation_config.json"):
        changed(folder / name, bos_token_id=config, eos_token_id=ends)
    return folder


def settings(mask: int) -> ConversionSettings:
    return ConversionSettings(mask, steps=2, rows=2, blocks=(2, 4), judged_rows=4)


@pytest.mark.parametrize(
    ("bos", "config", "eos", "wanted"),
    [("<s>", 3, "</s>", 1), (None, 1, "</s>", 1), (None, None, "</s>", 2)],
)
def test_texts_begin_where_the_tokenizer_puts_nothing_before_them(
    bos: str | None, config: int | None, eos: str, wanted: int, tmp_path: Path
) -> None:
    folder = without_beginning(tmp_path / "model", bos, config, eos)
    assert beginning(draftwood.load(str(folder), method="plain")) == (wanted,)


def test_a_model_without_a_begin_token_is_converted(tmp_path: Path) -> None:
    model = without_beginning(tmp_path / "model", None, None, "</s>")
    Stage(str(model), tmp_path / "out", 3000, 16, whole=True).run(settings, lambda line: None)
    (shard,) = (tmp_path / "out.training" / "texts").glob("*.npz")
    tokens, lengths = read_shard(shard)
    starts = np.cumsum(lengths) - lengths
    assert (tokens[starts] == 2).all()
    rows = TextRows.of([shard], 16, 4).train
    assert bool((rows[:, 0] == 2).all())
    known = Teacher.knows(None, rows)  # type: ignore[arg-type]
    for row, knows in zip(rows, known, strict=True):
        again = (row[1:] == 2).nonzero()
        end = int(again[0, 0]) + 1 if len(again) else 16  # the first text's own end is left out
        assert torch.equal(knows, torch.arange(16) < end)


def test_a_model_of_no_begin_and_no_end_token_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    model = without_beginning(tmp_path / "model", None, None, None)
    stage = Stage(str(model), tmp_path / "out", 3000, 16)
    with pytest.raises(ValueError, match="name its bos_token or eos_token in tokenizer_config"):
        stage.run(settings, lambda line: None)
    assert not (tmp_path / "out.training").exists()


def test_a_stage_goes_on_with_as_many_texts_as_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model")
    stage = Stage(str(tmp_path / "model"), tmp_path / "out", 3000, 16, whole=True)
    monkeypatch.setattr(own_texts, "SHARD_TEXTS", 64)
    with pytest.raises(ValueError, match="write more of them, with --tokens"):
        replace(stage, tokens=10).run(settings, lambda line: None)
    stage.run(settings, lambda line: None)  # as nothing was trained yet
    told, again = tmp_path / "out.training" / "stage.json", replace(stage, resume=True)
    more = replace(again, tokens=6000)
    with pytest.raises(ValueError, match="begun with tokens 3000, not 6000; give the same"):
        more.run(settings, lambda line: None)
    again.run(settings, lambda line: None)
    held = json.loads(told.read_text())
    del held["tokens"]  # as older stages were noted
    told.write_text(json.dumps(held))
    again.run(settings, lambda line: None)


def test_a_shard_that_was_deleted_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "model")
    lm = draftwood.load(str(tmp_path / "model"), method="plain")
    monkeypatch.setattr(own_texts, "SHARD_TEXTS", 8)
    texts = OwnTexts(tmp_path / "texts", "model", 12)
    counts = list(texts.write(lm, 250))
    before = [path.read_bytes() for path in texts.held]
    assert len(before) == len(counts) > 2
    texts.held[1].write_bytes(before[1][: len(before[1]) // 2])
    with pytest.raises(ValueError, match=r"shard-00001\.npz cannot be read .*; delete it and give"):
        list(texts.write(lm, 250))
    texts.held[1].unlink()
    assert len(texts.held) == 1
    assert list(texts.write(lm, 250)) == counts[-1:]  # those behind it are there still
    assert [path.read_bytes() for path in texts.held] == before
