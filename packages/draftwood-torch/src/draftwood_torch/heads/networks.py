"""Networks of trained heads: new ones, and around weights."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch

from draftwood.heads.kinds import HeadConfig


def new_network(config: HeadConfig) -> Any:
    """Make the network of a head, with the weights that training starts from.

    That of a kind ``ctc`` is called ``CtcHead``; it is here for the kinds of draftwood itself, and
    beside the settings for those of other packages.
    """
    package, _, rest = type(config).__module__.partition(".")
    home = f"draftwood_torch.{rest}" if package == "draftwood" else f"{package}.{rest}"
    return getattr(import_module(home), f"{config.kind.capitalize()}Head")(config)


def filled(config: HeadConfig, weights: Mapping[str, np.ndarray]) -> Any:
    """Make a network around weights, in whose memory its parameters lie; nothing is trained.

    Raises:
        RuntimeError: for weights of other names or shapes.
    """
    with torch.device("meta"):
        network = new_network(config)
    tensors = {name: torch.from_numpy(each) for name, each in weights.items()}
    network.load_state_dict(tensors, assign=True)
    return network.eval().requires_grad_(False)


def random_network(config: HeadConfig, seed: int, noise: float = 0.0) -> Any:
    """Make a network that learnt nothing; PyTorch's own draws go on as if there were none.

    Args:
        noise: spread of what is added to all weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = new_network(config).eval().requires_grad_(False)
        for weight in network.parameters() if noise else ():
            weight.add_(torch.randn_like(weight) * noise)
    return network
