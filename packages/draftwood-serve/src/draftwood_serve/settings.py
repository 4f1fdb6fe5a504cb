"""Settings of a server."""

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from draftwood.model_names import ModelNames

BODY_BYTES = 2 * 2**20
BODY_SECONDS = 30.0
HEADER_BYTES = 64 * 2**10
HEADER_SECONDS = 10.0
CHOICES = 16
STOPS = 16
STOP_CHARACTERS = 256
PROMPTS = 256
EMBEDDED = 2048
DRAIN_SECONDS = 30.0
KEY = r"[!-~]([ -~]*[!-~])?"  # of an API, as a header carries it


@dataclass(frozen=True)
class ServeSettings(ModelNames):
    """Settings of a server: its models, see ``ModelNames``, and the way it runs.

    Args:
        host: where to listen; other than this machine's own addresses needs an API key.
        port: 0 takes a free one.
        method: how texts are decoded where a request does not say; None takes the one that follows
            from what drafts, see ``draftwood.load``.
        max_batch: texts that are written at the same time.
        max_queue: requests that wait for a place; further ones are sent away.
        max_step_ms: milliseconds that a step with prompts in it may take, if the measured cost of
            a pass is right; a prompt always goes on.
        cache_memory: bytes of keys and values, of texts and of prefixes that are kept; None takes
            a quarter of the free memory. For models that run natively.
        request_timeout: seconds that a request may take in all, waiting included.
        api_keys: one of them must come with each request; empty asks for none.
        served_names: names under which requests may ask for the model; empty takes its own.
        inexact: allow methods that change what the model says.
        threads: of the CPU; None takes one for each core.
        replicas: servers of this model in all.
        replicas_per_node: at most so many on one machine, whose memory is shared out among them
            where ``cache_memory`` is None.
        context: most tokens of prompt and answer; None for as many as the model reads.
        max_models: models in memory at the same time; None takes as many as fit.
        learn: let the head that drafts learn from texts while nothing waits.
        learn_to: folder that keeps what it learns from, and the head; None writes nothing.
        learn_key: API key whose texts it learns from, where there are several.

    Raises:
        ValueError: for a number out of range, an open address without an API key, and as
            ``ModelNames``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    method: str | None = None
    tree: str | None = None
    max_batch: int = 16
    max_queue: int = 64
    max_step_ms: float = 40.0
    cache_memory: int | None = None
    request_timeout: float = 600.0
    api_keys: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    inexact: bool = False
    threads: int | None = None
    replicas: int = 1
    replicas_per_node: int = 1
    context: int | None = None
    max_models: int | None = None
    learn: bool = False
    learn_to: Path | None = None
    learn_key: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        least_of = {"max_batch": 1, "max_queue": 0, "port": 0, "tp": 1}
        least_of |= {"replicas": 1, "replicas_per_node": 1}
        for name, least in (("threads", 1), ("context", 2), ("max_models", 1)):
            if getattr(self, name) is not None:
                least_of[name] = least
        for name, least in least_of.items():
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise TypeError(f"{name} must be a whole number, got {value!r}")
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name in ("max_step_ms", "request_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not all(re.fullmatch(KEY, key) for key in self.api_keys):
            raise ValueError(
                "an API key must be printable ASCII without blanks around it, as no header carries"
                " another, and not empty"
            )
        if not all(self.served_names):
            raise ValueError(
                "a name must not be empty; leave --served-model-name out for the model's own"
            )
        if not self.api_keys and not is_own_address(self.host):
            raise ValueError(
                f"a server at {self.host} can be reached from other machines; ask for a key with"
                " --api-key or DRAFTWOOD_API_KEY, or listen at 127.0.0.1"
            )

        self._require_learning()

    def _require_learning(self) -> None:
        if not self.learn and (self.learn_to is not None or self.learn_key is not None):
            raise ValueError("--learn-to and --learn-key say how --learn works; add --learn")
        if self.learn and (self.tp > 1 or self.replicas > 1):
            raise ValueError("--learn is for one process; leave out --tp and --replicas")
        if self.learn_key is not None and self.learn_key not in self.api_keys:
            raise ValueError("--learn-key must be one of the keys that --api-key gives")

    def require_allowed(self, method: str, promise: str) -> None:
        """Raise ValueError for a method that changes texts, unless the server allows it."""
        if promise == "trades quality" and not self.inexact:
            raise ValueError(
                f"method {method!r} changes what the model would say; start the server with"
                " --inexact to allow that"
            )

    @property
    def learning_owner(self) -> str | None:
        """Number of the API key whose texts are learnt from; empty if there is no key.

        None where there are several and none of them is named.
        """
        if self.learn_key is not None:
            return str(self.api_keys.index(self.learn_key))
        return ("", "0")[len(self.api_keys)] if len(self.api_keys) < 2 else None

    @property
    def may_leave(self) -> bool:
        """True if the model can leave and come again: this process alone holds it, and it keeps
        what it has learnt nowhere else.
        """
        return not self.learn and self.tp == 1 and self.replicas == 1

    @property
    def first_method(self) -> str:
        """The method where a request does not say, as far as it is known before models are loaded:
        what a second language model costs may decide for another one.
        """
        return self.method or self.drafts.method

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which requests may ask for the model; answers carry the first."""
        return tuple(dict.fromkeys(self.served_names)) or (self.model,)  # each once


