"""The webhook: a real server hears of alerts; one that fails, hangs or redirects ends nothing, and no secret shows."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from redelivery.errors import ConfigurationError
from redelivery.watch.rules import Alert, Change, Rule
from redelivery.watch.webhook import MOST_WAITING, Form, Notice, Result, Webhook, body_of, target

SECRET = "T0P5ECRET-hook-path"  # noqa: S105 - it is one
NOW = 1_700_000_000_000


class Server(ThreadingHTTPServer):
    """Answers each request with the next of `answers`; the last one stays."""

    daemon_threads = True

    def __init__(self, *answers: int, headers: dict[str, str] | None = None) -> None:
        self.answers = list(answers)
        self.more = headers or {}
        self.heard: list[Any] = []
        self.requests: list[BaseHTTPRequestHandler] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{SECRET}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        self.server.requests.append(self)
        self.send_response(answer)
        for name, value in self.server.more.items():
            self.send_header(name, value)
        self.server.heard.append(json.loads(said))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(*answers: int, headers: dict[str, str] | None = None) -> Iterator[Server]:
    with Server(*answers, headers=headers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Clock:
    """Each time it is asked, much time has passed: waits end at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1000.0
        return self.now

    def wall_ms(self) -> int:
        return NOW

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def notice(text: str = "the oldest dead letter is 2 h old", **more: Any) -> Notice:
    alert = Alert(rule=Rule.OLDEST, raised_ms=NOW - 1000, text=text, value=7200.0, limit=3600.0)
    return Notice("orders", "carrier", Change(alert, **more))


@contextmanager
def telling(server: Server, monkeypatch: pytest.MonkeyPatch, form: Form = Form.JSON) -> Iterator[Webhook]:
    monkeypatch.setenv("HOOK", server.url)
    webhook = Webhook(target("env:HOOK"), form, Clock(), random=lambda: 0.5)
    webhook.start()
    try:
        yield webhook
    finally:
        webhook.close(10.0)


