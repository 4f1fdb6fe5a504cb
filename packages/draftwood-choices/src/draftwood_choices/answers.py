"""Methods of ``draftwood generate --answers N``, and what each takes of a text's options."""

import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import draftwood
from draftwood.methods.answers import AnswersMethod
from draftwood.stats import Stats

if TYPE_CHECKING:
    from draftwood.engine import Options
    from draftwood.text.language_model import LanguageModel

OF_TOKENS = frozenset(("max_new_tokens", "context", "ignore_eos", "raw", "exact"))
"""Options that any method takes, as they do not ask what a text says."""
DRAWING = frozenset(("temperature", "top_k", "top_p", "min_p", "seed", "min_tokens"))


def require_taken(name: str, params: draftwood.SamplingParams, taken: frozenset[str]) -> None:
    """Raise ValueError for an option of a text that a method does not take."""
    for each in params.given():
        if each not in taken:
            raise ValueError(
                f"method {name!r} does not take {each}; leave it out, or take another method"
            )


def told_fewer(found: int, count: int) -> list[str]:
    """Say that there are fewer texts than were asked for; nothing where there are not."""
    are = "is 1 text" if found == 1 else f"are {found} texts"
    return [f"there {are} under these options, {count} were asked for"] * (found < count)


def distinct(
    lm: "LanguageModel", prompt: Any, count: int, params: draftwood.SamplingParams
) -> list[draftwood.Generation]:
    """Draw different answers without replacement, in the order of drawing."""
    from draftwood.engine import run_all
    from draftwood_choices.distinct import DistinctTexts

    require_taken("distinct", params, OF_TOKENS | DRAWING)
    since, options = time.perf_counter(), options_of(lm, params)
    given = lm.encode(prompt, params.raw)
    task = DistinctTexts(lm.model, given, options, count)
    for _ in run_all([task]):
        pass
    texts, behind = [each.tokens for each in task.texts], lm.text_before(given, params.raw)
    for note in told_fewer(len(texts), count):
        warnings.warn(note, stacklevel=2)
    spent = task.runs - 1, time.perf_counter() - since, task.prefill_seconds
    return written(lm, "distinct", texts, options, behind, *spent)


def superposed(
    lm: "LanguageModel", prompt: Any, count: int, params: draftwood.SamplingParams
) -> list[draftwood.Generation]:
    """Write answers from one row a pass, the best first; n-grams are those of the datastore."""
    from draftwood.engine import run_all
    from draftwood_choices.superposed import SuperposedTexts

    require_taken("superposed", params, OF_TOKENS)
    since, options = time.perf_counter(), options_of(lm, params)
    given = lm.encode(prompt, params.raw)
    stored = lm.models.source(lm.models.files["datastore"])
    task = SuperposedTexts(lm.model, given, options, count, stored.index)
    for _ in run_all([task]):
        pass
    texts, behind = [each.tokens for each in task.best], lm.text_before(given, params.raw)
    for note in told_fewer(len(texts), count):
        warnings.warn(note, stacklevel=2)
    spent = task.runs, time.perf_counter() - since, task.prefill_seconds
    return written(lm, "superposed", texts, options, behind, *spent)


def options_of(lm: "LanguageModel", params: draftwood.SamplingParams) -> "Options":
    """Options of a request for one text, without rules that end it by its words."""
    from draftwood.engine import Options
    from draftwood.sampling import Sampling

    ends = frozenset[int]() if params.ignore_eos else lm.end_tokens
    drawn = Sampling.of(params, ends)
    return Options(drawn, params.max_new_tokens, ends, params.seed, context=params.context)


def written(
    lm: "LanguageModel",
    name: str,
    texts: Sequence[Sequence[int]],
    options: "Options",
    behind: Sequence[int],
    runs: int,
    seconds: float,
    prefill_seconds: float,
) -> list[draftwood.Generation]:
    """Answers in the form of others.

    Args:
        texts: tokens of each.
        behind: tokens before each.
        runs: forward passes behind the prompt's, which all shared: they stand with the first one,
            so that sums count them once.
        seconds: likewise, with those of the prompt's pass.
        prefill_seconds: of these, how many the prompt took.
    """
    from draftwood.text.builder import TextBuilder

    made = list[draftwood.Generation]()
    shown = {} if behind else lm.shown_tokens  # of a chat's answer
    for tokens in texts:
        stats = Stats(tokens=len(tokens))
        if not made:
            stats.prefills, stats.target_runs = 1, runs
            stats.seconds |= {"prefill": prefill_seconds, "target": seconds - prefill_seconds}
        text = TextBuilder.whole(lm.tokenizer, tokens, behind, shown)
        reason = "stop" if tokens and tokens[-1] in options.stop_tokens else "length"
        made.append(draftwood.Generation(text, list(tokens), reason, lm.name, name, stats))
    return made


DISTINCT = AnswersMethod(
    "distinct",
    "draftwood generate --answers 3 --method distinct --temperature 1",
    "N different answers, drawn without replacement: the first is the model's own draw",
    "Kool et al. 2019, arXiv:1903.06059",
    "another aim",
    distinct,
)
SUPERPOSED = AnswersMethod(
    "superposed",
    "draftwood generate --answers 3 --method superposed --datastore FILE --inexact",
    "N answers from one row a pass, which reads a mixture of their tokens; n-grams tell them apart",
    "Superposed Decoding, Shen et al. 2024, arXiv:2405.18400",
    "trades quality",
    superposed,
    frozenset({"datastore"}),
)
