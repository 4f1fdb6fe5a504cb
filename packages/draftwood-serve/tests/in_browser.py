"""A browser for the tests of pages, which are skipped where it is missing."""

import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [
    *([] if CHROMIUM else ["chromium (apt-get install -y chromium)"]),
    *(
        f"{package} (pip install {package.replace('_', '-')})"
        for package in ("playwright", "axe_playwright_python")
        if importlib.util.find_spec(package) is None
    ),
]
if MISSING:
    pytest.skip(
        f"the page cannot be tried without {' and '.join(MISSING)}", allow_module_level=True
    )

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import (  # noqa: E402
    Browser,
    Error,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

__all__ = ["Axe", "Browser", "Error", "Page", "Request", "Route", "expect"]
expect.set_options(timeout=30_000)
PHONE = {"width": 360, "height": 740}
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def visits(
    browser: Browser, address: str, path: str = "", console: bool = False, **usual: Any
) -> Iterator[Open]:
    """Opens pages; no other host may be asked, and nothing may go wrong in a script.

    Args:
        address: of the server, where a visit names none.
        path: of the page.
        console: count what the console calls an error too, but for requests that are refused.
        usual: options of a page.
    """
    asked: list[str] = []
    wrong: list[str] = []
    opened: list[Page] = []

    def open_page(address: str = address, **options: Any) -> Page:
        page = browser.new_page(**{**usual, **options})
        page.set_default_timeout(30_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        if console:
            page.on(
                "console", lambda said: wrong.append(said.text) if said.type == "error" else None
            )
        opened.append(page)
        page.goto(address + path)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert all(re.match(r"http://127\.0\.0\.1:\d+/", url) for url in asked), asked
    # a refused request is one that the page tells of
    assert not [each for each in wrong if "the server responded with a status of 4" not in each]
