"""Processes on this machine or on a cluster, by Ray, which is an optional package."""

import os
import re
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftwood.native.threads import cores
from draftwood.optional import install_command

CONNECT_SECONDS = 5


def _ray_for(who: str, otherwise: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    try:
        import ray
    except ImportError:
        cure = install_command("draftwood[ray]")
        raise ImportError(f"{who} need Ray: {cure}, or {otherwise}") from None
    return ray


def _bring_token(address: str) -> None:
    """Let Ray bring this machine's token to a cluster here, as those of `ray start` ask for one.

    Ray itself does so only where it finds the cluster, and reads the mode when it is imported.
    Other machines get no token unless the user sets the mode.
    """
    host = re.sub(r":\d+$", "", address.removeprefix("ray://"))
    is_here = host in ("auto", "[::1]") or _is_own(host)
    if is_here and os.path.exists(os.path.expanduser("~/.ray/auth_token")):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _is_own(host: str) -> bool:
    """True for an address of this machine, at which alone a socket of it can be bound."""
    try:
        with socket.socket() as tried:
            tried.bind((host, 0))
    except OSError:
        return False
    return True


def _own_packages() -> list[str]:
    """Folders of draftwood and of those of its packages that are installed."""
    names = ("", "_bench", "_choices", "_diffusion", "_heads", "_images", "_methods", "_serve")
    names += ("_torch", "_train")
    specs = [find_spec(f"draftwood{name}") for name in names]
    return [str(Path(spec.origin).parent) for spec in specs if spec and spec.origin]


class Cluster:
    """A cluster by Ray, or this machine alone, on which processes are to be started.

    Args:
        who: is to be started, in the plural, as the flag that says how many.
        address: of the cluster; None for this machine.
        otherwise: what to do without Ray.

    Attributes:
        ray: the package itself.

    Raises:
        ImportError: where Ray is not installed, with the command that does it.
        OSError: where nothing answers at the address.
    """

    def __init__(self, who: str, address: str | None, otherwise: str) -> None:
        if address is not None:
            _bring_token(address)
        self.who, self.address, self.ray = who, address, _ray_for(who, otherwise)
        self.require_answer()

    def require_answer(self) -> None:
        """Refuse an address where nothing answers: Ray itself would try for minutes.

        Raises:
            OSError: where nothing does.
        """
        if self.address is None:
            return
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        if not port.isdigit():
            return  # ``auto``, or what Ray refuses at once
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise OSError(
                f"there is no Ray cluster at {self.address} ({error.args[-1]}); give the one that"
                " `ray start` printed"
            ) from None

    @staticmethod
    def share(count: int) -> int:
        """CPUs of this machine for each of so many workers, at least one."""
        return max(1, cores() // count)

    def connect(self, cpus: int) -> None:
        """Join the cluster, or start one of this machine alone.

        Args:
            cpus: that this machine is taken to have.

        Raises:
            OSError: where that fails, with the reason in one line.
        """
        import logging

        here = {"num_cpus": cpus, "include_dashboard": False}
        # workers run this very code
        there = {"runtime_env": {"py_modules": _own_packages()}}
        try:
            self.ray.init(
                address=self.address or "local",
                logging_level=logging.ERROR,
                log_to_driver=False,
                **(there if self.address else here),
            )
        except Exception as error:  # Ray raises no narrower one where a machine starts too slowly
            reason = " ".join(str(error).split())[:200]
            if self.address and isinstance(error, ConnectionError):
                reason += (
                    "; is that a cluster of this version of Ray, and RAY_AUTH_MODE=token set with"
                    " its token in ~/.ray/auth_token if it asks for one?"
                )
            place = self.address or "this machine"
            raise OSError(f"cannot start {self.who} at {place}: {reason}") from error

    @property
    def nodes(self) -> list[Mapping[str, float]]:
        """Resources of each machine: CPUs, GPUs."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def fitting(self, needs: Mapping[str, int]) -> int:
        """Number of processes with these needs that fit all machines."""
        asked = {kind: need for kind, need in needs.items() if need}
        fit = (
            min(int(node.get(kind, 0)) // need for kind, need in asked.items())
            for node in self.nodes
        )
        return sum(fit)

    def require_room(self, count: int, needs: Mapping[str, int]) -> None:
        """Refuse processes that fit no machine: Ray would wait for them without end.

        Args:
            count: of them.
            needs: CPUs and GPUs of each.

        Raises:
            ValueError: where they do not fit, naming what there is and what to ask for.
        """
        if self.fitting(needs) >= count:
            return
        gpu = bool(needs.get("GPU"))
        there = [
            f"{' + '.join(str(int(node.get(kind, 0))) for node in self.nodes)} {kind}s"
            for kind, need in needs.items()
            if need
        ]
        place = "this machine" if self.address is None else "the cluster"
        raise ValueError(
            f"{count} {self.who} with {needs['CPU']} threads{' and a GPU' if gpu else ''} each do"
            f" not fit {place}, which has {' and '.join(there)}; ask for fewer --{self.who} or"
            f" --threads{', or take --device cpu' if gpu else ''}"
        )
