"""toxiproxy and our own proxy make the same faults in the same way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from faults.own_proxy import OwnProxy
from faults.proxy import CUT_AFTER, LATENCY, NETWORK_FAULTS, VARIABLE, NetworkProxy, network_proxy, toxiproxy_server
from faults.toxiproxy import Toxiproxy

Connect = Callable[[], socket.socket]


class Echo:
    """A server that remembers what it receives, and answers each byte."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(1 << 16):
                self.received += data
                connection.sendall(data)

    def got(self, data: bytes) -> bool:
        """Whether it receives this within a second."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and data not in self.received:
            time.sleep(0.01)
        return data in self.received

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture(params=["own", "toxiproxy"])
def proxy(request: pytest.FixtureRequest, echo: Echo) -> Iterator[NetworkProxy]:
    if request.param == "own":
        found: NetworkProxy = OwnProxy(0, "127.0.0.1", echo.port)
    else:
        server = toxiproxy_server()
        if server is None:
            pytest.skip(f"no toxiproxy: have toxiproxy-server on the PATH, or let {VARIABLE} name it")
        found = Toxiproxy(server, 0, "127.0.0.1", echo.port)
    yield found
    found.close()


@pytest.fixture
def connect(proxy: NetworkProxy) -> Iterator[Connect]:
    made: list[socket.socket] = []

    def new() -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=5.0))
        return made[-1]

    yield new
    for each in made:
        each.close()


def answers(connection: socket.socket, data: bytes = b"ping") -> bool:
    """Whether the echo of some bytes comes back."""
    connection.sendall(data)
    found = b""
    while len(found) < len(data):
        some = connection.recv(1 << 16)
        if not some:
            return False
        found += some
    return found == data


def is_silent(connection: socket.socket, seconds: float = 0.4) -> bool:
    """Whether a connection stays open and says nothing."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b"never"
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(5.0)


def has_ended(connection: socket.socket) -> bool:
    """Whether a connection ends, in either way."""
    try:
        connection.sendall(b"x")
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_bytes_pass_where_nothing_is_wrong(connect: Connect) -> None:
    assert answers(connect())
    assert answers(connect(), b"x" * 300_000)


def test_reset_ends_connections_and_also_new_ones_until_it_ends(proxy: NetworkProxy, connect: Connect) -> None:
    before = connect()
    assert answers(before)
    proxy.begin("reset")
    assert has_ended(before)
    with suppress(OSError):
        assert has_ended(connect())
    proxy.end()
    assert answers(connect())


def test_answers_are_cut_and_requests_arrive(proxy: NetworkProxy, connect: Connect, echo: Echo) -> None:
    before = connect()
    assert answers(before)
    proxy.begin("answers-cut")
    before.sendall(b"whole" * CUT_AFTER)
    found = b""
    with suppress(OSError):
        while some := before.recv(1 << 16):
            found += some
    assert len(found) <= CUT_AFTER
    assert echo.got(b"whole" * CUT_AFTER)
    proxy.end()
    assert answers(connect())


def test_nothing_passes_a_black_hole(proxy: NetworkProxy, connect: Connect, echo: Echo) -> None:
    before = connect()
    assert answers(before)
    proxy.begin("black-hole")
    before.sendall(b"swallowed")
    new = connect()
    new.sendall(b"swallowed")
    assert is_silent(before)
    assert is_silent(new)
    assert b"swallowed" not in echo.received
    proxy.end()
    assert has_ended(before)
    assert answers(connect())
    assert b"swallowed" not in echo.received


def test_only_answers_are_lost_in_a_black_hole_of_answers(proxy: NetworkProxy, connect: Connect, echo: Echo) -> None:
    before = connect()
    assert answers(before)
    proxy.begin("black-hole-answers")
    before.sendall(b"arrives")
    assert is_silent(before)
    assert echo.got(b"arrives")
    proxy.end()
    assert has_ended(before)
    assert answers(connect())


def test_slow_is_slow_and_loses_nothing(proxy: NetworkProxy, connect: Connect) -> None:
    before = connect()
    proxy.begin("slow")
    began = time.monotonic()
    assert answers(before, b"y" * 60_000)
    assert time.monotonic() - began > 2 * LATENCY
    proxy.end()
    assert answers(before)


def test_a_second_fault_ends_the_first(proxy: NetworkProxy, connect: Connect) -> None:
    proxy.begin("black-hole")
    proxy.begin("slow")
    assert answers(connect())


def test_a_half_open_connection_is_not_told_that_its_peer_is_gone(echo: Echo) -> None:
    proxy = OwnProxy(0, "127.0.0.1", echo.port)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5.0) as before:
        assert answers(before)
        proxy.begin("half-open")
        before.sendall(b"swallowed")
        assert is_silent(before)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5.0) as new:
            assert answers(new)
        proxy.end()
        assert has_ended(before)
        assert b"swallowed" not in echo.received
    proxy.close()


@pytest.mark.parametrize("fault", NETWORK_FAULTS)
def test_the_proxy_that_is_chosen_has_the_fault(fault: str, echo: Echo) -> None:
    proxy = network_proxy(0, "127.0.0.1", echo.port, fault=fault)
    proxy.begin(fault)
    proxy.end()
    proxy.close()


def test_our_own_proxy_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, echo: Echo) -> None:
    monkeypatch.setenv(VARIABLE, "")
    proxy = network_proxy(0, "127.0.0.1", echo.port)
    assert proxy.kind == "own"
    proxy.close()


def test_a_closed_proxy_gives_its_port_back(proxy: NetworkProxy, connect: Connect, echo: Echo) -> None:
    assert answers(connect())
    proxy.close()
    again = OwnProxy(proxy.port, "127.0.0.1", echo.port)
    again.close()
