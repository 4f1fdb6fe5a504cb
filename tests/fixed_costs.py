"""Costs of passes that do not depend on the machine, for tests of all packages."""

from pathlib import Path

import pytest


def fix_costs(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Give every model the same curve, which nothing measures or learns, and store in a folder.

    What takes a method of ``Following`` when it is made, as the pace of a server does, must be made
    behind this.
    """
    from draftwood.costs import calibration, disturbance
    from draftwood.costs.curve import Curve
    from draftwood.costs.following import Following
    from draftwood.storage import weights

    curve = Curve((1, 8, 64), (0.01, 0.011, 0.02))
    patch.setattr(calibration, "measure", lambda model, seconds, **more: curve)
    patch.setattr(calibration, "home", lambda: folder)
    patch.setattr(weights, "home", lambda: folder)
    patch.setattr(disturbance, "LEAST_SHARE", 0.0)
    patch.setattr(Following, "saw", lambda following, took: None)
