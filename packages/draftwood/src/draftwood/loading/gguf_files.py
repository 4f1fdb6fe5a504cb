"""GGUF files: converted once into an ordinary model folder, which then loads quickly."""

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from draftwood.loading.gguf_metadata import FACTORS, read_metadata
from draftwood.pytorch.loading import skeleton
from draftwood.pytorch.models import experts
from draftwood.storage.atomic import Facts, publish, sha256
from draftwood.storage.home import home
from draftwood.storage.progress import progress, quiet_transformers

# raised whenever a file is read differently, so that folders of earlier versions are made again
READING = 3
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
UNKNOWN_TYPE = re.compile(r"(\d+)\)? is not a valid GGMLQuantizationType")
FLOATS = ("F64", "F32", "F16", "BF16")
LAYER = re.compile(r"layers\.(\d+)\.")
OF_EXPERTS = re.compile(
    r"blk\.(?P<layer>\d+)\.ffn_(?P<part>gate|up|down)_exps\.(?P<kind>weight|bias)"
)
# ways to split text, by llama.cpp's names, that Transformers would take for GPT-2's
SINGLE_DIGITS = ("smollm", "refact", "command-r")
# what the folder in bfloat16 is for; every other type gets the file's own numbers
ROUNDED = (torch.bfloat16, "auto")


class NotInBlocksError(ValueError):
    """A file whose matrices cannot be used as they are; the message says why."""


def stored_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Type in which a folder must store the weights for a model of this dtype.

    float32 holds whatever a GGUF file says.
    """
    return torch.bfloat16 if dtype in ROUNDED else torch.float32


def gguf_folder(path: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """The model folder made from the GGUF file at `path`.

    The first call converts, later ones find the result. The folder's name hashes the file's
    absolute path, size and time of change instead of its content: reading gigabytes at every start
    would cost more than the conversion saves, and a renamed file only converts again. Raises
    ValueError when the file is not a GGUF file that can be read, FileNotFoundError when it is one
    of several parts and the others are not beside it.
    """
    folder = stored_folder(path.resolve(), suffix(dtype))
    if folder.is_dir():
        return folder
    return publish(folder, str(path), lambda partial: convert_gguf(path, partial, dtype))


def is_converted(path: Path, dtype: torch.dtype) -> bool:
    """True if ``gguf_folder`` finds the folder."""
    return stored_folder(path.resolve(), suffix(dtype)).is_dir()


def stored_folder(path: Path, ending: str) -> Path:
    """Folder for what is made of this file; all its parts must be there and begin well."""
    parts = parts_of(path)
    states = [part.stat() for part in parts]
    identity = "\0".join(
        [str(parts[0]), *(f"{each.st_size} {each.st_mtime_ns}" for each in states), str(READING)]
    )
    mark = hashlib.sha256(identity.encode()).hexdigest()[:12]
    folder = home() / "models" / f"gguf-{parts[0].stem}-{mark}{ending}"
    if not folder.is_dir():
        for part in parts:
            check_gguf(part)
    return folder


def suffix(dtype: torch.dtype) -> str:
    """Ending of folders' names that tells stored types apart; empty for bfloat16."""
    return "" if dtype is torch.bfloat16 else f"-{str(dtype).removeprefix('torch.')}"


def parts_of(path: Path) -> list[Path]:
    """All parts of a split file in their order, found beside the one that is named.

    The file alone if it is whole.

    Raises FileNotFoundError, naming the first part that is not there.
    """
    found = PART.fullmatch(path.name)
    if found is None:
        return [path]
    count = int(found[3])
    parts = [
        path.with_name(f"{found[1]}-{number:05}-of-{found[3]}.gguf")
        for number in range(1, count + 1)
    ]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        cure = (
            "put all parts into one folder, or join them with llama.cpp's `llama-gguf-split"
            " --merge`"
        )
        raise FileNotFoundError(
            f"{path} is one of {count} parts of a model, and {missing[0]} is not beside it; {cure}"
        )
    return parts


def check_gguf(path: Path) -> None:
    """Raise ValueError unless the file begins like a GGUF file of a known version."""
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8 or head[:4] != b"GGUF":
        raise ValueError(
            f"{path} is not a GGUF file (it begins with {head[:4]!r}, not b'GGUF'); fetch the file"
            " again"
        )
    version = int.from_bytes(head[4:], "little")
    if version not in (2, 3):
        raise ValueError(
            f"{path} is a GGUF file of version {version}, readable are 2 and 3; convert it with"
            " llama.cpp"
        )


