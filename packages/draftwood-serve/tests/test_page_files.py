"""The page's files: small, self-sufficient, and open to who has no key yet."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import httpx
import pytest

from checkout import PYTHONPATH
from draftwood_serve import panels
from draftwood_serve.page import FOLDER, PAGE_FILES
from local_server import RunningServer, running

LARGEST = 90_500  # bytes of all files together
RACE = json.loads((FOLDER / "race.json").read_text())


def test_the_page_is_small() -> None:
    files = sorted(path.name for path in FOLDER.iterdir())
    assert files == sorted(name for name, _ in PAGE_FILES.values())
    assert sum((FOLDER / name).stat().st_size for name in files) < LARGEST


@pytest.mark.parametrize("path", PAGE_FILES)
def test_files_come_with_a_strict_policy(server: RunningServer, path: str) -> None:
    response = server.client.get(path)
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def outside(text: str) -> list[str]:
    """Addresses of other hosts in a file; the name of SVG is none."""
    text = text.replace("http://www.w3.org/2000/svg", "")
    return re.findall(r"(?:https?:)?//[\w.-]+\.\w+|@import|url\(", text)


def inline(text: str) -> list[str]:
    """Find what a strict policy forbids in a page, and ways to make elements of text."""
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b"
    return re.findall(rf"<script>|<style|style=\"| on\w+=\"|javascript:|{ways}", text)


@pytest.mark.parametrize("name", [name for name, _ in PAGE_FILES.values() if name != "race.json"])
def test_nothing_comes_from_outside_and_nothing_is_inline(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not outside(text)
    assert not inline(text)


def test_planted_faults_are_found() -> None:
    assert outside('<link href="https://fonts.example.org/a.css">')
    assert outside('<img src="//cdn.example.org/a.png">')
    assert outside("@import 'a.css'")
    assert not outside("// a remark / of two")
    assert inline('<p onclick="run()">')
    assert inline('<p style="color: red">')
    assert inline("home.innerHTML = text;")
    assert not inline("home.textContent = text;")


def test_the_recorded_race_is_one_text_twice() -> None:
    def tokens(which: str) -> list[str]:
        return [token for step in RACE[which]["steps"] for token in step["tokens"]]

    assert tokens("plain") == tokens("trees")
    assert RACE["plain"]["text"] == RACE["trees"]["text"] == "".join(tokens("plain"))
    assert len(tokens("plain")) == RACE["plain"]["tokens"] == RACE["trees"]["tokens"]
    assert len(RACE["trees"]["steps"]) < len(RACE["plain"]["steps"])
    assert max(step["accepted"] for step in RACE["trees"]["steps"]) >= 2


def test_the_page_hears_what_may_be_asked(server: RunningServer) -> None:
    facts = server.client.get("/page.json").json()
    methods = {each["name"]: each["same_text"] for each in facts["methods"]}
    assert facts["method"] in methods
    assert methods["plain"]
    assert methods["auto"]
    assert not methods["stand"]  # draws of its own
    assert "rsd-s" not in methods  # no draft model was loaded
    assert "typical" not in methods
    for name in ("plain", "auto", "lookup", "recycling", "suffix", "stand"):
        server.post("/v1/completions", prompt="ab", max_tokens=2, speculative={"method": name})


ASKED = """
import asyncio, sys, httpx
from draftwood_serve.app import make_app
from draftwood_serve.service import TextService
from draftwood_serve.settings import ServeSettings

service = TextService(ServeSettings(model=sys.argv[1]))
service.load()

async def ask():
    transport = httpx.ASGITransport(app=make_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get("/page.json")).json()

assert "recycling" in [each["name"] for each in asyncio.run(ask())["methods"]]
print(sorted({"torch", "draftwood_methods", "draftwood_torch"} & set(sys.modules)))
service.close()
"""


def test_methods_are_told_without_importing_them(tiny: str) -> None:
    run = [sys.executable, "-c", ASKED, tiny]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_key_is_asked_for_what_is_told_of_the_server(tiny: str) -> None:
    with running(tiny, api_keys=("secret",)) as found:
        assert found.client.get("/").status_code == 200
        assert found.client.get("/page.json").status_code == 401
        key = {"authorization": "Bearer secret"}
        assert found.client.get("/page.json", headers=key).status_code == 200


@pytest.fixture
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that brings a page, and one that the server has already."""
    folder = tmp_path / "some_panel"
    folder.mkdir()
    held = {"__init__.py": "", "shown.html": "<p>shown", "shown.js": "1", "page.css": "stolen"}
    for name, content in held.items():
        (folder / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("shown", "missing")
    entries = [EntryPoint(name, "some_panel", panels.GROUP) for name in names]
    monkeypatch.setattr(panels, "entry_points", lambda group: entries)
    panels.panel_files.cache_clear()
    yield
    panels.panel_files.cache_clear()


@pytest.mark.usefixtures("panel")
def test_packages_bring_pages(tiny: str) -> None:
    with running(tiny, api_keys=("secret",)) as found:
        shown = found.client.get("/shown")
        assert (shown.status_code, shown.text) == (200, "<p>shown")
        assert shown.headers["content-security-policy"].startswith("default-src 'none'")
        assert found.client.get("/shown.js").headers["content-type"].startswith("text/javascript")
        assert found.client.get("/page.css").text != "stolen"
        assert found.client.get("/__init__.py").status_code == 401
        key = {"authorization": "Bearer secret"}
        assert found.client.get("/__init__.py", headers=key).status_code == 404
        assert found.client.get("/page.json", headers=key).json()["panels"] == ["shown"]


def test_other_hosts_get_no_page(server: RunningServer) -> None:
    response = httpx.get(server.address, headers={"host": "evil.example"})
    assert response.status_code == 403
