"""A server between the plugin and SQS that injects faults: throttling, refusals, a lost answer.

It speaks SQS's JSON protocol, as boto3 does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

#: The answer of a rule: status and body.
Answer: TypeAlias = tuple[int, Mapping[str, Any]]
#: Gets the operation, its parameters and a function that forwards (other) parameters; None forwards the request.
Rule: TypeAlias = Callable[[str, dict[str, Any], Callable[[Mapping[str, Any]], Answer]], Answer | None]

_KEPT: Final = ("Content-Type", "X-Amz-Target", "Authorization", "X-Amz-Date")


class Lost(Exception):
    """Raised by a rule: the answer is lost on its way."""


def refusal(code: str, text: str = "injected", status: int = 400) -> Answer:
    """An error of the whole request."""
    return status, {"__type": f"com.amazonaws.sqs#{code}", "message": text}


class Faults:
    """The server; `url` is the endpoint to give to the plugin."""

    def __init__(self, endpoint: str, rule: Rule) -> None:
        self._endpoint = urlsplit(endpoint)
        faults = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name: self.headers[name] for name in _KEPT if name in self.headers}
                operation = headers.get("X-Amz-Target", "").rpartition(".")[2]

                def go_on(given: Mapping[str, Any]) -> Answer:
                    return faults._pass_on(json.dumps(given).encode(), headers)

                try:
                    status, answer = rule(operation, json.loads(body), go_on) or faults._pass_on(body, headers)
                except Lost:
                    self.close_connection = True
                    return
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def _pass_on(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        connection = HTTPConnection(self._endpoint.hostname or "", self._endpoint.port, timeout=20)
        try:
            connection.request("POST", "/", body, dict(headers))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
