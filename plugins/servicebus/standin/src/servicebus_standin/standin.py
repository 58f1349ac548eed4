"""`StandIn`: a small server that speaks Service Bus's protocols, for tests of jobs that use it. It is not Azure.

The README of this distribution lists its limits and its assumptions about Azure.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from servicebus_standin import certificate, wire
from servicebus_standin.admin import Administration
from servicebus_standin.auth import ALL, Claim, Key, sign
from servicebus_standin.box import Settings, State, Stored
from servicebus_standin.codec import Content, read
from servicebus_standin.server import Server
from servicebus_standin.store import Store, Topic

ROOT_KEY = "RootManageSharedAccessKey"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A stored message, for tests; see `Stored`."""

    sequence: int
    message_id: str
    state: State
    deliveries: int
    enqueued: float
    due: float | None
    body: bytes | None
    application_properties: Mapping[str, Any]
    annotations: Mapping[str, Any] = field(default_factory=dict)
    subject: str | None = None
    content_type: str | None = None
    correlation_id: Any = None
    session_id: str | None = None
    creation_ms: int | None = None

    @property
    def reason(self) -> str | None:
        """Return why it was dead-lettered."""
        return self.application_properties.get("DeadLetterReason")

    @property
    def description(self) -> str | None:
        """Return the description of the reason."""
        return self.application_properties.get("DeadLetterErrorDescription")


