"""One client's AMQP connection. It passes the client's bytes through proton, and connects its links to the store.

All of it runs under the server's lock, and nothing here waits. `store.py` implements the queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final, Protocol

from proton import Collector, Condition, Delivery, Event, Link, Terminus, Transport, symbol
from proton import Connection as Endpoint

from servicebus_standin import management, wire
from servicebus_standin.auth import Claim, Grant, Key, Unauthorized, allowed, check_token, entity_path
from servicebus_standin.box import Box, Session, StoreError, session_lost
from servicebus_standin.codec import Malformed, int32, unpack_batch
from servicebus_standin.frames import FrameReader
from servicebus_standin.management import Request
from servicebus_standin.store import Queue, Store, Subscription, Topic

MAX_MESSAGE: Final = 262_144
CREDIT: Final = 1000
_MANAGEMENT: Final = "/$management"
_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"
_FILTER: Final = "com.microsoft:session-filter"
_TIMEOUT: Final = "com.microsoft:timeout"
_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
#: Seconds that a link waits for a session, unless its client names another time.
_WAIT: Final = 60.0
#: Ticks of 100 ns from year 1 to 1970: the epoch of a session lock's end.
_EPOCH: Final = 621_355_968_000_000_000


class Namespace(Protocol):
    """The server, as a connection uses it."""

    store: Store
    keys: Mapping[str, Key]

    def admit(self) -> None:
        """Let a client send. Raises StoreError if it is throttled."""


class Connection:
    """The connection: bytes in, bytes out."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._store = namespace.store
        self._frames = FrameReader()
        self._grants: dict[str, Grant] = {}
        self._outgoing: list[Outgoing] = []
        self._replies: list[tuple[Link, str]] = []
        self._transport = Transport(Transport.SERVER)
        self._transport.max_frame_size = 65_536
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._collector = Collector()
        self._endpoint = Endpoint()
        self._endpoint.collect(self._collector)
        self._transport.bind(self._endpoint)
        self._handlers = {
            Event.CONNECTION_REMOTE_OPEN: self._opened,
            Event.SESSION_REMOTE_OPEN: lambda event: event.session.open(),
            Event.LINK_REMOTE_OPEN: lambda event: self._attach(event.link),
            Event.LINK_FLOW: lambda event: self._pump(event.link),
            Event.DELIVERY: lambda event: self._delivered(event.delivery),
            Event.LINK_REMOTE_CLOSE: lambda event: self._detach(event.link),
            Event.LINK_REMOTE_DETACH: lambda event: self._detach(event.link),
            Event.SESSION_REMOTE_CLOSE: lambda event: event.session.close(),
            Event.CONNECTION_REMOTE_CLOSE: lambda event: event.connection.close(),
        }

    # --- bytes

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        self._frames.feed(data)
        while data:
            capacity = self._transport.capacity()
            if capacity <= 0:
                return
            self._transport.push(data[:capacity])
            data = data[capacity:]
            self._process()

    def pending(self) -> bytes:
        """Return the bytes for the client that are not sent yet."""
        self._process()
        size = self._transport.pending()
        return bytes(self._transport.peek(size) or b"") if size > 0 else b""

    def sent(self, size: int) -> None:
        """Drop this many pending bytes: they have been sent."""
        self._transport.pop(size)

    def tick(self, now: float) -> None:
        """Send heartbeats."""
        self._transport.tick(now)

    @property
    def due(self) -> float | None:
        """Return when a link has waited for a session for as long as its client asked."""
        return min((each.due for each in self._outgoing if each.waits), default=None)

    @property
    def ended(self) -> bool:
        """Return whether nothing more will be sent."""
        return self._transport.pending() < 0

    def _process(self) -> None:
        while event := self._collector.peek():
            handler = self._handlers.get(event.type)
            if handler is not None:
                handler(event)  # type: ignore[no-untyped-call] # proton's events have no types
            self._collector.pop()

    # --- links

    def _opened(self, _: Event) -> None:
        self._endpoint.container = "redelivery-stand-in"
        self._endpoint.open()

    def _attach(self, link: Link) -> None:
        address = (link.remote_target if link.is_receiver else link.remote_source).address
        path = entity_path(address)
        try:
            link.node = self._node(link, path)
        except StoreError as error:
            self._refuse_attach(link, error)
            return
        if not (isinstance(link.node, Outgoing) and link.node.waits):
            self._attached(link)

    @staticmethod
    def _refuse_attach(link: Link, error: StoreError) -> None:
        """Attach without a terminus of ours, and detach: the link never existed."""
        (link.target if link.is_receiver else link.source).type = Terminus.UNSPECIFIED
        (link.source if link.is_receiver else link.target).copy(
            link.remote_source if link.is_receiver else link.remote_target
        )
        link.condition = _condition(error)
        link.open()
        link.close()

    @staticmethod
    def _attached(link: Link) -> None:
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.max_message_size = MAX_MESSAGE
        properties: dict[symbol, Any] = {symbol(_BATCH_SIZE): MAX_MESSAGE}
        node = getattr(link, "node", None)
        if isinstance(node, Outgoing) and node.session is not None:
            link.source.filter.clear()
            link.source.filter.put_object({symbol(_FILTER): node.session.id})
            properties[symbol(_LOCKED_UNTIL)] = int(node.session.until * 10_000_000) + _EPOCH
        link.properties = properties
        link.open()
        if link.is_receiver:
            link.flow(CREDIT)

    def _node(self, link: Link, path: str) -> Node | Outgoing | None:
        if link.remote_target.type == Terminus.COORDINATOR:
            raise StoreError("amqp:not-implemented", 501, "The stand-in has no transactions.")
        if path == "$cbs" or path.lower().endswith(_MANAGEMENT):
            if link.is_sender:
                self._replies.append((link, path.lower()))
                return None
            return Tokens(self, link) if path == "$cbs" else Requests(self, link, path[: -len(_MANAGEMENT)])
        claim: Claim = "Send" if link.is_receiver else "Listen"
        if not self.allowed(path, claim):
            text = f"Unauthorized access. '{claim}' claim(s) are required to perform this operation."
            raise StoreError("amqp:unauthorized-access", 401, text)
        queue, box = self._store.find(path)
        if link.is_receiver:
            if box is queue.dead or isinstance(queue, Subscription):
                text = "A dead-letter queue cannot be sent to, nor a subscription."
                raise StoreError("amqp:not-allowed", 400, text)
            queue.admit()
            return Incoming(queue)
        outgoing = Outgoing(link, queue, box)
        self._outgoing.append(outgoing)
        return outgoing

    def gone(self) -> None:
        """Release the sessions of a connection that has ended."""
        for each in self._outgoing:
            each.release()
        self._outgoing = []

    def _forget(self, link: Link) -> None:
        for each in self._outgoing:
            if each.link == link:
                each.release()
        self._outgoing = [each for each in self._outgoing if each.link != link]

    def _detach(self, link: Link) -> None:
        self._forget(link)
        self._replies = [each for each in self._replies if each[0] != link]
        link.close()

    def refuse(self, link: Link, error: StoreError) -> None:
        """Detach with an error."""
        link.condition = _condition(error)
        link.node = None  # the client's later messages and credit on it are ignored: no message may be locked for it
        self._forget(link)
        link.close()

    def detach_all(self) -> None:
        """Detach every link to a queue, as Azure does after ten idle minutes."""
        link = self._endpoint.link_head(Endpoint.LOCAL_ACTIVE)
        while link is not None:
            following = link.next(Endpoint.LOCAL_ACTIVE)
            if isinstance(getattr(link, "node", None), Incoming | Outgoing):
                text = "The link was idle, and is force detached."
                self.refuse(link, StoreError("amqp:link:detach-forced", 410, text))
            link = following

    def allowed(self, path: str, claim: Claim) -> bool:
        """Return whether a token on this connection grants this claim."""
        return allowed(self._grants.values(), path, claim, self._store.clock())

    def grant(self, token: str) -> None:
        """Store the rights of a token. Raises Unauthorized."""
        grant = check_token(token, self._namespace.keys, self._store.clock())
        self._grants[grant.path] = grant

    def find(self, path: str) -> tuple[Queue, Box]:
        """Return the queue and the box of a path. Raises StoreError."""
        return self._store.find(path)

    def answer(self, request_link: Link, path: str, reply_to: str | None, encoded: bytes) -> None:
        """Send a reply on the waiting link of this node, preferably in this session and with this name."""
        candidates = [link for link, node in self._replies if node == path.lower()]
        candidates.sort(
            key=lambda link: (
                link.session == request_link.session,
                reply_to is not None and reply_to in (link.name, link.remote_target.address),
            )
        )
        if candidates:
            delivery = candidates[-1].delivery(_tag())  # type: ignore[arg-type] # it needs bytes
            candidates[-1].send(encoded)
            candidates[-1].advance()
            delivery.settle()

    # --- messages

    def deliver(self) -> None:
        """Send messages to every waiting receiver, and give sessions to the links that wait for one."""
        for outgoing in list(self._outgoing):
            if outgoing.waits:
                self._accept(outgoing)
            else:
                self._pump(outgoing.link)

    def _accept(self, outgoing: Outgoing) -> None:
        try:
            if outgoing.accept():
                self._attached(outgoing.link)
        except StoreError as error:
            self._forget(outgoing.link)
            outgoing.link.node = None
            self._refuse_attach(outgoing.link, error)

    def _pump(self, link: Link) -> None:
        node = getattr(link, "node", None)
        if isinstance(node, Outgoing) and not node.waits:
            try:
                node.pump()
            except StoreError as error:
                self.refuse(link, error)

    def _delivered(self, delivery: Delivery) -> None:
        link = delivery.link
        node = getattr(link, "node", None)
        if node is None:
            if link.is_sender and delivery.updated:
                delivery.settle()
        elif isinstance(node, Outgoing):
            if delivery.updated:
                node.settle(delivery)
        elif delivery.aborted:
            self._frames.is_batch(link.name)
            delivery.settle()
        elif delivery.readable and not delivery.partial:
            self._taken(link, node, delivery)

    def _taken(self, link: Link, node: Node, delivery: Delivery) -> None:
        encoded = bytes(link.recv(delivery.pending) or b"")
        link.advance()
        batch = self._frames.is_batch(link.name)
        try:
            if isinstance(node, Incoming):
                self._namespace.admit()
            node.take(encoded, batch=batch)
            delivery.update(Delivery.ACCEPTED)
        except Malformed as error:
            _reject(delivery, StoreError("amqp:decode-error", 400, str(error)))
        except StoreError as error:
            _reject(delivery, error)
        delivery.settle()
        if link.credit < CREDIT // 2:
            link.flow(CREDIT - link.credit)


