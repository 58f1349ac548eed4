"""The sender at a server that fails: each answer, cut, delay and redirect is told as it was."""

import gzip
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from redelivery.codes import Code
from redelivery.contract.message import Batch, Message
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    ConfigurationError,
    Fatal,
    Permanent,
    Retriable,
    Throttled,
    Unattributed,
)
from redelivery.registry import connect
from redelivery_http.client.connection import Connection
from redelivery_http.testing.server import LONGEST, Reply, Server


@pytest.fixture
def server() -> Iterator[Server]:
    there = Server()
    yield there
    there.close()


def post(
    url: str, *values: bytes, seconds: float = 5.0, isolate: bool = False, **options: str
) -> list[BrokerError | None]:
    """Send rows as one batch; the error of each."""
    batch = Batch.of([Message(value=each) for each in values], number=1, isolate=isolate)
    named = {f"http.{name.replace('__', '.')}": value for name, value in options.items()}
    with connect(url, named) as broker, broker.sender() as sender:
        deadline = time.monotonic() + seconds
        sender.send(batch, deadline=deadline)
        while not (settled := sender.collect(0.2)):
            assert time.monotonic() < deadline + 2, "not settled by its deadline"
    errors: list[BrokerError | None] = [settled[0].error] * len(values)
    for each in settled[0].failures:
        errors[each.index] = each.error
    return errors


def one(server: Server, reply: Reply, **more) -> BrokerError:
    server.answer("/a", reply)
    (error,) = post(f"{server.url}/a", b"v", **more)
    assert error is not None
    return error


def values(server: Server, path: str = "/a") -> list[bytes]:
    return sorted(each.body for each in server.posted(path))


@pytest.mark.parametrize("status", [*range(200, 300)])
def test_http_any_2xx_is_a_success(server: Server, status: int) -> None:
    server.answer("/a", Reply(status=status))
    assert post(f"{server.url}/a?x=1&y=%20", b"v") == [None]
    assert values(server, "/a?x=1&y=%20") == [b"v"]


def test_http_a_refusal_says_what_the_server_says(server: Server) -> None:
    error = one(server, Reply(status=400, body=b'{"error": "no\x1b[2J such field"}', keep=False))
    assert isinstance(error, Permanent)
    assert "no [2J such field" in str(error)
    assert (error.code, error.native_code) == (Code.INVALID_MESSAGE, "400")


def test_http_a_server_that_asks_for_a_pause_is_told_as_throttling(server: Server) -> None:
    error = one(server, Reply(status=503, headers={"Retry-After": "11"}, keep=False))
    assert isinstance(error, Throttled)
    assert error.retry_after == 11


def test_http_a_redirect_is_not_followed(server: Server) -> None:
    error = one(server, Reply(status=307, headers={"Location": f"{server.url}/elsewhere"}, keep=False))
    assert isinstance(error, Fatal)
    assert "elsewhere" in str(error)
    assert not values(server, "/elsewhere")


def test_http_a_cookie_is_not_sent_back(server: Server) -> None:
    server.answer("/a", Reply(headers={"Set-Cookie": "session=1"}))
    post(f"{server.url}/a", b"1", b"2", concurrency="1")
    assert [each.header("cookie") for each in server.posted("/a")] == [None, None]


@pytest.mark.parametrize("reply", [Reply(cut=0), Reply(cut=9), Reply(cut=0, reset=True)])
def test_http_a_lost_answer_is_ambiguous(server: Server, reply: Reply) -> None:
    error = one(server, reply)
    assert isinstance(error, Ambiguous)
    assert values(server) == [b"v"]


def test_http_a_success_counts_though_its_body_is_cut_or_endless(server: Server) -> None:
    server.answer("/a", Reply(body=b"x" * 1000, cut=300), Reply(body=b"y" * 10_000_000))
    assert post(f"{server.url}/a", b"1", b"2", b"3", concurrency="1") == [None] * 3
    assert values(server) == [b"1", b"2", b"3"]


def test_http_a_silent_server_is_ambiguous_at_the_deadline(server: Server) -> None:
    until = threading.Event()
    server.answer("/a", Reply(until=until))
    began = time.monotonic()
    (error,) = post(f"{server.url}/a", b"v", seconds=0.5)
    until.set()
    assert isinstance(error, Ambiguous)
    assert error.code is Code.DEADLINE_EXCEEDED
    assert 0.4 < time.monotonic() - began < 3


