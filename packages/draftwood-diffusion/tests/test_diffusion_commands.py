"""Masked diffusion as users type it: generate, methods, bench parallel."""

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import draftwood
from command import refused, run
from draftwood.stats import Stats
from draftwood.text.stream import Generation
from draftwood_diffusion import painting
from draftwood_diffusion.painting import EARLY, LATE, OPEN, colour, frame, pieces
from masked_copies import MASK, masked_copy

target = import_module("command_models").target  # a fixture of tests that run commands
SHORT = ("--max-new-tokens", "12", "--raw")


@pytest.fixture(scope="module")
def filling(target: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return masked_copy(target, tmp_path_factory.mktemp("diffusion"))


def text(model: str, method: str, *more: str) -> dict[str, Any]:
    asked = ("generate", "hello", "--model", model, "--method", method, *SHORT, *more, "--json")
    found = run(*asked)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_text_tells_its_passes_and_their_order(filling: str) -> None:
    one = text(filling, "one-by-one")
    assert len(one["token_ids"]) == one["passes"] == 12
    assert one["tokens_per_pass"] == 1.0
    assert (one["stats"]["target_runs"], one["stats"]["block_efficiency"]) == (12, 1.0)
    assert sorted(each["place"] for each in one["order"]) == list(range(12))
    for each in one["order"]:
        assert one["token_ids"][each["place"]] == each["token"]
    looked = text(filling, "freedave,d=2")
    assert looked["text"] == one["text"]
    assert looked["passes"] < 12
    assert looked["rows"] > one["rows"]
    sampled = ("--temperature", "1", "--seed", "5")
    assert (
        text(filling, "random", *sampled)["text"]
        == (text(filling, "random+freedave", *sampled)["text"])
    )


def test_rules_with_knobs_write_in_fewer_passes(filling: str) -> None:
    found = text(filling, "threshold,tau=0", "--inexact")
    assert found["passes"] == 4  # blocks are counted from the prompt's beginning: 3, 4, 4 and 1
    assert text(filling, "top-k,k=2", "--inexact")["passes"] == 7
    assert text(filling, "threshold,tau=0", "--inexact", "--block-length", "32")["passes"] == 1
    assert found["method"] == "threshold,tau=0"
    stats = found["stats"]
    assert (stats["tokens"], stats["block_efficiency"]) == (12, 3.0)
    assert stats["tokens_per_second"] == pytest.approx(12 / stats["seconds"]["target"], rel=0.01)


def test_answers_are_texts_of_their_seeds(filling: str) -> None:
    sampled = ("--temperature", "1", "--seed")
    found = text(filling, "one-by-one", *sampled, "3", "--answers", "2")
    alone = [text(filling, "one-by-one", *sampled, str(seed)) for seed in (3, 4)]
    assert [each["text"] for each in found["answers"]] == [each["text"] for each in alone]
    assert [each["passes"] for each in found["answers"]] == [12, 12]


def test_any_model_fills_masks_that_are_named(target: str, filling: str) -> None:
    asked = ("one-by-one", "--mask-token", str(MASK), "--block-length", "4")
    named = text(target, *asked)
    assert named["text"] == text(filling, "one-by-one")["text"]
    assert text(target, *asked, "--unshifted")["token_ids"] == named["token_ids"]
    assert text(target, *asked, "--shifted")["token_ids"] != named["token_ids"]


def test_show_paints_the_text(filling: str) -> None:
    asked = ("generate", "hello", "--model", filling, "--method", "one-by-one", *SHORT)
    plain = run(*asked, "--stats")
    shown = run(*asked, "--show")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.strip() == plain.stdout.strip()
    assert "12 tokens in 12 passes, 1.00 a pass, one-by-one" in shown.stderr
    assert "1.00 tokens per forward pass, one-by-one" in plain.stderr


def test_answers_are_painted_one_under_another_beside_their_stats(filling: str) -> None:
    asked = ("generate", "hello", "--model", filling, "--method", "one-by-one", *SHORT)
    several = ("--answers", "2", "--temperature", "1", "--seed", "3")
    plain = run(*asked, *several, "--stats")
    shown = run(*asked, *several, "--stats", "--show")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == plain.stdout
    assert [f"answer {number}" in shown.stderr for number in (1, 2, 3)] == [True, True, False]
    assert shown.stderr.count("12 tokens in 12 passes") == 2
    assert "24 tokens, " in shown.stderr
    assert "ended by length" in run(*asked, "--stats", "--show").stderr


def test_a_text_that_ignores_end_tokens_ends_by_its_length(filling: str, tmp_path: Path) -> None:
    last = text(filling, "one-by-one")["token_ids"][-1]
    ending = masked_copy(filling, tmp_path)
    (Path(ending) / "generation_config.json").write_text(json.dumps({"eos_token_id": last}))
    ignored = text(ending, "one-by-one", "--ignore-eos")
    assert (ignored["token_ids"][-1], ignored["finish_reason"]) == (last, "length")
    assert text(ending, "one-by-one")["finish_reason"] == "stop"


class Letters:
    """Tokens are letters; -1 is no letter."""

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(each) - 97 for each in text]}

    def decode(self, tokens: list[int], **options: object) -> str:
        return "".join(chr(97 + token) for token in tokens)


