"""EAGLE heads and draft LMs as the C++ library runs them, for targets that it runs too."""

from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from draftwood.heads.eagle import EagleConfig
from draftwood.heads.folder import shipped_for
from draftwood.heads.shapes import as_stored, is_finite
from draftwood.heads.trained import TrainedHead, kept_probe
from draftwood.models.fingerprint import adapter_of
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import head as native
from draftwood.native import library
from draftwood.native.formats import Products
from draftwood.native.head import HeadShape, HeadWeights, NativeHead
from draftwood.native.matrix import Chosen
from draftwood.storage.weights import kept_for

if TYPE_CHECKING:
    from draftwood.heads.lm import LmConfig

KINDS = ("eagle", "lm")
"""Kinds of heads that the library runs in one way."""

QUANTISED: Products = "int4"
"""Products of heads beside a target in few bits. On Spec-Bench four bits draft as well as eight."""

_Packed = WeakKeyDictionary[Model, dict[Products, NativeHead]]
_PACKED: WeakKeyDictionary[TrainedHead, _Packed] = WeakKeyDictionary()


def packed(trained: TrainedHead, target: NativeModel, products: Products = QUANTISED) -> NativeHead:
    """Pack an EAGLE head or a draft LM; one that was packed for this target before is shared.

    Later changes of its weights are not seen.

    Raises:
        ValueError: where the library cannot run it.
    """
    known = _PACKED.setdefault(trained, WeakKeyDictionary()).setdefault(target, {})
    if products not in known:
        given = of_target(trained, target, products)
        weights = as_stored(trained.weights)
        own = weights.get("lm_head.weight")
        chosen = Chosen(target.weights.lm_head.structure, trained.draft_tokens)
        given["lm_rows"] = chosen if own is None else own
        given["logit_scale"] = target.weights.structure.logit_scale if own is None else 1.0
        known[products] = native_eagle(trained.config, weights, **given)
    return known[products]


def native_eagle(config: Any, weights: HeadWeights, **given: Any) -> NativeHead:
    """Pack an EAGLE head or a draft LM.

    Args:
        config: settings of the head.
        weights: by their names.
        given: draft vocabulary, embedding and products, as ``PackedHead`` takes them.

    Raises:
        ValueError: where the library cannot run it.
    """
    if config.kind not in KINDS:
        raise ValueError(
            f"the library runs EAGLE heads and draft LMs, not the kind {config.kind!r}"
        )
    if reason := why_not(config, given.get("products", "int8")):
        raise ValueError(reason)
    return NativeHead(shape_of(config), weights, **given)


def native_head(trained: TrainedHead, target: Model) -> NativeHead | None:
    """Pack an EAGLE head or a draft LM; None where PyTorch runs it.

    The head multiplies as its target does: in float32 beside float32, else in few bits.
    """
    config: Any = trained.config
    if not isinstance(target, NativeModel) or config.kind not in KINDS:
        return None
    products: Products = "bfloat16"
    if target.products == "float32":
        products = "float32"
    elif library.instructions(True):
        products = QUANTISED
    if why_not(config, products) or not is_sound(trained):
        return None
    return packed(trained, target, products)


def why_not(config: "EagleConfig | LmConfig", products: Products = "int8") -> str | None:
    """Reason why the library cannot run such a head, as a clause; None where it can."""
    if isinstance(config, EagleConfig) and (config.feature_sampling or config.partial_alignment):
        return "the native head has no feature sampling; take method eagle"
    return native.why_not(shape_of(config), products)


def runs_for(target: Model, trained: TrainedHead) -> bool:
    """True if the library can run an EAGLE head or a draft LM for a target."""
    config: Any = trained.config
    runs = isinstance(target, NativeModel) and config.kind in KINDS
    return runs and why_not(config) is None


class HeadTarget(Protocol):
    """A model, the folder of its weights, None where it came from memory, and their type."""

    model: Model
    folder: Path | None
    dtype: str


def shipped(target: HeadTarget, kind: str) -> TrainedHead | None:
    """Find the head of a kind that comes with draftwood for a target, where the library runs it."""
    model = target.model
    if not isinstance(model, NativeModel):
        return None
    with probe_kept(target):
        found = shipped_for(model, kind)
    return found if found is not None and runs_for(model, found) else None


def probe_kept(target: HeadTarget, is_asked: bool = True) -> AbstractContextManager[None]:
    """Spare later loads of a target the pass that finds its probe, if it is asked for; see
    ``kept_probe``.
    """
    path = None
    if is_asked and target.folder is not None:
        further = target.dtype, adapter_of(target.model)
        path, _ = kept_for("probes", target.folder, *further, suffix=".json")
    return kept_probe(target.model, path)


def shape_of(config: "EagleConfig | LmConfig") -> HeadShape:
    """Sizes and switches of the head in the library's form."""
    is_eagle = isinstance(config, EagleConfig)
    return HeadShape(
        **asdict(config.sizes),
        layers=config.layers,
        reads=len(config.reads),
        norms_features=is_eagle and config.norms_features,
        feeds_normed=is_eagle and config.feeds_normed,
        starts_normed=is_eagle and config.norm_before_residual,
        window=config.window,
    )


def of_target(trained: TrainedHead, target: NativeModel, products: Products) -> dict[str, Any]:
    """Collect what all heads take of their target, but output rows."""
    return {
        "draft_tokens": trained.draft_tokens,
        "embedding": target.weights.embedding,
        "embedding_scale": target.weights.embedding_scale,
        "products": products,
    }


def output_rows(trained: TrainedHead, target: NativeModel) -> Any:
    """Rows of the target's output head, one for each draft token, by which its logits are
    scaled.
    """
    weights = target.weights
    return weights.lm_head.outputs(trained.draft_tokens) * weights.structure.logit_scale


def is_sound(trained: TrainedHead) -> bool:
    """False for weights with NaN or infinity, which rounding would hide and PyTorch finds with the
    first draft.
    """
    return all(map(is_finite, as_stored(trained.weights).values()))
