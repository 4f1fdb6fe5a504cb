"""Kinds of heads say the shapes of their weights; packages bring kinds of their own."""

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.heads import kinds
from draftwood.heads.kinds import config_type, known_kinds
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.native.formats import HeadSizes
from draftwood.optional import install_command
from draftwood_torch.heads.networks import new_network, random_network

SIZES = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=16)
READS = {"reads": (1, 2, 4)}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("eagle", READS),
    ("eagle", {"layers": 3, "own_head": 9, "norms_features": False}),
    ("eagle", {**READS, "layers": 2, "feature_sampling": True}),
    ("eagle", {"partial_alignment": True, "feeds_normed": False}),
    ("eagle", {"layers": 2, "partial_alignment": True, "feeds_normed": False}),
    ("lm", {"layers": 2}),
    ("lm", {"acceptance": 2}),
    ("medusa", {}),
    ("medusa", {"reads_root": True, "heads": 2}),
    ("medusa", {"sees_drafted": True}),
    ("ctc", {}),
    ("ctc", {**READS, "layers": 3, "has_blank": False, "pairwise": 4}),
    ("ctc", {"form": "linear", "reads_root": False}),
    ("s2d", {"exits": (1, 3)}),
    ("specdec", {"layers": 2}),
    ("specdec", {"layers": 0, "shares_query": True}),
    ("dflash", {**READS, "layers": 2, "pairwise": 4}),
    ("masked", {"layers": 2, "masks": 4, "rank": 3}),
    ("longspec", {}),
    ("longspec", {"reads_cache": False}),
]


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_a_kind_says_the_shapes_of_its_network(kind: str, settings: dict[str, Any]) -> None:
    config = config_type(kind)(SIZES, **settings)
    with torch.device("meta"):
        network = new_network(config)
    assert config.shapes() == {
        name: tuple(each.shape) for name, each in network.state_dict().items()
    }


def test_all_kinds_are_compared() -> None:
    assert {kind for kind, _ in SETTINGS} == set(known_kinds())


def test_a_network_lies_in_the_memory_of_the_weights() -> None:
    network = random_network(config_type("eagle")(SIZES), seed=0)
    fingerprint = TargetFingerprint("tiny", 64, 32, 4)
    trained = TrainedHead.with_fingerprint(network, torch.arange(5), fingerprint)
    assert isinstance(trained.draft_tokens, np.ndarray)
    trained.weights["norm.weight"][3] = 7.0
    assert float(trained.network.norm.weight[3]) == 7.0
    assert trained.network is trained.network


def test_a_kind_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds.known_kinds.cache_clear()
    monkeypatch.setattr(kinds, "entry_points", lambda group: ())
    cure = re.escape(install_command("draftwood-methods"))
    with pytest.raises(ValueError, match=f"'s2d' need a package: {cure}$"):
        config_type("s2d")
    with pytest.raises(ValueError, match="there are: ctc, eagle, lm, medusa; a newer"):
        config_type("oracle")
    kinds.known_kinds.cache_clear()


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

sys.meta_path.insert(0, Hidden())
"""


def test_stored_heads_are_read_without_pytorch() -> None:
    code = HIDDEN + (
        "from draftwood.heads.folder import load, shipped\n"
        "heads = [load(name) for name in shipped()]\n"
        "assert {head.config.kind for head in heads} >= {'eagle', 'ctc'}\n"
        "assert all(each.dtype == 'float32' for head in heads for each in head.weights.values())\n"
        "try:\n    heads[0].network\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cure = install_command("draftwood-torch")
    assert done.stdout == f"a head's network needs PyTorch: {cure}\n"
