"""Texts and answers of commands as JSON, by an interpreter in which packages may be hidden.

    python light_road.py HIDDEN TARGET DRAFT [built-in]

HIDDEN is a comma-separated list of packages that cannot be imported; ``-`` hides none.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

PROMPT = "Name three rivers. 1, 2, 3, 1, 2, 3, 1, 2"
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yz"]}}, "required": ["a"]}
GUESTS = ("torch", "transformers", "draftwood_torch")


class Hiding:
    """Refuses packages, as an environment without them would."""

    def __init__(self, hidden: tuple[str, ...]) -> None:
        self.hidden = hidden

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r}: it is hidden", name=name)


@dataclass(frozen=True)
class Given:
    """Models of the cases: folders, or a built-in name."""

    target: str
    draft: str


def text(given: Given, method: str | None, draft: str | None = None, **options: Any) -> list[int]:
    """Tokens of an answer."""
    import draftwood

    more = {} if draft is None else {"draft_model": draft}
    lm = draftwood.load(given.target, method=method, **more)
    return lm.generate(PROMPT, max_new_tokens=24, **options).token_ids


def logprobs(given: Given) -> list[object]:
    """Likeliest tokens at each place of an answer."""
    import draftwood

    lm = draftwood.load(given.target, method="auto")
    found = lm.generate(PROMPT, max_new_tokens=6, logprobs=2).logprobs or []
    return [each.as_json() for each in found]


def command(*arguments: str) -> str:
    """Output of a command, which must succeed."""
    from click.testing import CliRunner

    from draftwood.cli.main import main

    result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise RuntimeError(result.stderr or result.stdout)
    return result.stdout


def compared(given: Given) -> object:
    output = command(
        *("compare", PROMPT, "--methods", "auto,lookup", "--model", given.target),
        *("--max-new-tokens", "8", "--json"),
    )
    results = json.loads(output)["results"]
    return {name: each["identical_to_plain"] for name, each in results.items()}


def checked(given: Given) -> object:
    output = command(
        *("check", "--methods", "auto", "--model", given.target, "--max-new-tokens", "8", "--json")
    )
    return re.findall(r'"passed": (\w+)', output)


def tuned(given: Given) -> object:
    words = ("--method", "suffix", "--model", given.target, "--seconds", "2", "--json")
    return sorted(json.loads(command("tune", *words)))


def phased(given: Given) -> object:
    return json.loads(command("tune", "--phases", "1", "--model", given.target, "--json"))["parts"]


def served(given: Given) -> object:
    if find_spec("draftwood_serve") is None:
        return "not installed"
    from starlette.testclient import TestClient

    from draftwood_serve.app import make_app
    from draftwood_serve.guard import Guard
    from draftwood_serve.service import TextService
    from draftwood_serve.settings import ServeSettings

    service = TextService(ServeSettings(model=given.target, served_names=("it",)))
    service.load()
    try:
        app: Any = Guard(make_app(service), service.settings)
        with TestClient(app, base_url="http://localhost") as client:
            chat = [{"role": "user", "content": "Hi"}]
            body = {"model": "it", "messages": chat, "max_tokens": 12, "temperature": 0}
            answer = client.post("/v1/chat/completions", json=body)
            plain = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
            completion = client.post("/v1/completions", json={**plain, "echo": True, "logprobs": 1})
    finally:
        service.close()
    assert answer.status_code == completion.status_code == 200, (answer.text, completion.text)
    return [answer.json()["choices"][0]["message"], completion.json()["choices"][0]]


def imported(given: Given) -> object:
    """Import what must be hidden: the control, which must tell both apart."""
    import torch

    return int(torch.ones(1).sum())


CASES: dict[str, Callable[[Given], object]] = {
    "plain": lambda given: text(given, "plain"),
    "auto": lambda given: text(given, "auto"),
    "suffix": lambda given: text(given, "suffix"),
    "lookup": lambda given: text(given, "lookup"),
    "draft model": lambda given: text(given, "rsd-s", given.draft),
    "method of a draft model": lambda given: text(given, None, given.draft),
    "sampled": lambda given: text(given, "auto", temperature=1.0, seed=7),
    "sampled plainly": lambda given: text(given, "plain", temperature=1.0, seed=7, top_p=0.9),
    "log-probabilities": logprobs,
    "grammar": lambda given: text(given, "auto", json_schema=SCHEMA),
    "generate": lambda given: command(
        "generate", PROMPT, "--model", given.target, "--max-new-tokens", "8"
    ),
    "embed": lambda given: command("embed", PROMPT, "Hi", "--model", given.target, "--json"),
    "methods": lambda given: command("methods", "--all"),
    "compare": compared,
    "check": checked,
    "tune": tuned,
    "phases": phased,
    "server": served,
}
OF_SHIPPED_HEADS: dict[str, Callable[[Given], object]] = {
    "eagle": lambda given: text(given, "eagle", "smollm2-135m-eagle"),
    "ctc": lambda given: text(given, "ctc", "smollm2-135m-ctc"),
    "draft LM": lambda given: text(given, "rsd-s", "smollm2-135m-lm", temperature=1.0, seed=3),
}
CONTROL: dict[str, Callable[[Given], object]] = {"control": imported}


def told(case: Callable[[Given], object], given: Given) -> dict[str, object]:
    """The value of a case or its error, and the guests that are imported after it."""
    try:
        found: dict[str, object] = {"value": case(given)}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    return {**found, "guests": [name for name in GUESTS if name in sys.modules]}


def main(hidden: str, target: str, draft: str, *rest: str) -> None:
    sys.meta_path.insert(0, Hiding(() if hidden == "-" else tuple(hidden.split(","))))
    cases = {**CASES, **(OF_SHIPPED_HEADS if rest else {}), **CONTROL}  # the control comes last
    given = Given(target, draft)
    print(json.dumps({name: told(case, given) for name, case in cases.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
