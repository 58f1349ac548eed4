"""Tokens that rotate, audiences, and TLS with certificates of both sides."""

import base64
import json
import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from redelivery.codes import Code
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, ConfigurationError, Fatal, Retriable
from redelivery.registry import connect
from redelivery_http.client import tokens
from redelivery_http.testing.server import Reply, Server


def jwt(**claims: object) -> str:
    parts = [json.dumps(each).encode() for each in ({"alg": "none"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in parts), "c2lnbmF0dXJl"])


@pytest.fixture
def server() -> Iterator[Server]:
    there = Server()
    yield there
    there.close()


def post(sender: object, number: int = 1) -> BrokerError | None:
    sender.send(Batch.of([Message(value=b"v")], number=number), deadline=time.monotonic() + 5)
    while not (settled := sender.collect(0.2)):
        pass
    return settled[0].failures[0].error if settled[0].failures else settled[0].error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of the token `first-token`."""
    file = tmp_path / "token"
    file.write_text("first-token\n")
    return file


@pytest.fixture
def read_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request reads its token again."""
    monkeypatch.setattr(tokens, "FRESH", 0.0)
    monkeypatch.setattr(tokens, "AGAIN", 0.0)


def authorized(server: Server, path: str = "/a") -> list[str | None]:
    return [each.header("authorization") for each in server.posted(path)]


@pytest.mark.usefixtures("read_always")
def test_http_a_token_from_a_file_is_read_again_when_it_rotates(server: Server, file: Path) -> None:
    with connect(f"{server.url}/a", {"http.token": f"file:{file}"}) as broker, broker.sender() as sender:
        assert post(sender) is None
        file.write_text("second-token\n")
        assert post(sender, 2) is None
    assert authorized(server) == ["Bearer first-token", "Bearer second-token"]


@pytest.mark.usefixtures("read_always")
@pytest.mark.parametrize("written", [None, "", "third\ntoken"])
def test_http_the_former_token_is_sent_while_its_file_is_away_or_half_written(
    server: Server, file: Path, written: str | None
) -> None:
    with connect(f"{server.url}/a", {"http.token": f"file:{file}"}) as broker, broker.sender() as sender:
        for number in (1, 2):  # also the first request, though the broker was connected before
            if written is None:
                file.unlink(missing_ok=True)
            else:
                file.write_text(written)
            assert post(sender, number) is None
        file.write_text("second-token")
        assert post(sender, 3) is None
    assert authorized(server) == ["Bearer first-token"] * 2 + ["Bearer second-token"]


def test_http_a_refused_token_is_exchanged_at_once_if_its_file_has_another(file: Path) -> None:
    server = Server("second-token")
    with connect(f"{server.url}/a", {"http.token": f"file:{file}"}) as broker, broker.sender() as sender:
        error = post(sender)
        assert isinstance(error, Fatal), "the file has no other token"
        file.write_text("second-token")
        sender.check(deadline=time.monotonic() + 5)
        assert post(sender, 2) is None
    server.close()
    assert authorized(server) == ["Bearer second-token"]


def test_http_a_token_that_rotates_while_it_is_refused_fails_no_row(file: Path) -> None:
    server = Server("first-token")
    batch = Batch.of([Message(value=b"%d" % at) for at in range(50)], number=2)
    with (
        connect(f"{server.url}/a", {"http.token": f"file:{file}", "http.concurrency": "8"}) as broker,
        broker.sender() as sender,
    ):
        assert post(sender) is None
        server.token = "second-token"  # noqa: S105 - of a server that keeps nothing
        file.write_text("second-token")
        sender.send(batch, deadline=time.monotonic() + 5)
        while not (settled := sender.collect(0.2)):
            pass
    server.close()
    assert settled[0].error is None
    assert not settled[0].failures
    assert sorted(each.body for each in server.posted("/a")) == sorted([b"v", *batch.value.values])


def test_http_the_fresh_token_is_tried_once(server: Server, file: Path) -> None:
    refusals = [0]

    def refuse(*_: object) -> Reply:
        refusals[0] += 1
        file.write_text(f"token-{refusals[0]}")
        return Reply(status=401, keep=False)

    server.reply = refuse
    with connect(f"{server.url}/a", {"http.token": f"file:{file}"}) as broker, broker.sender() as sender:
        error = post(sender)
    assert isinstance(error, Fatal)
    assert error.code is Code.NOT_AUTHENTICATED
    assert refusals == [2]


