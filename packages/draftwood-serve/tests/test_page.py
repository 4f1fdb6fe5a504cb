"""The page in a browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from in_browser import PHONE, Axe, Browser, Open, Page, Route, browser, expect, visits
from letters import LETTERS, letters
from local_server import TEMPLATE, RunningServer, running, save_tiny, wait_for
from streamed import EVIL, streamed

__all__ = ["browser"]
pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore::ResourceWarning")]

COMPLETIONS = "**/v1/chat/completions"


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Open]:
    yield from visits(browser, server.address, console=True, reduced_motion="reduce")


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
    widths = "all => all.map((each) => each.width.baseVal.value)"
    blocks = page.locator(".lane .passes rect").evaluate_all(widths)
    assert min(blocks, default=0) > 2  # also of passes that were sent together
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
            line = token.evaluate("each => getComputedStyle(each).textDecorationLine")
            assert line == ("none" if look == "own" else "underline")
    expect(page.locator("#canvas .node.root")).to_have_count(1)
    ask(page, "def")
    expect(page.locator(".turn")).to_have_count(2)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)


def test_settings_reach_the_server(visit: Open) -> None:
    page = visit()
    page.locator("#settings").evaluate("each => { each.open = true; }")
    page.locator("#method").select_option("suffix")
    said = page.locator("#settings-said")
    expect(said).to_have_text("Settings: suffix · likeliest words · random seed")
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


def test_a_scrollbar_that_is_dragged_lets_the_newest_tokens_go(visit: Open, endless: str) -> None:
    with running(endless) as found:
        page = visit(found.address)
        ask(page, "abcabc", tokens=99999)
        above = "document.body.scrollHeight - innerHeight - scrollY"
        wait_for(lambda: page.evaluate("document.body.scrollHeight > innerHeight + 300"))
        for _ in range(10):  # a drag is many moves, of which no wheel and no key tells
            page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(50)
        page.wait_for_timeout(300)
        assert page.evaluate(above) > 100
        page.get_by_role("button", name="Stop").click()
        wait_for(found.idle)


def test_what_was_asked_comes_back_where_nothing_was_answered(visit: Open) -> None:
    page = visit()
    page.route(COMPLETIONS, lambda route: None)  # never answered
    ask(page, "a long question")
    expect(page.locator("#prompt")).to_have_value("")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#prompt")).to_have_value("a long question")
    expect(page.locator(".turn")).to_have_count(0)


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
    marked = f"\n# {EVIL}\n- **{EVIL}** `{EVIL}` [a](javascript:window.evil=1)\n"
    code = f"```html\n{EVIL}\n```\n{EVIL}"
    page.route(COMPLETIONS, lambda route: route.fulfill(**streamed(["a"], [EVIL, marked + code])))
    ask(page, EVIL)
    answer = page.locator(".turn .answer")
    expect(answer.locator("pre")).to_be_visible()
    assert answer.text_content() == "a" + EVIL + marked + code
    expect(page.locator(".turn .question")).to_have_text(EVIL)
    expect(page.locator("#canvas .node.kept text")).to_contain_text("<img")
    expect(page.locator("#legend")).to_contain_text(EVIL)
    made = page.locator(".turn img, .turn script, .turn b, .turn a, #steps img")
    assert made.count() == 0
    page.reload()
    expect(answer.locator("pre")).to_be_visible()
    assert made.count() == 0
    assert page.evaluate("window.evil") is None


def test_markdown_and_code_are_shown_and_drafted_tokens_stay_underlined(visit: Open) -> None:
    page = visit()
    steps = [
        ["## Ti"], ["tle", "\nSome **bo"], ["ld** te", "xt a_b_c\n\n```py"], ["thon\nde"],
        ["f f(x):\n", "\n    return 'a'  # hi\n``"], ["`\n- one\n", "- two `co", "de`"],
    ]  # fmt: skip
    page.route(COMPLETIONS, lambda route: route.fulfill(**streamed(*steps)))
    ask(page, "a")
    answer = page.locator(".turn .answer")
    expect(answer.locator("li code")).to_have_text("code")
    assert answer.text_content() == "".join(token for step in steps for token in step)
    looks = {
        "h3": ["Title"], "strong": ["bold"], "li": ["- one", "- two code"],
        "p": ["Some bold text a_b_c"], ".keyword": ["def", "return"], ".comment": ["# hi"],
    }  # fmt: skip
    for look, texts in looks.items():
        assert [each.strip() for each in answer.locator(look).all_inner_texts()] == texts
    lines = answer.locator("pre").inner_text().replace("\n\n", "\n").split("\n")
    assert [each for each in lines if each] == ["def f(x):", "    return 'a'  # hi"]
    style = "each => [getComputedStyle(each).fontFamily, getComputedStyle(each).textDecorationLine]"
    for place, underlined in ((4, ["f f(x):\n"]), (5, ["`\n- one\n", "- two `co"])):
        drafted = answer.locator(f".t.other[data-step='{place}']")
        assert "".join(drafted.all_text_contents()) == "".join(underlined)
        assert drafted.first.evaluate(style)[1] == "underline"
    assert "monospace" in answer.locator("pre .t").first.evaluate(style)[0]
    assert answer.locator(".t.own").first.evaluate(style)[1] == "none"


def test_a_reload_keeps_the_conversation_until_it_is_cleared(visit: Open) -> None:
    page = visit()
    ask(page, "abcabcabc")
    expect(page.locator(".turn .measures")).to_contain_text("seed")
    ask(page, "cab", "Race")
    expect(page.locator(".race .verdict").last).to_contain_text("Same text")
    before = page.locator(".turn").inner_text()
    page.reload()
    expect(page.locator(".race .verdict")).to_contain_text("Same text")  # the recorded one is gone
    assert page.locator(".turn").inner_text() == before
    page.locator(".turn .t[data-step='2']").first.click()
    expect(page.locator("#step-number")).to_contain_text("2 of")
    with page.expect_request(COMPLETIONS) as heard:
        ask(page, "more")
    said = [each["content"] for each in heard.value.post_data_json["messages"]]
    assert said[0::2] == ["abcabcabc", "cab", "more"]
    page.get_by_role("button", name="New conversation").click()
    page.reload()
    expect(page.locator(".race .question").first).to_be_visible()
    assert page.locator(".turn").count() == page.evaluate("localStorage.length") == 0
    page.evaluate("localStorage.setItem('draftwood.conversation', '[{\"steps\": 3}]')")
    page.reload()  # kept by something else
    expect(page.locator(".race .verdict")).to_contain_text("Same text")


def test_a_turn_that_only_thought_is_part_of_the_conversation(visit: Open, tmp_path: Path) -> None:
    tokenizer = letters([*LETTERS[:27], "_", ".", *"<>", *(f"{a}{a}" for a in LETTERS[1:26])])
    saved = save_tiny(tmp_path / "thinker", tokenizer=tokenizer, template=TEMPLATE + "<think>")
    with running(saved) as thinker:
        page = visit(thinker.address)
        ask(page, "ab", tokens=8)
        expect(page.locator(".turn .measures")).to_contain_text("seed")
        with page.expect_request(COMPLETIONS) as heard:
            ask(page, "cd", tokens=8)
    first, answer, second = heard.value.post_data_json["messages"]
    assert (first["content"], answer["content"], second["content"]) == ("ab", "", "cd")
    assert answer["reasoning_content"]


def test_messages_wait_for_the_answer_and_can_be_taken_back(visit: Open, endless: str) -> None:
    with running(endless) as found:
        page = visit(found.address)
        ask(page, "abcabc", tokens=99999)
        expect(page.locator(".turn .answer .t").nth(5)).to_be_attached()
        for text in ("cab", "bac"):
            page.locator("#prompt").fill(text)
            page.keyboard.press("Enter")
        waiting = page.locator("#waiting li")
        expect(waiting).to_have_count(2)
        waiting.nth(1).get_by_role("button", name="Take back").click()
        expect(page.locator("#prompt")).to_have_value("bac")
        expect(page.locator(".turn")).to_have_count(1)
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".turn .question").nth(1)).to_have_text("cab")
        expect(waiting).to_have_count(0)
        expect(page.locator(".turn").nth(1).locator(".t").nth(5)).to_be_attached()
        page.reload()  # in the midst of an answer: what was written is kept
        expect(page.locator(".turn").nth(1).locator(".t").nth(5)).to_be_attached()
        wait_for(found.idle)


def test_waiting_messages_come_back_where_the_answer_fails(visit: Open) -> None:
    page = visit()
    held: list[Route] = []
    page.route(COMPLETIONS, lambda route: held.append(route))
    with page.expect_request(COMPLETIONS):
        ask(page, "first")
    page.locator("#prompt").fill("second")
    page.keyboard.press("Enter")
    expect(page.locator("#waiting li")).to_have_count(1)
    held[0].fulfill(status=400, json={"error": {"message": "no room"}})
    expect(page.get_by_role("alert")).to_have_text("no room")
    expect(page.locator("#prompt")).to_have_value("first\n\nsecond")
    expect(page.locator("#waiting li")).to_have_count(0)
    assert len(held) == 1


def test_the_box_grows_and_shrinks_with_its_text(visit: Open) -> None:
    page = visit()
    box = page.locator("#prompt")

    def height(text: str) -> float:
        box.fill(text)
        return box.evaluate("each => each.offsetHeight")

    one, three, wrapped, many = (height(each) for each in ("a", "a\nb\nc", 400 * "ab ", 99 * "\n"))
    assert one < three < many == wrapped < 300
    assert height("") == one


def test_examples_fill_the_box(visit: Open) -> None:
    page = visit()
    chips = page.locator("#examples button")
    expect(chips).to_have_count(4)
    for chip in chips.all():
        chip.click()
        assert len(page.locator("#prompt").input_value()) > 40
    expect(page.locator("#prompt")).to_be_focused()
    ask(page, "abc")
    expect(page.locator(".turn .measures")).to_contain_text("seed")
    expect(chips.first).to_be_hidden()


def test_a_long_question_is_folded(visit: Open) -> None:
    page = visit()
    question = "Sort this.\n\n```python\nreturn b, a\n```"
    ask(page, question)
    expect(page.locator(".turn .question")).to_have_text("Sort this.")
    whole = page.locator(".turn .whole .answer")
    expect(whole).to_be_hidden()
    page.get_by_text("The whole question").last.click()
    expect(whole.locator(".keyword")).to_have_text("return")
    assert whole.text_content() == question


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
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step-number")).to_contain_text(f"{start + 2} of")
    page.keyboard.press("ArrowLeft")
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


def findings(page: Page) -> list[str]:
    """Everything that axe finds."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": PHONE}],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_nothing(visit: Open, options: dict[str, Any]) -> None:
    page = visit(**options)
    page.locator("#settings").evaluate("each => { each.open = true; }")
    assert not findings(page)
    text = "# A\n- **b** `c`\n> d\n```python\ndef f(): return 'a'  # hi\n```\n"
    page.route(COMPLETIONS, lambda route: route.fulfill(**streamed(["a\n"], [text, "b"])))
    ask(page, "a\nb\nc\nd\ne")
    expect(page.locator(".turn pre")).to_be_visible()
    page.get_by_text("The whole question").last.click()
    page.route(COMPLETIONS, lambda route: None)
    ask(page, "held")
    page.locator("#prompt").fill("waits")
    page.keyboard.press("Enter")
    expect(page.locator("#waiting li")).to_have_count(1)
    assert not findings(page)
    page.evaluate("document.querySelector('.note').style.color = '#7a7a7a'")
    assert findings(page)  # it looks


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