def test_http_rows_that_wait_for_a_slow_server_are_not_sent_late(server: Server) -> None:
    until = threading.Event()
    server.answer("/a", Reply(until=until))
    first, second = post(f"{server.url}/a", b"1", b"2", seconds=0.5, concurrency="1")
    until.set()
    assert isinstance(first, Ambiguous)
    assert isinstance(second, Retriable)
    assert values(server) == [b"1"]


def test_http_a_refused_connection_is_retriable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (error,) = post(f"http://127.0.0.1:{port}/", b"v")
    assert isinstance(error, Retriable)
    assert error.code is Code.CONNECTION_LOST


def test_http_requests_go_side_by_side(server: Server) -> None:
    until, replies = threading.Event(), 8
    server.answer("/a", *[Reply(until=until)] * replies)
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.extend(post(f"{server.url}/a", *[b"v"] * replies, concurrency="8")))
    thread.start()
    end = time.monotonic() + 5
    while len(server.posted("/a")) < replies:
        assert time.monotonic() < end, "one waits for another"
    until.set()
    thread.join()
    assert done == [None] * replies


def test_http_a_batch_is_one_request_and_its_refusal_blames_nobody(server: Server) -> None:
    assert post(f"{server.url}/a", *[b"%d" % at for at in range(25)], batch="10") == [None] * 25
    assert len(server.posted("/a")) == 3
    server.answer("/b", Reply(status=422, keep=False))
    errors = post(f"{server.url}/b", b"1", b"2", batch="10")
    assert all(isinstance(each, Unattributed) for each in errors)
    server.answer("/c", Reply(status=422, keep=False))
    first, second = post(f"{server.url}/c", b"1", b"2", batch="10", isolate=True, concurrency="1")
    assert isinstance(first, Permanent)
    assert second is None


def test_http_events_of_a_batch_are_divided_by_their_bytes(server: Server) -> None:
    assert post(f"{server.url}/a", *[b"x" * 400_000] * 5, batch="100") == [None] * 5
    assert len(server.posted("/a")) == 3


def test_http_the_urls_path_which_may_be_a_webhooks_secret_is_in_no_error(server: Server) -> None:
    server.always("/hooks/T0P/s3cr3t", Reply(status=403, keep=False))
    (error,) = post(f"{server.url}/hooks/T0P/s3cr3t", b"v")
    assert isinstance(error, Fatal)
    assert "s3cr3t" not in str(error)


def dripping(first: bytes, drop: bytes) -> tuple[str, threading.Event, list[int]]:
    """Return the URL of a server that answers its first request drop by drop without end, and any other at once."""
    listener = socket.create_server(("127.0.0.1", 0))
    end, seen = threading.Event(), [0]

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            seen[0] += 1
            if seen[0] > 1:
                connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            connection.sendall(first)
            while not end.wait(0.05):
                connection.sendall(drop)

    def serve() -> None:
        with listener, suppress(OSError):
            listener.settimeout(LONGEST)
            while not end.is_set():
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/a", end, seen


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 202 Accepted\r\n", b"x"),
        (b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
    ],
)
def test_http_an_answer_without_end_keeps_no_thread_beyond_its_time(first: bytes, drop: bytes) -> None:
    url, end, seen = dripping(first, drop)
    with connect(url, {"http.concurrency": "1"}) as broker, broker.sender() as sender:
        for number, seconds in ((1, 0.5), (2, 8.0)):
            deadline = time.monotonic() + seconds
            sender.send(Batch.of([Message(value=b"v")], number=number), deadline=deadline)
            while not (settled := sender.collect(0.2)):
                assert time.monotonic() < deadline + 2
        end.set()
    assert settled[0].error is None
    assert not settled[0].failures, "the only thread still reads the first answer"
    assert seen == [2]


