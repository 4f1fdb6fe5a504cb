"""Quantisation and identity of a folder's weights."""

from pathlib import Path

import pytest

from draftwood.loading.origin import quantisation, weights_digest
from draftwood.loading.packages import builtins
from draftwood.storage import atomic


@pytest.mark.parametrize("name", builtins())
def test_folders_of_built_in_models_that_earlier_versions_made_are_recognised(
    name: str, tmp_path: Path
) -> None:
    builtin = builtins()[name]
    atomic.write_manifest(tmp_path, builtin.source, {})
    assert quantisation(tmp_path) == builtin.quantisation
    assert weights_digest(tmp_path) == builtin.weights


def test_the_manifest_says_it_itself_whatever_its_source_is(tmp_path: Path) -> None:
    atomic.write_manifest(
        tmp_path, builtins()["smollm2-135m"].source, {"quantisation": "Q4_K", "weights": "ab"}
    )
    assert (quantisation(tmp_path), weights_digest(tmp_path)) == ("Q4_K", "ab")


def test_a_name_in_the_source_says_nothing(tmp_path: Path) -> None:
    atomic.write_manifest(tmp_path, "/models/some-Q4_K.gguf", {})
    assert quantisation(tmp_path) is None


def test_a_folder_of_somebody_else_was_not_quantised(tmp_path: Path) -> None:
    assert quantisation(tmp_path) is None
    (tmp_path / atomic.MANIFEST).write_text("[]")
    assert quantisation(tmp_path) is None


def test_the_digest_of_other_folders_is_of_what_their_weights_files_hold(tmp_path: Path) -> None:
    assert weights_digest(tmp_path) is None
    found = set()
    for first, second in ((b"a", b"b"), (b"a", b"c"), (b"ab", b"")):
        (tmp_path / "model-1.safetensors").write_bytes(first)
        (tmp_path / "model-2.safetensors").write_bytes(second)
        found.add(weights_digest(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert weights_digest(tmp_path) in found
    assert len(found) == 3
