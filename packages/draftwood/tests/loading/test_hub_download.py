"""The Hugging Face hub, played by a small local server: one public model without large-file
storage.
"""

import errno
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from huggingface_hub import constants

from draftwood.loading import models, packages
from draftwood.loading.hub import described, resolve
from draftwood.loading.names import network_errors
from draftwood.loading.origin import weights_digest
from draftwood.storage.atomic import sha256

COMMIT = "0123456789" * 4
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": safetensors.torch.save({"weight": torch.ones(2)}),
}
OTHER_FORMATS = {
    "pytorch_model.bin": b"zip",
    "onnx/config.json": b"{}",
    "onnx/additional_chat_templates/a.jinja": b"",
    "consolidated.safetensors": b"copy",
}


@contextmanager
def serve(
    files: dict[str, bytes],
    repository: str = "org/name",
    refusal: int | None = None,
    message: str = "",
) -> Iterator[str]:
    """Serve files at an address.

    Args:
        refusal: status of every answer, and `message` in it.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            name = path.split(f"/resolve/{COMMIT}/")[-1]
            if refusal is not None:
                self.answer(b"{}", {"X-Error-Message": message}, status=refusal)
            elif f"/{repository}" not in path:
                self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, status=404)
            elif "/tree/" in path:
                oids = {name: f"{number:040}" for number, name in enumerate(files)}
                rows = [
                    {"type": "file", "path": n, "size": len(files[n]), "oid": oids[n]}
                    for n in files
                ]
                self.answer(json.dumps(rows).encode(), {})
            elif path.startswith("/api/models/"):
                siblings = [{"rfilename": name} for name in files]
                self.answer(
                    json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode(), {}
                )
            else:
                self.answer(files[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})

        def do_HEAD(self) -> None:
            self.do_GET()

        def answer(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Point huggingface_hub to an address, or switch it offline; its cache is a folder of the
    test."""

    def settings(address: str | None) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", address is None)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    return settings


Connect = Callable[[str | None], None]


def test_a_model_is_fetched_without_other_formats_and_then_found_offline(
    connect: Connect, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve(MODEL | OTHER_FORMATS) as address:
        connect(address)
        snapshot = resolve("org/name")
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == MODEL
    connect(None)
    assert resolve("org/name") == snapshot
    assert capfd.readouterr() == ("", "")


def test_further_chat_templates_are_fetched(connect: Connect) -> None:
    name = "additional_chat_templates/tool_use.jinja"
    with serve(MODEL | OTHER_FORMATS | {name: b"{{ tools }}"}) as address:
        connect(address)
        snapshot = resolve("org/name")
    assert (snapshot / name).read_bytes() == b"{{ tools }}"
    assert {path.name for path in snapshot.iterdir()} == {*MODEL, "additional_chat_templates"}


def test_what_a_model_is_like_is_found_without_its_weights(connect: Connect) -> None:
    with serve(MODEL) as address:
        connect(address)
        folder = described("org/name")
    assert {path.name for path in folder.iterdir()} == MODEL.keys() - {"model.safetensors"}
    with serve(OTHER_FORMATS, "org/bare") as address:
        connect(address)
        with pytest.raises(ValueError, match=r"org/bare has no config\.json"):
            described("org/bare")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        described("./nothing")


def test_a_model_that_the_hub_does_not_have_is_named(connect: Connect) -> None:
    with serve(MODEL) as address:
        connect(address)
        with pytest.raises(
            ValueError, match="the Hugging Face hub has no model org/other; check the spelling"
        ):
            resolve("org/other")


def test_an_id_that_is_not_cached_offline_names_the_cure(connect: Connect) -> None:
    connect(None)
    with pytest.raises(
        FileNotFoundError, match=r"org/name is not in the local .* HF_HUB_OFFLINE is set; go online"
    ):
        resolve("org/name")


def test_an_unreachable_hub_is_named(connect: Connect) -> None:
    with serve(MODEL) as address:
        pass
    connect(address)
    with pytest.raises(
        FileNotFoundError,
        match=r"not in the local .* the Hugging Face hub cannot be reached; go online",
    ):
        resolve("org/name")


@pytest.mark.parametrize("message", ["timed out", ""])
def test_a_connection_that_breaks_is_told_in_a_line(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    broken = next(each for each in network_errors() if each is not ConnectionError)

    def breaks(*_: object, **__: object) -> str:
        raise broken(message)

    with serve(MODEL) as address:
        connect(address)
        monkeypatch.setattr("huggingface_hub.snapshot_download", breaks)
        told = message or broken.__name__
        with pytest.raises(OSError, match=rf"did not hand out org/name \({told}\); try again"):
            resolve("org/name")


def test_a_tokenizer_alone_takes_no_weights(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(models, "open_tokenizer", opened.append)
    with serve(MODEL) as address:
        connect(address)
        models.load_tokenizer("org/name")
    assert sorted(path.name for path in opened[0].iterdir()) == ["config.json", "tokenizer.json"]


def test_a_full_disk_is_not_the_hubs_fault(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with serve(MODEL) as address:
        connect(address)
        with pytest.raises(
            OSError, match=r"cannot write .*cache: the disk is full; .* set HF_HOME to another"
        ):
            resolve("org/name")


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        (400, "hf auth login"),
        (401, "hf auth login"),
        (403, "hf auth login"),
        (429, "try again later"),
    ],
)
def test_a_hub_that_refuses_is_told_from_one_that_is_away(
    connect: Connect, status: int, cure: str
) -> None:
    # a token that is refused; without one the status 401 means that there is no such model
    message = "Invalid credentials in Authorization header"
    with serve(MODEL, refusal=status, message=message) as address:
        connect(address)
        with pytest.raises(
            PermissionError, match=rf"refuses org/name \(.* {status}: {message}.*{cure}"
        ):
            resolve("org/name")
    with serve(MODEL) as address:
        connect(address)
        cached = resolve("org/name")
    with serve(MODEL, refusal=status, message=message) as address:
        connect(address)
        assert resolve("org/name") == cached


def test_a_hub_with_a_fault_of_its_own_is_away(connect: Connect) -> None:
    with serve(MODEL, refusal=501) as address:
        connect(address)
        with pytest.raises(FileNotFoundError, match="the Hugging Face hub cannot be reached"):
            resolve("org/name")


@pytest.mark.parametrize("reachable", [True, False])
def test_a_built_in_name_never_means_the_model_on_the_hub(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reachable: bool
) -> None:
    file = tmp_path / "pinned.gguf"
    file.write_bytes(b"the pinned file")

    def build(file: Path, folder: Path, dtype: torch.dtype) -> None:
        for name, content in MODEL.items():
            (folder / name).write_bytes(content)

    pinned = replace(
        packages.builtins()["smollm2-135m"], weights=sha256(file), fetch=lambda _: file, build=build
    )
    monkeypatch.setattr(packages, "builtins", lambda: {"smollm2-135m": pinned})
    with serve(MODEL | OTHER_FORMATS, "HuggingFaceTB/SmolLM2-135M-Instruct") as address:
        connect(address if reachable else None)
        folder = resolve("smollm2-135m")
    assert folder == tmp_path / "home" / "models" / "smollm2-135m"
    assert weights_digest(folder) == sha256(file)
    assert not (tmp_path / "cache").exists()


def test_bin_weights_are_taken_only_when_there_are_no_safetensors(connect: Connect) -> None:
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"zip"}
    with serve(files) as address:
        connect(address)
        assert {path.name for path in resolve("org/name").iterdir()} == set(files)
