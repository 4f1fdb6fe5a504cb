"""Greeting of a server that has started."""

import json

from rich.table import Table

from draftwood.cli.terminal import notes
from draftwood_serve.settings import ServeSettings


def welcome(settings: ServeSettings, told: dict[str, object]) -> None:
    """Print the address, the served models and a first request."""
    address = told["address"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("page", str(told["page"]))
    facts.add_row("API", f"{address}/v1")
    models = list[str](told["models"])  # type: ignore[call-overload]
    facts.add_row("models" if len(models) > 1 else "model", ", ".join(models))
    facts.add_row("method", str(told["method"]))
    if "replicas" in told:
        count, threads = told["replicas"], told["threads"]
        facts.add_row("replicas", f"{count}, with {threads} CPU thread{'s' * (threads != 1)} each")
    texts = f"{settings.max_batch} text{'s' * (settings.max_batch != 1)}"
    requests = f"{settings.max_queue} request{'s' * (settings.max_queue != 1)}"
    facts.add_row("at once", f"{texts}, {requests} waiting")
    if settings.api_keys:
        facts.add_row("API key", "asked for")
    console = notes()
    console.print(facts)
    name = json.dumps(settings.names[0])
    said = json.dumps([{"role": "user", "content": "Name a colour."}])
    path, asked = "chat/completions", f'"messages": {said}'
    if not told.get("chats", True):
        path, asked = "completions", '"prompt": "Once upon a time"'
    key = '-H "Authorization: Bearer $KEY" ' if settings.api_keys else ""
    console.print(
        f"curl {address}/v1/{path} {key}-H 'Content-Type: application/json'"
        f' -d \'{{"model": {name}, {asked}, "temperature": 0}}\'',
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    console.print("Ctrl-C stops.", style="dim")
