"""The page that completes a text as one types, in a browser."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from in_browser import (
    PHONE,
    Axe,
    Browser,
    Error,
    Open,
    Page,
    Request,
    Route,
    browser,
    expect,
    visits,
)
from local_server import RunningServer, running, wait_for

__all__ = ["browser"]
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore::ResourceWarning")]

COMPLETIONS = "**/v1/completions"


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Open]:
    yield from visits(browser, server.address, "/complete")


def bodies(page: Page) -> list[dict[str, Any]]:
    """Requests for completions from now on."""
    found: list[dict[str, Any]] = []

    def hear(request: Request) -> None:
        if request.url.endswith("/v1/completions"):
            found.append(request.post_data_json or {})

    page.on("request", hear)
    return found


def told(*texts: str) -> dict[str, Any]:
    """A stream of completions, one chunk each."""
    chunks = [{"choices": [{"index": place, "text": text}]} for place, text in enumerate(texts)]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return {
        "status": 200,
        "content_type": "text/event-stream",
        "body": events + "data: [DONE]\n\n",
    }


def ready(page: Page) -> None:
    """Wait until the page knows its server."""
    expect(page.locator("#serving")).to_contain_text("tiny")


def test_completions_stand_under_the_text_as_one_types(visit: Open) -> None:
    page = visit()
    ready(page)
    heard = bodies(page)
    keys = """each => { for (const letter of "abcabc") {
        each.value += letter; each.dispatchEvent(new Event("input", { bubbles: true }));
    } }"""
    page.locator("#text").evaluate(keys)
    found, measures = page.locator("#found button"), page.locator("#measures")
    expect(measures).to_have_text(re.compile(r"^[1-3] completions? in \d+\.\d\d s"))
    texts = found.all_text_contents()
    assert 1 <= len(texts) == len(set(texts)) <= 3
    (body,) = heard  # six keys, one request
    assert (body["prompt"], body["n"], body["max_tokens"]) == ("abcabc", 3, 12)
    assert (body["temperature"], body["stream"]) == (0.8, True)
    found.first.click()
    expect(page.locator("#text")).to_have_value("abcabc" + texts[0])
    expect(page.locator("#text")).to_be_focused()
    expect(measures).to_contain_text("completion")
    assert [each["prompt"] for each in heard] == ["abcabc", "abcabc" + texts[0]]


def test_a_newer_text_ends_the_request_for_an_older_one(visit: Open, endless: str) -> None:
    with running(endless) as found:
        page = visit(found.address)
        page.locator("#tokens").evaluate("each => { each.max = each.value = '100000'; }")
        page.locator("#text").fill("abcabc")
        expect(page.locator("#found button").first).to_be_visible()
        assert found.running_texts == 3
        heard = bodies(page)
        page.locator("#tokens").fill("4")
        page.locator("#text").fill("cab")
        expect(page.locator("#measures")).to_contain_text("completion")
        wait_for(found.idle)  # the first one would write for minutes
        assert [each["prompt"] for each in heard] == ["cab"]
        page.locator("#tokens").fill("100000")
        expect(page.locator("#found button").first).to_be_visible()
        page.keyboard.press("Escape")
        wait_for(found.idle)


@pytest.mark.parametrize("cancels", [True, False])
def test_a_late_answer_to_an_older_text_is_not_shown(visit: Open, cancels: bool) -> None:
    """Without cancelling, the control, the older text's completion would stand there."""
    page, held = visit(), list[Route]()
    ready(page)
    if not cancels:
        page.evaluate("AbortController.prototype.abort = () => {}")
    page.route(COMPLETIONS, lambda route: held.append(route))
    for number, text in enumerate(("old", "new"), 1):
        page.locator("#text").fill(text)
        wait_for(lambda wanted=number: page.wait_for_timeout(10) is None and len(held) == wanted)
    held[1].fulfill(**told(" of new"))
    expect(page.locator("#found button")).to_have_text([" of new"])
    with suppress(Error):  # its request is gone
        held[0].fulfill(**told(" of old"))
    page.wait_for_timeout(300)
    found = page.locator("#found button").all_text_contents()
    assert found == ([" of new"] if cancels else [" of old"])


def test_the_same_completion_stands_there_once_and_html_stays_text(visit: Open) -> None:
    page, evil = visit(), "<img src=x onerror='window.evil=1'>"
    page.route(COMPLETIONS, lambda route: route.fulfill(**told("one", evil, "one", " ")))
    page.locator("#count").fill("4")
    page.locator("#text").fill("a")
    expect(page.locator("#found button")).to_have_text(["one", evil])
    expect(page.locator("#status")).to_have_text("2 completions")
    assert page.locator("#found img").count() == 0
    assert page.evaluate("window.evil") is None


def test_no_text_and_odd_settings_ask_nothing(visit: Open) -> None:
    page = visit()
    ready(page)
    page.locator("#text").fill("abc")
    expect(page.locator("#measures")).to_contain_text("completion")
    heard = bodies(page)
    page.locator("#text").fill("   ")
    expect(page.locator("#found button")).to_have_count(0)
    page.locator("#text").fill("abc")
    page.locator("#count").fill("99")
    page.wait_for_timeout(600)
    assert not heard
    page.locator("#count").fill("2")
    expect(page.locator("#measures")).to_contain_text("completion")
    assert [each["n"] for each in heard] == [2]


def test_errors_are_told_and_a_key_is_asked_for(visit: Open, tiny: str) -> None:
    with running(tiny, api_keys=("secret",)) as found:
        page = visit(found.address)
        expect(page.locator("#key")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_visible()
        page.locator("#text").fill("abc")
        page.locator("#key").fill("secret")
        page.locator("#key").press("Enter")
        expect(page.locator("#measures")).to_contain_text("completion")
        expect(page.locator("#key")).to_be_hidden()
        expect(page.get_by_role("alert")).to_be_hidden()
        page.locator("#text").fill("a" * 600)
        expect(page.get_by_role("alert")).to_contain_text("maximum context length")
        assert "secret" not in str(page.evaluate("[localStorage, sessionStorage]"))


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": PHONE}])
def test_axe_finds_nothing_and_a_phone_needs_no_scrolling(
    visit: Open, options: dict[str, Any]
) -> None:
    page = visit(**options)
    page.locator("#text").fill("abcabc" * 20)
    expect(page.locator("#measures")).to_contain_text("completion")
    found = Axe().run(page).response["violations"]
    assert not [(each["id"], node["html"]) for each in found for node in each["nodes"]]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_chat_leads_there_and_back(visit: Open) -> None:
    page = visit()
    page.get_by_role("link", name="Chat").click()
    expect(page.locator("#prompt")).to_be_visible()
    page.get_by_role("link", name="Complete as you type").click()
    expect(page.locator("#text")).to_be_visible()
