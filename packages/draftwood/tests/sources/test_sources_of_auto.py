"""A source joins auto by its folder, in the place that it says."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftwood.sources.auto
from draftwood.drafters import multi_source
from draftwood.drafters.multi_source import MultiSource
from draftwood.sources import NGrams, Suffix

PLANTED = """
from draftwood.sources.auto.suffix import Suffix

class Planted(Suffix):
    name = "planted"
    in_auto = 3
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One file more among the sources of auto."""
    (tmp_path / "joins.py").write_text(PLANTED)
    places = [*draftwood.sources.auto.__path__, str(tmp_path)]
    monkeypatch.setattr(draftwood.sources.auto, "__path__", places)
    multi_source.sources_of_auto.cache_clear()
    yield
    sys.modules.pop("draftwood.sources.auto.joins")
    multi_source.sources_of_auto.cache_clear()


def test_auto_asks_its_sources_in_the_order_that_they_give() -> None:
    assert [type(each) for each in MultiSource().sources] == [Suffix, NGrams]


@pytest.mark.usefixtures("planted")
def test_a_file_more_is_a_source_more() -> None:
    found = MultiSource().sources
    assert [each.name for each in found] == ["suffix", "n-grams", "planted"]
