"""A process and a proxy as harnesses use them: frozen, killed and started again; refused, silent and cut off."""

from __future__ import annotations

import socket
import sys
from contextlib import closing

import pytest

from redelivery_conformance.containers import free_port
from redelivery_conformance.harness import NotHere
from redelivery_conformance.processes import Process, program
from redelivery_conformance.proxy import Proxy

ECHO = """
import socket, sys, threading
def serve(peer):
    while data := peer.recv(100):
        peer.sendall(data)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def connected(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    return closing(connection)


def echoes(port):
    with connected(port) as connection:
        connection.sendall(b"ping")
        return connection.recv(100) == b"ping"


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def echo(tmp_path, port):
    with Process([sys.executable, "-c", ECHO, str(port)], tmp_path / "log") as process:
        process.wait(lambda: echoes(port), 30)
        yield process


def hears_nothing(connection):
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(100)
    connection.settimeout(5)


def test_a_frozen_process_keeps_its_connections_and_answers_late(echo, port):
    with connected(port) as connection:
        with echo.paused():
            connection.sendall(b"ping")
            hears_nothing(connection)
        assert connection.recv(100) == b"ping"


def test_a_killed_process_comes_back_at_its_port(echo, port):
    with echo.stopped(lambda: echoes(port), 30), pytest.raises(ConnectionRefusedError):
        echoes(port)
    assert echoes(port)


def test_a_process_that_ends_is_not_here(tmp_path):
    with pytest.raises(NotHere, match="no such broker"):
        Process([sys.executable, "-c", "raise SystemExit('no such broker')"], tmp_path / "log").wait(lambda: False, 30)


def test_a_program_that_is_not_installed_is_not_here():
    with pytest.raises(NotHere, match="install carrierd"):
        program("carrierd", "/nowhere")


@pytest.fixture
def proxy(echo, port):
    with closing(Proxy("127.0.0.1", port)) as proxy:
        yield proxy


def test_a_proxy_refuses_and_ends_connections(proxy):
    with connected(proxy.port) as connection:
        connection.sendall(b"ping")
        assert connection.recv(100) == b"ping"
        with proxy.outage("refused"):
            assert connection.recv(100) == b""
            with pytest.raises(ConnectionRefusedError):
                echoes(proxy.port)
        assert echoes(proxy.port)


def test_a_silent_proxy_answers_late(proxy):
    with connected(proxy.port) as connection:
        with proxy.outage("silent"):
            connection.sendall(b"ping")
            hears_nothing(connection)
        assert connection.recv(100) == b"ping"


def test_a_reset_within_silence_loses_the_answers(proxy):
    with proxy.outage("silent"), connected(proxy.port) as connection:
        connection.sendall(b"ping")
        hears_nothing(connection)
        with proxy.outage("reset"):
            assert connection.recv(100) == b""
    assert echoes(proxy.port)
