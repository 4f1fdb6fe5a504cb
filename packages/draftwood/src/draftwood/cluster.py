"""Processes on this machine or on a cluster, by Ray, which is an optional package."""

import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONNECT_SECONDS = 5


def ray_for(who: str, otherwise: str) -> Any:
    """Ray itself.

    Args:
        who: name of what needs it, in the plural.
        otherwise: what to do without it.

    Raises:
        ImportError: where it is not installed, with the command that does it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    try:
        import ray
    except ImportError:
        raise ImportError(f"{who} need Ray: pip install 'draftwood[ray]', or {otherwise}") from None
    return ray


def _own_packages() -> list[str]:
    """Folders of draftwood and of those of its packages that are installed."""
    names = ("", "_bench", "_heads", "_methods", "_serve", "_train")
    specs = [find_spec(f"draftwood{name}") for name in names]
    return [str(Path(spec.origin).parent) for spec in specs if spec and spec.origin]


def require_cluster(address: str) -> None:
    """Raise OSError unless something answers at the address: Ray itself would try for minutes.

    Raises:
        OSError: where nothing does.
    """
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # ``auto``, or what Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise OSError(
            f"there is no Ray cluster at {address} ({error.args[-1]}); give the one that `ray"
            " start` printed"
        ) from None


def connect(ray: Any, who: str, address: str | None, cpus: int) -> None:
    """Join a cluster, or start one of this machine alone.

    Args:
        who: is to be started, in the plural.
        address: of the cluster; None for this machine.
        cpus: that this machine is taken to have.

    Raises:
        OSError: where that fails, with the reason in one line.
    """
    import logging

    here = {"num_cpus": cpus, "include_dashboard": False}
    # workers run this very code
    there = {"runtime_env": {"py_modules": _own_packages()}}
    try:
        ray.init(
            address=address or "local",
            logging_level=logging.ERROR,
            log_to_driver=False,
            **(there if address else here),
        )
    except Exception as error:  # Ray raises no narrower one where a machine starts too slowly
        reason = " ".join(str(error).split())[:200]
        if address and isinstance(error, ConnectionError):
            reason += (
                "; is that a cluster of this version of Ray, and RAY_AUTH_MODE=token set if it asks"
                " for a token?"
            )
        raise OSError(f"cannot start {who} at {address or 'this machine'}: {reason}") from error


def nodes_of(ray: Any) -> list[Mapping[str, float]]:
    """Resources of each machine of the cluster: CPUs, GPUs."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def fitting(nodes: list[Mapping[str, float]], needs: Mapping[str, int]) -> int:
    """Number of processes with these needs that fit all machines."""
    asked = {kind: need for kind, need in needs.items() if need}
    fit = (min(int(node.get(kind, 0)) // need for kind, need in asked.items()) for node in nodes)
    return sum(fit)


def require_room(
    nodes: list[Mapping[str, float]], count: int, who: str, needs: Mapping[str, int], place: str
) -> None:
    """Refuse processes that fit no machine: Ray would wait for them without end.

    Args:
        count: of them.
        who: is to be started, in the plural, as the flag that says how many.
        needs: CPUs and GPUs of each.
        place: what the nodes are.

    Raises:
        ValueError: where they do not fit, naming what there is and what to ask for.
    """
    if fitting(nodes, needs) >= count:
        return
    gpu = bool(needs.get("GPU"))
    there = [
        f"{' + '.join(str(int(node.get(kind, 0))) for node in nodes)} {kind}s"
        for kind, need in needs.items()
        if need
    ]
    raise ValueError(
        f"{count} {who} with {needs['CPU']} threads{' and a GPU' if gpu else ''} each do not fit"
        f" {place}, which has {' and '.join(there)}; ask for fewer --{who} or"
        f" --threads{', or take --device cpu' if gpu else ''}"
    )
