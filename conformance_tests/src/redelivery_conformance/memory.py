"""A small, complete broker in memory for tests, `memory://store/queue`. It passes the whole suite.

It exists only within its process, so it is not registered for users and `redelivery.registry.discover` does not find
it. `MemoryHarness` carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote, unquote

from redelivery.base.urls import redact, split_url, unknown
from redelivery.codes import Code
from redelivery.contract.broker import (
    Admin,
    Broker,
    BrokerPlugin,
    Capabilities,
    DeadLetters,
    Difference,
    Letter,
    LetterBatch,
    Limits,
    NativeObject,
    Plan,
    Receiver,
    Sender,
    Support,
    Wanted,
)
from redelivery.contract.letters import batches
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import ConfigurationError, Fatal, InvalidURL, Permanent, Retriable, Unsupported
from redelivery_conformance.harness import Foreign, Outage, Place, Runtime, RuntimeKind, Unregistered
from redelivery_conformance.memory_receiver import MemoryReceiver
from redelivery_conformance.memory_sender import MemorySender
from redelivery_conformance.memory_store import Queue, Store

DEAD_LETTERS: Final = "-dead-letters"
#: Joins the names of a queue and of a subscription into the name of the queue that holds the subscription's copies.
COPY: Final = "@"
#: Maximum length of a subscription's name.
NAME: Final = 100
#: The largest number that an option accepts.
MOST: Final = 1e9
#: The longest time that it needs on a busy machine, in seconds.
PATIENCE: Final = 2.0
#: The one password that is refused.
WRONG: Final = "wrong"
OPTIONS: Final = {
    "deliveries": "deliveries after which a message goes to the dead letters; 0: no bound (0)",
    "password": f"taken and forgotten, except for {WRONG!r}, which is refused; a reference",
    "latency": "milliseconds that each call of a receiver takes (0)",
    "ttl": "milliseconds after which a sent message goes to the dead letters; 0: never (0)",
}

FULL: Final = Capabilities(
    send=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    splits=Support.NATIVE,
    cursors=Support.NATIVE,
    dead_letter=Support.NATIVE,
    keys=Support.NATIVE,
    headers=Support.NATIVE,
    ids=Support.NATIVE,
    timestamps=Support.NATIVE,
    null_value=Support.NATIVE,
    destinations=Support.NATIVE,
    deduplicate=Support.NATIVE,
    reports_duplicates=True,
    receive=Support.NATIVE,
    order=Support.NATIVE,
    competing_consumers=Support.NATIVE,
    subscriptions=Support.NATIVE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    first_delivery=Support.NATIVE,
    delay=Support.NATIVE,
    terminate=Support.NATIVE,
    reason=Support.NATIVE,
    extend=Support.NATIVE,
    ref_kinds=("Queue", "Queue.memory.example"),
    sink_partitions=Support.NATIVE,
    sink_replication_factor=Support.NATIVE,
    expiry=Support.NATIVE,
    delivery_limit=Support.NATIVE,
    networked=False,
    limits=Limits(
        message_bytes=16 << 20,
        headers_bytes=1 << 20,
        header_value_bytes=256 << 10,
        header_count=200,
        id_bytes=1000,
        key_bytes=2000,
        delay_max=timedelta(hours=1),
    ),
)
#: Only a sender: the minimum for every broker.
BARE: Final = Capabilities(send=Support.NATIVE, networked=False, limits=Limits(message_bytes=16 << 20))
#: A receiver without any feature: leases are accepted or run out.
PLAIN: Final = replace(BARE, receive=Support.NATIVE, competing_consumers=Support.NATIVE)
#: Browsing without any further feature, and no sender.
READ_ONLY: Final = Capabilities(browse=Support.NATIVE, networked=False)


#: The one queue that sending does not create.
NEVER_MADE = "never-made"


class MemoryDeadLetters(DeadLetters):
    """The dead letters role for one queue."""

    def __init__(self, broker: MemoryBroker, queue: str) -> None:
        self.broker = broker
        self.queue = queue

    def browse(self) -> Iterator[Letter]:
        why = self.broker.store().queue(self.queue).why
        for position, message in list(self.messages().items()):
            yield Letter(position=str(position), message=message, context=why.get(position))

    def splits(self, wanted: Wanted) -> Sequence[str]:
        has = self.broker.capabilities
        if not has.splits or (not has.cursors and (wanted.after or wanted.before)):
            return super().splits(wanted)
        low, high = self._number(wanted.after, 0), self._number(wanted.before, self._last())
        there = [position for position in list(self.messages()) if low < position <= high]
        size = max(1, -(-len(there) // wanted.readers))
        pieces = [there[start : start + size] for start in range(0, len(there), size)]
        return [f"{piece[0]}-{piece[-1]}" for piece in pieces]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        low, dash, high = split.partition("-")
        if not dash:
            yield from super().read(split, wanted)
            return
        first, last = self._number(low, 0), self._number(high, 0)
        yield from batches(each for each in self.browse() if first <= int(each.position) <= last)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        if not self.broker.capabilities.cursors:
            return super().cursor(after=after, most=most)
        low, last = self._number(after, 0), self._last()
        there = [position for position in list(self.messages()) if low < position <= last]
        return str(last if most is None or len(there) <= most else there[most - 1])

    def _number(self, text: str | None, default: int) -> int:
        if text is not None and not text.isdecimal():
            raise ConfigurationError(f"memory: {text!r} is not a position of this place")
        return default if text is None else int(text)

    def _last(self) -> int:
        """Return the position of the newest letter that was ever here."""
        return self.broker.store().queue(self.queue).last

    def remove(self, positions: Sequence[str]) -> int:
        if not self.broker.capabilities.remove:
            raise Unsupported("memory: letters cannot be removed (its capabilities say so)")
        messages = self.messages()
        return sum(messages.pop(int(position), None) is not None for position in positions)

    def purge(self) -> int:
        if not self.broker.capabilities.purge:
            raise Unsupported("memory: letters cannot be purged (its capabilities say so)")
        messages = self.messages()
        purged = len(messages)
        messages.clear()
        return purged

    def close(self) -> None:
        """Nothing is held."""

    def messages(self) -> dict[int, Message]:
        """Return the messages by position, oldest first."""
        return self.broker.store().queue(self.queue).messages


class MemoryAdmin(Admin):
    """Creates the queue and its dead letter queue."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker

    def plan(self, spec: DeliverySpec) -> Plan:
        queues = self.broker.store().queues
        objects = {name: self._object(name, queues.get(name), self._shape(name, spec)) for name in self._names()}
        source, copy, name = self._subscription()
        if copy:
            there = self.broker.queue in self.broker.store().copies.get(source, ())
            made = NativeObject(kind="subscription", name=name, action="keep" if there else "create")
            objects[self.broker.queue] = made
        return Plan(objects=list(objects.values()), status=self._status(spec))

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        self.plan(spec).refuse_differences(f"memory: {self.broker.queue!r}")
        for item in self.plan(spec).objects:
            if item.action == "create" and item.kind == "queue":
                self.broker.store().queue(item.name).shape = self._shape(item.name, spec)
        for name in self._names():
            self.broker.store().queue(name)
        source, copy, _ = self._subscription()
        if copy:
            self.broker.store().copies.setdefault(source, {})[self.broker.queue] = None
        return self._status(spec)

    def depth(self) -> int:
        return len(self.broker.store().queue(self.broker.queue).messages)

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _object(name: str, queue: Queue | None, shape: tuple[int | None, int | None]) -> NativeObject:
        if queue is None:
            return NativeObject(kind="queue", name=name, action="create")
        differences = [Difference("altered", "no", "yes")] if queue.altered else []
        differences += [
            Difference(attribute, str(wanted), str(found))
            for attribute, wanted, found in zip(("partitions", "replicas"), shape, queue.shape, strict=True)
            if wanted not in {None, found}
        ]
        return NativeObject.compared("queue", name, {}, differences)

    def _shape(self, name: str, spec: DeliverySpec) -> tuple[int | None, int | None]:
        """Return the partitions and replicas of a new queue. For a dead letter queue the spec sets them."""
        is_place = name == self.broker.dead_letter_queue
        return (spec.sink_partitions, spec.sink_replication_factor) if is_place else (None, None)

    def _subscription(self) -> tuple[str, str, str]:
        """Return the queue that this one copies, the separator and the subscription's name, or empty texts."""
        queue = self.broker.queue
        return ("", "", "") if queue == self.broker.dead_letter_queue else queue.rpartition(COPY)

    def _names(self) -> tuple[str, str]:
        return self.broker.queue, self.broker.dead_letter_queue

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        channel = Ref(kind="Queue", name=self.broker.dead_letter_queue)
        return DeliveryStatus.of(spec, uri=self.broker.native_sink(), channel=channel)


