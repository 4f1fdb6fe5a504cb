"""Protocol between the benchmark and an adapter: one JSON object per line.

Needs nothing but Python.

An adapter is started with ``--weights PATH --threads N`` and options of its own. Its first line
describes it: ``{"weights": "...", "weight_bytes": n, "versions": {...}}``, and may tell
``"end_tokens": [...]``. Then every request
``{"prompt_ids": [...], "max_new_tokens": n, "mode": "plain" | "speculation", "ignore_eos": false}``
gets one answer ``{"token_ids": [...], "prefill_seconds": s, "decode_seconds": s, "target_runs": n |
null, "first_tokens": n}``, or ``{"error": "..."}``, which a bad line gets too.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TextIO

MODES = ("plain", "speculation")


@dataclass(frozen=True)
class PeerRequest:
    """One prompt, to be continued greedily.

    Attributes:
        prompt_ids: tokens of the prompt.
        max_new_tokens: most tokens to emit.
        mode: ``plain``: token by token; ``speculation``: the peer's own draft-free speculation.
        ignore_eos: go on after the model's own end of text.
    """

    prompt_ids: list[int]
    max_new_tokens: int
    mode: str
    ignore_eos: bool = False

    @classmethod
    def read(cls, line: str) -> "PeerRequest":
        """Raises ValueError that names what is wrong with the line."""
        try:
            request = cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"a request needs prompt_ids, max_new_tokens and mode in one object: {error}"
            ) from None
        if not _are_tokens(request.prompt_ids) or not request.prompt_ids:
            raise ValueError(
                f"prompt_ids must be a list of token ids, not {str(request.prompt_ids)[:40]}"
            )
        if not isinstance(request.max_new_tokens, int) or request.max_new_tokens < 1:
            raise ValueError(
                "max_new_tokens must be a whole number of at least 1, not"
                f" {request.max_new_tokens!r}"
            )
        if request.mode not in MODES:
            raise ValueError(f"mode is one of {', '.join(MODES)}, not {request.mode!r}")
        return request


@dataclass(frozen=True)
class Reply:
    """Text of an answer, with its times.

    Attributes:
        token_ids: what was emitted, an end-of-text token included.
        prefill_seconds: until the first token was known.
        decode_seconds: from then to the end.
        target_runs: forward passes of the model after that, where the peer tells.
        first_tokens: tokens known when ``decode_seconds`` begins; more than 1 where draft tokens
            ride on the prompt's forward pass.
    """

    token_ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    target_runs: int | None = None
    first_tokens: int = 1

    @classmethod
    def read(cls, line: str) -> "Reply":
        """Parse a line into a reply.

        Raises ValueError for what is no answer, and RuntimeError with the adapter's own words for
        an error.
        """
        try:
            fields = json.loads(line)
            if "error" in fields:
                raise RuntimeError(fields["error"])
            answer = cls(**fields)
            numbers = (
                answer.prefill_seconds + 0.0,
                answer.decode_seconds + 0.0,
                answer.first_tokens + 0,
            )
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"answered with a line that is no answer ({error}): {line.strip()[:80]!r}"
            ) from None
        if not _are_tokens(answer.token_ids) or min(numbers) < 0:
            raise ValueError(
                f"answered with tokens or seconds that cannot be: {line.strip()[:80]!r}"
            )
        return answer


@dataclass(frozen=True)
class LoadedPeer:
    """A model in memory.

    Attributes:
        answer: continues a prompt.
        weights: how the weights are held.
        weight_bytes: of the weights that are read for every token.
        versions: of the packages that matter.
        end_tokens: with which the model ends its text; None where the system does not tell.
    """

    answer: Callable[[PeerRequest], Reply]
    weights: str
    weight_bytes: int
    versions: dict[str, str]
    end_tokens: list[int] | None = None


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every adapter takes."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--weights", required=True, help="a GGUF file or a model folder")
    options.add_argument("--threads", type=int, required=True)
    return options


def serve(load: Callable[[], LoadedPeer]) -> None:
    """Load the model, describe it, then answer requests from stdin until it is closed."""
    channel = _claim_stdout()
    try:
        loaded = load()
    except Exception as error:
        _send(channel, {"error": _told(error)})
        raise SystemExit(1) from error
    told = {key: value for key, value in vars(loaded).items() if value is not None}
    _send(channel, {key: value for key, value in told.items() if key != "answer"})
    for line in sys.stdin:
        try:
            _send(channel, asdict(loaded.answer(PeerRequest.read(line))))
        except Exception as error:
            _send(channel, {"error": _told(error)})


def _claim_stdout() -> TextIO:
    """Reserve the real stdout for the protocol.

    Whatever libraries print there goes to stderr from now on, line by line: an adapter is killed,
    so what it still held would be lost.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return channel


def _send(channel: TextIO, fields: dict) -> None:
    channel.write(json.dumps(fields) + "\n")
    channel.flush()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _are_tokens(tokens: object) -> bool:
    return isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)