class Node(Protocol):
    """The target of a client's messages."""

    def take(self, encoded: bytes, *, batch: bool) -> None:
        """Raises Malformed, StoreError."""


class Incoming:
    """A link on which a client sends to a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def take(self, encoded: bytes, *, batch: bool) -> None:
        """Store a message, or all messages of a batch, or none."""
        if len(encoded) > MAX_MESSAGE:
            text = f"The received message ({len(encoded)} bytes) exceeds the limit ({MAX_MESSAGE} bytes) on the link."
            raise StoreError("amqp:link:message-size-exceeded", 413, text)
        wire.take(self._queue, *(unpack_batch(encoded) if batch else (encoded,)))


class Outgoing:
    """A link on which a client receives from a box."""

    def __init__(self, link: Link, queue: Queue, box: Box) -> None:
        queue.admit_receiver()
        wanted = link.remote_source.filter
        filters: Any = (wanted.get_object() if wanted.next() else None) or {}
        wanted_sessions = {str(name): value for name, value in filters.items()}
        needs = queue.settings.requires_session and box is queue.main  # dead letters are not received by session
        if needs != (_FILTER in wanted_sessions):
            text = "requires sessions, so a receiver names one or the next" if needs else "has no sessions to receive"
            raise StoreError("amqp:not-allowed", 400, f"The entity '{box.path}' {text}.")
        if isinstance(queue, Topic):
            raise StoreError("amqp:not-allowed", 400, "A topic cannot be received from: its subscriptions can.")
        if queue.settings.forward_to is not None and box is queue.main:
            raise StoreError("amqp:not-allowed", 400, "A queue that forwards its messages cannot be received from.")
        self.link = link
        self._queue = queue
        self._box = box
        self._delete = link.remote_snd_settle_mode == Link.SND_SETTLED
        self.session: Session | None = None
        self.due = 0.0
        self._by_session = needs
        if needs:
            named = wanted_sessions[_FILTER]
            named = getattr(named, "value", named)
            self._wanted = None if named is None else str(named)
            given = {str(name): value for name, value in (link.remote_properties or {}).items()}
            milliseconds = given.get(_TIMEOUT)
            self.due = box.now() + (_WAIT if milliseconds is None else milliseconds / 1000)
            self.accept()

    @property
    def waits(self) -> bool:
        """Return whether it waits for a session, and is not attached yet."""
        return self._by_session and self.session is None

    def accept(self) -> bool:
        """Lock a session, if there is one. Raises StoreError if it is another's, or if none came in time."""
        self._queue.admit_receiver()
        self.session = self._box.accept(self._wanted)
        if self.session is None and self._box.now() >= self.due:
            text = "The operation did not complete within the allotted time: no session has messages."
            raise StoreError("com.microsoft:timeout", 408, text)
        return self.session is not None

    def release(self) -> None:
        """End its session's lock, if it has one."""
        if self.session is not None:
            self._box.release(self.session)

    def pump(self) -> None:
        """Send as many messages as the credit allows. Raises StoreError if the queue is deleted or disabled."""
        self._queue.admit_receiver()
        link = self.link
        if self.session is not None and not self._box.holds(self.session):
            raise session_lost(self.session.id)
        if link.credit > 0:
            session = None if self.session is None else self.session.id
            for message in self._box.take(link.credit, delete=self._delete, session=session):
                tag: Any = _tag() if message.token is None else message.token.bytes_le
                delivery = link.delivery(tag)
                delivery.token = message.token
                link.send(wire.give(message))
                link.advance()
                if self._delete:
                    delivery.settle()
        if link.drain_mode:
            link.drained()

    def settle(self, delivery: Delivery) -> None:
        """Apply the client's outcome, and confirm it with the same outcome or report that the lock is lost."""
        state, token = delivery.remote_state, delivery.token
        remote = delivery.remote
        try:
            if state == Delivery.ACCEPTED:
                self._box.complete(token)
            elif state == Delivery.RELEASED:
                self._box.abandon(token, failed=False)
            elif state == Delivery.MODIFIED:
                modify = {str(name): value for name, value in (remote.annotations or {}).items()}
                (self._box.defer if remote.undeliverable else self._box.abandon)(token, modify)
            elif state == Delivery.REJECTED:
                info: Any = (remote.condition.info if remote.condition else None) or {}
                texts = {str(name): value for name, value in info.items()}
                reason, description = texts.pop("DeadLetterReason", None), texts.pop("DeadLetterErrorDescription", None)
                self._box.dead_letter(token, reason, description, texts)
            elif not delivery.settled:
                return
            if state == Delivery.MODIFIED:
                delivery.local.failed, delivery.local.undeliverable = remote.failed, remote.undeliverable
            delivery.update(state)
        except StoreError as error:
            _reject(delivery, error)
        delivery.settle()


