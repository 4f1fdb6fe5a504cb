"""Scores of answers: there only to show that nothing is lost, so the simplest that serve."""

import re
from collections.abc import Sequence
from contextlib import closing
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from draftwood.models.model import Model
from draftwood_bench.plan.prompt import Prompt, number_of
from draftwood_bench.run.instructions import follows
from draftwood_bench.run.tested_code import passes

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def quality(
    prompt: Prompt, text: str, model: Model, tokens: Sequence[int], answer: Sequence[int]
) -> dict | None:
    """The score that a prompt allows.

    Its number, its next word, its instructions, its tests, its reference (BLEU of translations,
    ROUGE-L of all else), else how likely the model itself finds the answer.

    Args:
        prompt: with its number, word, instructions, tests or reference, where it has any.
        text: the answer.
        model: the target.
        tokens: of the prompt.
        answer: tokens of the answer.
    """
    if (known := score(prompt, text)) is not None:
        return known
    if not answer:
        return None
    return {
        "name": "log-likelihood per token",
        "value": round(log_likelihood(model, tokens, answer), 4),
    }


def read_behind(
    lm: "LanguageModel", asked: Any, text: str, raw: bool
) -> tuple[list[int], list[int]]:
    """Tokens of what a model is asked, and those of an answer behind it.

    An answer that goes on with a text is read as one with it; a token that holds an end of what was
    asked and a beginning of the answer counts among the answer's.
    """
    before = lm.encode(asked, raw)
    if not lm.text_before(before, raw):
        return before, list(lm.tokenizer(text, add_special_tokens=False)["input_ids"])
    whole = lm.encode(asked + text, raw)
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(before, whole, strict=False))
    same = max(1, sum(1 for _ in pairs))  # nothing predicts a first token
    return whole[:same], whole[same:]


def score(prompt: Prompt, text: str) -> dict | None:
    """Compare an answer with the prompt's number, word, instructions, tests or reference.

    None for a prompt that has none of these.
    """
    if prompt.answer is not None:
        return {
            "name": "right number",
            "value": float(last_number(text) == number_of(prompt.answer)),
        }
    if prompt.next_word is not None:
        right = first_word(text).casefold() == prompt.next_word.casefold()
        return {"name": "right word", "value": float(right)}
    if prompt.instructions:
        followed = follows(prompt, text)
        return {"name": "instructions followed", "value": float(all(followed))}
    if prompt.tests is not None:
        return {"name": "tests passed", "value": float(passes(text, prompt.tests))}
    if prompt.reference is not None:
        name, scored = SCORES.get(prompt.category, ("ROUGE-L", rouge_l))
        return {"name": name, "value": round(scored(text, prompt.reference), 4)}
    return None


def last_number(text: str) -> float | None:
    """The last number in a text's last box, or without one in the text; None without any.

    Thousands are marked by commas or not. A box is LaTeX's, in which models of sums put results.
    """
    boxes = re.findall(r"\\boxed\{([^}]*)", text)
    found = NUMBER.findall(boxes[-1] if boxes else "") or NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def first_word(text: str) -> str:
    """The first word of a text, hyphens and apostrophes inside it; empty without any."""
    found = re.search(r"\w+(?:[-'\u2019]\w+)*", text)
    return found[0] if found else ""


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004), between 0 and 1."""
    one, other = (re.findall(r"\w+", each.lower()) for each in (text, reference))
    lengths = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, wanted in enumerate(other):
            longest = before + 1 if word == wanted else max(lengths[place], lengths[place + 1])
            before, lengths[place + 1] = lengths[place + 1], longest
    return 2 * lengths[-1] / max(len(one) + len(other), 1)


def bleu(text: str, reference: str) -> float:
    """Smoothed BLEU of one answer (Papineni et al. 2002; Post 2018, arXiv:1804.08771), between 0
    and 100.
    """
    from sacrebleu import sentence_bleu

    return sentence_bleu(text, [reference]).score


SCORES = {"translation": ("BLEU", bleu)}


def log_likelihood(model: Model, tokens: Sequence[int], answer: Sequence[int]) -> float:
    """Mean log-probability of an answer's tokens under the model at temperature 1, in one pass."""
    with closing(model.start()) as session:
        session.extend(tokens[:-1], keep="last") if len(tokens) > 1 else None
        logits = session.extend([tokens[-1], *answer[:-1]]).logits.float().cpu()
    return float(logits.log_softmax(-1)[range(len(answer)), list(answer)].mean())
