"""Methods that write several answers at once: found by entry points, and refused what is theirs."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from draftwood.methods import answers
from draftwood.methods.answers import AnswersMethod, answers_method
from draftwood.sampling_params import SamplingParams
from draftwood.stats import Stats
from draftwood.text.stream import Generation


def write(lm: Any, prompt: Any, count: int, params: Any) -> list[Generation]:
    texts = [f"{prompt} {number}" for number in range(count)]
    return [Generation(text, [], "stop", lm, "counted", Stats()) for text in texts]


def method(**more: Any) -> AnswersMethod:
    told = {"name": "counted", "option": "draftwood generate --method counted", "summary": "-"}
    return AnswersMethod(
        **{**told, "source": "-", "promise": "another aim", "write": write, **more}
    )


COUNTED = method()


def test_a_package_brings_one_by_its_name_and_no_other_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        EntryPoint("broken", "nowhere:NOTHING", "draftwood.answers"),
        EntryPoint("counted", f"{__name__}:COUNTED", "draftwood.answers"),
    ]
    monkeypatch.setattr(answers, "entry_points", lambda group: found)
    assert answers_method("counted") is COUNTED
    assert answers_method("auto") is None
    assert answers_method(None) is None


def test_one_generation_holds_all_answers() -> None:
    made = COUNTED.answer("lm", "a", 3, SamplingParams())
    assert [each.text for each in made.answers] == ["a 0", "a 1", "a 2"]
    lossy = method(promise="trades quality")
    with pytest.raises(ValueError, match="--inexact allows that"):
        lossy.answer("lm", "a", 3, SamplingParams())
    assert len(lossy.answer("lm", "a", 3, SamplingParams(exact=False)).answers) == 3


def test_it_refuses_what_does_not_go_with_it() -> None:
    COUNTED.require(False, frozenset(), ())
    lossy = method(promise="trades quality", needs=frozenset({"datastore"}))
    with pytest.raises(ValueError, match="--inexact allows that"):
        lossy.require(False, frozenset({"datastore"}), ())
    with pytest.raises(ValueError, match="reads a datastore; name one with --datastore"):
        lossy.require(True, frozenset(), ())
    lossy.require(True, frozenset({"datastore"}), ())
    with pytest.raises(ValueError, match="drafts nothing; leave --overlap out"):
        COUNTED.require(True, frozenset(), {"--tree", "--overlap"})


def test_knobs_and_settings_reach_methods_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, Mapping[str, int]]]()

    def adjust(text: str, settings: Mapping[str, int]) -> AnswersMethod:
        asked.append((text, settings))
        return COUNTED

    knobs = method(adjust=adjust)
    monkeypatch.setattr(
        answers,
        "entry_points",
        lambda group: [EntryPoint("counted", f"{__name__}:ADJUSTED", "draftwood.answers")],
    )
    monkeypatch.setitem(globals(), "ADJUSTED", knobs)
    assert answers_method("counted,n=3+more", {"--mask-token": 4}) is COUNTED
    assert answers_method(" counted + more") is COUNTED
    assert asked == [("counted,n=3+more", {"--mask-token": 4}), (" counted + more", {})]
    assert answers_method("count") is None
    with pytest.raises(ValueError, match="'counted' has nothing to set; leave ,n=3 out"):
        COUNTED.adjusted("counted,n=3", {})
    with pytest.raises(ValueError, match="nothing to set; leave --mask-token out"):
        COUNTED.adjusted("counted", {"--mask-token": 4})


def test_details_of_a_method_are_told_as_json() -> None:
    made = Generation("a", [1], "stop", "m", "counted", Stats(), details={"passes": 3})
    assert made.as_json()["passes"] == 3
    assert "passes" not in Generation("a", [1], "stop", "m", "counted", Stats()).as_json()
