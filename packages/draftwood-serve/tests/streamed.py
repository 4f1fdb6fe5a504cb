"""Answers that a test makes up, as the server streams them."""

import json
from typing import Any

EVIL = '<img src=x onerror="window.evil=1"><script>window.evil=1</script><b>bold</b>&amp;'


def streamed(*steps: list[str]) -> dict[str, Any]:
    """The stream of an answer: each step's tokens were drafted, but for the last of each."""
    chunks = []
    for place, tokens in enumerate(steps, 1):
        more = range(1, len(tokens))
        tree = {
            "tokens": ["", *tokens[:-1]],
            "parents": [-1, *(each - 1 for each in more)],
            "proposers": [[], *([EVIL] for _ in more)],
            "path": list(more),
        }
        counts = {"drafted": len(more), "accepted": len(more), "ms": 1.0, "elapsed_ms": place}
        step = {"tokens": tokens, **counts, "tree": tree}
        chunks.append({"choices": [{"delta": {"content": "".join(tokens)}, "step": step}]})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return {"status": 200, "content_type": "text/event-stream", "body": events}
