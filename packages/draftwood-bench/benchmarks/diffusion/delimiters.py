"""AdaBlock's claim (2025, arXiv:2509.26432): blocks that end where a line does err less behind it.

Texts in such blocks stand beside texts in blocks of the model's own length, whose threshold is
chosen so that both take as many passes a token. An error is what a judge's negative log-likelihood
of a token says, in nats: in the first places behind a delimiter, and elsewhere.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.diffusion.stories import texts_of
from draftwood.text.language_model import LanguageModel
from draftwood.text.prompts import encode_text
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.generating import tokens_with
from draftwood_diffusion.loop import WrittenText
from draftwood_diffusion.rules.threshold import Threshold
from draftwood_diffusion.unmasking import Unmasking

DELIMITERS = {"lines": "\n", "lines and sentences": "\n.!?"}
"""Characters of which a delimiter has one, by what they end."""
BEHIND = 3  # places behind a delimiter
EQUAL = 0.05  # largest difference of passes a token that counts as none
STEPS = 6  # of the search for a threshold
TRIED = 25  # texts of each


def adaptive(lm: LanguageModel, marks: str) -> Unmasking:
    """The usual threshold, in blocks that end at tokens with one of these characters."""
    return Unmasking(rule=Threshold(), blocks=AdaBlock(delimiters=tokens_with(lm, marks)))


def compare(
    lm: LanguageModel, judge: LanguageModel, marks: str, seeds: range, longest: int
) -> dict[str, Any]:
    """Figures of each text in both kinds of blocks.

    Args:
        lm: a model that fills masks.
        judge: says how likely a token is.
        marks: characters of delimiters.
        seeds: of the texts; the threshold is chosen on others, behind them.
        longest: tokens of a text.
    """
    ways = {"adaptive": adaptive(lm, marks)}
    ways["fixed"] = as_fast(lm, ways["adaptive"], range(seeds.stop, seeds.stop + TRIED), longest)
    ends, rule = tokens_with(judge, marks), ways["fixed"].rule
    assert isinstance(rule, Threshold)
    found: dict[str, Any] = {"tau": rule.tau}
    for name, method in ways.items():
        texts = texts_of(lm, method, seeds, longest)
        judged = [errors(judge, text_in(lm, each), ends) for each in texts]
        found[name] = {
            "passes": [each.runs for each in texts],
            "tokens": [len(each.tokens) for each in texts],
            "behind": [behind for behind, _ in judged],
            "elsewhere": [elsewhere for _, elsewhere in judged],
        }
    return found


def as_fast(lm: LanguageModel, other: Unmasking, seeds: range, longest: int) -> Unmasking:
    """A threshold in blocks of the model's own length, with as many passes a token as another
    method takes: fewer, the lower the threshold.
    """
    wanted = passes(texts_of(lm, other, seeds, longest))
    low, high, apart = 0.0, 1.0, dict[float, float]()
    for _ in range(STEPS):
        tau = (low + high) / 2
        found = passes(texts_of(lm, Unmasking(rule=Threshold(tau)), seeds, longest))
        apart[tau] = abs(found - wanted)
        low, high = (tau, high) if found < wanted else (low, tau)
    return Unmasking(rule=Threshold(min(apart, key=lambda tau: apart[tau])))


def passes(texts: Sequence[WrittenText]) -> float:
    """Passes for each token of all texts."""
    return sum(each.runs for each in texts) / sum(len(each.tokens) for each in texts)


def text_in(lm: LanguageModel, text: WrittenText) -> str:
    """Characters of a text."""
    return str(lm.tokenizer.decode(text.tokens, skip_special_tokens=True))


def errors(
    judge: LanguageModel, text: str, ends: Collection[int]
) -> tuple[float | None, float | None]:
    """Mean nats of a text's tokens behind delimiters, and of its others; None of no such token."""
    tokens = encode_text(judge.tokenizer, text)
    if len(tokens) < 2:
        return None, None
    session = judge.model.start()
    try:
        rows = np.asarray(session.extend(tokens[:-1]).rows, np.float64)
    finally:
        session.close()
    following = tokens[1:]
    nats = np.logaddexp.reduce(rows, axis=-1) - rows[np.arange(len(following)), following]
    near = places_behind(following, ends)
    return _mean(nats[near]), _mean(nats[~near])


def places_behind(tokens: Sequence[int], ends: Collection[int]) -> np.ndarray:
    """True [tokens] for the first places behind each delimiter."""
    is_end = np.isin(tokens, sorted(ends))
    near = np.zeros(len(tokens), bool)
    for distance in range(1, BEHIND + 1):
        near[distance:] |= is_end[:-distance]
    return near


def _mean(values: np.ndarray) -> float | None:
    return round(float(values.mean()), 4) if len(values) else None


def row(record: Mapping[str, Any]) -> dict[str, str]:
    """One comparison: texts count that have tokens of both kinds in both ways."""
    ways = [record[name] for name in ("adaptive", "fixed")]
    rates = [sum(each["passes"]) / sum(each["tokens"]) for each in ways]
    share = rates[0] / rates[1]
    told = {"ends of": record["delimiters"], "fixed tau": f"{record['tau']:.3f}"}
    told["passes a token"] = f"{rates[0]:.3f} and {rates[1]:.3f}"
    told["equal"] = "yes" if abs(share - 1) <= EQUAL else "no"
    named = {"behind": f"nats more, first {BEHIND} places behind", "elsewhere": "elsewhere"}
    for name, title in named.items():
        told[title] = str(difference(_more(record, name)))
    return told | {"the first less the second": str(claimed(record))}


def claimed(record: Mapping[str, Any]) -> Estimate:
    """Nats a token that adaptive blocks err more behind delimiters, less the same elsewhere;
    below zero where the claim holds.
    """
    return difference(_more(record, "behind") - _more(record, "elsewhere"))


def _more(record: Mapping[str, Any], name: str) -> np.ndarray:
    """Nats of adaptive blocks less those of fixed ones, text by text."""
    kept = np.array(
        [record[way][kind] for way in ("adaptive", "fixed") for kind in ("behind", "elsewhere")],
        np.float64,
    )
    adaptive, fixed = (np.array(record[way][name], np.float64) for way in ("adaptive", "fixed"))
    return (adaptive - fixed)[np.isfinite(kept).all(0)]