def test_it_tells_of_alerts_in_one_documented_form(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(200) as server, telling(server, monkeypatch) as webhook:
        webhook.tell([notice(), notice(resolved_ms=NOW)])
        assert webhook.settle(10.0)
        (said,) = server.heard
    raised, resolved = said.pop("alerts")
    assert said == {"version": 1, "source": "redelivery"}
    assert raised == {
        "status": "raised",
        "alert": "oldest",
        "place": "orders",
        "broker": "carrier",
        "group": None,
        "code": None,
        "text": "orders: the oldest dead letter is 2 h old",
        "value": 7200.0,
        "limit": 3600.0,
        "raised_at": "2023-11-14T22:13:19.000Z",
        "resolved_at": None,
    }
    assert (resolved["status"], resolved["resolved_at"]) == ("resolved", "2023-11-14T22:13:20.000Z")
    assert webhook.results == {Result.DELIVERED: 1}


def test_slack_is_told_in_its_form_and_foreign_text_mentions_nobody() -> None:
    said = body_of(Form.SLACK, [notice("a new group: <!channel> & \x1b]0;x"), notice(resolved_ms=NOW)], NOW)
    assert said == {
        "text": ":red_circle: orders: a new group: &lt;!channel&gt; &amp; \\x1b]0;x\n"
        ":white_check_mark: resolved: orders: the oldest dead letter is 2 h old",
        "unfurl_links": False,
        "unfurl_media": False,
    }


def test_alertmanager_is_told_in_its_form() -> None:
    raised, resolved = body_of(Form.ALERTMANAGER, [notice(), notice(resolved_ms=NOW - 500)], NOW)
    assert raised == {
        "labels": {
            "alertname": "RedeliveryOldDeadLetters",
            "place": "orders",
            "broker": "carrier",
            "severity": "warning",
        },
        "annotations": {"summary": "orders: the oldest dead letter is 2 h old"},
        "startsAt": "2023-11-14T22:13:19.000Z",
        "endsAt": "2023-11-14T22:18:20.000Z",
    }
    assert resolved["endsAt"] == "2023-11-14T22:13:19.500Z"


def test_alertmanager_alone_is_reminded_of_what_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    for form, requests in ((Form.ALERTMANAGER, 2), (Form.JSON, 1)):
        with serving(200) as server, telling(server, monkeypatch, form) as webhook:
            webhook.tell([notice()])
            assert webhook.settle(10.0)
            webhook.remind([notice()])
            assert webhook.settle(10.0)
            assert len(server.heard) == requests


def test_a_server_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(503, 429, 200) as server, telling(server, monkeypatch) as webhook:
        webhook.tell([notice()])
        assert webhook.settle(10.0)
        assert webhook.results == {Result.FAILED: 2, Result.DELIVERED: 1}
        assert len(server.heard) == 3
        assert not webhook.lost


def test_trying_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(503, headers={"Retry-After": "9" * 400}) as server, telling(server, monkeypatch) as webhook:
        webhook.tell([notice(), notice()])
        assert webhook.settle(30.0)
        assert webhook.results == {Result.FAILED: 13, Result.GIVEN_UP: 2}
        assert webhook.lost
        server.answers = [200]
        webhook.tell([notice()])
        assert webhook.settle(10.0)
        assert webhook.results[Result.DELIVERED] == 1


@pytest.mark.parametrize("answer", [400, 403, 404])
def test_a_server_that_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    with serving(answer) as server, telling(server, monkeypatch) as webhook:
        webhook.tell([notice()])
        assert webhook.settle(10.0)
        assert webhook.results == {Result.REFUSED: 1, Result.GIVEN_UP: 1}


@pytest.mark.parametrize("answer", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: int
) -> None:
    with serving(200) as elsewhere, serving(answer, headers={"Location": elsewhere.url}) as server:
        with telling(server, monkeypatch) as webhook:
            webhook.tell([notice()])
            assert webhook.settle(10.0)
        assert webhook.results == {Result.REFUSED: 1, Result.GIVEN_UP: 1}
        assert elsewhere.heard == []
    assert "a redirect is not followed" in caplog.text


def test_a_url_is_never_shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(500, 404) as server:
        monkeypatch.setenv("HOOK", server.url)
        to = target("env:HOOK")
    # Nothing listens there any more.
    webhook = Webhook(to, Form.JSON, Clock(), random=lambda: 0.5)
    webhook.start()
    webhook.tell([notice()])
    assert webhook.settle(30.0)
    webhook.close(10.0)
    assert webhook.results == {Result.FAILED: 13, Result.GIVEN_UP: 1}
    assert "it cannot be reached" in caplog.text
    assert SECRET not in caplog.text + repr(to)


def test_notices_that_nobody_hears_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(200) as server:
        monkeypatch.setenv("HOOK", server.url)
        webhook = Webhook(target("env:HOOK"), Form.JSON, Clock())
        webhook.tell([notice() for _ in range(MOST_WAITING + 5)])  # it was not started
        assert webhook.results == {Result.DROPPED: 5}
        webhook.start()
        assert webhook.settle(30.0)
        assert sum(len(each["alerts"]) for each in server.heard) == MOST_WAITING
        webhook.close(10.0)


def test_what_waits_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(200) as server:
        monkeypatch.setenv("HOOK", server.url)
        webhook = Webhook(target("env:HOOK"), Form.JSON, Clock())
        webhook.tell([notice()])
        webhook.start()
        webhook.close(10.0)
        assert len(server.heard) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "not a URL"),
        ("ftp://host/x", "not a URL"),
        ("file:///etc/passwd", "not a URL"),
        ("https://", "not a URL"),
        ("https://host:x/", "not a URL"),
        ("https://[::1/", "not a URL"),
        ("https://host/\r\nX: y", "not a URL"),
    ],
)
def test_what_is_not_a_url_of_http_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, why: str) -> None:
    monkeypatch.setenv("HOOK", value)
    with pytest.raises(ConfigurationError, match=why):
        target("env:HOOK")


def test_a_url_on_the_command_line_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match="write a reference") as error:
        target(f"https://hooks.example.com/{SECRET}")
    assert SECRET not in str(error.value)


def test_a_password_becomes_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(200) as server:
        monkeypatch.setenv("HOOK", server.url.replace("http://", "http://me:p%40ss@"))
        webhook = Webhook(target("env:HOOK"), Form.JSON, Clock())
        webhook.start()
        webhook.tell([notice()])
        assert webhook.settle(10.0)
        webhook.close(10.0)
        (request,) = server.requests
    assert request.headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_a_deployment_restricts_the_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "restrictions.toml").write_text('hosts = ["*.example.com"]\nstrict = true\n')
    monkeypatch.setenv("REDELIVERY_RESTRICTIONS", str(tmp_path / "restrictions.toml"))
    monkeypatch.setenv("HOOK", "https://elsewhere.test/x")
    with pytest.raises(ConfigurationError, match=r"elsewhere\.test"):
        target("env:HOOK")
    monkeypatch.setenv("HOOK", "http://hooks.example.com/x")
    with pytest.raises(ConfigurationError, match="not https"):
        target("env:HOOK")
