"""Opening a destination and its sinks as send queues, so that what can never work is said before any row is sent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias
from urllib.parse import urljoin, urlsplit

from redelivery import policy, registry
from redelivery.base.clock import Clock
from redelivery.base.urls import has_scheme, redact
from redelivery.contract.broker import Broker
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.errors import Ambiguous, ConfigurationError, Retriable
from redelivery.formats import signing
from redelivery.sending import support
from redelivery.sending.send_queue import Bounds, SendQueue

log = logging.getLogger("redelivery.delivery")

#: How to obtain a connection: a context manager, so that a caller can keep connections for later.
ConnectionFactory: TypeAlias = Callable[[str, Mapping[str, str]], AbstractContextManager[Broker]]


class Resources(ExitStack):
    """What is given back at the end. Closing never hides the error that it closes for: that one is raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return super().__exit__(kind, error, trace)
        except Exception as closing:
            if error is None:
                raise
            log.warning("closing after the failure failed too: %s", redact(str(closing)))
            return None


class NotCheckable(Exception):
    """A place was not asked, and why."""


@contextlib.contextmanager
def connected(url: str, options: Mapping[str, str]) -> Iterator[Broker]:
    """The plain way to have a connection: made now, closed at the end."""
    with registry.connect(url, options) as broker:
        yield broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """What it takes to open one destination and its sinks.

    Attributes:
        url, spec, options, bounds, clock, connection_factory: as `Delivery.open` takes them.
        resources: gives everything back.
    """

    url: str
    spec: DeliverySpec
    options: Mapping[str, str]
    bounds: Bounds
    clock: Clock
    connection_factory: ConnectionFactory
    resources: Resources

    def connect(self) -> Broker:
        """The destination's broker. Raises ConfigurationError: it cannot do what the spec asks."""
        warning = policy.retries_that_do_not_fit(self.spec)
        if warning:
            log.warning("%s", warning)
        self._check_key()
        broker = self.resources.enter_context(self.connection_factory(self.url, self.options))
        support.check(self.spec, broker.capabilities, broker.name)
        for sentence in (*support.without_effect(self.spec), *support.left_to_provisioning(self.spec)):
            log.warning("%s", sentence)
        return broker

    def _check_key(self) -> None:
        """That the key of letters is missing is said before any row is sent. Raises ConfigurationError."""
        if self.spec.letter_key is not None:
            signing.key(self.spec.letter_key)

    def destination(self, broker: Broker) -> SendQueue:
        """The destination's send queue, open. Raises BrokerError, Unsupported."""
        send_queue = self._send_queue(self.url, broker, self.spec)
        send_queue.open()
        return send_queue

    def sink(self, sink: Sink, broker: Broker) -> SendQueue:
        """The send queue of one of the destination's sinks. Raises ConfigurationError, BrokerError, Unsupported."""
        return self._opened(self._sink_queue(sink, broker))

    def letters(self, url: str, there: Broker, rename_type: str | None) -> SendQueue:
        """The send queue to a sink that is connected, with its own type of events. Raises BrokerError, Unsupported."""
        return self._opened(self._send_queue(url, there, policy.for_sink(self.spec), rename_type))

    @staticmethod
    def _opened(send_queue: SendQueue) -> SendQueue:
        # A sink that is down may be up again when it is needed; one that can never work is said now.
        with contextlib.suppress(Retriable, Ambiguous):
            send_queue.open()
        return send_queue

    def check(self, sink: Sink | None, deadline: float, *, shared_mount: bool) -> None:
        """Find out whether rows could be sent to the destination, or letters to one of its sinks. Sends nothing.

        Args:
            sink: one of the destination's; None: the destination itself.
            deadline: monotonic seconds.
            shared_mount: a place of one host lies on a mount, which this machine need not have.

        Raises:
            NotCheckable: it cannot be found out on this machine.
            ConfigurationError, BrokerError, Unsupported
        """
        broker = self.resources.enter_context(self.connection_factory(self.url, self.options))
        send_queue = self._send_queue(self.url, broker, self.spec) if sink is None else self._sink_queue(sink, broker)
        if shared_mount and not send_queue.capabilities.networked:
            raise NotCheckable("it lies on a mount of the workers (sharedMount)")
        send_queue.check(deadline)

    def _sink_queue(self, sink: Sink, broker: Broker) -> SendQueue:
        """The send queue of one of the sinks, not open. Raises ConfigurationError, BrokerError, Unsupported."""
        url, options = sink_url(sink, broker), sink_options(sink, broker, self.options)
        there = self.resources.enter_context(self.connection_factory(url, options))
        refuse_destination(url, there, self.url, broker)
        return self._send_queue(true_url(sink, url, there), there, policy.for_sink(self.spec), sink.type)

    def _send_queue(self, url: str, broker: Broker, spec: DeliverySpec, rename_type: str | None = None) -> SendQueue:
        self._check_key()
        send_queue = SendQueue(redact(url), broker, spec, self.bounds, self.clock, rename_type=rename_type)
        self.resources.callback(send_queue.close)
        return send_queue


