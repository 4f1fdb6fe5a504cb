"""The page that replays a text of masks, in a browser."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from in_browser import PHONE, Axe, Browser, Open, browser, expect, visits
from local_server import RunningServer, running

__all__ = ["browser"]
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def masks() -> Iterator[RunningServer]:
    with running("stories-diffusion", method=None, inexact=True, served_names=()) as found:
        yield found


@pytest.fixture
def visit(browser: Browser, masks: RunningServer) -> Iterator[Open]:
    yield from visits(browser, masks.address, "/replay")


def test_tokens_appear_in_the_order_in_which_they_were_fixed(visit: Open) -> None:
    page = visit(reduced_motion="reduce")
    page.locator("#method").select_option("threshold")
    page.locator("#tokens").fill("24")
    page.get_by_role("button", name="Write").click()
    places, measures = page.locator("#places"), page.locator("#measures")
    expect(measures).to_contain_text("24 tokens in ")
    whole = places.text_content() or ""
    assert "little" in whole
    assert "░" not in whole
    passes = int(page.locator("#scrub").get_attribute("max") or 0)
    assert f"in {passes} passes" in (measures.text_content() or "")
    left = []
    for number in range(passes + 1):
        page.locator("#scrub").fill(str(number))
        left.append((places.text_content() or "").count("░"))
    assert left[0] == 24
    assert left[-1] == 0
    assert all(before > after for before, after in pairwise(left))
    assert places.text_content() == whole


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": PHONE}])
def test_axe_finds_nothing_and_a_phone_needs_no_scrolling(
    visit: Open, options: dict[str, object]
) -> None:
    page = visit(reduced_motion="reduce", **options)
    page.get_by_role("button", name="Write").click()
    expect(page.locator("#measures")).to_contain_text("64 tokens in ")
    found = Axe().run(page).response["violations"]
    assert not [(each["id"], node["html"]) for each in found for node in each["nodes"]]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_chat_leads_here_and_errors_are_told(visit: Open) -> None:
    page = visit()
    page.get_by_role("link", name="Chat").click()
    page.get_by_role("link", name="replay").click()
    page.locator("#tokens").fill("2000")
    page.locator("#text").fill("a " * 3000)
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_role("alert")).to_contain_text("maximum context length")