def test_a_phone_shows_one_text_of_a_race_at_a_time(visit: Open) -> None:
    page = visit(viewport=PHONE)
    expect(page.locator(".race .verdict")).to_contain_text("Same text")
    plain, drafted = page.locator(".race .answer").all()[-2:]
    expect(drafted).to_be_visible()
    expect(plain).to_be_hidden()
    for strip in page.locator(".race .passes").all():
        expect(strip).to_be_visible()
    page.get_by_role("button", name="One at a time").click()
    expect(plain).to_be_visible()
    expect(drafted).to_be_hidden()
    page.set_viewport_size({"width": 1280, "height": 860})
    expect(drafted).to_be_visible()
    expect(page.get_by_role("button", name="One at a time")).to_be_hidden()


def test_the_key_is_asked_for_and_kept_in_memory_alone(visit: Open, tiny: str) -> None:
    with running(tiny, api_keys=("secret",)) as found:
        page = visit(found.address)
        for key in ("wrong", "secret"):
            page.locator("#key").fill(key)
            page.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        ask(page, "abcabc")
        expect(page.locator(".turn .measures")).to_contain_text("seed")
        kept = page.evaluate("[localStorage, sessionStorage, document.cookie]")
        assert "abcabc" in str(kept[0])
        assert "secret" not in str(kept)
        assert kept[1:] == [{}, ""]
        page.reload()
        expect(page.get_by_role("dialog")).to_be_visible()