def convert_gguf(path: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Facts:
    """Write the model and the tokenizer of a GGUF file into `folder`.

    The weights become safetensors in `dtype`, the tokenizer becomes tokenizer.json. The chat
    template is kept. Returns what the folder's manifest says of the weights: how they were
    quantised, and the file's SHA-256. Raises ValueError, naming the file, when it is damaged or
    says something that is not understood.
    """
    what = f"converting {path.name} to {str(dtype).removeprefix('torch.')} (once)"
    parts = parts_of(path)
    with progress(what), quiet_transformers():
        with readable(path):
            readers = opened(parts)
            model = _read_model(readers, dtype)
            tokenizer = read_tokenizer(parts[0], readers[0], model.config.model_type)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {"quantisation": quantisation_of(readers), "weights": digest(parts)}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn any error of a parser about damaged bytes into a ValueError that names the file."""
    try:
        yield
    except NotInBlocksError:
        raise
    except Exception as error:  # a parser fed with damaged bytes fails in every way there is
        # Transformers calls garbled metadata "not a valid JSON file", an OSError; there is no JSON
        # here.
        garbled = isinstance(error, OSError)
        reason = (
            "its metadata is garbled"
            if garbled
            else " ".join(str(error).split())[:300] or repr(error)
        )
        cure = "fetch the file again, or name the original model by its Hugging Face id"
        if found := UNKNOWN_TYPE.search(reason):
            reason = f"a tensor is of type {found[1]}, which the gguf package does not know"
            cure = "upgrade that package, " + cure
        raise ValueError(f"{path} cannot be read as a GGUF model ({reason}); {cure}") from None


def opened(parts: list[Path]) -> list[gguf.GGUFReader]:
    readers: list[gguf.GGUFReader] = [QuickReader(part) for part in parts]
    told = readers[0].get_field("split.count")
    count = 1 if told is None else int(told.contents()) or 1
    if count != len(parts):
        raise ValueError(
            f"it is one of {count} parts and is not named so; give all parts the names they came"
            " with"
        )
    return readers


def quantisation_of(readers: list[gguf.GGUFReader]) -> str | None:
    """Type that most weights are stored in, for instance Q4_K; None for floats."""
    sizes = Counter[str]()
    for reader in readers:
        for tensor in reader.tensors:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    most = max(sizes, key=lambda name: sizes[name])
    return None if most in FLOATS else most


def digest(parts: list[Path]) -> str:
    """SHA-256 of a file; of several, the SHA-256 of their digests."""
    digests = [sha256(part) for part in parts]
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def _read_model(readers: list[gguf.GGUFReader], dtype: torch.dtype) -> Any:
    from transformers import AutoConfig

    from draftwood.loading.gguf_settings import configuration

    metadata = read_metadata(readers)
    model = skeleton.skeleton(AutoConfig.for_model(**configuration(metadata)), dtype)
    # from_pretrained(gguf_file=...) would keep the weights packed, which cannot be saved, and asks
    # for accelerate.
    model.load_state_dict(
        _weights(readers, metadata.architecture, model, dtype), strict=False, assign=True
    )
    model.tie_weights()
    missing = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    skeleton.require_none(missing)
    return model


def _weights(
    readers: list[gguf.GGUFReader], architecture: str, model: Any, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """All tensors under the model's names and in its layout."""
    layout, found = Layout(architecture, model), dict[str, torch.Tensor]()
    for tensor in (tensor for reader in readers for tensor in reader.tensors):
        if tensor.name in FACTORS:
            continue
        name, values = layout.place(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
        if name is not None:
            found[name] = torch.from_numpy(values.copy()).to(dtype)
    return found | {name: tensor.to(dtype) for name, tensor in layout.joined.items()}


class Layout:
    """Names and places of a file's tensors in a model of Transformers.

    Attributes:
        joined: tensors that several of the file's are parts of, by the model's names.
    """

    def __init__(self, architecture: str, model: Any) -> None:
        from transformers import modeling_gguf_pytorch_utils as transformers_gguf

        from draftwood.loading.gguf_settings import ARCHITECTURES

        kind = transformers_gguf.TENSOR_PROCESSORS.get(
            ARCHITECTURES[architecture].layout or architecture, transformers_gguf.TensorProcessor
        )
        self._model, self._processor = model, kind(config=model.config.to_dict())
        with _one_map_of_names():
            names = transformers_gguf.get_gguf_hf_weights_map(
                model, self._processor, model_type=architecture
            )
        # files name the weights of all tensors so
        plain = [name for name in names if not name.endswith((".weight", ".bias"))]
        self._names = names | {f"{name}.weight": names[name] for name in plain}
        self._parts: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}
        self._mixtures = {
            int(found[1]): (name, module)
            for name, module in experts.mixtures(model).items()
            if (found := LAYER.search(name))
        }
        self._halves: dict[str, dict[str, torch.Tensor]] = {}

    @property
    def joined(self) -> dict[str, torch.Tensor]:
        return self._parts["tensors"]

    def name_of(self, name: str) -> str | None:
        """The model's name of a tensor, or what ``skeleton`` calls a part of experts' weights; None
        for one that it has only as a part of another.
        """
        part = self._part_of_experts(name)
        if part is None:
            return self._names.get(name)
        of, _, which, kind = part
        if kind == "weight":
            return f"{of}.{which}.weight"
        return f"{of}.{experts.DOWN}_bias" if which == "down" else None

    def is_part(self, name: str) -> bool:
        """True if a tensor belongs to experts."""
        return self._part_of_experts(name) is not None

    def place(self, name: str, values: np.ndarray) -> tuple[str | None, np.ndarray]:
        """The model's name and the values in its layout; no name for what is ``joined``.

        Raises ValueError for a tensor that the model does not have.
        """
        part = self._part_of_experts(name)
        if part is not None:
            return self._place_experts(*part, values)
        placed = self._processor.process(
            weights=values,
            name=name,
            tensor_key_mapping=self._names,
            parsed_parameters=self._parts,
        )
        if placed.name is None:
            return None, placed.weights
        if placed.name not in self._names:
            raise ValueError(f"its tensor {name} has no place in {type(self._model).__name__}")
        return self._names[placed.name], placed.weights

    def _part_of_experts(self, name: str) -> tuple[str, Any, str, str] | None:
        """Locate a tensor of experts: the model's name of them, their module, which of their
        matrices it is, and whether it is the weight or the bias.
        """
        found = OF_EXPERTS.fullmatch(name)
        known = self._mixtures.get(int(found["layer"])) if found else None
        return None if found is None or known is None else (*known, found["part"], found["kind"])

    def _place_experts(
        self, name: str, module: Any, which: str, kind: str, values: np.ndarray
    ) -> tuple[str | None, np.ndarray]:
        """Join gate and up projections; the first to come waits for the other."""
        parts = {which: torch.from_numpy(np.array(values))}
        ending = "_bias" if kind == "bias" else ""
        if which == "down":
            return f"{name}.{experts.DOWN}{ending}", experts.join(module, parts).numpy()
        whole = f"{name}.{experts.GATE_UP}{ending}"
        halves = self._halves.setdefault(whole, {})
        halves |= parts
        if len(halves) == 2:
            self.joined[whole] = experts.join(module, self._halves.pop(whole))
        return None, values


@contextmanager
def _one_map_of_names() -> Iterator[None]:
    """Cache Transformers' map of names, which takes seconds and is built for every submodule."""
    usual = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = cache(usual)
    try:
        yield
    finally:
        gguf.get_tensor_name_map = usual


class QuickReader(gguf.GGUFReader):
    """Reader that skips lists of strings: a vocabulary takes seconds, and tokenizers read it again.

    Lists of numbers, which vocabularies have as well, are read at once.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list, list, list]:
        if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        content = memoryview(self.data)  # type: ignore[arg-type]
        kind, count = struct.unpack_from("<IQ", content, orig_offs)
        at, number = orig_offs + 12, self.gguf_scalar_to_np.get(gguf.GGUFValueType(kind))
        if number is not None:
            numbers = np.asarray(self._get(at, number, count))
            if len(numbers) != count:
                raise ValueError("a list of numbers goes beyond its end")
            types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]
            return 12 + numbers.nbytes, [*numbers[:, None]], [*range(count)], types
        if kind != gguf.GGUFValueType.STRING:
            return super()._get_field_parts(orig_offs, raw_type)
        for _ in range(count):
            at += 8 + struct.unpack_from("<Q", content, at)[0]
        if at > len(content):
            raise ValueError("a list of strings goes beyond its end")
        return at - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]


def read_tokenizer(path: Path, reader: gguf.GGUFReader, model_type: str) -> Any:
    """The tokenizer of a file whose model has this type."""
    from tokenizers import pre_tokenizers
    from transformers import TokenizersBackend
    from transformers.models.auto import tokenization_auto

    # AutoTokenizer would read the whole file only to find this class
    name = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type)
    known: Any = None if name is None else tokenization_auto.tokenizer_class_from_name(name)
    tokenizer = (known or TokenizersBackend).from_pretrained(path.parent, gguf_file=path.name)
    # Transformers forgets it where other files of a tokenizer lie beside the file
    template = reader.get_field("tokenizer.chat_template")
    if template is not None:
        tokenizer.chat_template = template.contents()
    kind = reader.get_field("tokenizer.ggml.pre")
    if kind is not None and kind.contents() in SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return tokenizer
