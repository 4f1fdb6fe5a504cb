"""One server for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from draftwood.costs import calibration, disturbance
from draftwood.costs.curve import Curve
from draftwood.costs.following import Following
from draftwood.storage import weights
from local_server import RunningServer, running, save_tiny


@pytest.fixture(scope="session", autouse=True)
def quick_measures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No server of these tests measures what passes cost, nor learns or stores it.

    A server for all tests keeps what it finds when it starts, so this comes before it.
    """
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        curve = Curve((1, 8, 64), (0.01, 0.011, 0.02))
        patch.setattr(calibration, "measure", lambda model, seconds, **more: curve)
        patch.setattr(disturbance, "LEAST_SHARE", 0.0)
        patch.setattr(calibration, "home", lambda: home)
        patch.setattr(Following, "saw", lambda following, took: None)
        patch.setattr(weights, "home", lambda: home)
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
