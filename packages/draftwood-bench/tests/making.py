"""Records and runs written down by hand."""

from typing import Any

from draftwood_bench.records.files import Record, RunInfo


def record(
    method: str = "auto", prompt: str = "1", tokens: int = 11, runs: int = 5, **more: Any
) -> Record:
    """An answer of so many tokens, the first from the prompt's run, decoded at 10 runs per
    second."""
    stats = {
        "tokens": tokens,
        "target_runs": runs,
        "drafted": 2 * runs,
        "tokens_per_second": (tokens - 1) * 10 / runs,
    }
    fields: dict[str, Any] = {
        **{
            "cell": f"{method} | default",
            "method": method,
            "at": "default",
            "shape": None,
            "verifier": "match",
        },
        **{
            "drafter": "combined",
            "lossless": True,
            "category": "all",
            "prompt": prompt,
            "turn": 0,
            "round": 0,
        },
        **{
            "seed": 0,
            "temperature": 0.0,
            "prompt_tokens": 4,
            "token_ids": [1] * tokens,
            "text": "x",
        },
        **{"stats": stats, "seconds_end_to_end": runs / 10 + 0.5, "identical_to_plain": True},
    }
    return Record(**{**fields, **more})


def run_info(**more: Any) -> RunInfo:
    """A run on a model of 1 MB where memory gives 100 MB per second."""
    fields: dict[str, Any] = {
        **{
            "protocol": "spec-bench",
            "options": {},
            "command": "draftwood bench",
            "commit": None,
            "versions": {},
        },
        **{
            "hardware": {"device": "fake"},
            "threads": 1,
            "model": "tiny",
            "draft_model": None,
            "dtype": "float32",
        },
        **{"curve": None, "bandwidth": 1e8, "weight_bytes": 10**6, "started": "now"},
        "prompts": {"source": "built-in", "note": "", "count": 3, "rule": "none is left out"},
    }
    return RunInfo(**{**fields, **more})
