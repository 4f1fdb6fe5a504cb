"""Pages: at `/` a chat that shows its draft trees, and a race; at `/complete` completions.

Packages bring others, see ``panels``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from draftwood.storage.machine import device_name
from draftwood_serve.answering import model_named
from draftwood_serve.errors import json_response
from draftwood_serve.loaded import known_methods
from draftwood_serve.other_texts import served_methods
from draftwood_serve.panels import panel_files, panel_names
from draftwood_serve.served import ServedModel
from draftwood_serve.service import TextService
from draftwood_serve.settings import ServeSettings

FOLDER = Path(__file__).with_name("static")
SCRIPT = "text/javascript; charset=utf-8"
SCRIPTS = ("api", "complete", "examples", "markdown", "page", "race", "record", "store", "tree")
PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/complete": ("complete.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.svg": ("page.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", SCRIPT) for name in SCRIPTS},
    "/race.json": ("race.json", "application/json"),
}
"""Files that a browser requests before it can send a key; none of them is secret."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI, service: TextService) -> None:
    """Serve the page, its parts, and at `/page.json` what it has to know of this server."""
    own = {path: (FOLDER / name, kind) for path, (name, kind) in PAGE_FILES.items()}
    for path, (file, kind) in {**panel_files(), **own}.items():
        app.get(path, include_in_schema=False)(_file(file.read_bytes(), kind))

    @app.get("/page.json", include_in_schema=False)
    async def facts(model: str | None = None) -> Response:
        told = await page_facts(service, model_named(service, model))
        return json_response(told, headers={"cache-control": "no-store"})


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer


async def page_facts(service: TextService, model: ServedModel) -> dict[str, Any]:
    """A model, the methods that the page may ask for, and all models that there are."""
    known, ways = model.facts, partial(_methods, model.settings)
    if known is not None and not known.writes_by_token:
        ways = partial(_other_methods, model.settings, known.folder)
    # in a thread, as packages are imported that describe their methods in no file
    methods = await asyncio.to_thread(ways)
    device = service.models.loaded[-1].target.plain.model.device if service.models.loaded else None
    return {
        "model": model.name,
        "models": [{"name": each.name, "loaded": each.is_loaded} for each in service.models.all],
        "machine": None if device is None else device_name(device),
        "context_length": model.context_length,
        "method": model.settings.first_method if known is None else known.method,
        "methods": methods,
        "token_by_token": known is None or known.writes_by_token,
        "panels": panel_names(),
    }


def _methods(settings: ServeSettings) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "summary": each.summary,
            # token by token, at every temperature, not in distribution alone
            "same_text": each.lossless and each.verifier == "match",
        }
        for each in known_methods(settings)
    ]


def _other_methods(settings: ServeSettings, folder: Path | None) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "summary": each.summary, "same_text": False}
        for each in served_methods(settings, folder)
    ]
