"""A source joins auto by what its own file says."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftwood.sources
from draftwood.drafters import multi_source
from draftwood.drafters.multi_source import MultiSource
from draftwood.sources import NGrams, Suffix

PLANTED = """
from draftwood.sources.suffix import Suffix

class Planted(Suffix):
    name = "planted"
    {mark}
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two files more among the sources, of which one is to join."""
    for name, mark in (("joins", "in_auto = 3"), ("stays", "pass")):
        (tmp_path / f"{name}.py").write_text(PLANTED.format(mark=mark))
    monkeypatch.setattr(draftwood.sources, "__path__", [*draftwood.sources.__path__, str(tmp_path)])
    multi_source.sources_of_auto.cache_clear()
    yield
    sys.modules.pop("draftwood.sources.joins")
    multi_source.sources_of_auto.cache_clear()


def test_auto_asks_its_sources_in_the_order_that_they_give() -> None:
    assert [type(each) for each in MultiSource().sources] == [Suffix, NGrams]


@pytest.mark.usefixtures("planted")
def test_a_file_more_is_a_source_more_and_others_are_not_imported() -> None:
    found = MultiSource().sources
    assert [each.name for each in found] == ["suffix", "n-grams", "planted"]
    assert "draftwood.sources.stays" not in sys.modules
