"""The entropy above which a model's likeliest token is rather wrong, learnt from a text."""

import json
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from draftwood.models.fingerprint import Fingerprint
from draftwood.models.model import Model
from draftwood.sampling import Sampling
from draftwood.storage.atomic import write_file
from draftwood.storage.home import home
from draftwood.text.language_model import LanguageModel
from draftwood_choices.pause import entropy

FEWEST = 200
"""Tokens from which an entropy can be learnt."""
MUCH = 0.9
"""Share of tokens at which to pause that hardly repays."""
WINDOW = 256
"""Tokens that are read in a row."""
CODE = ("bisect", "heapq", "textwrap", "shlex", "statistics", "fractions", "calendar", "difflib")
"""Modules of Python whose source is the built-in text."""


def best_entropy(
    entropies: Float[np.ndarray, " tokens"], first: Bool[np.ndarray, " tokens"]
) -> tuple[float, float]:
    """The bound that best tells tokens which are the model's likeliest from others.

    The paper fits a logistic regression on the entropy and takes the probability of the best
    accuracy. Of one number a regression keeps the order, so that its best bound is the best one on
    the entropy itself, which is looked for here.

    Args:
        first: whether the text's token was the likeliest.

    Returns:
        The bound in nats, from which on a token is expected to be another, and the accuracy.

    Raises:
        ValueError: for too few tokens, or where no bound is better than none.
    """
    if len(first) < FEWEST or first.all() or not first.any():
        raise ValueError(
            f"an entropy is learnt from at least {FEWEST} tokens of which some are the model's"
            f" likeliest and some are not; {int(first.sum())} of {len(first)} are. Give a longer"
            " text, or more --seconds"
        )
    order = np.argsort(entropies, kind="stable")
    ranked, right = entropies[order], first[order]
    below = np.concatenate([[0], np.cumsum(right)])  # right where nothing is paused
    above = np.concatenate([[0], np.cumsum(~right[::-1])])[::-1]
    correct = below + above
    correct[1:-1][ranked[1:] == ranked[:-1]] = -1  # equal entropies are on one side
    place = int(correct[:-1].argmax())
    return float(ranked[place]), float(correct[place] / len(first))


def learn(lm: LanguageModel, text: str | None = None, seconds: float = 30.0) -> dict[str, object]:
    """Learn the entropy of a model, and store it for the rule ``pause``.

    Args:
        text: such as the model is to write; the source of modules of Python where it is None.
        seconds: most time.

    Returns:
        What was found, by name.

    Raises:
        ValueError: for a text of too few tokens, or one that the model knows by heart.
    """
    tokens, end = (
        lm.encode(_built_in() if text is None else text, raw=True),
        time.perf_counter() + seconds,
    )
    entropies, first = list[float](), list[bool]()
    for start in range(0, len(tokens) - 1, WINDOW):
        window = tokens[start : start + WINDOW + 1]
        with closing(lm.model.start()) as session:
            rows = session.extend(window[:-1]).rows
        first += [int(row.argmax()) == token for row, token in zip(rows, window[1:], strict=True)]
        entropies += [entropy(row) for row in Sampling(1.0).probs(rows)]
        if time.perf_counter() > end:
            break
    values = np.array(entropies)
    bound, accuracy = best_entropy(values, np.array(first, bool))
    found: dict[str, Any] = {
        "entropy": round(bound, 4),
        "paused": round(float((values >= bound).mean()), 4),
        "accuracy": round(accuracy, 4),
        "tokens": len(values),
    }
    if found["paused"] > MUCH:
        found["note"] = (
            "texts pause nearly everywhere, as this text's tokens are seldom the model's likeliest;"
            " give --pause a text such as the model writes"
        )
    record = {"model": str(Fingerprint.of(lm.model)), **found}
    write_file(_file(lm.model), json.dumps(record, indent=1) + "\n")
    return found


def learnt_entropy(model: Model) -> float:
    """The entropy that was learnt of a model, in nats.

    Raises:
        ValueError: where none was, or its file is damaged.
    """
    file = _file(model)
    try:
        found = float(json.loads(file.read_text(encoding="utf-8"))["entropy"])
        if not 0.0 <= found < float("inf"):
            raise ValueError(f"an entropy of {found}")
    except FileNotFoundError:
        raise ValueError(
            "no entropy was learnt of this model, which rule 'pause' needs; run: draftwood tune"
            " --pause, with the same --model, --dtype and --device"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error}); run draftwood tune --pause again") from None
    return found


def _file(model: Model) -> Path:
    return home() / "pauses" / f"{Fingerprint.of(model).logits}.json"


def _built_in() -> str:
    """Source of modules of Python, as far as this one has it."""
    found = [spec.origin for name in CODE if (spec := find_spec(name)) and spec.origin]
    return "\n".join(Path(path).read_text(encoding="utf-8") for path in found)
