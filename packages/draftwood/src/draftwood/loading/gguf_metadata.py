"""The settings of a GGUF file, of which none may be left unread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.models.rotary import is_number
from draftwood.tokenizer.gguf_vocabulary import read_vocabulary

if TYPE_CHECKING:
    from gguf import GGUFReader

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (FREQS, LONG, SHORT)  # tensors that are settings
EMBEDDING = "token_embd.weight"
NEUTRAL = {  # settings that say what is so without them
    "expert_count": 0,
    "expert_used_count": 0,
    "expert_group_count": 0,
    "expert_group_used_count": 0,
    "expert_shared_count": 0,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 1,  # softmax
    "nextn_predict_layers": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.group_norm_epsilon": 0.0,
    "attention.shared_kv_layers": 0,
    "attention.temperature_scale": 0.0,
    "leading_dense_block_count": 0,
    "pooling_type": 0,
}
MOST = 1 << 31
"""Counts are smaller: of layers, of dimensions, of positions."""
# the tensors say these themselves
DESCRIPTIVE = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned"}
SPECIAL, TURNS = ("bos", "eos", "padding"), ("eot", "eom")
ORIGINAL = "name the original model by its Hugging Face id"
OTHERS = {
    "adapter": (
        "an adapter",
        "name the model, and as --adapter a folder that save_pretrained of PEFT wrote",
    ),
    "mmproj": ("the part of a model that reads pictures", "name the file of its language model"),
}
"""Contents of files of other types than models, and what to name in their place."""


class UnknownArchitectureError(ValueError):
    """A file asks for a model or a tokenizer that is not read here; the file may be sound.

    Attributes:
        cure: what helps.
    """

    def __init__(self, reason: str, cure: str = ORIGINAL) -> None:
        super().__init__(reason)
        self.cure = cure


@dataclass(eq=False)
class Metadata:
    """The settings of one file.

    Reading takes them away, so that what nobody understood is left at the end.

    Attributes:
        architecture: llama.cpp's name of it.
        values: settings without the architecture in front.
        tokens: ids of special tokens, under llama.cpp's names.
        ends: ids of tokens that end a text or a turn, besides the one that the file names.
        shapes: of all tensors, in PyTorch's order.
        factors: tensors that scale rotary frequencies, by name.
    """

    architecture: str
    values: dict[str, Any]
    tokens: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    factors: Mapping[str, list[float]] = field(default_factory=dict)
    ends: tuple[int, ...] = ()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a setting that may be missing: a text where the default is one, or a number.

        Raises ValueError for another one.
        """
        value = self.values.pop(key, default)
        is_right = isinstance(value, str) if isinstance(default, str) else is_number(value)
        if value is not default and not is_right:
            raise ValueError(f"the setting {self.architecture}.{key} is {str(value)[:40]!r}")
        return value

    def take_each(self, key: str, default: int) -> Any:
        """The value of a setting that may be missing, or differ between layers."""
        if isinstance(told := self.values.get(key), list) and all(map(is_number, told)):
            return self.values.pop(key)
        return self.take(key, default)

    def need(self, key: str) -> Any:
        """The value of a setting that every file has, and one for all layers: a list of equal
        entries, one for each, is that entry.

        Raises ValueError without it.
        """
        if self.values.get(key) is None:
            raise ValueError(f"the setting {self.architecture}.{key} is missing")
        if isinstance(told := self.values[key], list):
            if told and told == told[:1] * len(told):
                self.values[key] = told[0]
                return self.take(key)
            what = f"differs between layers ({str(told)[:40]})"
            raise UnknownArchitectureError(f"the setting {self.architecture}.{key} {what}")
        return self.take(key)

    def need_count(self, key: str) -> int:
        """The same for a count: a whole number above 0."""
        value = self.need(key)
        if type(value) is not int or not 0 < value < MOST:
            raise ValueError(f"the setting {self.architecture}.{key} is {value}")
        return value

    def require_nothing_left(self) -> None:
        """Raise UnknownArchitectureError for a setting that was not read and is not neutral."""
        for key, value in self.values.items():
            if key not in DESCRIPTIVE and not (key in NEUTRAL and value == NEUTRAL[key]):
                raise UnknownArchitectureError(
                    f"its setting {self.architecture}.{key} = {str(value)[:60]} is not understood,"
                    " and without it the file would load as another model"
                )


def read_metadata(readers: "list[GGUFReader]", file: Path) -> Metadata:
    """Read the metadata of a file's parts, of which this is the first.

    Raises:
        UnknownArchitectureError: for a file that holds no model, and for tokens of texts that its
            embedding has no rows for.
        ValueError: for a damaged one.
    """
    from gguf import dequantize

    fields = readers[0].fields
    if "general.architecture" not in fields:
        raise ValueError("it does not say its architecture")
    kind = fields["general.type"].contents() if "general.type" in fields else "model"
    if kind != "model":
        what, cure = OTHERS.get(kind, (f"something of the type {kind!r}", ORIGINAL))
        raise UnknownArchitectureError(f"it holds no model but {what}", cure)
    name = fields["general.architecture"].contents()
    tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
    if not tensors:
        raise UnknownArchitectureError("it holds a tokenizer and no weights", "name the whole file")
    shapes = {
        key: tuple(int(size) for size in reversed(tensor.shape)) for key, tensor in tensors.items()
    }
    vocabulary = read_vocabulary(file)
    try:
        vocabulary = vocabulary.within(shapes.get(EMBEDDING, (None,))[0])
    except ValueError as error:
        raise UnknownArchitectureError(str(error)) from error
    return Metadata(
        architecture=name,
        values={
            key[len(name) + 1 :]: each.contents()
            for key, each in fields.items()
            if key.startswith(f"{name}.")
        },
        tokens=_special(fields, SPECIAL, vocabulary.size),
        ends=(*_special(fields, TURNS, vocabulary.size).values(), *vocabulary.ends()),
        shapes=shapes,
        factors={
            key: dequantize(tensors[key].data, tensors[key].tensor_type).tolist()
            for key in FACTORS
            if key in tensors
        },
    )


def _special(fields: Mapping[str, Any], keys: Sequence[str], size: int) -> dict[str, int]:
    """The ids of special tokens; those beyond the vocabulary's size mean that there is none."""
    names = {key: f"tokenizer.ggml.{key}_token_id" for key in keys}
    found = {key: fields[name].contents() for key, name in names.items() if name in fields}
    if strange := [names[key] for key, value in found.items() if type(value) is not int]:
        raise ValueError(f"{', '.join(strange)} should be whole numbers")
    return {key: value for key, value in found.items() if 0 <= value < size}
