"""Decoders kept on disk give the same bits as the model's classes, and are never out of date."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from test_gguf_files import build, own_home  # noqa: F401  (a fixture)

from draftwood.loading import kept_decoder
from draftwood.loading.gguf_blocks import blocks_folder
from draftwood.loading.models import load_model
from draftwood.pytorch.loading import skeleton
from gguf_writing import write_gguf

WIDE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},  # rows in another order, one matrix at both ends
    "qwen2": {},  # biases
    "phi3": {"pad_token_id": 0},  # several matrices in one
    "gemma2": {"query_pre_attn_scalar": 16, "sliding_window": 8},  # windows, caps, scales
}


def written(path: Path, family: str) -> Path:
    model, settings = build(family, **WIDE, **FAMILIES[family]), {}
    if family == "gemma2":
        settings = {"attention.sliding_window": 8, "attention.scale": 0.25}
    write_gguf(path, model, family, settings, kind=gguf.GGMLQuantizationType.Q8_0)
    return path


def outcome(path: Path) -> tuple[torch.Tensor, tuple[Any, ...]]:
    model = load_model(str(path), None, "cpu").model
    return model.start().extend([*range(3, 40)]).logits, (
        model.end_tokens,
        model.context_length,
        model.vocab_size,
        model.dtype,  # type: ignore[attr-defined]
    )


def without_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("the model was read again")

    monkeypatch.setattr(skeleton, "skeleton", fail)


@pytest.mark.parametrize("family", FAMILIES)
def test_later_loads_give_the_same_bits_without_the_model_s_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    path = written(tmp_path / "m.gguf", family)
    logits, facts = outcome(path)
    without_classes(monkeypatch)
    again, told = outcome(path)
    assert torch.equal(again, logits)
    assert told == facts


@pytest.mark.parametrize("change", ["settings", "code", "damage", "missing"])
def test_what_is_out_of_date_or_damaged_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = written(tmp_path / "m.gguf", "qwen2")
    logits, _ = outcome(path)
    kept = blocks_folder(path) / kept_decoder.KEPT
    config = kept.with_name("config.json")
    if change == "settings":
        told = config.read_text().replace('_embeddings": 64', '_embeddings": 48')
        config.write_text(told)
        with pytest.raises(ValueError, match=r"config\.json was changed since it was written"):
            outcome(path)
        return
    if change == "code":
        monkeypatch.setattr(kept_decoder, "version", lambda package: "another")
    elif change == "damage":
        kept.write_bytes(kept.read_bytes()[:100])
    else:
        kept.unlink()
    again, _ = outcome(path)
    assert torch.equal(again, logits)
    without_classes(monkeypatch)  # and kept again
    assert torch.equal(outcome(path)[0], logits)


def test_a_disk_that_refuses_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", "qwen2")

    def refuse(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(kept_decoder, "write_file", refuse)
    assert torch.equal(outcome(path)[0], outcome(path)[0])
    assert not (blocks_folder(path) / kept_decoder.KEPT).exists()
