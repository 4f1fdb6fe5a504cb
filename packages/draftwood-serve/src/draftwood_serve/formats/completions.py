"""Completions, whole and in chunks."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from draftwood.stats import TokenLogprob
from draftwood_serve.formats.answers import AnswerTo, number
from draftwood_serve.schemas.common import StreamOptions
from draftwood_serve.schemas.completions import CompletionBody
from draftwood_serve.texts import TextUpdate, ToldToken

OBJECT = "text_completion"


async def whole(answer: AnswerTo, body: CompletionBody) -> dict[str, Any]:
    """The answer once all texts are written."""
    await answer.finish()
    _drop_unwanted(answer, body)
    choices = []
    for place, each in enumerate(answer.wholes):
        before, logprobs = _prompt(answer, body, place)
        if logprobs is not None:
            _tell(logprobs, answer, each.told, len(before))
        choices.append(
            {
                "index": place,
                "text": before + each.text,
                "logprobs": logprobs,
                "finish_reason": each.finish_reason,
            }
        )
    told = {"choices": choices, "usage": answer.usage(), "metrics": answer.metrics()}
    return {**answer.head(OBJECT), **told}


def chunks(answer: AnswerTo, body: CompletionBody, first: list[TextUpdate]) -> AsyncIterator[str]:
    """Stream the answer, one event per step for all texts; ``first`` came already."""
    begun = set[int]()

    def choices_of(update: TextUpdate) -> list[dict[str, Any]]:
        _drop_unwanted(answer, body)
        return _choices(answer, body, update, begun)

    return answer.chunks(first, OBJECT, body.stream_options or StreamOptions(), choices_of)


def _drop_unwanted(answer: AnswerTo, body: CompletionBody) -> None:
    """Drop what was written behind the prompt if only the prompt is wanted."""
    for each in answer.wholes if body.max_tokens == 0 else ():
        each.text, each.told, each.steps, each.tokens = "", [], [], 0
        each.finish_reason = each.finish_reason and "length"


def _choices(
    answer: AnswerTo, body: CompletionBody, update: TextUpdate, begun: set[int]
) -> list[dict[str, Any]]:
    """Choice of a chunk for an update; none where the update has nothing to send."""
    if body.max_tokens == 0:
        update = replace(update, text="", told=(), finish_reason="length", traced=None)
    before, logprobs = "", None if body.logprobs is None else _empty()
    if update.choice not in begun:
        begun.add(update.choice)
        before, logprobs = _prompt(answer, body, update.choice)
    if logprobs is not None:
        prompt = answer.job.choices[update.choice].prompt_text
        _tell(logprobs, answer, update.told, 0 if prompt is None else len(prompt.text))
    if not (before or update.text or update.told or update.finish_reason or update.traced):
        return []
    choice = {
        "index": update.choice,
        "text": before + update.text,
        "logprobs": logprobs,
        "finish_reason": update.finish_reason,
        **answer.step(update),
    }
    return [choice]


def _prompt(
    answer: AnswerTo, body: CompletionBody, place: int
) -> tuple[str, dict[str, list[Any]] | None]:
    """Prompt to echo, and its log-probabilities if requested."""
    logprobs = None if body.logprobs is None else _empty()
    choice = answer.job.choices[place]
    prompt = choice.prompt_text
    if prompt is None:
        return "", logprobs
    if logprobs is not None:
        tokens = choice.sequence.prompt
        for token, start, told in zip(tokens, prompt.starts, choice.prompt_logprobs, strict=True):
            _append(logprobs, answer, token, start, told)
    return prompt.text, logprobs


def _empty() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _tell(
    logprobs: dict[str, list[Any]], answer: AnswerTo, told: Sequence[ToldToken], before: int
) -> None:
    for each in told:
        _append(logprobs, answer, each.logprob.token, before + each.start, each.logprob)


def _append(
    logprobs: dict[str, list[Any]],
    answer: AnswerTo,
    token: int,
    start: int,
    told: TokenLogprob | None,
) -> None:
    """One more token; the first of a prompt has no log-probability."""
    key = answer.token_texts.key
    logprobs["tokens"].append(key(token))
    logprobs["text_offset"].append(start)
    logprobs["token_logprobs"].append(None if told is None else number(told.logprob))
    top = None
    if told is not None:
        top = {}
        for other, value in (*told.top.items(), (token, told.logprob)):
            top.setdefault(key(other), number(value))
    logprobs["top_logprobs"].append(top)