class Bytes:
    """Tokens are bytes."""

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, tokens: list[int], **options: object) -> str:
        return bytes(tokens).decode("utf-8", "replace")


def test_a_character_of_several_tokens_stands_at_the_one_that_completes_it() -> None:
    tokenizer: Any = Bytes()
    text = [{"token": each} for each in "né 今".encode()]
    whole = ["n", "", "é", " ", "", "", "今"]
    assert pieces(tokenizer, text) == whole
    assert pieces(tokenizer, [*text[:5], None, text[6]]) == [*whole[:5], OPEN, "\ufffd"]
    assert pieces(tokenizer, text[:5])[-1] == "\ufffd"  # nothing behind it completes it
    assert pieces(tokenizer, [text[1], text[0]]) == ["", "\ufffdn"]


def test_a_run_keeps_the_space_with_which_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    lm = draftwood.load("stories-diffusion", method="plain")
    fox, ran = ([{"token": each} for each in behind(lm, word)] for word in (" fox", " ran"))
    assert "".join(pieces(lm.tokenizer, [None, *fox, None, *ran])) == f"{OPEN} fox{OPEN} ran"
    assert "".join(pieces(lm.tokenizer, [*fox, *ran])) == "fox ran"
    before = lm.encode("One", True)
    assert "".join(pieces(lm.tokenizer, [*fox, *ran], before)) == " fox ran"
    tokens = behind(lm, " fox")
    order = [{"pass": 1, "place": place, "token": each} for place, each in enumerate(tokens)]
    details = {"passes": 1, "tokens_per_pass": 1.0, "order": order}
    for said in ("fox", " fox"):
        made = Generation(said, tokens, "length", "m", "x", Stats(), details=details)
        painting.paint(lm.tokenizer, made)
        assert capsys.readouterr().out == f"{said}\n"


def behind(lm: draftwood.LanguageModel, text: str) -> list[int]:
    return lm.encode(f"One{text}", True)[len(lm.encode("One", True)) :]


def test_frames_show_what_is_fixed_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    order = [{"pass": 1, "place": 2, "token": 2}, {"pass": 3, "place": 0, "token": 0}]
    letters: Any = Letters()
    assert pieces(letters, [order[1], None, order[0]]) == ["a", OPEN, "c"]
    half = frame(letters, order[:1], 3, 3)
    assert half.plain == f"{OPEN}{OPEN}c"
    whole = frame(letters, order, 3, 3)
    assert whole.plain == f"a{OPEN}c"
    styles = [str(span.style) for span in whole.spans]
    assert styles == [f"rgb({LATE[0]},{LATE[1]},{LATE[2]})", "dim", "rgb(64,120,255)"]
    assert (colour(1, 1), colour(1, 9), colour(9, 9)) == (EARLY, EARLY, LATE)
    place = io.StringIO()
    terminal = Console(file=place, force_terminal=True, color_system="truecolor", width=40)
    monkeypatch.setattr(painting, "output", lambda: terminal)
    monkeypatch.setattr(painting.time, "sleep", lambda seconds: None)
    details = {"passes": 3, "tokens_per_pass": 1.0, "order": order}
    painting.paint(
        letters, Generation("abc", [0, 1, 2], "stop", "m", "x", Stats(), details=details)
    )
    assert "\x1b[38;2;64;120;255mc" in place.getvalue()


