"""The page in a browser."""

import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local_server import RunningServer, running, wait_for

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
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=30_000)
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore::ResourceWarning")]

COMPLETIONS = "**/v1/chat/completions"
EVIL = '<img src=x onerror="window.evil=1"><script>window.evil=1</script><b>bold</b>&amp;'
PHONE = {"width": 360, "height": 740}

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Open]:
    """Opens the page; no other host may be asked, and nothing may be refused or go wrong."""
    asked: list[str] = []
    wrong: list[str] = []
    opened: list[Page] = []

    def open_page(address: str = server.address, **options: Any) -> Page:
        page = browser.new_page(**{"reduced_motion": "reduce", **options})
        page.set_default_timeout(30_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        opened.append(page)
        page.goto(address)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert all(re.match(r"http://127\.0\.0\.1:\d+/", url) for url in asked), asked
    # a refused request is one that the page tells of
    assert not [each for each in wrong if "the server responded with a status of 4" not in each]


def ask(page: Page, text: str, button: str = "Send", tokens: int = 32) -> None:
    fill = "(each, value) => { each.value = value; }"
    page.locator("#tokens").evaluate(fill, str(tokens))
    page.locator("#prompt").fill(text)
    page.get_by_role("button", name=button, exact=True).click()


def number(page: Page) -> int:
    return int(page.locator("#step-number").inner_text().split()[0])


def test_a_recorded_race_is_seen_before_anything_is_typed(visit: Open) -> None:
    page = visit()
    expect(page.locator(".race .verdict")).to_contain_text("Same text")
    first, second = page.locator(".lane .answer").all_inner_texts()
    assert first == second
    assert len(first) > 100
    expect(page.locator("#canvas svg")).to_be_visible()
    expect(page.locator("#canvas .node.kept")).not_to_have_count(0)


def test_a_chat_shows_each_token_s_origin_and_each_tree(visit: Open) -> None:
    page = visit()
    ask(page, "abcabcabcabc")
    turn = page.locator(".turn")
    expect(turn.locator(".measures")).to_contain_text("seed")
    expect(turn.locator(".measures")).to_contain_text("tokens per forward pass")
    spoken = page.locator("#status").text_content()
    assert turn.locator(".answer").text_content() == spoken != ""
    looks = {str(each.get_attribute("class")) for each in turn.locator(".answer .t").all()}
    assert {"t own"} < looks
    for look in ("own", "seen", "copy"):
        token = turn.locator(f".answer .t.{look}").first
        if token.count():
            assert (
                token.evaluate("each => getComputedStyle(each).textDecorationLine") == "underline"
            )
    expect(page.locator("#canvas .node.root")).to_have_count(1)
    ask(page, "def")
    expect(page.locator(".turn")).to_have_count(2)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)


def test_settings_reach_the_server(visit: Open) -> None:
    page = visit()
    page.locator("#settings").evaluate("each => { each.open = true; }")
    page.locator("#method").select_option("suffix")
    page.locator("#temperature").fill("0.7")
    page.locator("#seed").fill("11")
    page.locator("#budget").fill("5")
    with page.expect_request(COMPLETIONS) as heard:
        ask(page, "abcabc", tokens=9)
    body = heard.value.post_data_json
    assert body["speculative"] == {"method": "suffix", "trace": "tree", "budget": 5}
    assert (body["temperature"], body["seed"], body["max_tokens"]) == (0.7, 11, 9)
    expect(page.locator(".turn .measures")).to_contain_text("seed 11")
    assert page.locator(".turn .answer .t").count() == 9
    page.locator("#temperature").fill("-1")
    page.locator("#prompt").fill("again")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn")).to_have_count(1)  # refused before it is sent


def test_an_answer_is_stopped(visit: Open, endless: str) -> None:
    with running(endless) as found:
        page = visit(found.address)
        ask(page, "abcabc", tokens=99999)
        expect(page.locator(".turn .answer .t").nth(5)).to_be_attached()
        page.keyboard.press("PageUp")  # the reader scrolls: the newest tokens let go
        page.wait_for_timeout(200)
        assert page.evaluate("document.body.scrollHeight - innerHeight - scrollY") > 100
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".turn .measures")).to_contain_text("stopped")
        wait_for(found.idle)
        ask(page, "abcabc", "Race", tokens=99999)
        page.keyboard.press("Escape")
        expect(page.locator(".race .note").last).to_have_text("Stopped.")
        wait_for(found.idle)


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_race_ends_with_the_same_text(visit: Open, temperature: str) -> None:
    page = visit(reduced_motion="no-preference")
    page.locator("#temperature").evaluate("(each, value) => { each.value = value; }", temperature)
    ask(page, "abcabcabc", "Race")
    card = page.locator(".race").last
    expect(card.locator(".question")).to_have_text("abcabcabc")
    expect(card.locator(".verdict")).to_contain_text("Same text")
    expect(card.locator(".verdict")).to_contain_text("All 32 tokens are equal")
    first, second = card.locator(".answer").all_inner_texts()
    assert first == second


