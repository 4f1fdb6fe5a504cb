"""Fill in the middle: `suffix` of completions, and llama.cpp's `/infill` as editors call it."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import draftwood
from draftwood.testing import tiny_llama
from draftwood.text.infill import Gap, InfillTokens, OtherFile
from draftwood.text.language_model import LanguageModel
from letters import letters
from local_server import NAME, RunningServer, running

MARKS = ("prefix", "suffix", "middle", "pad")
NAMES = (*(f"<|fim_{part}|>" for part in MARKS), "<|repo_name|>", "<|file_sep|>")
VIM = {
    "input_prefix": "one\ntwo\n".replace("\n", "."),
    "input_suffix": ".three.",
    "input_extra": [
        {"text": "firstfile", "time": [1732, 5], "filename": "a.py"},
        {"text": "second", "filename": "b.py"},
    ],
    "prompt": "tw",
    "n_predict": 24,
    "n_indent": 0,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": [
        *("content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms"),
        *("timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms"),
        *("timings/predicted_per_token_ms", "timings/predicted_per_second"),
        *("truncated", "tokens_cached"),
    ],
}
"""The fields that llama.vim sends, which llama.vscode sends too."""


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("coder")
    tokenizer = letters()
    tokenizer.add_special_tokens({"additional_special_tokens": list(NAMES)})
    tokenizer.save_pretrained(folder)
    model = tiny_llama(layers=2, vocab=len(tokenizer), context=256)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def coding(coder: str) -> Iterator[RunningServer]:
    with running(coder) as found:
        yield found


@pytest.fixture(scope="module")
def lm(coder: str) -> LanguageModel:
    return draftwood.load(coder, method="plain")


def filled(lm: LanguageModel, before: str, gap: Gap, count: int) -> str:
    marks = InfillTokens.need(lm.tokenizer, lm.name)
    tokens = gap.encode(lm.tokenizer, marks, before)
    stream = lm.stream(tokens, max_new_tokens=count, ends=marks.ends)
    return "".join(stream)


def test_a_suffix_is_shown_to_the_model(coding: RunningServer, lm: LanguageModel) -> None:
    sent = {"temperature": 0.0, "max_tokens": 20}
    found = coding.post("/v1/completions", prompt="def f", suffix="return x", **sent)
    assert found["choices"][0]["text"] == filled(lm, "def f", Gap("return x"), 20)
    assert found["usage"]["prompt_tokens"] == len("deff") + 1 + len("return x") + 3
    assert coding.text("def f", **sent) != found["choices"][0]["text"]
    first = coding.post("/v1/completions", prompt="", suffix="return x", **sent)
    assert first["choices"][0]["text"] == filled(lm, "", Gap("return x"), 20)
    told = coding.stream("/v1/completions", prompt="def f", suffix="return x", **sent)
    assert "".join(each["choices"][0]["text"] for each in told) == found["choices"][0]["text"]
    several = coding.post("/v1/completions", prompt=["def f", "a"], suffix="return x", **sent)
    assert several["choices"][0]["text"] == found["choices"][0]["text"]


def test_openais_client_fills_in_the_middle(coding: RunningServer, lm: LanguageModel) -> None:
    with OpenAI(base_url=f"{coding.address}/v1", api_key="none", max_retries=0) as client:
        found = client.completions.create(
            model=NAME, prompt="def f", suffix="return x", max_tokens=20, temperature=0
        )
    assert found.choices[0].text == filled(lm, "def f", Gap("return x"), 20)


def test_what_llama_vim_sends_is_answered(coding: RunningServer, lm: LanguageModel) -> None:
    files = [OtherFile("a.py", "firstfile"), OtherFile("b.py", "second")]
    wanted = filled(lm, "one.two.tw", Gap(".three.", files, 256 - 24), 24)
    found = coding.post("/infill", **VIM)
    assert found["content"] == wanted
    assert set(found) == set(VIM["response_fields"])  # type: ignore[call-overload]
    assert found["timings/predicted_n"] == 24
    assert found["truncated"] is False
    whole = coding.post("/infill", **{**VIM, "response_fields": None})
    assert whole["content"] == wanted
    assert whole["stop"] is True
    assert (whole["tokens_predicted"], whole["stop_type"]) == (24, "limit")
    assert whole["tokens_evaluated"] == whole["timings"]["prompt_n"] + whole["timings"]["cache_n"]
    assert whole["timings"]["predicted_ms"] > 0
    assert whole["generation_settings"]["n_predict"] == 24


RECORDED = json.loads(Path(__file__).with_name("infill_requests.json").read_text("utf-8"))
"""Requests as editors send them, whom they are of, and the fields that those read."""


def answer(server: RunningServer, recorded: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The body of an answer, and its JSON objects; sent as it is, as curl does, unlike httpx."""
    body = json.dumps(recorded["body"], ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", **recorded["headers"]}
    with closing(HTTPConnection(server.address.removeprefix("http://"), timeout=60)) as connection:
        connection.request("POST", "/infill", body, headers)
        response = connection.getresponse()
        text = response.read().decode()
    assert response.status == 200, text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return text, [json.loads(line) for line in lines]


def field(told: dict[str, Any], path: str) -> Any:
    """The value at a path, which is a name of its own where ``response_fields`` asked for it."""
    if path in told:
        return told[path]
    name, _, rest = path.partition("/")
    return field(told[name], rest)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["origin"].split(":")[0])
