"""Layers for multi-token prediction (MTP) beside the weights of a native model, in its folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.arrays import as_floats
from draftwood.loading.gguf_blocks import is_blocks_folder, names_in, own_tensors
from draftwood.loading.native_folders import settings_of
from draftwood.loading.tensors import StoredTensors, mapped, stored_type, weight_files
from draftwood.models.configuration import FULL, ModelConfiguration
from draftwood.models.decoder import Norm, Projection
from draftwood.models.description import describe
from draftwood.models.native import NativeModel
from draftwood.models.native.mtp import MtpParts, NativeMtp
from draftwood.native.formats import Products
from draftwood.storage.safetensors import read_header


@dataclass(frozen=True)
class MtpLayout:
    """Names of the tensors of such a layer.

    Attributes:
        layer: what the names of its decoder layer begin with; ``{behind}`` is the number behind the
            target's last layer.
        joined: projection of token and state.
        token, state: norms of these.
        norm: behind the layer.
        state_first: whether the projection reads the state before the token.
    """

    layer: str
    joined: str
    token: str
    state: str
    norm: str
    state_first: bool = False

    def at(self, behind: int) -> "MtpLayout":
        """The names in a model of so many layers."""
        names = {name: getattr(self, name).format(behind=behind) for name in NAMES}
        return replace(self, **names)


NAMES = ("layer", "joined", "token", "state", "norm")
_MIMO, _BEHIND = "model.mtp_layers.0.", "model.layers.{behind}."
LAYOUTS = (
    MtpLayout(
        layer="mtp.layers.0.",
        joined="mtp.fc",
        token="mtp.pre_fc_norm_embedding",
        state="mtp.pre_fc_norm_hidden",
        norm="mtp.norm",
    ),
    MtpLayout(
        layer=_BEHIND,
        joined=f"{_BEHIND}eh_proj",
        token=f"{_BEHIND}enorm",
        state=f"{_BEHIND}hnorm",
        norm=f"{_BEHIND}shared_head.norm",
    ),
    MtpLayout(
        layer=_MIMO,
        joined=f"{_MIMO}input_proj",
        token=f"{_MIMO}token_layernorm",
        state=f"{_MIMO}hidden_layernorm",
        norm=f"{_MIMO}final_layernorm",
        state_first=True,
    ),
)
"""Layouts of Qwen, DeepSeek and MiMo."""


def offer(model: NativeModel, folder: Path) -> None:
    """Give a model the layer in its folder, if there is one; reads no weights."""
    if is_blocks_folder(folder):
        names = names_in(folder)
    else:
        names = {name for path in weight_files(folder) for name in read_header(path)}
    if layout_in(names, model.layers) is not None:
        model.abilities |= {"mtp"}
        model.read_mtp = partial(_read, folder)


def layout_in(names: "set[str] | Mapping[str, Any]", layers: int) -> MtpLayout | None:
    """The layout of a layer among tensors of these names; None without one."""
    known = (layout.at(layers) for layout in LAYOUTS)
    return next((each for each in known if f"{each.joined}.weight" in names), None)


def _read(folder: Path, model: NativeModel) -> NativeMtp:
    try:
        return NativeMtp(parts_in(folder, model.products), model)
    except ValueError as error:
        raise ValueError(
            f"the layer for multi-token prediction in {folder} cannot be read ({error}); choose"
            " another method, or fetch the model again"
        ) from None


def parts_in(folder: Path, products: Products = "float32") -> MtpParts:
    """Read the layer in a model's folder; matrices stay mapped.

    Args:
        products: of the model.

    Raises:
        ValueError: for tensors that are missing or of other shapes.
    """
    told = settings_of(folder).told
    arrays, given = _stored(folder, told, products)
    layers = ModelConfiguration(told).get("num_hidden_layers")
    layout = layout_in(arrays, layers)
    if layout is None:
        raise ValueError("it has none")
    only = _of_one_layer(told)
    config = ModelConfiguration(only)
    prefix, own = config.family.prefix, dict[str, Any]()
    for name, array in arrays.items():
        if name.startswith(layout.layer):
            own[f"{prefix}layers.0.{name.removeprefix(layout.layer)}"] = array
        elif not name.startswith(f"{prefix}layers."):
            own[name] = array
    own[f"{prefix}norm.weight"] = _found(arrays, layout.norm)
    decoder = describe(only, given(own, config))
    shift, width = config.family.norm_shift, decoder.sizes.hidden
    joined = _found(arrays, layout.joined)
    if joined.shape != (width, 2 * width):
        raise ValueError(f"{layout.joined} has the shape {list(joined.shape)}")
    if layout.state_first:
        joined = np.concatenate([joined[:, width:], joined[:, :width]], axis=1)

    def norm(name: str) -> Norm:
        saved = _found(arrays, name)
        if saved.shape != (width,):
            raise ValueError(f"{name} has the shape {list(saved.shape)}")
        return Norm(as_floats(saved) + np.float32(shift), None, saved)

    return MtpParts(
        *(decoder.layers[0], decoder.norm),
        *(norm(layout.token), norm(layout.state)),
        Projection(joined, None),
    )


def _of_one_layer(told: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose one layer has attention."""
    has_kinds, text = hasattr(ModelConfiguration(told), "layer_types"), told.get("text_config")
    change = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    change |= {"layer_types": [FULL]} if has_kinds else {}
    return told | (change if text is None else {"text_config": {**text, **change}})


def _stored(
    folder: Path, told: Mapping[str, Any], products: Products
) -> tuple[Mapping[str, Any], Callable[..., Callable[[str], Any]]]:
    """The tensors of a folder, and what gives some of them as a decoder is read."""
    if is_blocks_folder(folder):
        return own_tensors(folder, products), lambda own, config: own.get
    arrays = mapped(folder)
    dtype = stored_type(told, arrays)
    return arrays, lambda own, config: StoredTensors(own, config, dtype)


def _found(arrays: Mapping[str, Any], name: str) -> Any:
    found = arrays.get(f"{name}.weight")
    if found is None:
        raise ValueError(f"{name}.weight is missing")
    return found
