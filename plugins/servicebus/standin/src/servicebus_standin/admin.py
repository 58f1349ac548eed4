"""The administration endpoint: queues, topics and subscriptions as ATOM entries over https, as the client expects.

It uses the store only under the lock.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET

import isodate  # type: ignore[import-untyped] # the SDK brings it

from servicebus_standin.auth import Key, Unauthorized, allowed, check_token, entity_path
from servicebus_standin.box import Settings, StoreError
from servicebus_standin.store import SUBSCRIPTIONS, Queue, Store, Subscription, Topic, not_found

ATOM: Final = "http://www.w3.org/2005/Atom"
BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
#: Service Bus's value for an unlimited duration.
FOREVER: Final = "P10675199DT2H48M5.4775807S"
_BODY: Final = 1 << 20
_SUBSCRIPTION: Final = re.compile(rf"(?P<topic>.+){SUBSCRIPTIONS}(?P<name>[^/]*)", re.IGNORECASE)
_SUBSCRIPTION_NAME: Final = re.compile(r"(?=.{1,50}$)[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
#: Paths of lists, and the kinds that they have.
_LISTS: Final = {"queues": Queue.kind, "topics": Topic.kind}
_SUBSCRIPTIONS_OF: Final = SUBSCRIPTIONS.rstrip("/").lower()
#: A TLS connection begins with this byte.
TLS: Final = b"\x16"
#: Attributes of queues that other entities lack.
_LACKS: Final[Mapping[str, frozenset[str]]] = {
    "Topic": frozenset((
        "LockDuration", "RequiresSession", "DeadLetteringOnMessageExpiration", "MaxDeliveryCount", "MessageCount",
        "ForwardTo", "ForwardDeadLetteredMessagesTo",
    )),
    "Subscription": frozenset((
        "MaxSizeInMegabytes", "RequiresDuplicateDetection", "DuplicateDetectionHistoryTimeWindow", "SizeInBytes",
        "IsAnonymousAccessible", "SupportOrdering", "EnablePartitioning", "EnableExpress",
    )),
}  # fmt: skip


class Refused(Exception):
    """A refused request: an HTTP status and the reason."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Administration:
    """Answers requests on the connections that it gets."""

    def __init__(
        self,
        store: Store,
        keys: Mapping[str, Key],
        lock: threading.RLock,
        changed: Callable[[], None],
        tls: ssl.SSLContext,
    ) -> None:
        self.store = store
        self.keys = keys
        self.lock = lock
        self.changed = changed
        self.namespace = ""
        self._tls = tls
        self._open: set[socket.socket] = set()

    def serve(self, accepted: socket.socket) -> None:
        """Serve a connection in a new thread."""
        self._open.add(accepted)
        threading.Thread(target=self._run, args=(accepted,), name="servicebus-stand-in-admin", daemon=True).start()

    def close(self) -> None:
        """Cut every connection."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _run(self, accepted: socket.socket) -> None:
        try:
            accepted.settimeout(60)
            if accepted.recv(1, socket.MSG_PEEK) != TLS:
                _Handler(accepted, ("", 0), self)  # type: ignore[arg-type] # the handler only stores its server
                return
            with self._tls.wrap_socket(accepted, server_side=True) as secured:
                self._open.add(secured)
                _Handler(secured, ("", 0), self)  # type: ignore[arg-type] # see above
                self._open.discard(secured)
        except OSError:  # the client disconnected, or does not trust the certificate
            pass
        finally:
            self._open.discard(accepted)
            accepted.close()

    def handle(self, method: str, target: str, headers: Message, body: bytes) -> tuple[int, bytes]:
        """Answer one request; `headers` know their names without case. Raises Refused."""
        parts = urlsplit(target)
        path = unquote(parts.path).strip("/")
        with self.lock:
            self._authorize(path, headers.get("Authorization", ""))
            self.store.advance()
            listed = _LISTS.get(path.lower().removeprefix("$resources/"))
            if path.lower().endswith(_SUBSCRIPTIONS_OF):
                listed = Subscription.kind
            if listed is not None and method == "GET":
                given = {name: values[0] for name, values in parse_qs(parts.query).items()}
                return 200, self._list(listed, path, given)
            if method == "GET":
                return 200, self._get(path)
            if method == "PUT":
                return self._put(path, body, replacing="If-Match" in headers)
            if method == "DELETE":
                self.store.delete(path)
                self.changed()
                return 200, b""
        raise Refused(405, f"The stand-in does not answer {method}.")

    def _authorize(self, path: str, token: str) -> None:
        now = self.store.clock()
        try:
            grant = check_token(token, self.keys, now)
        except Unauthorized as error:
            raise Refused(401, str(error)) from error
        if not allowed([grant], path, "Manage", now):
            raise Refused(401, "Unauthorized access. 'Manage' claim(s) are required to perform this operation.")

    def _list(self, kind: str, path: str, query: Mapping[str, str]) -> bytes:
        skip, top = int(query.get("$skip", 0)), int(query.get("$top", 100))
        within = f"{path.lower()}/" if kind == Subscription.kind else ""
        found = [each for name, each in self.store.queues.items() if each.kind == kind and name.startswith(within)]
        queues = sorted(found, key=lambda each: each.name)
        feed = _root("feed")
        _child(feed, "title", f"{kind}s")
        page = f"https://{self.namespace}/{path}?$skip={{}}&$top={top}"
        ET.SubElement(feed, "link", rel="self", href=page.format(skip))
        if skip + top < len(queues):
            ET.SubElement(feed, "link", rel="next", href=page.format(skip + top))
        feed.extend(self._entry(queue) for queue in queues[skip : skip + top])
        return ET.tostring(feed)

    def _get(self, name: str) -> bytes:
        queue = self.store.queues.get(name.lower())
        if queue is None:  # as Azure does: an empty feed, not 404
            feed = _root("feed")
            _child(feed, "title", "Publicly Listed Services")
            return ET.tostring(feed)
        return ET.tostring(self._entry(queue))

    def _put(self, name: str, body: bytes, *, replacing: bool) -> tuple[int, bytes]:
        try:
            kind, settings = _settings(ET.fromstring(body))  # noqa: S314 - from a test's own client, on localhost  # nosec B314
        except (ET.ParseError, ValueError) as error:
            raise Refused(400, f"The body is not as it should be: {error}") from error
        for target in (settings.forward_to, settings.forward_dead_lettered_messages_to):
            if target is not None and target.lower() not in self.store.queues:
                raise Refused(400, f"The queue to forward to, '{target}', could not be found.")
        if not replacing:
            queue = self._create(name, kind, settings)
        else:
            queue = self.store.queues.get(name.lower()) or _raise(not_found(name))
            if queue.kind != kind:
                raise Refused(400, f"'{name}' is a {queue.kind}, not a {kind}.")
            for each in ("requires_duplicate_detection", "requires_session"):
                if getattr(queue.settings, each) != getattr(settings, each):
                    raise Refused(400, f"The value of '{each}' of an existing queue cannot be changed.")
            queue.settings = settings
            queue.updated = self.store.clock()
        self.changed()
        return 200 if replacing else 201, ET.tostring(self._entry(queue))

    def _create(self, name: str, kind: str, settings: Settings) -> Queue:
        found = _SUBSCRIPTION.fullmatch(name)
        if (found is None) == (kind == Subscription.kind):
            raise Refused(400, f"A {kind} cannot have the path '{name}'.")
        if found is None:
            return self.store.create(name, settings, Topic if kind == Topic.kind else Queue)
        if not _SUBSCRIPTION_NAME.fullmatch(found["name"]):
            raise Refused(400, f"'{found['name']}' is not a valid name of a subscription.")
        return self.store.subscribe(found["topic"], found["name"], settings)

    def _entry(self, queue: Queue) -> ET.Element:
        entry = _root("entry")
        _child(entry, "id", f"https://{self.namespace}/{queue.name}")
        _child(entry, "title", queue.name.rpartition(SUBSCRIPTIONS)[2])
        _child(entry, "published", _time(queue.created))
        _child(entry, "updated", _time(queue.updated))
        content = ET.SubElement(entry, "content", type="application/xml")
        description = ET.SubElement(content, f"{queue.kind}Description", {"xmlns": BUS, "xmlns:i": INSTANCE})
        for name, value in self._attributes(queue).items():
            if value is not None and name not in _LACKS.get(queue.kind, ()):
                _child(description, name, value)
        counts = ET.SubElement(description, "CountDetails", {"xmlns:d2p1": COUNTS})
        main = queue.main
        scheduled = main.count("scheduled")
        for name, number in (
            ("ActiveMessageCount", len(main.messages) - scheduled),
            ("DeadLetterMessageCount", len(queue.dead.messages)),
            ("ScheduledMessageCount", scheduled),
            ("TransferMessageCount", 0),
            ("TransferDeadLetterMessageCount", 0),
        ):
            _child(counts, f"d2p1:{name}", str(number))
        return entry

    def _attributes(self, queue: Queue) -> Mapping[str, str | None]:
        settings = queue.settings
        ttl = settings.default_message_time_to_live
        return {
            "LockDuration": _duration(settings.lock_duration),
            "MaxSizeInMegabytes": str(int(settings.max_size_in_megabytes)),
            "RequiresDuplicateDetection": _boolean(settings.requires_duplicate_detection),
            "RequiresSession": _boolean(settings.requires_session),
            "DefaultMessageTimeToLive": FOREVER if ttl is None else _duration(ttl),
            "DeadLetteringOnMessageExpiration": _boolean(settings.dead_lettering_on_message_expiration),
            "DuplicateDetectionHistoryTimeWindow": _duration(settings.duplicate_detection_history_time_window),
            "MaxDeliveryCount": str(settings.max_delivery_count),
            "DeadLetteringOnFilterEvaluationExceptions": "true" if queue.kind == Subscription.kind else None,
            "EnableBatchedOperations": "true",
            "SizeInBytes": str(queue.main.bytes + queue.dead.bytes),
            "MessageCount": str(len(queue.main.messages) + len(queue.dead.messages)),
            "IsAnonymousAccessible": "false",
            "Status": settings.status,
            "ForwardTo": self._uri(settings.forward_to),
            "UserMetadata": settings.user_metadata,
            "CreatedAt": _time(queue.created),
            "UpdatedAt": _time(queue.updated),
            "AccessedAt": _time(queue.updated),
            "SupportOrdering": "true",
            "AutoDeleteOnIdle": FOREVER,
            "EnablePartitioning": "false",
            "EntityAvailabilityStatus": "Available",
            "EnableExpress": "false",
            "ForwardDeadLetteredMessagesTo": self._uri(settings.forward_dead_lettered_messages_to),
        }

    def _uri(self, name: str | None) -> str | None:
        return None if name is None else f"sb://{self.namespace}/{name}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Administration  # type: ignore[assignment] # no socketserver is used

    def _answer(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), _BODY))
        try:
            status, answer = self.server.handle(self.command, self.path, self.headers, body)
        except Refused as error:
            status, answer = error.status, _error(error.status, str(error))
        except StoreError as error:
            status, answer = error.status, _error(error.status, str(error))
        self.send_response(status)
        self.send_header("Content-Type", "application/atom+xml;type=entry;charset=utf-8")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_DELETE = do_POST = _answer  # noqa: N815 - the names http.server looks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in http.server
        """Log nothing."""


def _raise(error: Exception) -> Any:
    raise error


def _root(name: str) -> ET.Element:
    """Return an element of ATOM. Names have no prefix, as at Azure: JavaScript's client resolves none."""
    return ET.Element(name, xmlns=ATOM)


