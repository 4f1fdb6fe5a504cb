"""A server whose head learns: the same texts, counts in /metrics, and one line where it cannot."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from draftwood.heads.folder import save
from draftwood.learning import learner as learners
from draftwood.loading.models import load_model
from draftwood.native import library
from draftwood.optional import install_command
from draftwood_serve.settings import ServeSettings
from local_server import RunningServer, running, save_tiny, wait_for
from tiny_heads import tiny_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")


class FreshHeads:
    """A learner whose every round gives another random head, which is better."""

    def __init__(self, trained: Any, rows: Any, embed: Any) -> None:
        self.steps, self.first = 0, trained.weights

    def train(self, weights: Any, new: Any, old: Any, pause: Any) -> Any:
        pause()
        self.steps += 1
        return {**weights, "fc.weight": weights["fc.weight"] * 1.1}

    def judge(self, weights: Any, texts: Any, pause: Any) -> Any:
        return np.full((2, 2), 0.1 if weights is self.first else 0.2)


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="fresh", load=lambda: FreshHeads)
    monkeypatch.setattr(learners, "entry_points", lambda group: (entry,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("learning") / "deep", layers=6)


@pytest.fixture(scope="module")
def head(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("learning") / "head"
    target = load_model(model).model
    return str(save(folder, tiny_eagle(target, range(target.vocab_size)), "For tests."))


def texts_of(server: RunningServer) -> list[str]:
    return [
        server.text("go" * (1 + number), max_tokens=40, temperature=number % 2, seed=number)
        for number in range(4)
    ]


def test_texts_stay_and_metrics_tell_what_is_learnt(
    model: str, head: str, learner: None, tmp_path: Path
) -> None:
    with running(model, draft_model=(head,)) as plain:
        wanted = texts_of(plain)
        assert "learning" not in plain.client.get("/metrics").text
    folder = tmp_path / "learnt"
    with running(model, draft_model=(head,), learn=True, learn_to=folder) as server:
        learning = server.target.learning
        assert learning is not None
        learning.round_rows, learning.least_judged = 60, 1
        assert texts_of(server) == wanted
        wait_for(lambda: server.metric("learning_swaps") > 0)
        assert server.metric("learning_buffer_rows") > 100
        assert server.metric("learning_buffer_bytes") > 1000
        assert server.metric("learning_steps") == learning.learner.steps
        assert server.metric("learning_drops") >= 0
        assert texts_of(server) == wanted
    assert (folder / "head" / "config.json").exists()
    assert list((folder / "texts").iterdir())


def test_a_missing_trainer_leaves_the_server_as_it_is(
    model: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "entry_points", lambda group: ())
    with running(model, draft_model=(head,), learn=True) as server:
        target = server.target
        assert target.learning is None
        assert install_command("draftwood-train") in (target.idle_reason or "")
        assert "\n" not in (target.idle_reason or "")
        assert texts_of(server)


def test_texts_of_one_key_alone_are_learnt_from(model: str, head: str, learner: None) -> None:
    keys: dict[str, Any] = {"api_keys": ("one", "two")}
    with running(model, draft_model=(head,), learn=True, **keys) as server:
        assert server.target.learning is None
        assert "--learn-key" in (server.target.idle_reason or "")
    with running(model, draft_model=(head,), learn=True, learn_key="two", **keys) as server:
        learning = server.target.learning
        assert learning is not None
        learning.least_judged = 1
        for key, count in (("one", 0), ("two", 1), ("two", 2)):
            server.client.headers["authorization"] = f"Bearer {key}"
            server.text("go", max_tokens=30)
            wait_for(server.idle)
            wait_for(lambda count=count: learning.status.texts == count)
        for key, count in (("one", 2), ("two", 3)):
            server.client.headers["authorization"] = f"Bearer {key}"
            server.text("go", max_tokens=30, speculative={"budget": 3})
            wait_for(server.idle)
            wait_for(lambda count=count: learning.status.texts == count)
        learning.catch_up()
        learnt, known = learning.trained, server.target._known
        heads = {owner: lm.method.drafter.learnable for (owner, _), lm in known.items()}
        assert heads["1"] is learnt
        assert heads["0"] is not learnt


def test_settings_of_learning_that_do_not_fit_are_refused() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"learn_to": Path("folder")}, "add --learn"),
        ({"learn_key": "one", "api_keys": ("one",)}, "add --learn"),
        ({"learn": True, "learn_key": "two", "api_keys": ("one",)}, "one of the keys"),
        ({"learn": True, "tp": 2}, "one process"),
        ({"learn": True, "replicas": 2}, "one process"),
    )
    for given, says in cases:
        with pytest.raises(ValueError, match=says):
            ServeSettings(**given)
    assert ServeSettings(learn=True).learning_owner == ""
    assert ServeSettings(learn=True, api_keys=("one",)).learning_owner == "0"
    assert ServeSettings(learn=True, api_keys=("one", "two")).learning_owner is None