def sink_url(sink: Sink, broker: Broker) -> str:
    """URL of a destination's sink: a ref, and a uri without a scheme, name another place at the destination's broker.

    Raises:
        ConfigurationError: the native place has not been provisioned, a ref is of a kind that is not known there, or a
            uri relative to a ref means no other place there.
        BrokerError, Unsupported
    """
    if sink.ref is not None:
        base = broker.resolve(sink.ref)
        return _relative(sink.uri, base) if sink.uri else base
    if sink.uri == NATIVE:
        return broker.native_sink()
    return sink.uri if has_scheme(sink.uri) else broker.sibling(sink.uri)


def _relative(uri: str, base: str) -> str:
    """The URL that a relative uri means, by RFC 3986, section 5.

    Raises:
        ConfigurationError: it means another host, which would get the destination's credentials; the base itself; or a
            place without what the base says in its query, as of its queue or region.
    """
    scheme, _, rest = base.partition(":")
    # Python resolves by the rules of http alone, and writes an authority, if only an empty one, before any path.
    rooted = rest.startswith("/")
    try:
        joined = urljoin(f"http:{rest}" if rooted else f"http:///{rest}", uri)
        there, found = urlsplit(f"http:{rest}"), urlsplit(joined)
    except ValueError:
        text = f"{redact(uri)!r}, relative to {redact(base)}, does not parse"
        raise ConfigurationError(f"deadLetterSink: {text}; give a URL") from None  # the text may hold a password
    url = f"{scheme}:{joined.removeprefix('http:' if rooted else 'http:///')}"
    why = None
    if has_scheme(uri) or found.netloc != there.netloc:
        why = "names another host, which would be given the credentials of this one"
    elif found.fragment:
        why = "names no other place, because a part after '#' does not count"
    elif there.query and not found.query:
        why = f"would lose its query, {redact(there.query)!r}"
    elif url == base:
        why = "is the ref itself"
    if why is not None:
        raise ConfigurationError(f"deadLetterSink: {redact(uri)!r}, relative to {redact(base)}, {why}; give a URL")
    return url


def true_url(sink: Sink, url: str, there: Broker) -> str:
    """A sink's URL as it is opened: its own client options may say another server than `url` does."""
    return (there.canonical_url or url) if sink.options else url


def refuse_destination(url: str, there: Broker, destination: str, broker: Broker) -> None:
    """Refuse a sink that is the destination itself. The URLs alone do not say it where options name the server.

    Raises:
        ConfigurationError
    """
    if there.is_at(broker) or (there.canonical_url is None and url == destination):
        raise ConfigurationError(f"deadLetterSink: {redact(url)} is the destination itself; name another place")


def sink_options(sink: Sink, broker: Broker, options: Mapping[str, str]) -> Mapping[str, str]:
    """A sink's client options; one at the destination's broker shares those of the destination."""
    if sink.ref is not None or sink.uri == NATIVE or not has_scheme(sink.uri):
        return {**options, **prefixed(sink.options, broker.name)}
    own = prefixed(sink.options, registry.installed().by_url(sink.uri).name) if sink.options else {}
    return {**registry.common_options(options), **own}


def prefixed(options: Mapping[str, str], plugin: str) -> dict[str, str]:
    """A sink's client options under its plugin's prefix: Connect's `producer.*` properties have none.

    Raises:
        ConfigurationError: one is given with the prefix and without it.
    """
    prefix = f"{plugin}."
    found: dict[str, str] = {}
    for name, value in options.items():
        bare = name[len(prefix) :] if name.lower().startswith(prefix) else name
        if prefix + bare in found:
            raise ConfigurationError(f"the option {bare!r} of a sink is given twice; keep one of them")
        found[prefix + bare] = value
    return found
