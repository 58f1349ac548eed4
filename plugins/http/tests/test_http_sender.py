"""The sender at a server that fails: each answer, cut, delay and redirect is told as it was."""

import socket
import threading
import time
from collections.abc import Iterator

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
from redelivery_http.testing.server import Reply, Server


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


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
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
        "http://h/" + "x" * 9000,
        "http:h",
    ],
)
def test_http_a_url_that_no_request_can_have_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert "p@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "other"),
    [("http://h", "HTTP://H:80/"), ("https://h/a?b", "https://H:443/a?b"), ("http://[::1]/", "http://[::1]:80")],
)
def test_http_two_spellings_of_a_place_are_one(url: str, other: str) -> None:
    assert connect(url).is_at(connect(other))


def test_http_two_places_are_two() -> None:
    urls = ["http://h/", "https://h/", "http://h:81/", "http://h/a", "http://h/A", "http://h/?a", "http://i/"]
    assert len({connect(url).canonical_url for url in urls}) == len(urls)
