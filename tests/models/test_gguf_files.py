"""Bytes that are no GGUF file are refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest

from draftwood.models.gguf_files import gguf_folder


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4" + bytes(90), "is not a GGUF file"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(90), "of version 9, readable are 2 and 3"),
        (b"GGUF\3\0\0\0" + np.random.default_rng(0).bytes(900), "cannot be read as a GGUF model"),
    ],
)
def test_garbage_is_no_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str) -> None:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path))
    path = tmp_path / "garbage.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} .*{message}"):
        gguf_folder(path)
