"""The test harness: a server of this process, read without the plugin's code. It needs the extra `testing`.

CloudEvents' own SDK reads the events; a separate reader, what redelivery adds to requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat

from redelivery.contract.message import Message
from redelivery.kit import events
from redelivery.kit.packing import from_portable, unpack_headers
from redelivery_conformance.harness import Harness, Outage, Place, Runtime, RuntimeKind
from redelivery_conformance.proxy import Proxy
from redelivery_http.testing.server import Posted, Reply, Server

#: The login of all places.
TOKEN = "a-token-that-only-tests-know"  # noqa: S105 - of a server that keeps nothing
#: Headers of the connection, and of the request itself.
_NOT_OF_THE_MESSAGE = frozenset({"host", "user-agent", "content-length", "authorization", "redelivery"})
_BATCHED = "application/cloudevents-batch+json"


def messages(posted: Posted) -> list[Message]:
    """Return the messages of a request."""
    if posted.header("content-type") == _BATCHED:
        return [events.from_json(each) for each in json.loads(posted.body)]
    return [message(posted)]


def message(posted: Posted) -> Message:
    """Return the message of a request that is not batched. An event must be one that CloudEvents' own SDK reads."""
    packed = json.loads(posted.header("redelivery") or "{}")
    there: dict[str, bytes | None] = {
        name: unquote_to_bytes(value) if name.lower().startswith("ce-") else value.encode("latin-1")
        for name, value in posted.headers
        if name.lower() not in _NOT_OF_THE_MESSAGE
    }
    content_type = posted.header("content-type") or ""
    is_event = posted.header("ce-specversion") is not None or content_type.startswith("application/cloudevents")
    id_ = packed.get("id")
    if is_event:
        event = from_http(HTTPMessage(dict(posted.headers), posted.body), JSONFormat())
        id_ = id_ or event.get_id()
    is_null = packed.get("body") == "null" or (is_event and not posted.body)
    return Message(
        value=None if is_null else posted.body,
        key=from_portable(packed.get("key")),
        headers=unpack_headers(packed, there) if "headers" in packed else tuple(there.items()),
        id=id_,
        timestamp_ms=packed.get("timestamp"),
    )


class HttpPlace(Place):
    """Its own path."""

    patience = 5.0
    many = 2_000  # each message is a request, and a server in Python answers it

    def __init__(self, runtime: HttpRuntime, path: str, options: Mapping[str, str]) -> None:
        self.runtime = runtime
        self.path = path
        self.url = f"{runtime.server.url}{path}"
        self.options = options

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        path = self.path if destination is None else destination
        return [each for posted in self.runtime.server.posted(path) for each in messages(posted)]

    def destination(self, label: str) -> str:
        """Return another path of the server: rows cannot name it, and letters can be sent to its URL."""
        return f"{self.path}-{label}" if label else self.path

    def unreachable(self) -> str:
        return f"http://127.0.0.1:1{self.path}"

    def wrong_login(self) -> Mapping[str, str]:
        return {"http.token": "not-the-token"}

    @property
    def outage_url(self) -> str:
        return f"http://127.0.0.1:{self.runtime.proxy.port}{self.path}"

    @contextmanager
    def outage(self, kind: Outage = "refused") -> Iterator[None]:
        with self.runtime.proxy.outage(kind):
            yield

    def vanish(self) -> None:
        self.runtime.server.always(self.path, Reply(status=410, keep=False))


class HttpRuntime(Runtime):
    """A server, and a proxy before it."""

    kind: RuntimeKind = "embedded"
    cannot_show = ("a cluster of Knative: its brokers and channels", "HTTP/2")

    def __init__(self, options: Mapping[str, str]) -> None:
        self.description = f"a server of this process; {dict(options) or 'a request for each message'}"
        self.server = Server(TOKEN)
        self.proxy = Proxy("127.0.0.1", self.server.port)
        self._options = options

    def place(self) -> HttpPlace:
        return HttpPlace(self, f"/{self.fresh_name('conformance')}", self._options)

    def close(self) -> None:
        self.proxy.close()
        self.server.close()


class HttpHarness(Harness):
    """Starts the server.

    Args:
        options: the client options of all places.
    """

    name = "http"

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda _: HttpRuntime(self._options)}
