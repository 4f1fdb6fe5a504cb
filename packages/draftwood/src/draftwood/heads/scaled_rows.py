"""Rows of a target's output head, by which heads give logits on the scale of the target's."""

from typing import Any

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.models.model import Model
from draftwood.models.native import NativeModel


def scaled_rows(target: Model, tokens: Int[np.ndarray, " tokens"]) -> Float[Any, "tokens dim"]:
    """Rows of a target's output head, times the factor of its logits.

    Granite and Cohere, among others, multiply their logits with a factor of their own. Rows are
    arrays or tensors, as the target hands its weights out.
    """
    rows = target.embeddings_and_head.weights().head[tokens]
    scale = _logit_scale(target, tokens, rows)
    return rows if scale == 1.0 else rows * scale


def _logit_scale(target: Model, tokens: Int[np.ndarray, " tokens"], rows: Any) -> float:
    """Find the factor of a target's logits.

    Beside the native path it is read off the logits of a unit state, whose products with the rows
    are one of their columns: any class of Transformers may have such a factor.
    """
    if isinstance(target, NativeModel):
        return target.weights.structure.logit_scale
    column = int(abs(rows).sum(0).argmax())
    states = np.zeros((2, target.hidden_size), np.float32)
    states[1, column] = 1.0
    bias, logits = as_array(target.embeddings_and_head.logits(states, tokens, normed=True))
    products = as_array(rows[:, column])
    return float((logits - bias) @ products / (products @ products))
