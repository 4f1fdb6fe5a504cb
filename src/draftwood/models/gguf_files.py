"""GGUF files: converted once into an ordinary model folder in bfloat16, which then loads in a blink."""

import hashlib
from pathlib import Path

import torch

from draftwood.models.folders import home, publish
from draftwood.models.progress import progress, quiet_transformers


def gguf_folder(path: Path) -> Path:
    """The model folder made from the GGUF file at `path`; the first call converts, later ones find the result.

    The folder's name hashes the file's absolute path, size and time of change instead of its content: reading
    gigabytes at every start would cost more than the conversion saves, and a renamed file only converts again.
    Raises ValueError when the file is not a GGUF file that Transformers can read.
    """
    path = path.resolve()
    status = path.stat()
    identity = f"{path}\0{status.st_size}\0{status.st_mtime_ns}".encode()
    folder = home() / "models" / f"gguf-{path.stem}-{hashlib.sha256(identity).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    check_gguf(path)
    return publish(folder, str(path), lambda partial: convert_gguf(path, partial))


def check_gguf(path: Path) -> None:
    """Raise ValueError unless the file begins like a GGUF file of a known version."""
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8 or head[:4] != b"GGUF":
        raise ValueError(f"{path} is not a GGUF file (it begins with {head[:4]!r}, not b'GGUF'); fetch the file again")
    version = int.from_bytes(head[4:], "little")
    if version not in (2, 3):
        raise ValueError(f"{path} is a GGUF file of version {version}, readable are 2 and 3; convert it with llama.cpp")


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into `folder`: safetensors in bfloat16, tokenizer.json.

    The chat template is kept. Raises ValueError, naming the file, when it is damaged or of an unknown architecture.
    """
    with progress(f"converting {path.name} to bfloat16 (once)"), quiet_transformers():
        try:
            model = _read_model(path)
            tokenizer = _read_tokenizer(path)
        except Exception as error:  # a parser fed with damaged bytes fails in every way there is
            # Transformers calls garbled metadata "not a valid JSON file", an OSError; there is no JSON here.
            garbled = isinstance(error, OSError)
            reason = "its metadata is garbled" if garbled else " ".join(str(error).split())[:200] or repr(error)
            cure = "fetch the file again, or name the original model by its Hugging Face id"
            raise ValueError(f"{path} cannot be read as a GGUF model ({reason}); {cure}") from None
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _read_model(path: Path):
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # from_pretrained(gguf_file=...) would keep the weights packed, which cannot be saved, and asks for accelerate.
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.bfloat16)
    model.load_state_dict(weights["tensors"], strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if missing:
        raise ValueError(f"{len(missing)} tensors are missing, the first is {missing[0]}")
    return model


def _read_tokenizer(path: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
