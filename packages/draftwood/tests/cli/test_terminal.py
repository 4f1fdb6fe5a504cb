"""Marks of the terminal, in encodings that have them and in others."""

import io
import sys

import pytest

from draftwood.cli.terminal import mark


@pytest.mark.parametrize(
    ("encoding", "told"),
    [("utf-8", ("✓", "✗")), ("ascii", ("yes", "NO")), ("latin-1", ("yes", "NO"))],
)
def test_what_passed_and_what_failed_differ_in_every_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, told: tuple[str, str]
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    assert (mark(True), mark(False)) == (f"[green]{told[0]}[/]", f"[red]{told[1]}[/]")