def test_what_does_not_go_together_is_refused(target: str, filling: str) -> None:
    ask = ("generate", "hello", *SHORT, "--model")
    told = refused(*ask, target, "--method", "one-by-one")
    assert "has no mask token to fill" in told
    assert "--mask-token" in told
    for method in ((), ("--method", "auto"), ("--method", "plain")):
        told = refused(*ask, filling, *method)
        assert "does not write token by token: it fills masks" in told
        assert "--method one-by-one" in told
    assert "--inexact allows that" in refused(*ask, filling, "--method", "threshold")
    told = refused(*ask, filling, "--method", "threshold,tau=1.1", "--inexact")
    assert "threshold's tau must be from 0 to 1, got 1.1" in told
    told = refused(*ask, filling, "--method", "one-by-one", "--stop", "a")
    assert "method 'one-by-one' does not take stop, as it writes out of order" in told
    told = refused(*ask, filling, "--method", "one-by-one", "--tree", "3,2")
    assert "drafts nothing; leave --tree out" in told
    told = refused(*ask, filling, "--method", "one-by-one", "--tp", "2")
    assert "method 'one-by-one' runs in one process; leave --tp out" in told
    told = refused(*ask, filling, "--method", "one-by-one", "--mask-token", "96")
    assert "mask token 96 is outside the model's 96 tokens" in told
    told = refused(*ask, filling, "--method", "one-by-one", "--block-length", "999")
    assert "blocks of 999 tokens are longer than the model's context of 256" in told
    wrong = ("generate", "hello ~", *SHORT, "--model", filling, "--method", "one-by-one")
    assert "token 6 of the prompt is the mask token 95" in refused(*wrong)
    for more in (("--mask-token", "3"), ("--block-length", "3"), ("--show",)):
        assert f"{more[0]} belongs to methods that fill masks" in refused(*ask, target, *more)
    distinct = (*ask, target, "--method", "distinct", "--mask-token", "3")
    assert "method 'distinct' has nothing to set; leave --mask-token out" in refused(*distinct)


def test_methods_are_listed_with_sources_and_promises() -> None:
    found = json.loads(run("methods", "--package", "diffusion", "--json").stdout)
    told = {each["name"]: each for each in found}
    assert told["freedave"]["promise"] == "same as one by one"
    assert told["oracle"]["promise"] == "another aim"
    assert told["threshold"]["option"].endswith("--method threshold,tau=0.9 --inexact")
    assert "arXiv:2510.07081" in told["local-leap"]["source"]
    assert len(found) == 22


def test_bench_parallel_prices_methods(tmp_path: Path) -> None:
    asked = ("bench", "parallel", "--tasks", "shuffle,copy", "--items", "4", "--exercises", "1")
    methods = ("--methods", "one-by-one;top-k,k=4;one-by-one+edit;random+freedave;end-cut+adablock")
    told = refused(*asked, *methods)
    assert "'end-cut' and 'adablock' answer the same question (blocks)" in told
    methods = ("--methods", "one-by-one;top-k,k=4;one-by-one+edit;random+freedave;adablock")
    found = json.loads(run(*asked, *methods, "--json").stdout)
    cells = {(each["task"], each["method"]): each for each in found}
    assert len(cells) == 10
    assert cells["shuffle", "top-k,k=4"]["bits"] == pytest.approx(3.4150374992788)
    assert cells["shuffle", "top-k,k=4"]["tokens_per_pass"] == pytest.approx(4.0)
    assert cells["copy", "top-k,k=4"]["bits"] == 0.0
    for method in ("one-by-one", "one-by-one+edit", "random+freedave", "adablock"):
        assert cells["shuffle", method]["bits"] == pytest.approx(0.0, abs=1e-9)
    assert cells["copy", "random+freedave"]["passes"] == 2.0
    shown = run(*asked, *methods)
    assert shown.exit_code == 0, shown.output
    (line,) = (each for each in shown.stdout.splitlines() if each.startswith("top-k,k=4"))
    assert line.split() == ["top-k,k=4", "4.00", "1.71", "0.55", "3.42", "shuffle"]
    assert "Print a JSON array and nothing else." in run("bench", "parallel", "--help").stdout
    assert "there is no task 'x'" in refused("bench", "parallel", "--tasks", "x")
    assert "'--seed': -1" in refused("bench", "parallel", "--seed", "-1")
    assert "give at most 7 items, or other tasks" in refused("bench", "parallel", "--items", "8")