def test_a_model_is_chosen_and_loaded_when_it_is_asked(
    visit: Open, tiny: str, tmp_path: Path
) -> None:
    other = save_tiny(tmp_path / "other", layers=1)
    with running(tiny, others=[other]) as several:
        page = visit(several.address)
        options = page.locator("#model option")
        expect(options).to_have_text(["tiny", "other (not loaded yet)"])
        held: list[Route] = []
        page.route("**/page.json?*", lambda route: held.append(route))
        page.locator("#model").select_option("other")
        with page.expect_request(COMPLETIONS) as heard:  # before its facts are there
            ask(page, "abcabc", tokens=9)
        assert heard.value.post_data_json["model"] == "other"
        held[0].continue_()
        expect(page.locator(".turn .measures")).to_contain_text("seed")
        expect(options).to_have_text(["tiny", "other"])
        assert several.metric("generation_tokens_total", "other") == 9


def test_one_model_needs_no_choice(visit: Open) -> None:
    page = visit()
    expect(page.locator("#serving")).to_contain_text("tiny on ")
    expect(page.locator("#model")).to_be_hidden()


def test_a_turn_says_where_its_time_went(visit: Open) -> None:
    page = visit()
    ask(page, "abcabcabcabc")
    costs = page.locator(".turn .costs")
    costs.locator("summary").click()
    expect(costs.locator("p")).to_have_text(
        re.compile(r"^A pass took: model \d+\.\d ms, drafting ")
    )
    page.reload()
    expect(page.locator(".turn .costs summary")).to_be_visible()  # it is kept with the turn
