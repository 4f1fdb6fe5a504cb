import json

import pytest
from command import run

from draftwood import methods


def test_json_describes_every_method():
    described = json.loads(run("methods", "--json").stdout)
    assert [row["name"] for row in described] == list(methods.known())
    by_name = {row["name"]: row for row in described}
    assert by_name["rsd-s"]["needs_draft_model"] is True
    assert by_name["rsd-s"]["needs_drafter"] is False
    assert by_name["eagle"]["needs_drafter"] is True
    assert by_name["typical"]["lossless"] is False
    assert by_name["typical"]["promise"] == "trades quality"
    assert by_name["rsd-s"]["promise"] == "lossless"
    assert by_name["lookup"]["shape"] is None


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_table_names_every_method_and_its_source(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    shown = run("methods").stdout
    for name in methods.known():
        assert name in shown
    assert "2402.14160" in shown
    assert "…" not in shown
    assert all(len(line) <= int(columns) for line in shown.splitlines())
