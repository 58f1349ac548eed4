"""`Webhook`: tells a URL of alerts, by POST, beside the looks: whatever becomes of it, these go on.

Three forms: our own JSON, what Slack's incoming webhooks take, and the list of alerts of Alertmanager's API v2. The URL
is a secret: it is given by reference, never logged, and a redirect is refused, as it would carry the alerts elsewhere.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import random as random_module
import threading
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import IO, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from redelivery.base.clock import Clock
from redelivery.base.rendering import harmless
from redelivery.base.restrictions import restrictions
from redelivery.base.secrets import is_reference, redact, remember, resolve_secret
from redelivery.base.urls import is_local
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import ConfigurationError
from redelivery.policy.backoff import wait_before_retry
from redelivery.watch.rules import Alert, Change, Rule

log = logging.getLogger(__name__)

#: Seconds that one request may wait for each answer of the server.
TIMEOUT: Final = 10.0
#: A request is tried again so often, after 2, 4, 8, ... seconds: for about half an hour in all.
_RETRIES: Final = DeliverySpec(
    retry=12, backoff_policy="exponential", backoff_delay=timedelta(seconds=1), backoff_max=timedelta(minutes=5)
)
#: Notices that wait; then the oldest are dropped. One request tells of so many.
MOST_WAITING: Final = 1000
_AT_ONCE: Final = 100
#: Alertmanager forgets an alert that it is not told of again within this time.
_FORGOTTEN: Final = timedelta(minutes=5)
#: Answers after which a request may be tried again.
_AGAIN: Final = frozenset({408, 425, 429})
#: Characters of a sentence in a notice.
_LONGEST: Final = 500
_SLACK: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
#: What an alert is called in Alertmanager.
ALERT_NAMES: Final = {
    Rule.OLDEST: "RedeliveryOldDeadLetters",
    Rule.GROWTH: "RedeliveryDeadLettersGrow",
    Rule.NEW_GROUP: "RedeliveryNewGroup",
    Rule.UNREACHABLE: "RedeliveryPlaceUnreachable",
}


class Form(StrEnum):
    """How a request tells of alerts."""

    JSON = "json"
    SLACK = "slack"
    ALERTMANAGER = "alertmanager"


class Result(StrEnum):
    """What became of a request, or of notices that no request took."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    FAILED = "failed"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Notice:
    """An alert of a place was raised, or resolved."""

    place: str
    broker: str
    change: Change


def body_of(form: Form, notices: Sequence[Notice], now_ms: int) -> Any:
    """Return what a request says, as JSON has it.

    Args:
        form: whose.
        notices: the alerts to post.
        now_ms: milliseconds since the epoch.
    """
    if form is Form.SLACK:
        # A text may quote a URL of anybody's: Slack is not to fetch it.
        return {"text": "\n".join(map(_line, notices)), "unfurl_links": False, "unfurl_media": False}
    if form is Form.ALERTMANAGER:
        return [_for_alertmanager(each, now_ms) for each in notices]
    return {"version": 1, "source": "redelivery", "alerts": [_as_json(each) for each in notices]}


def sentence(place: str, alert: Alert) -> str:
    """Return an alert as one harmless line without secrets; it may hold foreign text."""
    return harmless(redact(f"{place}: {alert.text}"))[:_LONGEST]


def _line(notice: Notice) -> str:
    mark = ":red_circle:" if notice.change.resolved_ms is None else ":white_check_mark: resolved:"
    return f"{mark} {sentence(notice.place, notice.change.alert).translate(_SLACK)}"


def _as_json(notice: Notice) -> dict[str, Any]:
    alert, resolved_ms = notice.change.alert, notice.change.resolved_ms
    return {
        "status": "raised" if resolved_ms is None else "resolved",
        "alert": alert.rule.value,
        "place": notice.place,
        "broker": notice.broker,
        "group": alert.subject or None,
        "code": alert.code or None,
        "text": sentence(notice.place, alert),
        "value": alert.value,
        "limit": alert.limit,
        "raised_at": _moment(alert.raised_ms),
        "resolved_at": None if resolved_ms is None else _moment(resolved_ms),
    }


def _for_alertmanager(notice: Notice, now_ms: int) -> dict[str, Any]:
    alert, resolved_ms = notice.change.alert, notice.change.resolved_ms
    labels = {
        "alertname": ALERT_NAMES[alert.rule],
        "place": notice.place,
        "broker": notice.broker,
        "severity": "warning",
    }
    if alert.subject:
        labels["group"] = alert.subject
    until_ms = now_ms + _FORGOTTEN // timedelta(milliseconds=1) if resolved_ms is None else resolved_ms
    return {
        "labels": labels,
        "annotations": {"summary": sentence(notice.place, alert)},
        "startsAt": _moment(alert.raised_ms),
        "endsAt": _moment(until_ms),
    }


