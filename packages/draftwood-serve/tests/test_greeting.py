"""The first request that a server that has started shows."""

import pytest

from draftwood_serve.greeting import welcome
from draftwood_serve.settings import ServeSettings

TOLD = {"address": "http://here:1", "page": "http://here:1/", "models": ["m"], "method": "auto"}


@pytest.mark.parametrize(
    ("chats", "path", "asked"),
    [(True, "chat/completions", '"messages": ['), (False, "completions", '"prompt": "Once')],
)
def test_a_model_without_chats_is_asked_to_go_on_with_a_text(
    chats: bool, path: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    welcome(ServeSettings("m"), {**TOLD, "chats": chats})
    told = capsys.readouterr().err
    assert f"curl http://here:1/v1/{path} " in told
    assert asked in told
    assert '"temperature": 0}' in told  # a chat drawn at 1 may fill the whole context


def test_one_text_and_one_request_are_told_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    welcome(ServeSettings("m", max_batch=1, max_queue=1), TOLD)
    assert "1 text, 1 request waiting" in capsys.readouterr().err
