"""Measured costs of passes in int8 that predictions are checked against and priced by.

They are kept apart from newer runs, in which TinyLlama's weights are of another format.
"""

import json

from benchmarks.common.json_lines import RESULTS

WEIGHT_BYTES = {"smollm2-135m": 96_436_224, "tinyllama-1.1b": 1_099_071_488}  # that a pass read


def stored(run: str) -> dict[str, dict[int, float]]:
    """Seconds of a pass by nodes, of each model; of ``behind``, by the tokens before the nodes."""
    found = json.loads((RESULTS / "int8-curves.json").read_text())[run]
    return {
        name: dict(zip(curve["nodes"], curve["seconds"], strict=True))
        for name, curve in found.items()
    }
