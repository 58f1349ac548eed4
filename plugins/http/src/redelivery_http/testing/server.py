"""A server of this process that keeps what is posted to it, and fails as it is told.

It is no stand-in: HTTP has no product. It speaks HTTP/1.1 by the standard library, over real sockets.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

HOST: Final = "127.0.0.1"
#: Seconds that an answer is held back at most, so that no thread outlives its test for long.
LONGEST: Final = 30.0


@dataclass(frozen=True, slots=True)
class Posted:
    """A request that was taken: its headers in order, as they came, and its body."""

    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header, by its name in lower case."""
        return next((value for each, value in self.headers if each.lower() == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a request is answered.

    Attributes:
        status, headers, body: the answer.
        keep: whether the request is kept, as one that was carried out.
        cut: end the connection after so many bytes of the answer; None: after the answer, if at all.
        reset: end it by a reset, not by an orderly close.
        until: the answer waits for this.
        after: the answer takes so many seconds.
    """

    status: int = 202
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep: bool = True
    cut: int | None = None
    reset: bool = False
    until: threading.Event | None = None
    after: float = 0.0


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client is gone, and this is no request
            self.close_connection = True
            return
        there = self.server.keeper
        posted = Posted(tuple(self.headers.items()), body)
        reply = there.reply(self.path, posted)
        if reply.keep:
            there.keep(self.path, posted)
        if reply.until is not None and not reply.until.wait(LONGEST):
            return
        time.sleep(reply.after)
        self._answer(reply)

    def do_OPTIONS(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        refused = self.server.keeper.refusal(self.path, self.headers.get("Authorization"))
        self._answer(refused or Reply(status=204, headers={"Allow": "POST, OPTIONS"}))

    def _answer(self, reply: Reply) -> None:
        lines = [f"HTTP/1.1 {reply.status} {self.responses.get(reply.status, ('Other',))[0]}"]
        given = {"Date": self.date_time_string(), "Content-Length": str(len(reply.body)), **reply.headers}
        lines += [f"{name}: {value}" for name, value in given.items()]
        whole = "\r\n".join([*lines, "", ""]).encode("latin-1") + reply.body
        self.wfile.write(whole if reply.cut is None else whole[: reply.cut])
        self.wfile.flush()
        if reply.cut is not None or reply.reset:
            self.close_connection = True
        if reply.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Write nothing."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    keeper: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: clients of tests end connections whenever they like."""

    def shutdown_request(self, request: Any) -> None:
        with suppress(OSError):
            super().shutdown_request(request)


class Server:
    """A server on a port of this host.

    Args:
        token: the bearer token that requests may have; another one is refused. None: any.
        context: of TLS; None: plain HTTP.
    """

    def __init__(self, token: str | None = None, context: ssl.SSLContext | None = None) -> None:
        self._lock = threading.Lock()
        self._kept: defaultdict[str, list[Posted]] = defaultdict(list)
        self._replies: defaultdict[str, deque[Reply]] = defaultdict(deque)
        self._always: dict[str, Reply | None] = {}
        self.token = token
        self._listener = _Listener((HOST, 0), Handler)
        self._listener.keeper = self
        if context is not None:
            self._listener.socket = context.wrap_socket(
                self._listener.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._listener.server_address[1]
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://{HOST if context is None else 'localhost'}:{self.port}"
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, path: str, *replies: Reply) -> None:
        """Answer the next requests to a path so, one each."""
        with self._lock:
            self._replies[path] += replies

    def always(self, path: str, reply: Reply | None) -> None:
        """Answer all requests to a path so, from now on. None: as usual again."""
        with self._lock:
            self._always[path] = reply

    def posted(self, path: str) -> list[Posted]:
        """Return the requests that were taken at a path, in order of arrival."""
        with self._lock:
            return list(self._kept[path])

    def reply(self, path: str, posted: Posted) -> Reply:
        """Return how a request is answered."""
        refused = self.refusal(path, posted.header("authorization"))
        if refused is not None:
            return refused
        with self._lock:
            replies = self._replies[path]
            return replies.popleft() if replies else Reply()

    def refusal(self, path: str, authorization: str | None) -> Reply | None:
        """Return how every request to a path, with this login, is refused; None: it is not."""
        if self.token is not None and authorization not in {None, f"Bearer {self.token}"}:
            text = f"the token {authorization} is not known here".encode()
            return Reply(status=401, body=text, keep=False)
        with self._lock:
            return self._always.get(path)

    def keep(self, path: str, posted: Posted) -> None:
        """Keep a request."""
        with self._lock:
            self._kept[path].append(posted)

    def close(self) -> None:
        """Take no more requests."""
        self._listener.shutdown()
        self._listener.server_close()