class Tokens:
    """The node `$cbs`, which receives tokens."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link

    def take(self, encoded: bytes, *, batch: bool) -> None:  # noqa: ARG002 - part of the protocol
        """Check a token and answer."""
        request = Request.parse(encoded)
        try:
            self._connection.grant(str(request.body))
            code, text = 202, "Accepted"
        except Unauthorized as error:
            code, text = 401, str(error)
        reply = management.reply(request, {"status-code": int32(code), "status-description": text})
        self._connection.answer(self._link, "$cbs", request.reply_to, reply)


class Requests:
    """An entity's `$management` node."""

    def __init__(self, connection: Connection, link: Link, path: str) -> None:
        self._connection = connection
        self._link = link
        self._path = path
        connection.find(path)

    def take(self, encoded: bytes, *, batch: bool) -> None:  # noqa: ARG002 - part of the protocol
        """Answer a request."""
        request = Request.parse(encoded)
        queue, box = self._connection.find(self._path)
        reply = management.answer(request, queue, box, lambda claim: self._connection.allowed(self._path, claim))
        self._connection.answer(self._link, self._path + _MANAGEMENT, request.reply_to, reply)


def _condition(error: StoreError) -> Condition:
    # The clients read all three fields, and one of them fails without an `info`.
    return Condition(error.condition, str(error), {symbol("stand-in"): True})


def _reject(delivery: Delivery, error: StoreError) -> None:
    delivery.local.condition = _condition(error)
    delivery.update(Delivery.REJECTED)


_tags = count()


def _tag() -> bytes:
    return next(_tags).to_bytes(8)
