"""CTC, Medusa and Hydra heads as the C++ library runs them, for targets that it runs too."""

from dataclasses import asdict
from typing import Any

from draftwood.heads.ctc import CtcConfig
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.packed import QUANTISED, is_sound, of_target, output_rows
from draftwood.heads.shapes import as_stored
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native.formats import INTEGERS, HeadSizes
from draftwood.native.frames import FrameShape, NativeFrames
from draftwood.native.head import why_not
from draftwood.native.medusa import MedusaShape, NativeMedusa


def native_frames(trained: TrainedHead, target: Model) -> NativeFrames | None:
    """Pack a CTC head; None where PyTorch runs it."""
    config = trained.config
    assert isinstance(config, CtcConfig)
    shape = FrameShape(
        **asdict(config.sizes),
        frames=config.frames,
        layers=config.places_of_layers(),
        reads=len(config.reads),
        norms_features=len(config.reads) > 1,
        reads_root=config.reads_root,
        has_blank=config.has_blank,
        window=config.window,
    )
    given = _beside(trained, shape, target)
    return None if given is None else NativeFrames(shape, as_stored(trained.weights), **given)


def native_medusa(trained: TrainedHead, target: Model) -> NativeMedusa | None:
    """Pack Medusa's or Hydra's heads; None where PyTorch runs them."""
    config = trained.config
    assert isinstance(config, MedusaConfig)
    reads = tuple(config.tokens(level) for level in range(config.heads))
    shape = MedusaShape(**asdict(config.sizes), reads=reads)
    given = _beside(trained, shape, target)
    return None if given is None else NativeMedusa(shape, as_stored(trained.weights), **given)


def _beside(trained: TrainedHead, shape: HeadSizes, target: Model) -> dict[str, Any] | None:
    """Collect what heads that give logits themselves take of their target; None where PyTorch runs
    them, beside output heads that do more than multiply and scale too.
    """
    if not isinstance(target, NativeModel) or not is_sound(trained):
        return None
    if target.weights.head_bias is not None or target.weights.structure.logit_cap:
        return None
    is_rounded = target.products in INTEGERS
    products = QUANTISED if is_rounded else target.products
    if why_not(shape, products):
        return None
    rows = output_rows(trained, target)
    return {**of_target(trained, target, products), "lm_rows": rows}