def test_a_new_conversation_ends_the_replay(visit: Open) -> None:
    page = visit(reduced_motion="no-preference")
    ask(page, "abcabcabc", "Race")
    card = page.locator(".race").last
    expect(card.locator(".verdict")).to_contain_text("Same text")
    card.locator("select").select_option("25")
    page.get_by_role("button", name="New conversation").click()
    page.wait_for_timeout(100)
    expect(page.locator("#steps")).to_be_hidden()


def test_a_race_of_two_texts_says_where_they_part(visit: Open) -> None:
    """The control: were the texts not compared, they would be called the same here too."""
    page = visit()

    def altered(route: Route) -> None:
        response = route.fetch()
        told = response.json()
        if told["metrics"]["method"] != "plain":
            steps = told["metrics"]["speculative_decoding"]["per_step_trees"]
            steps[0]["tokens"][0] += "!"
        route.fulfill(response=response, body=json.dumps(told))

    page.route(COMPLETIONS, altered)
    ask(page, "abcabcabc", "Race")
    expect(page.locator(".verdict").last).to_contain_text("The texts part at token 1")


def test_html_of_a_model_stays_text(visit: Open) -> None:
    page = visit()
    tree = {"tokens": ["a", EVIL], "parents": [-1, 0], "proposers": [[], [EVIL]], "path": [1]}
    step = {"drafted": 1, "accepted": 1, "ms": 1.0, "elapsed_ms": 2.0, "tree": tree}
    first = {**step, "tokens": ["a"], "accepted": 0, "elapsed_ms": 1.0, "tree": None}
    chunks = [
        {"choices": [{"delta": {"content": "a"}, "step": first}]},
        {"choices": [{"delta": {"content": 2 * EVIL}, "step": {**step, "tokens": [EVIL, EVIL]}}]},
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    answer = {"status": 200, "content_type": "text/event-stream", "body": events}
    page.route(COMPLETIONS, lambda route: route.fulfill(**answer))
    ask(page, EVIL)
    expect(page.locator(".turn .answer")).to_have_text("a" + 2 * EVIL)
    expect(page.locator(".turn .question")).to_have_text(EVIL)
    expect(page.locator("#canvas .node.kept text")).to_contain_text("<img")
    expect(page.locator("#legend")).to_contain_text(EVIL)
    assert page.locator(".turn img, .turn script, .turn b, #steps img").count() == 0
    assert page.evaluate("window.evil") is None


def test_errors_of_the_server_are_told(visit: Open) -> None:
    page = visit()
    ask(page, "a" * 600)
    expect(page.get_by_role("alert")).to_contain_text("maximum context length")


def test_keys_step_through_the_passes(visit: Open) -> None:
    page = visit()
    expect(page.locator(".race .verdict")).to_contain_text("Same text")
    page.keyboard.press("Tab")
    page.locator("#canvas").focus()
    start = number(page)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-number")).to_contain_text(f"{start - 1} of")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step-number")).to_contain_text(f"{start + 1} of")
    assert page.locator(".lane .t.now").count() > 0
    page.locator("#prompt").press_sequentially("abcabc")
    page.keyboard.press("ArrowLeft")  # moves within the prompt
    assert number(page) == start + 1
    page.keyboard.press("Enter")
    expect(page.locator(".turn .measures")).to_contain_text("seed")
    expect(page.locator("#step-number")).to_contain_text(" of ")
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    expect(page.locator("#step-number")).to_contain_text("1 of")


def grave(page: Page) -> list[str]:
    """Serious and critical findings of axe."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:120]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_grave(visit: Open, colours: str) -> None:
    page = visit(color_scheme=colours)
    page.locator("#settings").evaluate("each => { each.open = true; }")
    ask(page, "abcabcabc")
    expect(page.locator(".turn .measures")).to_contain_text("seed")
    assert not grave(page)
    page.evaluate("document.querySelector('.note').style.color = '#7a7a7a'")
    assert grave(page)  # it looks


def test_a_phone_needs_no_scrolling_sideways(visit: Open) -> None:
    page = visit(viewport=PHONE)
    expect(page.locator(".race .verdict")).to_contain_text("Same text")
    page.locator("#settings").evaluate("each => { each.open = true; }")
    ask(page, 40 * "abcabcabc")
    expect(page.locator(".turn .measures")).to_contain_text("seed")
    widths = "[document.documentElement.scrollWidth, innerWidth]"
    assert page.evaluate(widths) == [PHONE["width"], PHONE["width"]]
    page.evaluate("document.querySelector('.note').style.width = '400px'")
    assert page.evaluate(widths)[0] > PHONE["width"]  # it measures


def test_the_key_is_asked_for_and_kept_in_memory_alone(visit: Open, tiny: str) -> None:
    with running(tiny, api_keys=("secret",)) as found:
        page = visit(found.address)
        for key in ("wrong", "secret"):
            page.locator("#key").fill(key)
            page.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        ask(page, "abcabc")
        expect(page.locator(".turn .measures")).to_contain_text("seed")
        kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        assert kept == [0, 0, ""]
        page.reload()
        expect(page.get_by_role("dialog")).to_be_visible()
