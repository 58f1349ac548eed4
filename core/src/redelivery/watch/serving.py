"""`Server`: serves `/metrics` and `/healthz` over HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from redelivery.errors import ConfigurationError

#: Seconds that a client may take for each part of its request.
_TIMEOUT: Final = 10.0
#: Requests that are served side by side; more wait.
_AT_ONCE: Final = 8
#: Seconds between two looks at whether the server is to end.
_NAP: Final = 0.2

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class _Handler(WSGIRequestHandler):
    """Serves a request, without a line in the log."""

    timeout = _TIMEOUT

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.request_version == "HTTP/0.9":  # it has no headers, which WSGI needs; a cut request looks like it
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            return False
        return True

    def log_message(self, *_: Any) -> None:
        """Say nothing: each scrape would be a line."""


class _Server(WSGIServer):
    """Serves each request by a thread, some side by side, so that a client that says nothing holds up no other."""

    def __init__(self, address: tuple[str, int]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not that of WSGIServer: it looks up the host's name, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._room.acquire()
        threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client has left
        finally:
            self.shutdown_request(request)
            self._room.release()


class Server:
    """Serves what a collector knows.

    Args:
        host, port: where; port 0: any free one.
        collector: of the metrics.
        healthy: whether looks go on; `/healthz` says so.

    Raises:
        ConfigurationError: the address cannot be used.
    """

    def __init__(self, host: str, port: int, collector: Collector, healthy: Callable[[], bool]) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._metrics = make_wsgi_app(registry)
        self._healthy = healthy
        try:
            self._server = _Server((host, port))
        except (OSError, OverflowError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"--listen {host}:{port}: {why}") from error
        self._server.set_app(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": _NAP}, name="redelivery-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it serves metrics."""
        host, port = self._server.server_name, self._server.server_port
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            found: Iterable[bytes] = self._metrics(environ, start)
            return found
        healthy = self._healthy()
        status, text = {
            "/healthz": ("200 OK", "ok\n") if healthy else ("503 Service Unavailable", "looks have stopped\n"),
            "/": ("200 OK", "redelivery watch: /metrics, /healthz\n"),
        }.get(path, ("404 Not Found", "known are /metrics and /healthz\n"))
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff")])
        return [text.encode()]

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
