"""CTC, Medusa and Hydra heads run by the C++ library, for targets that it runs too."""

from dataclasses import asdict
from typing import Any

from draftwood.heads.ctc import CtcConfig, CtcHead
from draftwood.heads.medusa import MedusaHead
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native.formats import INTEGERS
from draftwood.native.frames import FrameShape, NativeFrames
from draftwood.native.head import HeadLayerShape, why_not
from draftwood.native.medusa import MedusaShape, NativeMedusa


def native_frames(trained: TrainedHead, target: Model) -> NativeFrames | None:
    """Pack a CTC head for a target of the library; None where PyTorch runs it."""
    head = trained.head
    assert isinstance(head, CtcHead)
    config = head.config
    shape = FrameShape(
        **asdict(config.sizes),
        frames=config.frames,
        layers=_layers(config),
        reads=len(config.reads),
        norms_features=len(config.reads) > 1,
        reads_root=config.reads_root,
        has_blank=config.has_blank,
        window=config.window,
    )
    given = _given(trained, shape, target)
    return None if given is None else NativeFrames(shape, head.state_dict(), **given)


def _layers(config: CtcConfig) -> tuple[str, ...]:
    """Names before those of each layer's weights."""
    deeper = (f"deeper.{number}." for number in range(config.layers - 1))
    return ("", *deeper) if config.form == "layer" else ()


def native_medusa(trained: TrainedHead, target: Model) -> NativeMedusa | None:
    """Pack Medusa's or Hydra's heads for a target of the library; None where PyTorch runs them."""
    head = trained.head
    assert isinstance(head, MedusaHead)
    config = head.config
    reads = tuple(config.tokens(level) for level in range(config.heads))
    shape = MedusaShape(**asdict(config.sizes), reads=reads)
    given = _given(trained, shape, target)
    return None if given is None else NativeMedusa(shape, head.state_dict(), **given)


def _given(trained: TrainedHead, shape: HeadLayerShape, target: Model) -> dict[str, Any] | None:
    """Collect what a native head takes of its target: draft vocabulary, output rows, embedding,
    products.

    None where the library cannot run it: beside output heads that do more than multiply and scale,
    and for weights with NaN or infinity, which rounding would hide and PyTorch finds with the first
    draft.
    """
    if not isinstance(target, NativeModel) or not _is_sound(trained):
        return None
    if target.weights.head_bias is not None or target.weights.structure.logit_cap:
        return None
    # four bits change what an output head says, and hardly what a layer does
    is_rounded = target.products in INTEGERS
    products, lm_products = ("int4", "int8") if is_rounded else (target.products, target.products)
    if why_not(shape, products):
        return None
    tokens, weights = trained.draft_tokens, target.weights
    return {
        "draft_tokens": tokens,
        "lm_rows": weights.lm_head.outputs(tokens) * weights.structure.logit_scale,
        "embedding": weights.embedding,
        "embedding_scale": weights.embedding_scale,
        "products": products,
        "lm_products": lm_products,
    }


def _is_sound(trained: TrainedHead) -> bool:
    return all(bool(weight.isfinite().all()) for weight in trained.head.state_dict().values())
