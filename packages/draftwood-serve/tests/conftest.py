"""One server for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from fixed_costs import fix_costs
from local_server import RunningServer, running, save_tiny


@pytest.fixture(scope="session", autouse=True)
def quick_measures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No server of these tests measures what passes cost, nor learns or stores it.

    A server for all tests keeps what it finds when it starts, so this comes before it.
    """
    with pytest.MonkeyPatch.context() as patch:
        fix_costs(patch, tmp_path_factory.mktemp("home"))
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that writes for minutes."""
    return save_tiny(tmp_path_factory.mktemp("served") / "endless", context=1_000_000)


@pytest.fixture(scope="session")
def server(tiny: str) -> Iterator[RunningServer]:
    with running(tiny) as found:
        yield found
