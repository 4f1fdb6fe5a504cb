"""Headers that come too slowly or are too many, on the connection itself."""

import json
import socket

import pytest

from draftwood_serve.protocol import LimitedHttp
from draftwood_serve.settings import HEADER_BYTES
from local_server import RunningServer

START = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def connect(server: RunningServer) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answer(connection: socket.socket) -> tuple[int, str]:
    """The status and the error's message of what comes until the connection is closed."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass  # closed while more was on its way
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["message"]


@pytest.mark.parametrize("sent", [b"", b"GET", START, START + b"x-slow: "])
def test_headers_that_do_not_come_are_not_waited_for(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(LimitedHttp, "header_seconds", 0.2)
    with connect(server) as connection:
        connection.sendall(sent)
        assert answer(connection) == (408, "the headers did not come within 0.2 s")


@pytest.mark.parametrize("piece", [b"x" * 1000, b"x-more: y\r\n" * 100])
def test_headers_without_an_end_are_refused(server: RunningServer, piece: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(START + b"x-more: ")
        try:
            for _ in range(0, 4 * HEADER_BYTES, len(piece)):
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it need not read them all
        status, told = answer(connection)
    assert status == 431
    assert str(HEADER_BYTES) in told


def test_a_connection_is_kept_between_requests(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedHttp, "header_seconds", 5.0)
    with connect(server) as connection:
        for _ in range(3):
            connection.sendall(START + b"\r\n")
            found = b""
            while not found.endswith(b"}"):
                found += connection.recv(65536)
            assert found.startswith(b"HTTP/1.1 200 OK")