def test_http_a_question_before_a_job_ends_though_its_answer_does_not() -> None:
    url, end, _ = dripping(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")
    threading.Timer(10, end.set).start()
    began = time.monotonic()
    with connect(url) as broker, broker.sender() as sender, pytest.raises(Retriable):
        sender.check(deadline=began + 0.3)
    end.set()
    assert time.monotonic() - began < 5


def test_http_a_taken_row_keeps_its_connection_for_a_moment_only() -> None:
    url, end, seen = dripping(b"HTTP/1.1 202 Accepted\r\nContent-Length: 9999\r\n\r\n", b"x")
    assert post(url, b"1", b"2", concurrency="1", seconds=8) == [None, None]
    end.set()
    assert seen == [2]


@pytest.mark.parametrize("status", [b"202 Accepted", b"204 No Content"])
def test_http_no_row_is_told_what_came_behind_the_answer_to_another(status: bytes) -> None:
    first = b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            seen = 0
            with suppress(OSError):
                while True:
                    with listener.accept()[0] as connection:
                        while connection.recv(65536):
                            seen += 1
                            connection.sendall(first * 2 if seen == 1 else refused)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
        taken, second = post(url, b"1", b"2", concurrency="1")
    assert taken is None
    assert isinstance(second, Permanent), "the row has the answer that the server gave twice"


def answering(*scripts: Callable[[socket.socket], None]) -> tuple[str, list[threading.Event]]:
    """Return the URL of a server that treats its connections so, one after another, and for each an event: done."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = [threading.Event() for _ in scripts]

    def serve() -> None:
        with listener, suppress(OSError):
            for script, event in zip(scripts, done, strict=True):
                listener.settimeout(LONGEST)
                with listener.accept()[0] as connection, suppress(OSError):
                    script(connection)
                event.set()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/a", done


def accept(connection: socket.socket) -> None:
    """Take one request, and close the connection without a word of it."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")


def test_http_a_connection_that_was_closed_while_it_was_idle_costs_no_row_anything() -> None:
    url, done = answering(accept, accept)
    with connect(url, {"http.concurrency": "1"}) as broker, broker.sender() as sender:
        for number in (1, 2):
            sender.send(Batch.of([Message(value=b"v")], number=number), deadline=time.monotonic() + 9)
            while not (settled := sender.collect(0.2)):
                pass
            assert settled[0].error is None
            assert not settled[0].failures
            assert done[number - 1].wait(LONGEST)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"])
