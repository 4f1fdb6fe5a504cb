"""A writer behind an address: any server that speaks OpenAI's API."""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import SplitResult, urlsplit

from draftwood.sampling_params import SamplingParams
from draftwood_choices.collaboration.cost import WriterCost
from draftwood_choices.collaboration.passages import Passage, WrittenToken, text_of
from draftwood_choices.collaboration.writer import WriterLostError

PATIENCE = 60.0
"""Seconds of silence after which a server counts as lost."""
SAID = 200
"""Characters of a server's error that are told."""
NO_COMPLETION = "it sent what is no completion"


class RemoteWriter:
    """A model behind an address, which reads and sends texts; its tokens are counted as billed.

    A turn is one request for a completion of prompt and answer, whose stream is left where the turn
    ends. The tokens of a request that was left are those whose text came.

    Args:
        address: with ``http`` or ``https``; a path is taken as the API's, as in ``/v1``.
        prompt: of the text, in the form in which the model reads it.
        params: options of the text.
        model: its name there; None takes the first one that the server lists. A server that lists
            none is believed to have it.
        key: sent as bearer token; None sends none.

    Raises:
        ValueError: for an address that is none, where no server answers, and for a name that the
            server does not list.
    """

    tells = False
    vocabulary = None

    def __init__(
        self,
        address: str,
        prompt: str,
        params: SamplingParams,
        model: str | None = None,
        key: str | None = None,
    ) -> None:
        parts = _parts(address)
        self.address, self.prompt, self.params = address, prompt, params
        self.path = parts.path.rstrip("/") or "/v1"
        self._place = (str(parts.hostname), parts.port)
        self._kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {_header_text(key)}"
        self.cost = WriterCost()
        self.model = self._known(model)

    def room(self, passages: Sequence[Passage]) -> int | None:
        return None

    def judge(self, passages: Sequence[Passage]) -> float:
        raise WriterLostError(f"{self.address} does not tell what it thinks of a text")

    def close(self) -> None:
        """Every turn has closed its connection."""

    def write(
        self, passages: Sequence[Passage], most: int, seed: int, reads: bool
    ) -> Iterator[WrittenToken]:
        began, body = time.perf_counter(), self._body(passages, most, seed)
        self.cost.passes += 1
        billed, counted, ended = _Billed(), 0, False
        try:
            for chunk in self._chunks(body):
                billed.read(chunk)
                for choice in chunk.get("choices") or ():
                    text, ended = choice.get("text") or "", bool(choice.get("finish_reason"))
                    new, counted = billed.tokens(counted, bool(text))
                    is_end = choice.get("finish_reason") == "stop"
                    if text or new or is_end:  # a character may lack bytes still
                        yield WrittenToken(text, count=new, is_end=is_end)
            if not ended:
                raise WriterLostError(f"{self.address} stopped half-way")
        except WriterLostError:
            raise
        except (TypeError, AttributeError):
            raise WriterLostError(f"{self.address}: {NO_COMPLETION}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise WriterLostError(f"{self.address}: {_said(error)}") from None
        finally:
            self._count(billed)
            self.cost.seconds += time.perf_counter() - began

    def _body(self, passages: Sequence[Passage], most: int, seed: int) -> dict[str, Any]:
        params = self.params
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompt + text_of(passages),
            "max_tokens": most,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": seed & 0x7FFFFFFF,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        for name in ("top_k", "min_p"):  # not of OpenAI's API
            if value := getattr(params, name):
                body[name] = value
        return body

    def _chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with (
            closing(self._connection()) as connection,
            self._asked(connection, "POST", "/completions", json.dumps(body)) as response,
        ):
            heard = time.monotonic()
            for line in response:
                data = line.strip().removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if line.startswith(b"data:"):
                    heard = time.monotonic()
                    yield _chunk(data)
                elif time.monotonic() - heard > PATIENCE:  # signs of life alone are silence
                    raise TimeoutError(f"nothing but signs of life for {PATIENCE:g} s")

    def _connection(self) -> http.client.HTTPConnection:
        return self._kind(*self._place, timeout=PATIENCE)

    def _asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        connection.request(method, self.path + path, body, self._headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            with response:
                told = response.read(1 << 16)
            raise ValueError(f"status {response.status}, {_message(told, response.reason)}")
        return response

    def _listed(self) -> list[str]:
        with (
            closing(self._connection()) as connection,
            self._asked(connection, "GET", "/models", None) as response,
        ):
            listed = json.load(response)
        return [str(each["id"]) for each in listed["data"]]

    def _known(self, model: str | None) -> str:
        """A model's name, as the server lists it or, where it lists none, as it is given."""
        silent = (OSError, http.client.HTTPException)
        try:
            names = self._listed()
            found = model or names[0]
        except (*silent, ValueError, LookupError, TypeError) as error:
            if model and not isinstance(error, silent):
                return model
            raise ValueError(
                f"no model answers at {self.address} ({_said(error)}); start one there, as with"
                " 'draftwood serve', or give the address of its OpenAI API"
            ) from None
        short = [name.partition(":")[0] for name in names]  # Ollama lists them with a tag
        if names and found not in (*names, *short):
            told = ", ".join(names)[:SAID]
            raise ValueError(
                f"there is no model {found!r} at {self.address}; name one that it lists: {told}"
            )
        return found

    def _count(self, billed: "_Billed") -> None:
        if self.cost.prompt:
            self.cost.caught_up += billed.read_tokens
        else:
            self.cost.prompt = billed.read_tokens


class _Billed:
    """Tokens of one request, as the server counts them.

    Attributes:
        read_tokens: of the prompt that it had to compute.
    """

    def __init__(self) -> None:
        self.read_tokens = 0
        self._written: int | None = None

    def read(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage") or {}
        if "prompt_tokens" in usage:
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            self.read_tokens = usage["prompt_tokens"] - cached
            self._written = usage.get("completion_tokens")

    def tokens(self, counted: int, has_text: bool) -> tuple[int, int]:
        """Tokens of a chunk, and of all so far; a server that does not tell sends one in each."""
        whole = self._written or counted + has_text
        return max(0, whole - counted), whole


def _parts(address: str) -> SplitResult:
    """Split an address; ValueError for one that is none."""
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  it is read, and refused, here
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is no address; give one as http://localhost:8000")
    return parts


def _header_text(key: str) -> str:
    """A key as a header takes it; an error does not tell the key."""
    found = key.strip()
    if not found.isascii() or not found.isprintable():
        raise ValueError("the key for --leader holds what no header may; give it in one line")
    return found


def _chunk(data: bytes) -> dict[str, Any]:
    """Read a piece of a stream; ValueError for what is none, and for an error in its place."""
    chunk = json.loads(data)
    if not isinstance(chunk, dict):
        raise ValueError(NO_COMPLETION)
    if "error" in chunk:
        raise ValueError(_message(chunk, "an error"))
    return chunk


def _message(told: Any, reason: str) -> str:
    """Read the message of a server's error; a page of text in its place tells the reason alone."""
    try:
        found = json.loads(told) if isinstance(told, bytes) else told
        error = found["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:SAID]
    except (ValueError, LookupError, TypeError):
        return reason


def _said(error: Exception) -> str:
    """An error's text in one line."""
    return " ".join(str(error).split())[:SAID] or type(error).__name__