def _moment(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. Its `repr` shows no secret."""

    url: str
    headers: dict[str, str]

    def __repr__(self) -> str:
        return "Target(...)"


def target(reference: str) -> Target:
    """Return where a reference leads.

    Raises:
        ConfigurationError: it is the URL itself, which is a secret; or no such URL can be used. The text does not show
            it.
    """
    if not is_reference(reference):
        text = "its URL is a secret, so write a reference in its place, as in 'env:WEBHOOK' or 'file:PATH'"
        raise ConfigurationError(f"--webhook: {text}")
    url = resolve_secret(reference).strip()
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"} or not url.isascii() or any(map(str.isspace, url)):
        raise ConfigurationError(f"--webhook {reference}: what it names is not a URL of http or https")
    allowed = restrictions()
    allowed.check_hosts([host], "webhook")
    if allowed.strict and parts.scheme == "http" and not is_local(host):
        raise ConfigurationError(f"--webhook {reference}: it is not https, which this deployment refuses")
    headers = {"Content-Type": "application/json", "User-Agent": "redelivery-watch"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{remember(unquote(parts.password or ''))}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return Target(urlunsplit(parts), headers)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect becomes an error: following it would send the alerts' texts to another host."""

    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: http.client.HTTPMessage,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        return None


class Webhook:
    """Tells of alerts, on a thread, in the order in which they came.

    Args:
        to: where.
        form: in which form.
        clock: the time.
        random: returns a number in [0, 1).
    """

    def __init__(
        self, to: Target, form: Form, clock: Clock, *, random: Callable[[], float] = random_module.random
    ) -> None:
        self._to = to
        self._form = form
        self._clock = clock
        self._random = random
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._changed = threading.Condition()
        self._waiting: deque[Notice] = deque()
        self._active: Sequence[Notice] = ()
        self._busy = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="redelivery-webhook", daemon=True)
        #: How many requests ended how, and how many notices were given up or dropped.
        self.results: Counter[Result] = Counter()

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def tell(self, notices: Sequence[Notice]) -> None:
        """Tell of these, soon."""
        with self._changed:
            self._waiting.extend(notices)
            dropped = len(self._waiting) - MOST_WAITING
            for _ in range(dropped):
                self._waiting.popleft()
            if dropped > 0:
                self.results[Result.DROPPED] += dropped
                log.error("webhook: it is not heard, and the %d oldest notices were dropped", dropped)
            self._changed.notify_all()

    def remind(self, active: Sequence[Notice]) -> None:
        """Tell of all active alerts again, if the form wants that: Alertmanager forgets them otherwise."""
        if self._form is Form.ALERTMANAGER:
            with self._changed:
                self._active = active
                self._changed.notify_all()

    def close(self, wait: float) -> None:
        """Send what waits, and end, within so many seconds; a request that failed is tried once more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(wait)

    @property
    def lost(self) -> bool:
        """Whether any notice was given up or dropped."""
        return bool(self.results[Result.GIVEN_UP] + self.results[Result.DROPPED])

    def settle(self, wait: float) -> bool:
        """Wait until nothing waits to be sent; return whether that came within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._active or self._busy), wait)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._active or self._stopped)
                some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                if not some:
                    some, self._active = list(self._active), ()
                if not some:
                    return
                self._busy = True
            try:
                self._deliver(some)
            except Exception:
                log.exception("webhook: a defect; %d notices are lost", len(some))
                self.results[Result.GIVEN_UP] += len(some)

    def _deliver(self, notices: Sequence[Notice]) -> None:
        retries = _RETRIES.retry or 0
        for attempt in range(1, retries + 2):
            last = self._stopped
            result, why, after = self._post(notices)
            self.results[result] += 1
            if result is Result.DELIVERED:
                return
            final = result is Result.REFUSED or attempt > retries or last
            log.error("webhook: %s%s", why, f"; {len(notices)} notices are given up" if final else ", tried again soon")
            if final:
                self.results[Result.GIVEN_UP] += len(notices)
                return
            wait = max(wait_before_retry(_RETRIES, attempt, self._random), after)
            until = self._clock.monotonic() + wait
            with self._changed:
                while not self._stopped and (left := until - self._clock.monotonic()) > 0:
                    self._changed.wait(left)

    def _post(self, notices: Sequence[Notice]) -> tuple[Result, str, float]:
        """Send one request; return how it ended, why, and how long the server wants to be left alone, in seconds."""
        said = json.dumps(body_of(self._form, notices, self._clock.wall_ms())).encode()
        request = urllib.request.Request(self._to.url, said, self._to.headers, method="POST")  # noqa: S310 - `target` checks the scheme
        try:
            with self._opener.open(request, timeout=TIMEOUT):
                return Result.DELIVERED, "", 0.0
        except urllib.error.HTTPError as error:
            with error:
                return self._answered(error)
        except (OSError, http.client.HTTPException) as error:
            # Its text is not shown: it may hold the URL.
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or type(reason).__name__
            return Result.FAILED, f"it cannot be reached: {why}", 0.0

    @staticmethod
    def _answered(error: urllib.error.HTTPError) -> tuple[Result, str, float]:
        code = error.code
        if 300 <= code < 400:  # noqa: PLR2004 - redirects
            return Result.REFUSED, f"it answers {code}: a redirect is not followed; name the URL itself", 0.0
        if code in _AGAIN or code >= 500:  # noqa: PLR2004 - errors of the server
            said = error.headers.get("Retry-After", "")
            cap = (_RETRIES.backoff_max or timedelta()).total_seconds()
            after = min(float(said), cap) if said.isdecimal() and said.isascii() else 0.0
            return Result.FAILED, f"it answers {code}", after
        return Result.REFUSED, f"it answers {code}", 0.0
