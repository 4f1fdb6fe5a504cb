"""Tables of records of servers."""

from benchmarks.serving.show import tables


def test_nothing_measured_is_told() -> None:
    assert tables([], []) == "Nothing was measured yet."
