"""Training of a value head: answers that are right or wrong, and a fit on their states."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.logistic import auc, fitted, probabilities
from draftwood_choices.search.proposals import Proposer
from draftwood_choices.search.value_head import ValueHead, of_text, states_behind

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel

PROTOCOL = "answers"
"""Names the files of what was written."""
PLACES = 16
"""Tokens of an answer that are learnt from at most, evenly apart, the last one among them."""
RIDGES = (1.0, 10.0, 100.0, 1e3, 1e4)
PARTS = 5
"""Prompts of which one is held out to tell by, and one to choose the ridge by."""
FEWEST = 10
"""Prompts of which a head can be learnt."""


@dataclass(frozen=True)
class PromptAnswers:
    """Answers to one prompt.

    Attributes:
        prompt: its id.
        asked: its tokens.
        answers: tokens of each.
        logprobs: of these, before temperature.
        right: 1 for a right answer, else 0.
    """

    prompt: str
    asked: list[int]
    answers: list[list[int]]
    logprobs: list[list[float]]
    right: list[float]


@dataclass(frozen=True, eq=False)
class Example:
    """Features of an answer at some of its tokens, the last one among them, and its outcome."""

    features: Float[np.ndarray, "places features"]
    mean_logprob: float
    right: float


Examples = Sequence[Sequence[Example]]
"""Answers by prompt."""


def write_answers(
    proposer: Proposer, prompts: Mapping[str, Any], count: int, judge: Any, folder: Path
) -> Iterator[PromptAnswers]:
    """Write several answers to each prompt, as far as the folder has none yet.

    Args:
        prompts: as ``Proposer.write`` takes them, by id.
        judge: says of a prompt's id and a text 1 where it is right, else 0.
    """
    records = RecordFolder(folder, PROTOCOL, PromptAnswers)
    known = {each.prompt: each for each in records.read()}
    for number, (name, asked) in enumerate(prompts.items()):
        if name not in known:
            proposer.asked = number * count  # the same seeds where a run goes on
            made = proposer.write(asked, count, logprobs=0)
            told = [[each.logprob for each in answer.logprobs or ()] for answer in made]
            known[name] = PromptAnswers(
                *(
                    name,
                    proposer.lm.encode(asked, proposer.raw),
                    [answer.token_ids for answer in made],
                ),
                *(told, [judge(name, answer.text) for answer in made]),
            )
            records.append(known[name])
        yield known[name]


def examples(
    lm: "LanguageModel", made: PromptAnswers, layers: Sequence[int], prefixes: Any = None
) -> list[Example]:
    """Read a model's states behind answers to a prompt."""
    kept = [place for place, each in enumerate(made.answers) if each]
    texts = [[*made.asked, *made.answers[place]] for place in kept]
    counts = [len(made.answers[place]) for place in kept]
    found = []
    states, _ = states_behind(lm.model, texts, counts, layers, prefixes)
    for place, each in zip(kept, states, strict=True):
        beside = of_text(made.logprobs[place])
        chosen = np.unique(np.linspace(0, len(each) - 1, PLACES).round().astype(int))
        features = np.hstack([each[chosen], beside[chosen]]).astype(np.float32)
        found.append(Example(features, float(beside[-1, 0]), made.right[place]))
    return found


def trained(seen: Examples, lm: "LanguageModel", layers: Sequence[int]) -> ValueHead:
    """Learn to foretell at each token whether its answer ends right.

    Every fifth prompt is held out, and ``about`` tells of those: how often a right answer ranks
    before a wrong one (AUC), and how many prompts the best answer solves beside one at random and
    the likeliest. Another fifth chooses the ridge by the squared error.

    Raises:
        ValueError: for too few prompts, or where all answers are right, or none.
    """
    from draftwood.heads.trained import TargetFingerprint

    seen = [prompt for prompt in seen if prompt]
    parts: list[list[Sequence[Example]]] = [[], [], []]  # to learn from, to choose by, to tell by
    for place, prompt in enumerate(seen):
        parts[max(0, place % PARTS - PARTS + 3)].append(prompt)
    learnt, choosing, held = parts
    right = [each.right for prompt in learnt for each in prompt]
    if len(seen) < FEWEST or not right or min(right) == max(right):
        raise ValueError(
            f"a value head learns from at least {FEWEST} prompts with some answers that are right"
            f" and some that are wrong; of {len(right)} answers to {len(learnt)} prompts that are"
            f" not held out {int(sum(right))} are right. Give other prompts, or more"
        )
    rows, labels = _rows(learnt)
    chosen = min(RIDGES, key=lambda ridge: _error(fitted(rows, labels, ridge), choosing))
    weights, bias = fitted(*_rows([*learnt, *choosing]), chosen)
    head = ValueHead(weights, bias, tuple(layers), TargetFingerprint.of(lm.model, lm.name))
    about = {"prompts": len(seen), "ridge": chosen, "right": float(np.mean(right))}
    return ValueHead(weights, bias, head.layers, head.target, about | _told(head, held))


def _rows(prompts: Examples) -> tuple[np.ndarray, np.ndarray]:
    every = [each for prompt in prompts for each in prompt]
    labels = [np.full(len(each.features), each.right) for each in every]
    return np.vstack([each.features for each in every]).astype(np.float64), np.concatenate(labels)


def _error(found: tuple[np.ndarray, float], prompts: Examples) -> float:
    rows, labels = _rows(prompts)
    return float(np.mean((probabilities(rows @ found[0] + found[1]) - labels) ** 2))


def _told(head: ValueHead, held: Examples) -> dict[str, Any]:
    """Tell what a head is worth on prompts that it has not seen."""
    values = [[float(head.values(each.features[-1:])[0]) for each in prompt] for prompt in held]
    flat = [each.right for prompt in held for each in prompt]
    best = [prompt[int(np.argmax(own))].right for prompt, own in zip(held, values, strict=True)]
    likeliest = [max(prompt, key=lambda each: each.mean_logprob).right for prompt in held]
    return {
        "prompts held out": len(held),
        "AUC held out": auc([value for own in values for value in own], [x > 0 for x in flat]),
        "best held out": float(np.mean(best)),
        "likeliest held out": float(np.mean(likeliest)),
        "at random held out": float(np.mean([np.mean([x.right for x in each]) for each in held])),
    }