def test_http_a_refused_token_whose_file_is_away_is_retriable_for_a_moment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    options = {"http.token": f"file:{file}", "http.concurrency": "1"}
    with connect(f"{server.url}/a", options) as broker, broker.sender() as sender:
        file.unlink()
        server.answer("/a", Reply(status=401, keep=False))
        error = post(sender)
        assert isinstance(error, Retriable)
        assert error.code is Code.NOT_AUTHENTICATED
        assert "-token" not in str(error)
        server.token = "second-token"  # noqa: S105 - of a server that keeps nothing
        monkeypatch.setattr(tokens, "PATIENCE", 0.0)
        assert isinstance(post(sender, 2), Fatal)
        monkeypatch.undo()
        file.write_text("second-token")
        assert post(sender, 3) is None
        file.unlink()
        server.token = "third-token"  # noqa: S105 - of a server that keeps nothing
        assert isinstance(post(sender, 4), Retriable), "the time counts from when the file went away again"
    server.close()


def test_http_a_token_that_expires_before_its_file_is_renewed_is_retriable_for_a_moment(
    server: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(tokens.time, "time", lambda: now[0])
    file.write_text(jwt(aud="orders", exp=now[0] + 100))
    options = {"http.token": f"file:{file}", "http.audience": "orders"}
    with connect(f"{server.url}/a", options) as broker, broker.sender() as sender:
        assert post(sender) is None
        now[0] += 101
        assert isinstance(post(sender, 2), Retriable)
        file.write_text(fresh := jwt(aud="orders", exp=now[0] + 100))
        assert post(sender, 3) is None
    assert authorized(server)[1] == f"Bearer {fresh}"


def test_http_a_token_that_a_server_sends_back_is_in_no_log(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The transport logs the headers of answers."""
    monkeypatch.setenv("HTTP_TOKEN", "s3cret-t0ken")
    server.answer("/a", Reply(headers={"X-Echo": "Bearer s3cret-t0ken"}))
    url = f"{server.url}/a"
    with (
        caplog.at_level("DEBUG"),
        connect(url, {"http.token": "env:HTTP_TOKEN"}) as broker,
        broker.sender() as sender,
    ):
        assert post(sender) is None
    assert "X-Echo" in caplog.text
    assert "s3cret-t0ken" not in caplog.text


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=400, body=b" " * 1700 + b"not valid: %b"),
        Reply(status=400, body=b"%b " * 10),
        Reply(status=400, body=b"%b " * 100),
        Reply(status=400, headers={"Content-Length": "99999"}, body=b"%b %b", cut=700),
        Reply(status=302, headers={"Location": f"https://login.example.org/{'a' * 120}?next=%b"}),
    ],
)
def test_http_no_part_of_a_token_that_a_server_sends_back_is_in_an_error(
    server: Server, monkeypatch: pytest.MonkeyPatch, reply: Reply
) -> None:
    """Half a token would not be found: it is looked for before the text is cut."""
    token = secrets.token_hex(450)
    monkeypatch.setenv("HTTP_TOKEN", token)
    headers = {name: value.replace("%b", token) for name, value in reply.headers.items()}
    server.answer("/a", replace(reply, headers=headers, body=reply.body.replace(b"%b", token.encode()), keep=False))
    with connect(f"{server.url}/a", {"http.token": "env:HTTP_TOKEN"}) as broker, broker.sender() as sender:
        error = post(sender)
    assert error is not None
    assert token[:12] not in str(error)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "orders"}, None),
        ({"aud": ["shop", "orders"], "exp": 9e9}, None),
        ({"aud": "shop"}, "'shop', not 'orders'"),
        ({"aud": ["shop", "x"]}, "'shop', 'x', not 'orders'"),
        ({}, "not 'orders'"),
        ({"aud": "orders", "exp": 1}, "expired"),
        ({"aud": "orders", "exp": -(10**400)}, "expired"),
        (None, "not a JWT"),
    ],
)
def test_http_a_token_for_another_audience_is_one_clear_line(
    server: Server, claims: dict | None, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "opaque.to.ken" if claims is None else jwt(**claims)
    monkeypatch.setenv("HTTP_TEST_TOKEN", token)
    options = {"http.token": "env:HTTP_TEST_TOKEN", "http.audience": "orders"}
    with connect(f"{server.url}/a", options) as broker, broker.sender() as sender:
        if why is None:
            sender.check(deadline=time.monotonic() + 5)
            assert post(sender) is None
            return
        with pytest.raises(Fatal, match=why) as caught:
            sender.check(deadline=time.monotonic() + 5)
        assert isinstance(post(sender), Fatal)
    assert caught.value.code is Code.NOT_AUTHENTICATED
    assert token not in str(caught.value)
    assert not server.posted("/a")


def test_http_a_token_that_no_header_holds_is_refused_without_showing_it() -> None:
    for token in ("a-secret\nX-Evil: 1", "a-sécret", " a-secret"):
        with pytest.raises(ConfigurationError) as caught:
            connect("https://h/", {"http.token": token})
        assert "cret" not in str(caught.value)


def test_http_a_token_in_plain_text_to_another_host_is_insecure() -> None:
    assert connect("http://example.org/", {"http.token": "a-token"}, warn=False).insecure
    assert not connect("https://example.org/", {"http.token": "a-token"}).insecure
    assert not connect("http://localhost/", {"http.token": "a-token"}).insecure
    assert not connect("http://example.org/").insecure


def test_http_options_that_need_each_other_say_so() -> None:
    for options in ({"http.ssl.key": "k"}, {"http.audience": "a"}, {"http.proxy": "http://me:pw@p"}):
        with pytest.raises(ConfigurationError) as caught:
            connect("https://h/", options)
        assert "pw" not in str(caught.value)


def test_http_options_of_tls_are_refused_where_none_is_spoken() -> None:
    with pytest.raises(ConfigurationError, match="https"):
        connect("http://h/", {"http.ssl.ca": "ca.pem"})
    connect("http://h/", {"http.ssl.ca": "ca.pem", "http.proxy": "https://p"})


def test_http_the_proxy_is_one_of_the_hosts_and_the_environments_is_not_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect("http://h/", {"http.proxy": "http://proxy:3128"}).hosts == ("h", "proxy")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with connect(f"{server.url}/a") as broker, broker.sender() as sender:
        assert post(sender) is None
    with connect("http://nowhere.invalid/a", {"http.proxy": server.url}) as broker, broker.sender() as sender:
        assert post(sender) is None
    assert len(server.posted("http://nowhere.invalid/a")) == 1


def test_http_a_check_tells_what_no_event_can_pass(server: Server) -> None:
    for status in (401, 410):
        server.always("/a", Reply(status=status, keep=False))
        with connect(f"{server.url}/a") as broker, broker.sender() as sender, pytest.raises(Fatal):
            sender.check(deadline=time.monotonic() + 5)
    server.always("/a", Reply(status=405, keep=False))  # many resources do not have OPTIONS
    with connect(f"{server.url}/a") as broker, broker.sender() as sender:
        sender.check(deadline=time.monotonic() + 5)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    there = Server(context=context)
    yield there
    there.close()


def test_http_tls_needs_a_trusted_certificate_and_ours_where_the_server_asks(
    secure: Server, authority: trustme.CA, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    trusted = {"http.ssl.ca": str(tmp_path / "ca.pem")}
    for options in ({}, trusted):
        with connect(f"{secure.url}/a", options) as broker, broker.sender() as sender:
            error = post(sender)
        assert isinstance(error, Fatal)
        assert error.code is Code.TLS_FAILED
    ours = {**trusted, "http.ssl.cert": str(tmp_path / "own.pem")}
    with connect(f"{secure.url}/a", ours) as broker, broker.sender() as sender:
        assert post(sender) is None
    assert len(secure.posted("/a")) == 1


def test_http_files_that_are_missing_are_named_by_their_options(server: Server, tmp_path: Path) -> None:
    missing = {"http.ssl.ca": str(tmp_path / "none.pem")}
    with (
        connect("https://localhost:1/a", missing) as broker,
        broker.sender() as sender,
        pytest.raises(Fatal, match=r"http\.ssl\.ca") as caught,
    ):
        sender.check(deadline=time.monotonic() + 5)
    assert caught.value.code is Code.MISCONFIGURED
