"""The report of pictures in a browser: what is chosen is shown, and nothing runs over."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from command import run
from in_browser import PHONE, Axe, Browser, Open, Page, browser, expect, visits
from picture_records import measured

__all__ = ["browser"]
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore::ResourceWarning")]


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("report")
    done = run("report", str(measured(folder / "run")), "--output", str(folder / "report.html"))
    assert done.exit_code == 0, done.output
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Open]:
    yield from visits(browser, address, "/report.html")


def shown(page: Page, place: int) -> list[str]:
    """Headings of a gallery's drawings that are to be seen."""
    heads = page.locator(".trees").nth(place).locator(".drawing h3").all()
    return [each.inner_text() for each in heads if each.is_visible()]


def test_a_gallery_shows_the_drawing_that_was_chosen(visit: Open) -> None:
    page = visit()
    assert shown(page, 0) == ["<cat>, seeds 0 to 1"]
    sheets, passes, failing = page.locator(".trees").all()
    sheets.get_by_label("Name").select_option("dog")
    assert shown(page, 0) == ["dog, seeds 2 to 3"]
    passes.get_by_label("Method").select_option("raced-jacobi")
    passes.get_by_label("Picture").select_option(label="dog, seed 2")
    assert shown(page, 1) == ["raced-jacobi, dog, seed 2"]
    assert shown(page, 2) == ["all methods, 2 names"]
    expect(failing.locator(".chooser")).to_be_hidden()  # there is nothing to choose


@pytest.mark.parametrize("options", [{}, {"viewport": PHONE}, {"color_scheme": "dark"}], ids=str)
def test_pictures_are_whole_and_nothing_runs_over(visit: Open, options: dict[str, object]) -> None:
    page = visit(**options)
    whole = "[...document.images].every(each => each.complete && each.naturalWidth > 0)"
    assert page.evaluate(whole)
    assert page.evaluate("document.images.length") == 22
    heights = "[...document.images].map(each => each.getAttribute('height')).sort()"
    assert set(page.evaluate(heights)) == {"36", "96"}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_can_be_read_by_everyone(visit: Open) -> None:
    found = Axe().run(visit()).response["violations"]
    # tables have had their headings two levels down in all reports
    assert {each["id"] for each in found} <= {"heading-order"}
