"""Adapter for llama.cpp's server; speculation is one of its n-gram methods.

Its n-gram tables outlive requests: a prompt that is asked again, in another round for instance,
would find its whole answer there. So each request that speculates gets a fresh server. Needs
nothing but Python.
"""

import argparse
import atexit
import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from protocol import LoadedPeer, PeerRequest, Reply, parser, serve

START_SECONDS = 120


class Server:
    """llama.cpp's server with one slot, ended with this process."""

    def __init__(self, arguments: argparse.Namespace, options: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        threads = str(arguments.threads)
        command = [
            arguments.server,
            "--model",
            arguments.weights,
            "--threads",
            threads,
            "--threads-batch",
            threads,
        ]
        command += [
            "--parallel",
            "1",
            "--no-cache-prompt",
            "--cache-ram",
            "0",
            "--flash-attn",
            "on",
        ]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        atexit.register(self.stop)
        end = time.monotonic() + START_SECONDS
        while not self._healthy():
            status = self.process.poll()
            if status is not None or time.monotonic() > end:
                self.stop()
                how = "is not ready" if status is None else f"ended with status {status}"
                raise RuntimeError(f"llama-server {how}, started with {options}")
            time.sleep(0.1)

    def ask(self, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _healthy(self) -> bool:
        try:
            return self.ask("GET", "/health")[0] == 200
        except (OSError, ValueError):
            return False


class Servers:
    """Manager of one server at a time, fresh for requests that speculate.

    Starting takes no part in the times, which are those that a server tells of a request.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._mode, self._server = "", None

    def use(self, mode: str) -> Server:
        """The server of plain decoding, which remembers nothing, or a new one that speculates."""
        if self._server is None or self._mode != mode or mode == "speculation":
            if self._server is not None:
                self._server.stop()
            options = self.arguments.speculation.split() if mode == "speculation" else []
            self._mode, self._server = mode, Server(self.arguments, options)
        return self._server


def load(arguments: argparse.Namespace) -> LoadedPeer:
    servers = Servers(arguments)

    def answer(request: PeerRequest) -> Reply:
        body = {
            "prompt": request.prompt_ids,
            "n_predict": request.max_new_tokens,
            "ignore_eos": request.ignore_eos,
        }
        body |= {
            "temperature": 0.0,
            "samplers": ["temperature"],
            "return_tokens": True,
            "cache_prompt": False,
        }
        status, result = servers.use(request.mode).ask("POST", "/completion", body)
        if status != 200:
            raise RuntimeError(f"llama-server answered {status}: {result}")
        times = result["timings"]
        runs = times["predicted_n"] - 1 - times.get("draft_n_accepted", 0)
        return Reply(result["tokens"], times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3, runs)

    versions = {"llama.cpp": f"as in {arguments.package}, compiled for this processor"}
    return LoadedPeer(
        answer, f"the GGUF itself, {Path(arguments.weights).name}", arguments.weight_bytes, versions
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--server", required=True, help="path of llama-server")
    options.add_argument(
        "--speculation", required=True, help="options of the server that speculates"
    )
    options.add_argument("--weight-bytes", type=int, required=True)
    options.add_argument("--package", required=True, help="where the source of llama.cpp came from")
    arguments = options.parse_args()
    serve(lambda: load(arguments))


if __name__ == "__main__":
    main()