class MemoryBroker(Broker):
    """One queue of one store. A variant has other capabilities or other roles."""

    name = "memory"
    capabilities = FULL
    open_options: ClassVar[bool] = False
    SenderRole: ClassVar[type[MemorySender]] = MemorySender
    LettersRole: ClassVar[type[MemoryDeadLetters]] = MemoryDeadLetters
    AdminRole: ClassVar[type[MemoryAdmin]] = MemoryAdmin
    ReceiverRole: ClassVar[type[MemoryReceiver]] = MemoryReceiver

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        parts = split_url(url)
        if parts.scheme != "memory" or not parts.path.strip("/") or parts.query or parts.fragment:
            raise InvalidURL(f"memory: {redact(url)!r} names no queue; it is written 'memory://store/queue'")
        for name in options:
            if name not in OPTIONS:
                raise unknown("option", f"memory.{name}", [f"memory.{each}" for each in OPTIONS])
        self.host = parts.hostname or ""
        self.queue = self.destination_name = unquote(parts.path.strip("/"))
        self.deliveries = int(_number(options, "deliveries"))
        self.latency = _number(options, "latency") / 1000
        self.is_refused = options.get("password") == WRONG
        self.ttl = _number(options, "ttl") / 1000

    @property
    def dead_letter_queue(self) -> str:
        """Return the native dead letter queue of this queue; a dead letter queue returns itself."""
        return self.queue if self.queue.endswith(DEAD_LETTERS) else self.queue + DEAD_LETTERS

    def sender(self) -> Sender:
        if not self.capabilities.send:
            return super().sender()
        self.store()
        if self.is_refused:
            raise Fatal("memory: the password is wrong; correct memory.password", code=Code.NOT_AUTHENTICATED)
        if self.queue == NEVER_MADE:
            raise Fatal(f"memory: there is no queue {self.queue!r}; correct the URL", code=Code.NO_SUCH_DESTINATION)
        return self.SenderRole(self)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        if not self.capabilities.receive:
            return super().receiver(lease=lease)
        self.store()
        return self.ReceiverRole(self, lease.total_seconds())

    def admin(self) -> Admin:
        return self.AdminRole(self) if self.capabilities.provision else super().admin()

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        if not self.capabilities.browse:
            return super().dead_letters(direct=direct)
        return self.LettersRole(self, self.queue if direct else self.dead_letter_queue)

    def native_sink(self) -> str:
        if not self.capabilities.dead_letter:
            return super().native_sink()
        return self.sibling(self.dead_letter_queue)

    def sibling(self, name: str) -> str:
        return f"memory://{self.host}/{quote(name, safe=COPY)}"

    def subscription(self, name: str) -> str:
        if not self.capabilities.subscriptions:
            return super().subscription(name)
        if COPY in self.queue + name or not name.isprintable() or not 0 < len(name) <= NAME:
            raise ConfigurationError(f"memory: {name!r} is not a name of a subscription to {self.queue!r}")
        return self.sibling(self.queue + COPY + name)

    def close(self) -> None:
        """Nothing is held."""

    def store(self) -> Store:
        """Return the store. Raises Fatal, Retriable."""
        found = Store.by_name.get(self.host)
        if found is None:
            raise Fatal(f"memory: there is no store {self.host!r}; correct the URL", code=Code.CONNECTION_LOST)
        if found.down:
            raise Retriable(f"memory: the store {self.host!r} is down; nothing was stored", code=Code.CONNECTION_LOST)
        return found

    def fault(self, message: Message) -> Permanent | None:
        """Return why a message cannot be stored; None if it can."""
        has, limits = self.capabilities, self.capabilities.limits
        headers = sum(len(name.encode()) + len(value or b"") for name, value in message.headers)
        longest = max((len(value or b"") for _, value in message.headers), default=0)
        size = len(message.value or b"") + len(message.key or b"") + headers
        id_bytes = limits.id_bytes if has.ids else None
        faults = (
            (Code.INVALID_MESSAGE, "null values are not taken", message.value is None and not has.null_value),
            (Code.INVALID_MESSAGE, "keys are not taken", message.key is not None and not has.keys),
            (Code.INVALID_MESSAGE, "headers are not taken", bool(message.headers) and not has.headers),
            (Code.INVALID_MESSAGE, "it names a destination", message.destination is not None and not has.destinations),
            (Code.NO_SUCH_DESTINATION, "there is no such queue", message.destination in {"", NEVER_MADE}),
            (Code.TOO_LARGE, "it is too large", _over(size, limits.message_bytes)),
            (Code.TOO_LARGE, "its headers are too large", _over(headers, limits.headers_bytes)),
            (Code.TOO_LARGE, "a header is too large", _over(longest, limits.header_value_bytes)),
            (Code.TOO_LARGE, "it has too many headers", _over(len(message.headers), limits.header_count)),
            (Code.TOO_LARGE, "its id is too long", _over(len((message.id or "").encode()), id_bytes)),
            (Code.TOO_LARGE, "its key is too long", _over(len(message.key or b""), limits.key_bytes)),
        )
        found = next(((code, why) for code, why, true in faults if true), None)
        return None if found is None else Permanent(f"memory: this row cannot be stored: {found[1]}", code=found[0])