def test_http_a_connection_that_ends_or_speaks_before_its_request_takes_none(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a load balancer without backends does; an answer to a request that was never made is no answer."""

    def hang_up(connection: socket.socket) -> None:
        connection.sendall(said)

    url, done = answering(hang_up)
    trace = Connection._trace

    def when_done(self: Connection, event: str, info: Mapping[str, Any]) -> None:
        trace(self, event, info)
        if event.endswith("connect_tcp.complete"):
            assert done[0].wait(LONGEST)

    monkeypatch.setattr(Connection, "_trace", when_done)
    (error,) = post(url, b"v")
    assert isinstance(error, Retriable)
    assert error.code is Code.CONNECTION_LOST


@pytest.mark.parametrize("reset", [False, True])
def test_http_a_request_that_was_written_and_has_no_answer_is_ambiguous(reset: bool) -> None:
    def read(connection: socket.socket) -> None:
        connection.recv(65536)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    (error,) = post(answering(read)[0], b"v")
    assert isinstance(error, Ambiguous)
    assert error.code is Code.CONNECTION_LOST


@pytest.mark.parametrize(
    ("head", "flood"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n", b"fff0\r\n%b\r\n" % (b"x" * 0xFFF0)),
        (b"HTTP/1.1 400 Bad Request\r\n", b"X-More: %b\r\n" % (b"x" * 9000)),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    ],
)
def test_http_a_flood_is_not_read_to_its_end(head: bytes, flood: bytes) -> None:
    sent = [0]

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(head)
        connection.settimeout(5)
        while sent[0] < 1 << 32:
            connection.sendall(flood)
            sent[0] += len(flood)

    began = time.monotonic()
    url, done = answering(answer)
    (error,) = post(url, b"v", seconds=2)
    assert isinstance(error, BrokerError)
    assert len(str(error)) < 1000
    assert done[0].wait(LONGEST), "the connection is still open"
    assert time.monotonic() - began < 20
    assert sent[0] < 1 << 32


def test_http_a_refusal_that_is_compressed_is_not_expanded(server: Server) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        error = one(server, Reply(status=400, headers={"Content-Encoding": "gzip"}, body=bomb, keep=False))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert isinstance(error, Permanent)


def test_http_a_proxy_that_fails_before_the_tunnel_has_passed_no_event_on() -> None:
    proxy, _ = answering(lambda connection: connection.recv(65536))
    (error,) = post("https://nowhere.invalid/a", b"v", proxy=proxy.removesuffix("/a"))
    assert isinstance(error, Retriable)
    assert error.code is Code.CONNECTION_LOST


def test_http_a_proxy_that_demands_a_login_is_no_passing_failure() -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    proxy, _ = answering(lambda connection: (connection.recv(65536), connection.sendall(refusal)))
    (error,) = post("https://nowhere.invalid/a", b"v", proxy=proxy.removesuffix("/a"))
    assert isinstance(error, Fatal)
    assert error.code is Code.NOT_AUTHENTICATED


def test_http_a_rows_time_is_not_spent_on_imports(server: Server) -> None:
    """They take seconds on a busy machine."""
    script = f"""
import sys, time
from redelivery.contract.message import Batch, Message
from redelivery.registry import connect
with connect("{server.url}/a") as broker, broker.sender() as sender:
    before = {{*sys.modules}}
    sender.send(Batch.of([Message(value=b"v")], number=1), deadline=time.monotonic() + 60)
    while not sender.collect(0.2):
        pass
    print({{*sys.modules}} - before - {{"encodings.idna", "stringprep"}})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "set()\n"
    assert values(server) == [b"v"]


def test_http_batches_that_follow_at_once_do_not_wait_for_the_same_idle_thread(server: Server) -> None:
    until, rows = threading.Event(), 6
    with connect(f"{server.url}/a") as broker, broker.sender() as sender:
        sender.send(Batch.of([Message(value=b"v")], number=0), deadline=time.monotonic() + 5)
        while not sender.collect(0.2):
            pass
        while not sender._idle:
            time.sleep(0.01)
        server.answer("/a", *[Reply(until=until)] * rows)
        with sender._to_send:  # so that no thread wakes in between
            for number in range(1, rows + 1):
                sender.send(Batch.of([Message(value=b"v")], number=number), deadline=time.monotonic() + 9)
        end = time.monotonic() + 3
        while len(server.posted("/a")) <= rows and time.monotonic() < end:
            time.sleep(0.01)
        there = len(server.posted("/a"))
        until.set()
    assert there == rows + 1


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///a",
        "http://u:p@h/",
        "http://h/a#b",
        "http://h/a b",
        "http://h\n/a",
        "http://hä/a",
        "http://h:0/",
        "http://h:99999/",
        "http://h\\@x/",
        "http://[::1/",
        "http://a..b/",
        "http://./",
        "http://999.1.1.1/",
        f"http://{'a' * 64}.x/",
        "http://" + "a." * 150,
        "http://h/" + "x" * 9000,
        "http:h",
    ],
)
def test_http_a_url_that_no_request_can_have_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert "p@" not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["h", "h.", "a_b.-c", "127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "xn--bcher-kva.example"]
)
def test_http_a_host_that_a_connection_can_have_is_taken(host: str) -> None:
    assert connect(f"http://{host}/", {"http.proxy": f"http://{host}:1"}).hosts == (host.strip("[]"),) * 2


@pytest.mark.parametrize("proxy", ["http://p:99999", "http://p:0", "http://a..b:1", "http://999.1.1.1", "http://[1:2]"])
def test_http_a_proxy_that_no_connection_can_have_is_refused(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.proxy"):
        connect("http://h/", {"http.proxy": proxy})


@pytest.mark.parametrize(
    ("url", "other"),
    [("http://h", "HTTP://H:80/"), ("https://h/a?b", "https://H:443/a?b"), ("http://[::1]/", "http://[::1]:80")],
)
def test_http_two_spellings_of_a_place_are_one(url: str, other: str) -> None:
    assert connect(url).is_at(connect(other))


def test_http_two_places_are_two() -> None:
    urls = ["http://h/", "https://h/", "http://h:81/", "http://h/a", "http://h/A", "http://h/?a", "http://i/"]
    assert len({connect(url).canonical_url for url in urls}) == len(urls)