OF_ONE: Mapping[str, Any] = {
    "draft_model": (),
    "served_names": (),
    "datastore": None,
    "adapter": None,
}
"""Settings of one model, the first where ``NAME=VALUE`` names no other; and what others have."""
OF_ALL = ("method", "tree")
"""Settings of all models, but those that ``NAME=VALUE`` names."""


def of_each(given: Mapping[str, Any], models: Sequence[str]) -> list[dict[str, Any]]:
    """Take settings apart that may name the model that they are for.

    Args:
        given: values of ``OF_ONE`` and ``OF_ALL``, as they were typed.
        models: in their order.

    Returns:
        Settings of each model.

    Raises:
        ValueError: for two values where one is meant.
    """
    own: list[dict[str, Any]] = [{"model": model, **OF_ONE} for model in models]
    for name in OF_ONE:
        several = isinstance(given[name], tuple)
        for value in given[name] if several else () if given[name] is None else (given[name],):
            model, value = _apart(value, models)
            found = own[0 if model is None else models.index(model)]
            found[name] = (*found[name], value) if several else value
    for name in OF_ALL:
        said = dict[str | None, str]()
        for model, value in (_apart(each, models) for each in given[name]):
            if said.setdefault(model, value) != value:
                which = "all models" if model is None else model
                raise ValueError(
                    f"--{name} says {said[model]} and {value} for {which}; leave one out, or write"
                    f" --{name} NAME=VALUE for a model of its own"
                )
        for each in own:
            each[name] = said.get(each["model"], said.get(None))
    return own


def _apart(value: str, models: Sequence[str]) -> tuple[str | None, str]:
    """The model that a value names, None for none, and the rest."""
    model, mark, rest = value.partition("=")
    return (model, rest) if mark and model in models else (None, value)


def is_own_address(host: str) -> bool:
    """True if only this machine reaches a server at that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


SPECULATIVE_KEYS = ("method", "draft_model", "model", "drafter")


def speculative_config(text: str) -> dict[str, Any]:
    """Settings from vLLM's JSON form, such as ``{"method": "rsd-s", "model": "..."}``.

    ``model`` and ``drafter`` are other names of ``draft_model``, which takes one of each kind.

    Raises:
        ValueError: for what is no JSON object, and for keys that mean nothing here.
    """
    try:
        given: Any = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--speculative-config is not JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise ValueError('--speculative-config must be a JSON object, such as {"method": "auto"}')
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in SPECULATIVE_KEYS or not isinstance(value, str):
            raise ValueError(
                f"--speculative-config knows method, draft_model (or model) and drafter, all of"
                f" them texts; got {key!r}: {value!r}"
            )
        if key == "method":
            found[key] = value
        else:
            found["draft_model"] = (*found.get("draft_model", ()), value)
    return found