def test_recorded_requests_of_editors_are_answered(
    coding: RunningServer, lm: LanguageModel, recorded: dict[str, Any]
) -> None:
    body = recorded["body"]
    text, told = answer(coding, recorded)
    for path in recorded["reads"]:
        assert field(told[-1], path) is not None
    if not body["n_predict"]:
        assert told[0].get("content", "") == ""
        return
    assert '"content":"' in text  # llama.vim looks for it before it reads JSON
    files = [OtherFile(each["filename"], each["text"]) for each in body["input_extra"]]
    gap = Gap(body["input_suffix"], files, 256 - body["n_predict"])
    wanted = filled(lm, body["input_prefix"] + body["prompt"], gap, body["n_predict"])
    assert wanted
    assert "".join(each["content"] for each in told) == wanted


def test_a_stream_of_pieces(coding: RunningServer) -> None:
    sent = {**VIM, "response_fields": None}
    whole = coding.post("/infill", **sent)
    with coding.client.stream("POST", "/infill", json={**sent, "stream": True}) as response:
        assert response.status_code == 200
        lines = [each for each in response.iter_lines() if each]
    told = [json.loads(each.removeprefix("data: ")) for each in lines]
    assert "".join(each["content"] for each in told) == whole["content"]
    assert [each["stop"] for each in told] == [False] * (len(told) - 1) + [True]
    assert told[-1]["tokens_predicted"] == 24


def test_a_warm_up_writes_nothing(coding: RunningServer) -> None:
    found = coding.post("/infill", **{**VIM, "n_predict": 0, "response_fields": None})
    assert (found["content"], found["tokens_predicted"]) == ("", 0)


def test_stop_strings_and_seeds(coding: RunningServer) -> None:
    sent = {**VIM, "response_fields": None, "temperature": 1.0, "seed": 5}
    whole = coding.post("/infill", **sent)["content"]
    assert coding.post("/infill", **sent)["content"] == whole
    drawn = (coding.post("/infill", **{**sent, "seed": -1})["content"] for _ in range(3))
    assert len(set(drawn)) > 1
    found = coding.post("/infill", stop=[whole[8:11]], **sent)
    assert found["content"] == whole[: whole.index(whole[8:11])]
    assert (found["stop_type"], found["stopping_word"]) == ("word", whole[8:11])


def test_too_much_text_is_cut_far_from_the_gap(coding: RunningServer, lm: LanguageModel) -> None:
    files = [OtherFile("a.py", "x" * 300), OtherFile("b.py", "y" * 10)]
    extra = [{"filename": each.name, "text": each.text} for each in files]
    found = coding.post("/infill", input_prefix="a" * 400, input_extra=extra, n_predict=8)
    assert found["truncated"] is True
    assert found["tokens_evaluated"] == 256 - 8
    marks = InfillTokens.need(lm.tokenizer, lm.name)
    tokens = Gap("s" * 99, files, 60).encode(lm.tokenizer, marks, "p" * 99)
    assert len(tokens) == 60
    texts = lm.tokenizer.decode(tokens, skip_special_tokens=False)
    assert texts.count("p") > texts.count("s") > 10
    short = Gap("s", files, 60).encode(lm.tokenizer, marks, "p")
    assert lm.tokenizer.decode(short).count("y") == 11  # the last file, and the end of its name


def test_tokens_of_the_gap_end_the_text(lm: LanguageModel) -> None:
    marks = InfillTokens.need(lm.tokenizer, lm.name)
    known = lm.tokenizer.get_vocab()
    assert {known[name] for name in NAMES} == marks.ends
    text = lm.stream("a", raw=True, max_new_tokens=20, ends=frozenset(range(len(known))))
    "".join(text)
    assert (len(text.result.token_ids), text.result.finish_reason) == (1, "stop")


def test_bad_requests_are_told_in_one_line(server: RunningServer, coding: RunningServer) -> None:
    for path, body, field in (
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ):
        error = server.refused(path, 400, **body)
        assert "has no tokens for filling in the middle" in error["message"]
        assert error["param"] == field
    for body, told in (
        ({"nonsense": 1}, "there is no field nonsense"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra.0.text"),
        ({"mirostat": 2}, "mirostat is not supported"),
        ({"input_prefix": "\ud800"}, "lone surrogate"),
        ({"model": "other"}, "not served here"),
        ({"speculative": {"trace": True}}, "/infill tells no steps; leave speculative.trace out"),
        ({"speculative": {"trace": "tree"}}, "ask /v1/completions with a suffix"),
    ):
        status = 404 if "model" in body else 400
        assert told in coding.refused("/infill", status, **body)["message"]
    for body in ({"prompt": [1, 2]}, {"prompt": "a", "echo": True}):
        error = coding.refused("/v1/completions", 400, suffix="b", **body)
        assert error["message"] == "suffix goes with a prompt that is a text, without echo"


def test_names_of_other_families() -> None:
    for names in (
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        (
            "<\uff5cfim\u2581begin\uff5c>",
            "<\uff5cfim\u2581hole\uff5c>",
            "<\uff5cfim\u2581end\uff5c>",
        ),
    ):
        tokenizer = letters()
        tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
        found = InfillTokens.of(tokenizer)
        assert found is not None
        known = tokenizer.get_vocab()
        assert (found.prefix, found.suffix, found.middle) == tuple(known[name] for name in names)
        assert (found.repository, found.file) == (None, None)
        files = [OtherFile("a.py", "xyz")]
        text = tokenizer.decode(Gap("b", files).encode(tokenizer, found, "a"))
        assert "snippet" in text.partition("xyz")[0]
        assert text.endswith(f"{names[0]}a{names[1]}b{names[2]}")
    assert InfillTokens.of(letters()) is None