def _number(options: Mapping[str, str], name: str) -> float:
    text = options.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MOST:  # also rejects NaN
        raise ConfigurationError(f"memory.{name}: a number from 0 to {MOST:g}, not {text!r}")
    return value


def _over(size: int, limit: int | None) -> bool:
    return limit is not None and size > limit


def plugin(broker: type[MemoryBroker] = MemoryBroker) -> BrokerPlugin:
    """Return a plugin for the scheme `memory` whose brokers are of this class."""
    return BrokerPlugin(
        name="memory",
        schemes=("memory",),
        version="0",
        capabilities=broker.capabilities,
        connect=broker,
        options=OPTIONS,
        open_options=broker.open_options,
    )


class MemoryPlace(Place):
    """A place with its own store, read without the broker."""

    options: Mapping[str, str] = {}
    lease = 0.2

    def __init__(self, number: int, patience: float) -> None:
        self.patience = patience
        self.name = f"store{number}"
        self.url = f"memory://{self.name}/orders"
        self.store = Store.by_name[self.name] = Store()

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        queue = self.store.queues.get(destination or "orders")
        return list(queue.messages.values()) if queue else []

    def snapshot(self) -> object:
        return {
            name: (dict(queue.messages), queue.altered, {at: asdict(state) for at, state in queue.states.items()})
            for name, queue in self.store.queues.items()
        }

    def unreachable(self) -> str:
        return "memory://nowhere/orders"

    def impossible_destination(self) -> str | None:
        return NEVER_MADE

    def wrong_login(self) -> Mapping[str, str] | None:
        return {"memory.password": WRONG}

    @contextmanager
    def outage(self, kind: Outage = "refused") -> Iterator[None]:
        store = self.store
        store.down, store.silent = kind == "refused", store.silent or kind == "silent"
        store.cuts += kind != "silent"
        try:
            yield
        finally:
            store.down, store.silent = False, store.silent and kind != "silent"

    def vanish(self) -> None:
        del self.store.queues["orders"]

    def alter(self) -> None:
        self.store.queue("orders").altered = True

    def expiring(self, seconds: float) -> Mapping[str, str]:
        return {"memory.ttl": str(seconds * 1000)}

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        return {"memory.deliveries": str(deliveries)}

    def damage(self) -> None:
        self.store.queue("orders").state(self.store.add("orders", Message(value=b"damaged"))).damage = "it is damaged"

    def put_foreign(self, *, dead: bool) -> Foreign:
        headers = (("count", b"7"), ("trace", b"00-1"))
        message = Message(
            value=b"theirs",
            id="theirs-1",
            headers=headers,
            native={"types": {"count": int}, "priority": 7, "tables": {"deep": [1, True, 1.5, None]}},
        )
        assert self.store.put("orders" + DEAD_LETTERS if dead else "orders", message)
        (written,) = self.foreign(dead=dead)
        return written

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        queue = self.store.queue("orders" + DEAD_LETTERS if dead else "orders")
        return [
            Foreign(dict(message.headers), {"value": message.value, "id": message.id, "native": message.native})
            for message in queue.messages.values()
        ]

    def close(self) -> None:
        del Store.by_name[self.name]


class MemoryRuntime(Runtime):
    """Stores in this process."""

    kind = "embedded"
    description = "a store in this process's memory"
    cannot_show = ("durability", "other processes")
    across_processes = False
    _numbers = count(1)

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience

    def place(self) -> MemoryPlace:
        return MemoryPlace(next(self._numbers), self._patience)


class MemoryHarness(Unregistered):
    """Carries the broker in memory, or a variant of it. `patience` is that of its places, in seconds."""

    name = "memory"

    def __init__(self, broker: type[MemoryBroker] = MemoryBroker, *, patience: float = PATIENCE) -> None:
        super().__init__(plugin(broker))
        self._patience = patience

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": lambda _: MemoryRuntime(self._patience)}
