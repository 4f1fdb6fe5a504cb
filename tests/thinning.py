"""Long lists of cases, thinned for `make test`; `make proof` runs the rest."""

from collections.abc import Iterable
from typing import Any

import pytest

_Case = type(pytest.param())


def thinned(cases: Iterable[Any], every: int, first: int = 0) -> list[Any]:
    """Leave all cases but one in ``every`` to `make proof`.

    Args:
        cases: as ``pytest.mark.parametrize`` takes them; tuples hold a value per argument.
        first: place of the first case that stays.
    """
    params = [each if isinstance(each, _Case) else _param(each) for each in cases]
    return [
        each if place % every == first else each._replace(marks=[*each.marks, pytest.mark.proof])
        for place, each in enumerate(params)
    ]


def _param(case: Any) -> Any:
    return pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)
