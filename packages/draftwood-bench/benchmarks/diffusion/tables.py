"""Tables of what rules of unmasking bring and cost on a real model."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.common.json_lines import grouped
from draftwood_bench.records.statistics import difference

FREE = 0.05
"""Nats a token, and shares of distinct pairs and of length, up to which nothing was paid."""
STEEP = 3.0
"""Exponent with which quality below the best counts less in the area."""
ONE_BY_ONE = "one-by-one"
ORDERS = ("left-to-right",)
"""Other orders of one by one."""
Records = Sequence[Mapping[str, Any]]


def tables(records: Records, source: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """By model: every way beside one by one and beside the source; and the rules of a family."""
    groups = grouped(of_one_draw(records), "model", "texts", "longest")
    for (model, texts, longest), own in groups.items():
        if model == source:
            continue
        base = next((each for each in own if each["way"] == ONE_BY_ONE), None)
        (plain,) = groups.get((source, texts, longest), [None])
        title = f"### {model}, {texts} stories of at most {longest} tokens"
        shown = own if plain is None else [plain, *own]
        yield title, [row(each, base, plain) for each in shown]
        if base is not None:
            yield f"### {model}, {longest} tokens: families of rules", families(own, base)


def of_one_draw(records: Records) -> list[Mapping[str, Any]]:
    """Records whose texts have the seeds of the newest: those of others do not pair with them."""
    return [each for each in records if each.get("first_seed") == records[-1].get("first_seed")]


def row(
    own: Mapping[str, Any], base: Mapping[str, Any] | None, source: Mapping[str, Any] | None
) -> dict[str, str]:
    """One way."""
    told = {"way": own["way"], "tokens a pass": f"{rate(own):.2f}"}
    told["nats a token"] = str(difference(_known(own["nats"])))
    for name, other in (("one by one", base), ("the source", source)):
        if other is not None:
            told[f"beside {name}"] = str(apart(own, other))
    told["distinct-2"] = f"{mean(own, 'distinct_2'):.3f}"
    told["tokens"] = f"{mean(own, 'tokens'):.1f}"
    told["pays nothing"] = "" if base is None else ("yes" if is_free(own, base) else "no")
    return told


def families(own: Records, usual: Mapping[str, Any]) -> list[dict[str, str]]:
    """The most tokens a pass that a rule gives for nothing, and the area of its knobs' curve.

    Args:
        usual: one by one; states looked ahead of another of its orders stand beside that order.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    orders = {each["way"]: each for each in own}
    for each in own:
        parts = [part.partition(",")[0] for part in each["way"].split("+")]
        found.setdefault("+".join(parts), []).append(each)
    lines = []
    for name, ways in found.items():
        order = name.removesuffix("+freedave")
        base = orders.get(order, usual) if order != name and order in ORDERS else usual
        free = [each for each in ways if is_free(each, base)]
        best = max(free, key=rate, default=None)
        most = "none" if best is None else f"{rate(best):.2f} ({best['way']})"
        price = "" if best is None else str(apart(best, base))
        points = [(rate(each), apart(each, base).value) for each in (base, *ways)]
        line = {"rule": name, "for nothing": most, "nats more": price}
        lines.append(line | {"area": f"{area(points):.0f}"})
    return lines


def area(points: Sequence[tuple[float, float]]) -> float:
    """Area under quality by tokens a pass (Qian et al. 2026, arXiv:2601.07568).

    Quality is 100 for one by one, and less by as many percent as the likelihood of a token lies
    apart on either side; what lies five below is cut, and all else counts less the farther it is.

    Args:
        points: tokens a pass, and nats a token more than one by one, which is one of them.
    """
    scored = sorted((rate, 100 * np.exp(-abs(more))) for rate, more in points)
    kept = [(rate, score) for rate, score in scored if score >= 100 * (1 - FREE)]
    weighed = [(rate, score * np.exp(-STEEP * (1 - score / 100))) for rate, score in kept]
    first_rate, first_score = kept[0]
    found = first_rate * first_score
    for (before, low), (after, high) in pairwise(weighed):
        found += (after - before) * (low + high) / 2
    return float(found)


def is_free(own: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """True where likelihood, variety and length are those of one by one within the bounds."""
    shares = (abs(mean(own, name) / mean(base, name) - 1) for name in ("distinct_2", "tokens"))
    return abs(apart(own, base).value) <= FREE and all(each <= FREE for each in shares)


def apart(own: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    """Nats a token more than another way, on the seeds of which both made a story."""
    one, two = (np.array(each["nats"], np.float64) for each in (own, other))
    return difference(_known(one - two))


def rate(own: Mapping[str, Any]) -> float:
    """Tokens of all stories for each of their passes."""
    return sum(own["tokens"]) / sum(own["passes"])


def mean(own: Mapping[str, Any], name: str) -> float:
    return float(_known(own[name]).mean())


def _known(values: Any) -> np.ndarray:
    """Figures without those of stories that are none."""
    found = np.array(values, np.float64)
    return found[np.isfinite(found)]
