"""A server writes texts of masks beside each other, and its page replays them."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import draftwood
from draftwood.cli.main import main
from draftwood.costs import calibration
from draftwood.costs.curve import Curve
from draftwood.loading.names import shipped_models
from draftwood.methods.answers import answers_method
from draftwood.models.requirements import block_cache
from draftwood.sampling_params import SamplingParams
from draftwood.text.language_model import LanguageModel
from draftwood_diffusion.rules.learned import FILTER, Filter
from draftwood_serve.other_texts import served_method, served_methods
from draftwood_serve.page import HEADERS
from draftwood_serve.settings import ServeSettings
from local_server import RunningServer, running, save_tiny

MODEL = "stories-diffusion"
BEGINNING = "Once upon a time"
PATH = "/v1/completions"


@pytest.fixture(scope="module", autouse=True)
def quick_measures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        curve = Curve((1, 8, 64), (0.01, 0.011, 0.02))
        patch.setattr(calibration, "measure", lambda model, seconds, **more: curve)
        home = tmp_path_factory.mktemp("home")
        patch.setattr(calibration, "home", lambda: home)
        yield


@pytest.fixture(scope="module")
def masks(quick_measures: None) -> Iterator[RunningServer]:
    with running(MODEL, method=None, inexact=True, served_names=()) as found:
        yield found


@pytest.fixture(scope="module")
def lm(quick_measures: None) -> LanguageModel:
    return draftwood.load(MODEL, method="plain")


def written(lm: LanguageModel, method: str, count: int, **options: object) -> list[str]:
    """Texts that ``generate`` writes."""
    found = answers_method(method)
    assert found is not None
    params = SamplingParams(raw=True, exact=False, **options)  # type: ignore[arg-type]
    return [each.text for each in found.write(lm, BEGINNING, count, params)]


@pytest.mark.parametrize(
    ("method", "temperature"), [("one-by-one", 1.0), ("threshold,tau=0.7", 0.0), ("adablock", 1.0)]
)
def test_texts_side_by_side_are_those_of_generate(
    masks: RunningServer, lm: LanguageModel, method: str, temperature: float
) -> None:
    body = {"prompt": BEGINNING, "n": 3, "seed": 5, "max_tokens": 40, "temperature": temperature}
    asked = {**body, "speculative": {"method": method}}
    told = masks.post(PATH, **asked)["choices"]
    texts = [each["text"] for each in told]
    assert texts == written(lm, method, 3, seed=5, max_new_tokens=40, temperature=temperature)
    events = masks.stream(PATH, **asked)
    pieces = ["", "", ""]
    blocks = 0
    for choice in (choice for each in events for choice in each["choices"]):
        pieces[choice["index"]] += choice["text"]
        blocks += 1
    assert pieces == texts
    assert blocks >= 3 * 3  # 40 tokens behind a prompt reach into at least three blocks
    assert events[-1]["metrics"]["method"] == method


@pytest.mark.parametrize("method", ["one-by-one", "freedave", "threshold+freedave,d=2"])
def test_texts_that_the_cache_has_no_room_for_wait_in_line(lm: LanguageModel, method: str) -> None:
    body = {"prompt": BEGINNING, "max_tokens": 100, "temperature": 1, "seed": 5}
    cache = block_cache(lm.model)
    assert cache is not None
    held = {"cache_memory": 6 * cache.block_bytes}
    with running(MODEL, method=method, inexact=True, served_names=(), **held) as found:
        told = found.post(PATH, **body, n=8)["choices"]
        assert [each["text"] for each in told] == written(
            lm, method, 8, seed=5, max_new_tokens=100, temperature=1
        )
        longest = found.target.context_length
        assert longest is not None
        assert cache.blocks_for(longest) == 6  # drafts of states have no room beside such a text
        left = longest - len(lm.encode(BEGINNING, True))
        told = found.post(PATH, **{**body, "max_tokens": left}, n=2)["choices"]
        assert [each["text"] for each in told] == written(
            lm, method, 2, seed=5, max_new_tokens=left, temperature=1
        )


def test_a_text_is_told_with_the_order_of_its_tokens(masks: RunningServer) -> None:
    body = {"prompt": BEGINNING, "max_tokens": 30, "temperature": 0}
    told = masks.post(PATH, **body, speculative={"method": "threshold", "trace": True})
    (details,) = told["metrics"]["details"]
    assert "".join(details["pieces"]) == told["choices"][0]["text"]
    assert {each["place"] for each in details["order"]} == {*range(30)}
    runs = [each["pass"] for each in details["order"]]
    assert runs == sorted(runs)
    assert {*runs} == {*range(1, details["passes"] + 1)}
    assert told["usage"]["completion_tokens"] == 30
    spaced = {"prompt": f"{BEGINNING}, there was a", "max_tokens": 4, "temperature": 0}
    told = masks.post(PATH, **spaced, speculative={"method": "threshold", "trace": True})
    (details,) = told["metrics"]["details"]
    assert told["choices"][0]["text"].startswith(" ")
    assert "".join(details["pieces"]) == told["choices"][0]["text"]
    untold = masks.post(PATH, **body, speculative={"method": "threshold"})
    assert "details" not in untold["metrics"]  # nobody asked


def test_tokens_of_masks_are_counted_from_the_first_block_on(masks: RunningServer) -> None:
    asked = {"prompt": BEGINNING, "temperature": 0, "speculative": {"method": "threshold"}}
    told = masks.post(PATH, **asked, max_tokens=40)["metrics"]
    passes = told["speculative_decoding"]["num_spec_steps"]
    assert told["speculative_decoding"]["mean_acceptance_length"] == round(40 / passes, 4)
    later = told["generation_time_ms"] / told["mean_itl_ms"]
    assert later == pytest.approx(round(later), rel=0.01)
    assert round(later) < 39  # those of the first block were there at once
    alone = masks.post(PATH, **asked, max_tokens=2)["metrics"]
    assert alone["tokens_per_second"] is alone["mean_itl_ms"] is None


def test_stop_strings_and_end_tokens_end_a_text(masks: RunningServer) -> None:
    body = {"prompt": BEGINNING, "max_tokens": 40, "temperature": 0}
    whole = masks.text(**body)
    assert " little" in whole
    (choice,) = masks.post(PATH, **body, stop=" little")["choices"]
    assert choice["text"] == whole.partition(" little")[0]
    assert choice["finish_reason"] == "stop"
    (choice,) = masks.post(PATH, **{**body, "max_tokens": 4})["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"logprobs": 1}, "does not take logprobs"),
        ({"suffix": "end"}, "infill|suffix"),
        ({"repetition_penalty": 1.2}, "does not take repetition_penalty"),
        ({"speculative": {"method": "plain"}}, "it fills masks; name a rule"),
        ({"speculative": {"method": "oracle"}}, "which a server does not know"),
        ({"speculative": {"method": "learned,file=/etc/hostname"}}, "requests name no files"),
        ({"speculative": {"method": "end-cut+learned,file=/etc/hostname"}}, "name no files"),
        ({"speculative": {"method": "prefix-cache"}}, "this one keeps finished blocks"),
        ({"speculative": {"method": "superposed"}}, "which no server runs"),
        ({"speculative": {"method": "threshold,tau=3"}}, "tau must be from 0 to 1"),
        ({"speculative": {"method": "threshold", "budget": 4}}, "leave tree and budget out"),
        ({"prompt": "a" * 4000}, "maximum context length"),
    ],
)
def test_what_masks_do_not_take_is_refused(
    masks: RunningServer, more: dict[str, object], told: str
) -> None:
    body: dict[str, object] = {"prompt": BEGINNING, "max_tokens": 8, **more}
    assert re.search(told, masks.refused(PATH, 400, **body)["message"])


def test_rules_that_trade_quality_need_a_server_that_allows_them() -> None:
    with running(MODEL, method=None, served_names=()) as found:
        body = {"prompt": BEGINNING, "max_tokens": 8}
        error = found.refused(PATH, 400, **body, speculative={"method": "threshold"})
        assert "start the server with --inexact" in error["message"]
        names = [each["name"] for each in found.client.get("/page.json").json()["methods"]]
        assert "freedave" in names
        assert "threshold" not in names
    typed = ["serve", "--model", MODEL, "--method", "threshold", "--port", "0"]
    result = CliRunner().invoke(main, typed)
    assert "start the server with --inexact" in result.stderr
    assert result.stderr.count("\n") == 1
    with (
        pytest.raises(ValueError, match="does not write token by token: it fills masks"),
        running(MODEL, method="suffix", served_names=()),
    ):
        pass


def test_a_model_without_masks_is_served_no_method_that_fills_them(tmp_path: Path) -> None:
    model = save_tiny(tmp_path)
    settings = ServeSettings(model=model, method="freedave")
    with (
        pytest.raises(ValueError, match="'freedave' fills masks, and this model writes from left"),
        running(model, method="freedave"),
    ):
        pass
    assert "freedave" not in [each.name for each in served_methods(settings, tmp_path)]
    assert served_method("freedave", settings, shipped_models()[MODEL]) is not None


def test_a_file_is_read_where_the_server_was_started_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw, shapes = np.random.default_rng(0), ((64, 2), (2,), (2, 64), (64,))
    Filter(*(draw.normal(size=shape) for shape in shapes)).save(Path("filter.npz"))
    own, body = "learned,file=filter.npz", {"prompt": BEGINNING, "max_tokens": 8}
    with running(MODEL, method=own, inexact=True, served_names=()) as found:
        assert found.text(**body, seed=1) == found.text(**body, seed=1, speculative={"method": own})
        other = {"method": "learned,above=0.5,file=filter.npz"}
        assert "reads a file" in found.refused(PATH, 400, **body, speculative=other)["message"]
    without = tmp_path / "without-a-filter"
    shutil.copytree(shipped_models()[MODEL], without, ignore=shutil.ignore_patterns(FILTER))
    manifest = json.loads((without / "draftwood.json").read_text())
    del manifest["files"][FILTER]
    (without / "draftwood.json").write_text(json.dumps(manifest))
    for model, wrong, told in (
        (str(without), "learned", "this model's folder has no filter.npz"),
        (MODEL, f"{own}.old", "a filter is a .npz file"),
    ):
        typed = ["serve", "--model", model, "--method", wrong, "--inexact", "--port", "0"]
        result = CliRunner().invoke(main, typed)
        assert told in result.stderr
        assert result.stderr.count("\n") == 1
    with running(str(without), method=None, inexact=True, served_names=()) as found:
        message = found.refused(PATH, 400, **body, speculative={"method": "learned"})["message"]
        assert "this model's folder has no filter.npz" in message
        offered = found.client.get("/page.json").json()["methods"]
        assert "learned" not in [each["name"] for each in offered]


def test_a_request_may_ask_for_the_filter_in_the_folder_of_the_model(
    masks: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(shipped_models()[MODEL] / FILTER, "own.npz")
    body = {"prompt": BEGINNING, "max_tokens": 12, "temperature": 0}
    text = masks.text(**body, speculative={"method": "learned"})
    with running(MODEL, method="learned,file=own.npz", inexact=True, served_names=()) as found:
        assert found.text(**body) == text
        assert found.text(**body, speculative={"method": "learned"}) == text


def test_the_page_of_the_replay_comes_with_the_package(masks: RunningServer) -> None:
    facts = masks.client.get("/page.json").json()
    assert "replay" in facts["panels"]
    assert not facts["token_by_token"]
    assert facts["method"] == "one-by-one"
    offered = {each["name"] for each in facts["methods"]}
    assert {"one-by-one", "threshold", "freedave", "learned"} <= offered
    assert not offered & {"oracle", "prefix-cache", "dual-cache"}  # it can run none
    for path, kind in (("/replay", "html"), ("/replay.js", "javascript"), ("/replay.css", "css")):
        answer = masks.client.get(path)
        assert kind in answer.headers["content-type"]
        assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]
        assert not re.findall(r"innerHTML|<script>|<style| on\w+=\"|https?://", answer.text)
    with running(MODEL, method=None, served_names=(), api_keys=("secret",)) as found:
        assert found.client.get("/replay").status_code == 200
        assert found.client.get("/page.json").status_code == 401
