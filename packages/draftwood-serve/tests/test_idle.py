"""Work of a server without requests."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from draftwood_serve import thread as serve_thread
from draftwood_serve.metrics import MetricFamilies, Metrics
from draftwood_serve.settings import ServeSettings
from draftwood_serve.thread import ModelThread


class Doubted:
    """Stands in for a calibration whose curve is doubtful."""

    def __init__(self, is_doubtful: bool, asked: Callable[[], None]) -> None:
        self.is_doubtful, self.asked = is_doubtful, asked
        self.disturbed: list[bool] = []

    def first_doubtful(self, other: None) -> "Doubted | None":
        return self if self.is_doubtful else other

    def mend(self, disturbed: Callable[[], bool]) -> None:
        self.disturbed.append(disturbed())
        self.asked()
        self.disturbed.append(disturbed())
        self.is_doubtful = False


def idle_thread(is_doubtful: bool, done: list[str]) -> tuple[ModelThread, Doubted]:
    made = ModelThread(ServeSettings(model="none"), Metrics(MetricFamilies(), "none"))
    found = Doubted(is_doubtful, lambda: made._inbox.put(lambda: done.append("request")))
    models = SimpleNamespace(calibration=found, draft_calibration=None)
    loaded: Any = SimpleNamespace(plain=SimpleNamespace(models=models))
    made._loaded.set_result(loaded)
    made._batch = ()  # type: ignore[assignment]
    return made, found


def test_a_doubtful_curve_is_measured_until_a_request_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_thread, "IDLE_SECONDS", 0.01)
    done: list[str] = []
    made, found = idle_thread(True, done)
    made._hear()
    assert found.disturbed == [False, True]
    assert done == ["request"]


def test_a_head_learns_before_a_doubtful_curve_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_thread, "IDLE_SECONDS", 0.01)
    done: list[str] = []
    made, found = idle_thread(True, done)
    gate = SimpleNamespace(
        leave=lambda: done.append("learns"),
        enter=lambda: done.append(f"waits, measured {len(found.disturbed)}"),
    )
    made._learning = SimpleNamespace(gate=gate)  # type: ignore[assignment]
    made._hear()
    waited = ["waits, measured 0", "learns", "waits, measured 2", "request"]
    assert done == ["learns", *waited]


@pytest.mark.parametrize("is_doubtful", [True, False])
def test_requests_go_first(is_doubtful: bool) -> None:
    done: list[str] = []
    made, found = idle_thread(is_doubtful, done)
    made._inbox.put(lambda: done.append("request"))
    made._hear()
    assert found.disturbed == []
    assert done == ["request"]
