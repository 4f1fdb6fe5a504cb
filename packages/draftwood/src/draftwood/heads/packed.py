"""Trained heads packed for the C++ library, once for each head and target."""

from weakref import WeakKeyDictionary

from draftwood.heads.eagle import EagleHead
from draftwood.heads.lm import LmHead
from draftwood.heads.native_eagle import NativeEagle, why_not
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.head import HeadProducts, NativeHead

Products = tuple[HeadProducts, HeadProducts]
"""Products of the layers, and of the output rows."""

QUANTISED: Products = ("int4", "int8")
"""Four bits change what an output head says, and hardly what a layer does."""

_Key = tuple[Products, int]
_PACKED: WeakKeyDictionary[TrainedHead, WeakKeyDictionary[Model, dict[_Key, NativeHead]]] = (
    WeakKeyDictionary()
)


def packed(trained: TrainedHead, target: NativeModel, products: Products = QUANTISED) -> NativeHead:
    """Pack an EAGLE head or a draft LM; one that was packed for this target before is shared.

    Raises:
        ValueError: where the library cannot run it.
    """
    of_target = _PACKED.setdefault(trained, WeakKeyDictionary()).setdefault(target, {})
    changes = sum(weight._version for weight in trained.head.parameters())
    if (products, changes) not in of_target:
        of_target[products, changes] = _pack(trained, target, products)
    return of_target[products, changes]


def native_head(trained: TrainedHead, target: Model) -> NativeHead | None:
    """Pack a head where its target runs natively; None where PyTorch runs it.

    The head multiplies as its target does: in float32 beside float32, else in few bits.
    """
    if not isinstance(target, NativeModel):
        return None
    products = _products_beside(target)
    if any(_why_not(trained, each) for each in products):
        return None
    if not all(bool(weight.isfinite().all()) for weight in trained.head.parameters()):
        return None  # PyTorch says NaN, which ends its drafts
    return packed(trained, target, products)


def _products_beside(target: NativeModel) -> Products:
    if target.products == "float32":
        return "float32", "float32"
    return QUANTISED if library.instructions(True) else ("bfloat16", "bfloat16")


def _why_not(trained: TrainedHead, products: HeadProducts) -> str | None:
    head = trained.head
    if isinstance(head, EagleHead | LmHead):
        return why_not(head.config, products)
    return "the library runs EAGLE heads and draft LMs"


def _pack(trained: TrainedHead, target: NativeModel, products: Products) -> NativeHead:
    head, tokens, weights = trained.head, trained.draft_tokens, target.weights
    own = head.state_dict().get("lm_head.weight")
    rows = weights.lm_head.outputs(tokens) if own is None else own
    given = (tokens, rows, weights.embedding, weights.embedding_scale, *products)
    if isinstance(head, EagleHead | LmHead):
        return NativeEagle(head, *given)
    raise ValueError(f"the library runs EAGLE heads and draft LMs, not a {type(head).__name__}")
