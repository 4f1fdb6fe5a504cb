"""Scores of answers: there only to show that nothing is lost, so the simplest that serve."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from draftwood.models.model import Model
from draftwood_bench.plan.prompts import Prompt


def quality(
    prompt: Prompt, text: str, model: Model, tokens: Sequence[int], answer: Sequence[int]
) -> dict | None:
    """The score that a prompt allows.

    Its number, its reference, else how likely the model itself finds the answer.

    Args:
        prompt: with its reference or its number, where it has one.
        text: the answer.
        model: the target.
        tokens: of the prompt.
        answer: tokens of the answer.
    """
    if prompt.answer is not None:
        return {"name": "right number", "value": float(last_number(text) == float(prompt.answer))}
    if prompt.reference is not None:
        return {"name": "ROUGE-2", "value": round(rouge_2(text, prompt.reference), 4)}
    if not answer:
        return None
    return {
        "name": "log-likelihood per token",
        "value": round(log_likelihood(model, tokens, answer), 4),
    }


def last_number(text: str) -> float | None:
    """The last number in a text, with thousands marked by commas or not; None without any."""
    found = re.findall(r"-?\d+(?:,\d{3})*(?:\.\d+)?", text)
    return float(found[-1].replace(",", "")) if found else None


def rouge_2(text: str, reference: str) -> float:
    """F1 of the word pairs that a text shares with a reference (Lin 2004), between 0 and 1."""
    one, other = _pairs(text), _pairs(reference)
    shared = sum((one & other).values())
    return 2 * shared / (sum(one.values()) + sum(other.values())) if shared else 0.0


def log_likelihood(model: Model, tokens: Sequence[int], answer: Sequence[int]) -> float:
    """Mean log-probability of an answer's tokens under the model at temperature 1, in one pass."""
    session = model.start()
    try:
        session.extend(tokens[:-1], keep="last") if len(tokens) > 1 else None
        logits = session.extend([tokens[-1], *answer[:-1]]).logits.float().cpu()
    finally:
        session.close()
    return float(logits.log_softmax(-1)[range(len(answer)), list(answer)].mean())


def _pairs(text: str) -> Counter[tuple[str, str]]:
    words = re.findall(r"\w+", text.lower())
    return Counter(pairwise(words))