def _child(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = text


def _error(code: int, text: str) -> bytes:
    error = ET.Element("Error")
    ET.SubElement(error, "Code").text = str(code)
    ET.SubElement(error, "Detail").text = text
    return ET.tostring(error)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _boolean(value: object) -> str:
    return str(value).lower()


def _duration(seconds: float) -> str:
    return str(isodate.duration_isoformat(timedelta(seconds=seconds)))


def _seconds(text: str) -> float | None:
    seconds: float = isodate.parse_duration(text).total_seconds()
    return None if seconds >= timedelta(days=10_000_000).total_seconds() else seconds


_READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "LockDuration": ("lock_duration", _seconds),
    "MaxSizeInMegabytes": ("max_size_in_megabytes", int),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", lambda text: text.lower() == "true"),
    "RequiresSession": ("requires_session", lambda text: text.lower() == "true"),
    "DefaultMessageTimeToLive": ("default_message_time_to_live", _seconds),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", lambda text: text.lower() == "true"),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_time_window", _seconds),
    "MaxDeliveryCount": ("max_delivery_count", int),
    "Status": ("status", str),
    "ForwardTo": ("forward_to", entity_path),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", entity_path),
    "UserMetadata": ("user_metadata", str),
}


def _settings(entry: ET.Element) -> tuple[str, Settings]:
    kinds = (Queue.kind, Topic.kind, Subscription.kind)
    found_kinds = ((kind, entry.find(f".//{{{BUS}}}{kind}Description")) for kind in kinds)
    kind, description = next(((kind, each) for kind, each in found_kinds if each is not None), ("", None))
    if description is None:
        raise Refused(400, f"The stand-in has {', '.join(kinds)} only.")
    found: dict[str, Any] = {}
    for child in description:
        field, reader = _READERS.get(child.tag.rpartition("}")[2], (None, str))
        if field is not None and child.text:
            found[field] = reader(child.text)
    settings = Settings(**found)
    if not 0 < settings.lock_duration <= 300:  # noqa: PLR2004 - five minutes
        raise Refused(400, "The lock duration must be at most five minutes.")
    if not 1 <= settings.max_delivery_count <= 2000:  # noqa: PLR2004 - Azure's range
        raise Refused(400, "MaxDeliveryCount must be from 1 to 2000.")
    return kind, settings
