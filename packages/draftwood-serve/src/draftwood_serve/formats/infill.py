"""llama.cpp's completions, whole and in pieces."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from draftwood_serve.formats.answers import AnswerTo, event
from draftwood_serve.jobs import TextJob
from draftwood_serve.schemas.infill import InfillBody
from draftwood_serve.texts import TextUpdate


async def whole(answer: AnswerTo, body: InfillBody, truncated: bool) -> dict[str, Any]:
    """Answer once the text is written.

    Args:
        truncated: whether the text around the gap was too long.
    """
    await answer.finish()
    return chosen(_end(answer, body, truncated), body.response_fields)


async def pieces(
    answer: AnswerTo, body: InfillBody, truncated: bool, first: list[TextUpdate]
) -> AsyncIterator[str]:
    """Stream the text, one event for each step, and one at the end.

    Args:
        first: updates received already.
    """
    updates = first
    while updates:
        text = "".join(each.text for each in updates)
        if text and body.n_predict != 0:
            piece = {"index": 0, "content": text, "tokens": [], "stop": False}
            yield event({**piece, **_counts(answer, body)})
        if answer.ended:
            told = {**_end(answer, body, truncated), "content": ""}
            yield event(chosen(told, body.response_fields))
            return
        updates = await answer.updates()


def chosen(told: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """Fields of an answer that are wanted, by paths such as ``timings/prompt_n``; None for all."""
    if fields is None:
        return told
    found = {}
    for path in fields:
        value: Any = told
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


def _counts(answer: AnswerTo, body: InfillBody) -> dict[str, Any]:
    written = 0 if body.n_predict == 0 else answer.wholes[0].tokens
    return {"tokens_predicted": written, "tokens_evaluated": answer.job.prompt_tokens}


def _end(answer: AnswerTo, body: InfillBody, truncated: bool) -> dict[str, Any]:
    text, counts = answer.wholes[0], _counts(answer, body)
    content = "" if body.n_predict == 0 else text.text
    word = answer.job.choices[0].builder.stopped_by
    kind = "limit" if text.finish_reason == "length" else "word" if word else "eos"
    settings = answer.job.choices[0].sequence.options
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "stop": True,
        "model": answer.model,
        **counts,
        "generation_settings": {"seed": answer.job.seed, "n_predict": settings.max_new_tokens},
        "has_new_line": "\n" in content,
        "truncated": truncated,
        "stop_type": kind,
        "stopping_word": word if kind == "word" else "",
        "tokens_cached": sum(counts.values()),
        "timings": timings(answer.job, counts["tokens_predicted"]),
    }


def timings(job: TextJob, written: int) -> dict[str, Any]:
    """Counts, milliseconds and rates of a job's prompt and text."""
    end, stats = job.ended or job.first_token, job.choices[0].stats
    run = job.prompt_tokens - job.cached_tokens
    parts = {
        "prompt": (run, 1e3 * (job.first_token - job.started)),
        "predicted": (written, 1e3 * (end - job.first_token)),
    }
    found: dict[str, Any] = {"cache_n": job.cached_tokens}
    for name, (count, spent) in parts.items():
        found |= {
            f"{name}_n": count,
            f"{name}_ms": round(spent, 3),
            f"{name}_per_token_ms": round(spent / max(count, 1), 3),
            f"{name}_per_second": round(1e3 * count / spent, 3) if spent else 0.0,
        }
    return {**found, "draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
