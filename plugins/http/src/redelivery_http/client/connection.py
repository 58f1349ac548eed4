"""A kept-alive connection to one origin, on httpx's transport: one request at a time, nothing followed or kept.

`httpx2.Client` would store cookies, read `.netrc` and the environment's proxies, and take twice the time.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpcore2  # noqa: F401 - else the first request imports it, within the time of its row
import httpx2

from redelivery.kit.options import guard_loggers
from redelivery_http.address import Address
from redelivery_http.options import Settings

#: Bytes of an answer's body that are read: for its text, and to keep the connection.
_BODY_BYTES: Final = 65_536
#: Seconds that the body of an answer is waited for. The status has said it all, and the next row wants the connection.
_PATIENCE: Final = 1.0
#: Seconds by which a request may pass its time before its connection is ended: its own timeouts come first.
_GRACE: Final = 0.2
#: Events of the transport that bring another stream.
_CONNECTED: Final = (".connect_tcp.complete", ".start_tls.complete")
_HEADERS: Final = "http11.send_request_headers.started"
_BODY: Final = "http11.send_request_body.started"
#: Errors of a connection that come at any time: before the headers of a request have left, nothing was sent.
_WRITTEN: Final = (
    *(httpx2.ReadError, httpx2.WriteError, httpx2.ReadTimeout, httpx2.WriteTimeout),
    httpx2.RemoteProtocolError,
)
#: Seconds that an idle connection is kept: fewer than most servers keep it.
_IDLE: Final = 4.0
#: The longest pause, in seconds, that a server gets. A date of the wrong year would stop a job for as long.
_LONGEST_PAUSE: Final = 86_400.0
_SECONDS: Final = re.compile(r"[0-9]{1,9}")

Headers = list[tuple[bytes, bytes]]

guard_loggers("httpcore2", "httpx2")  # they log the headers of answers, in which a server may send a token back


@dataclass(frozen=True, slots=True)
class Answer:
    """A refusal.

    Attributes:
        status: the status code.
        text: why, in the server's words.
        retry_after: seconds for which the server asks for a pause.
    """

    status: int
    text: str
    retry_after: float = 0.0


def tls(settings: Settings, *, needed: bool) -> ssl.SSLContext:
    """Return the TLS settings of all connections. Reads files.

    Raises:
        OSError: a file cannot be read, or has no certificate (`ssl.SSLError` is one).
    """
    if not needed:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context(cafile=settings.ssl_ca)
    if settings.ssl_ca_pem is not None:
        context.load_verify_locations(cadata=settings.ssl_ca_pem)
    if settings.ssl_cert is not None:
        context.load_cert_chain(settings.ssl_cert, settings.ssl_key, password=lambda: "")  # never ask a terminal
    return context


class Connection:
    """One connection, opened at its first request and again after it was lost. Used by one thread."""

    def __init__(self, address: Address, settings: Settings, context: ssl.SSLContext) -> None:
        self._url = httpx2.URL(address.url)
        self._target = address.target.encode("ascii")
        self._host = address.authority.encode("ascii")
        self._connect_timeout = settings.connect_timeout
        self._transport = httpx2.HTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE),
            proxy=_proxy(settings.proxy, context),
        )
        self._stream: Any = None
        self._until: float | None = None
        self._ended = False
        self._begun = False  # whether the headers of a request have left, beyond the proxy's tunnel

    def request(self, method: str, headers: Headers, body: bytes, until: float) -> httpx2.Response:
        """Send a request and return the answer's head; then call `refusal` or `drain`.

        Args:
            method: `POST` or `OPTIONS`.
            headers: without those of the connection.
            body: the whole body.
            until: monotonic seconds by which it ends, in whatever way.

        Raises:
            httpx2.TransportError
        """
        left = max(0.001, until - time.monotonic())
        timeouts = {"connect": min(self._connect_timeout, left), "read": left, "write": left, "pool": left}
        own = [(b"Host", self._host), (b"User-Agent", b"redelivery"), (b"Content-Length", b"%d" % len(body))]
        request = httpx2.Request(
            method,
            self._url,
            headers=own + headers,
            stream=httpx2.ByteStream(body),
            extensions={"target": self._target, "timeout": timeouts, "trace": self._trace},
        )
        self._until = until
        self._begun = False
        try:
            response = self._transport.handle_request(request)
        except BaseException as error:
            self._until = None
            if isinstance(error, _WRITTEN) and not self._begun:
                raise httpx2.ConnectError(f"before the request: {error}") from error
            raise
        timeouts["read"] = min(left, _PATIENCE)  # of the body
        self._until = min(until, time.monotonic() + _PATIENCE)
        return response

    def finished(self) -> None:
        """Note that nothing is under way, so that `end_if_late` ends nothing.

        Bytes that came behind the answer would be read as the answer to the next request: a row that the server refuses
        would count as stored. So they end the connection.
        """
        self._until = None
        connections: list[Any] = self._transport._pool.connections  # noqa: SLF001 - the client looks at its socket only, not at what it has read
        for each in connections:
            while (inner := getattr(each, "_connection", None)) is not None:
                each = inner  # noqa: PLW2901 - TLS and proxies are around it
            state = getattr(each, "_h11_state", None)  # one that could not be opened has none
            if state is not None and state.trailing_data[0]:
                self._transport.close()  # it opens another one

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(_CONNECTED):
            self._stream = info["return_value"]
        elif event == _HEADERS:
            self._check_quiet()
        elif event == _BODY:
            self._begun = info["request"].method != b"CONNECT"

    def _check_quiet(self) -> None:
        """Refuse a request after `end`, or where the server has hung up, or speaks before it is asked.

        The pool looks at a connection that was idle, but not at a new one. In TLS only the end can be told.
        """
        if self._ended:
            raise httpx2.ConnectError("this sender is closed")
        there = self._stream.get_extra_info("socket")
        there.settimeout(0)
        try:
            seen = socket.socket.recv(there, 1, socket.MSG_PEEK)  # of `ssl`'s own `recv` it would be an error
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error
        if not seen or not isinstance(there, ssl.SSLSocket):
            said = "spoke before it was asked" if seen else "closed the connection before the request"
            raise httpx2.ConnectError(f"the server {said}")

    def end_if_late(self) -> None:
        """End the connection if a request has passed its time. Any thread may call it.

        The client's timeouts are those of one read or write: an answer that comes byte by byte, or `1xx` after `1xx`,
        would keep a thread forever.
        """
        until = self._until
        if until is not None and time.monotonic() >= until + _GRACE:
            self._shut_down()

    def end(self) -> None:
        """End a request that is under way, and refuse any other. Any thread may call it."""
        self._ended = True
        self._shut_down()

    def _shut_down(self) -> None:
        if self._stream is None:
            return
        with suppress(OSError):  # it is closed
            # of `ssl`'s own `shutdown` the other thread might go on in plain text
            socket.socket.shutdown(self._stream.get_extra_info("socket"), socket.SHUT_RDWR)

    @staticmethod
    def refusal(response: httpx2.Response, until: float) -> Answer:
        """Return what the server says of a request that it did not carry out; `ErrorTable` cuts it."""
        body, is_whole = _read(response, until)
        text = "".join(each if each.isprintable() else " " for each in body.decode("utf-8", "replace"))
        if not is_whole:
            text = text.rpartition(" ")[0]  # half a secret would not be found
        location = response.headers.get("location", "")
        if location:
            text = f"it redirects to {''.join(filter(str.isprintable, location))}; {text}"
        return Answer(
            response.status_code, f"{response.status_code} {text}".rstrip("; "), _retry_after(response.headers)
        )

    @staticmethod
    def drain(response: httpx2.Response, until: float) -> None:
        """Read the rest of an answer, so that the connection can be used again. A long rest costs the connection."""
        _read(response, until)

    def close(self) -> None:
        """Close it."""
        with suppress(Exception):  # it is of no more use
            self._transport.close()


def _proxy(url: str | None, context: ssl.SSLContext) -> httpx2.Proxy | None:
    if url is None:
        return None
    return httpx2.Proxy(url, ssl_context=context if url.startswith("https:") else None)


def _read(response: httpx2.Response, until: float) -> tuple[bytes, bool]:
    """Return as much of a body as comes, and whether that is all: the status has said it all."""
    body = b""
    until = min(until, time.monotonic() + _PATIENCE)
    try:
        for part in response.stream:  # type: ignore[union-attr]
            body += part
            if len(body) > _BODY_BYTES or time.monotonic() > until:
                return body[:_BODY_BYTES], False
    except httpx2.TransportError:
        return body, False
    else:
        return body, True
    finally:
        response.close()


def _retry_after(headers: httpx2.Headers) -> float:
    """Return the seconds of `Retry-After`: a number, or a date by the server's own clock, if it gives its time."""
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), _LONGEST_PAUSE)
    then = _moment(text)
    if then is None:
        return 0.0
    now = _moment(headers.get("date", "")) or datetime.now(UTC)
    return min(max(0.0, (then - now).total_seconds()), _LONGEST_PAUSE)


def _moment(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text[:100])
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