class StandIn:
    """A namespace on a port of localhost, from `start` to `stop`. A second `start` uses the same port.

    Args:
        port: port to listen on; 0: a free one.
        clock: returns seconds since the epoch.
        admin_port: a separate port for the administration, with and without TLS, as Microsoft's emulator has it
            (there 5300, without TLS); 0: a free one; None: it is on `port`, with TLS.

    Attributes:
        certificate: file that the administration client must trust (its `connection_verify`).
    """

    def __init__(self, port: int = 0, *, clock: Any = time.time, admin_port: int | None = None) -> None:
        self.port = port
        self.admin_port = admin_port
        self.store = Store(clock)
        self.lock = threading.RLock()
        self._keys = {ROOT_KEY: Key(ROOT_KEY, secrets.token_urlsafe(32))}
        self._server: Server | None = None
        folder = Path(tempfile.mkdtemp(prefix="servicebus-stand-in-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.certificate, tls = certificate.make(folder)
        self._administration = Administration(self.store, self._keys, self.lock, self._wake, tls)

    # --- running

    def start(self) -> Self:
        """Start to listen."""
        if self._server is None:
            self._server = Server(
                self.store, self._keys, self.lock, self.port, self._administration.serve, self.admin_port
            )
            self.port, self.admin_port = self._server.port, self._server.admin_port
            self._administration.namespace = self.namespace
        return self

    def stop(self) -> None:
        """Cut all connections and stop listening. Queues, messages and locks stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._administration.close()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop for the length of the `with` block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Answer nothing for the length of the `with` block; connections stay open."""
        self._pause(on=True)
        try:
            yield
        finally:
            self._pause(on=False)

    def throttle(self, requests: int) -> None:
        """Refuse this many requests to send with `com.microsoft:server-busy`, without storing their messages."""
        with self.lock:
            if self._server is not None:
                self._server.busy = requests

    def detach_links(self) -> None:
        """Detach every link, as Service Bus does after ten idle minutes; connections stay open."""
        with self.lock:
            if self._server is not None:
                self._server.detach_all()
        self._wake()

    def _pause(self, *, on: bool) -> None:
        if self._server is not None:
            self._server.paused = on
            self._server.wake()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- reaching it

    @property
    def namespace(self) -> str:
        """Return host and port."""
        return f"localhost:{self.port}"

    @property
    def connection_string(self) -> str:
        """Return the connection string for clients of queues and for the administration client."""
        return self.connection(ROOT_KEY)

    @property
    def admin_connection_string(self) -> str:
        """Return the connection string for administration clients: it names the separate port, if one exists."""
        return self.connection_string.replace(f":{self.port};", f":{self.admin_port or self.port};", 1)

    def connection(self, key: str, *, secret: str | None = None) -> str:
        """Return the connection string with another key."""
        secret = self._keys[key].secret if secret is None else secret
        return (
            f"Endpoint=sb://{self.namespace};SharedAccessKeyName={key};SharedAccessKey={secret};"
            "UseDevelopmentEmulator=true;"
        )

    def token(self, path: str = "", *, key: str = ROOT_KEY, seconds: float = 3600.0) -> str:
        """Return a shared access signature for one entity or for all."""
        return sign(f"sb://{self.namespace}/{path}", self._keys[key], self.store.clock() + seconds)

    def add_key(self, name: str, *claims: Claim) -> str:
        """Add a key with only these claims; return its connection string."""
        with self.lock:
            self._keys[name] = Key(name, secrets.token_urlsafe(32), frozenset(claims) or ALL)
        return self.connection(name)

    def limit_key(self, name: str, *claims: Claim) -> None:
        """Let a key have only these claims from now on. It ends all connections, which have older grants."""
        with self.lock:
            self._keys[name] = replace(self._keys[name], claims=frozenset(claims))
        if self._server is not None:
            with self.stopped():
                pass

    # --- queues

    def create_queue(self, name: str, **settings: Any) -> None:
        """Create a queue with settings as in `Settings`; durations are in seconds and may be fractions."""
        with self.lock:
            self.store.create(name, Settings(**settings))

    def alter_queue(self, name: str, **settings: Any) -> None:
        """Change a queue's settings without notice to clients; name a subscription by its path."""
        with self.lock:
            self.store.alter(name, **settings)
        self._wake()

    def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages."""
        with self.lock:
            self.store.delete(name)
        self._wake()

    def create_topic(self, name: str, **settings: Any) -> None:
        """Create a topic; its settings are those of a queue that topics have too."""
        with self.lock:
            self.store.create(name, Settings(**settings), Topic)

    def create_subscription(self, topic: str, name: str, **settings: Any) -> None:
        """Create a subscription without filters. Its path is `<topic>/Subscriptions/<name>`."""
        with self.lock:
            self.store.subscribe(topic, name, Settings(**settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its subscriptions."""
        self.delete_queue(name)

    def queue_names(self) -> list[str]:
        """Return the names of all queues."""
        with self.lock:
            return sorted(queue.name for queue in self.store.queues.values() if queue.kind == "Queue")

    def messages(self, path: str) -> list[Seen]:
        """Return the messages of an address (`q`, `q/$DeadLetterQueue`) by sequence number, without removing them."""
        with self.lock:
            self.store.advance()
            _, box = self.store.find(path)
            return [_seen(message) for message in box.peek(0, len(box.messages))]

    def contents(self, path: str) -> list[Content]:
        """Return the messages of an address in the form that a receiver gets, without removing them."""
        with self.lock:
            self.store.advance()
            _, box = self.store.find(path)
            return [Content.parse(wire.give(message)) for message in box.peek(0, len(box.messages))]

    def put(self, name: str, encoded: bytes) -> None:
        """Store an encoded AMQP message, as if a client had sent it."""
        with self.lock:
            wire.take(self.store.queue(name), encoded)
        self._wake()

    def _wake(self) -> None:
        if self._server is not None:
            self._server.wake()


def _seen(message: Stored) -> Seen:
    content = Content.parse(wire.give(message))
    names = (name for name in map(_text, content.annotations))
    return Seen(
        sequence=message.sequence,
        message_id=message.message_id,
        state=message.state,
        deliveries=message.deliveries,
        enqueued=message.enqueued,
        due=message.due,
        body=content.data(),
        application_properties=MappingProxyType(content.application_properties()),
        annotations={name: content.annotation(name) for name in names},
        subject=content.property(3),
        correlation_id=content.property(5),
        content_type=content.property(6),
        creation_ms=content.property(9),
        session_id=content.property(10),
    )


def _text(encoded: bytes) -> str:
    return str(read(encoded))
