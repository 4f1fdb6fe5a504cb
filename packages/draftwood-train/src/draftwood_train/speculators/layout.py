"""Both layouts: a Llama decoder layer, the parts of an EAGLE head, and an output head of its own.

Two lists translate the ids of the draft vocabulary. The first layer is ``layers.0`` in the layout
of the ``speculators`` package and ``midlayer`` in that of SafeAILab.
"""

import json
from pathlib import Path
from typing import Any

EMBEDDING, HEAD, OFFSETS, KNOWN = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"


def settings_of(folder: Path) -> dict[str, Any]:
    """Read the config.json of a head of either layout.

    Raises:
        ValueError: in one line, for a folder without, a damaged one, and one of another kind.
    """
    path = folder / "config.json"
    try:
        says = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no head: there is no config.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}); copy it again") from None
    if not isinstance(says, dict):
        raise ValueError(f"{path} is not whole (it holds no settings by name); copy it again")
    names = says.get("architectures")
    names = [str(each) for each in names] if isinstance(names, list) else []
    if says.get("speculators_model_type") != "eagle3" and "LlamaForCausalLMEagle3" not in names:
        raise ValueError(
            f"{path} describes no EAGLE-3 head of speculators or SafeAILab, but"
            f" {', '.join(names) or 'something else'}"
        )
    return says
