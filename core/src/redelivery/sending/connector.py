"""Opens a destination and its sinks as send queues. Reports before any row is sent what can never work."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeAlias
from urllib.parse import urljoin, urlsplit

from redelivery import policy, registry
from redelivery.base.clock import Clock
from redelivery.base.urls import has_scheme, redact
from redelivery.contract.broker import Broker
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, Retriable
from redelivery.formats import signing
from redelivery.sending import support
from redelivery.sending.send_queue import Bounds, SendQueue

log = logging.getLogger("redelivery.delivery")

#: The longest wait for the next try of opening without a look at whether it is to stop, in seconds.
_NAP: Final = 0.25
#: The answers of a lookup that another try does not change; not every system knows the second.
_NO_SUCH_NAME: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
#: How to obtain a connection: a context manager, so that a caller can keep connections for later.
ConnectionFactory: TypeAlias = Callable[[str, Mapping[str, str]], AbstractContextManager[Broker]]


class Resources(ExitStack):
    """Releases everything at the end. An error while closing never hides the error that led to it."""

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
    """The default way to obtain a connection: open it now, close it at the end."""
    with registry.connect(url, options) as broker:
        yield broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """Opens one destination and its sinks.

    Attributes:
        url, spec, options, bounds, clock, connection_factory: as `Delivery.open` takes them.
        resources: closes everything at the end.
    """

    url: str
    spec: DeliverySpec
    options: Mapping[str, str]
    bounds: Bounds
    clock: Clock
    connection_factory: ConnectionFactory
    resources: Resources

    def connect(self) -> Broker:
        """Return the destination's broker. Raises ConfigurationError: it cannot do what the spec requires."""
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
        """Check that the key of letters exists, before any row is sent. Raises ConfigurationError."""
        if self.spec.letter_key is not None:
            signing.key(self.spec.letter_key)

    def destination(self, broker: Broker, stop: Callable[[], bool] = lambda: False) -> SendQueue:
        """Return the destination's send queue, open. Opening is tried again as sending is, until `stop()` is true.

        Raises:
            BrokerError: of the last try; nothing was sent.
            Unsupported, ContractViolation
        """
        send_queue = self._send_queue(self.url, broker, self.spec)
        began = self.clock.monotonic()
        for attempts in itertools.count(1):
            try:
                send_queue.open()
                break
            except BrokerError as error:
                now = self.clock.monotonic()
                next_try = policy.decide(
                    self.spec,
                    error,
                    attempts=attempts,
                    first_attempt=began,
                    isolated=True,
                    now=now,
                    random=random.random,
                )
                if not isinstance(next_try, policy.TryAgain):
                    raise
                log.warning("%s could not be opened, and is tried again: %s", redact(self.url), redact(str(error)))
                while not stop() and (left := next_try.at - self.clock.monotonic()) > 0:
                    self.clock.sleep(min(left, _NAP))
                if stop():
                    raise
        return send_queue

    def sink(self, sink: Sink, broker: Broker) -> SendQueue:
        """Return the send queue of a sink of the destination. Raises ConfigurationError, BrokerError, Unsupported."""
        return self._opened(self._sink_queue(sink, broker))

    def letters(self, url: str, there: Broker, rename_type: str | None) -> SendQueue:
        """Return the send queue to a connected sink, with its own type of events. Raises BrokerError, Unsupported."""
        return self._opened(self._send_queue(url, there, policy.for_sink(self.spec), rename_type))

    @staticmethod
    def _opened(send_queue: SendQueue) -> SendQueue:
        # A sink that is down may be up again when it is needed. One that can never work is reported now.
        with contextlib.suppress(Retriable, Ambiguous):
            send_queue.open()
        return send_queue

    def check(self, sink: Sink | None, deadline: float, *, shared_mount: bool) -> None:
        """Find out whether rows could be sent to the destination, or letters to one of its sinks. Sends nothing.

        Args:
            sink: one of the destination's sinks; None: the destination itself.
            deadline: monotonic seconds.
            shared_mount: a place of one host lies on a mount, which this machine may not have.

        Raises:
            NotCheckable: this machine cannot find out.
            ConfigurationError, BrokerError, Unsupported
        """
        broker = self.resources.enter_context(self.connection_factory(self.url, self.options))
        send_queue = self._send_queue(self.url, broker, self.spec) if sink is None else self._sink_queue(sink, broker)
        if shared_mount and not send_queue.capabilities.networked:
            raise NotCheckable("it lies on a mount of the workers (sharedMount)")
        try:
            send_queue.check(deadline)
        except Retriable as error:
            hosts = send_queue.hosts
            if not hosts or not all(map(_is_unknown, hosts)):
                raise
            text = f"{error}; this machine knows no host {' or '.join(map(repr, hosts))} (DNS): correct the name"
            raise error.reclassified(Fatal, text) from error

    def _sink_queue(self, sink: Sink, broker: Broker) -> SendQueue:
        """Return the send queue of a sink, not open. Raises ConfigurationError, BrokerError, Unsupported."""
        url, options = sink_url(sink, broker), sink_options(sink, broker, self.options)
        there = self.resources.enter_context(self.connection_factory(url, options))
        refuse_destination(url, there, self.url, broker)
        return self._send_queue(true_url(sink, url, there), there, policy.for_sink(self.spec), sink.type)

    def _send_queue(self, url: str, broker: Broker, spec: DeliverySpec, rename_type: str | None = None) -> SendQueue:
        self._check_key()
        send_queue = SendQueue(redact(url), broker, spec, self.bounds, self.clock, rename_type=rename_type)
        self.resources.callback(send_queue.close)
        return send_queue


def _is_unknown(host: str) -> bool:
    """Return whether no such name exists. A name server that does not answer now leaves it open."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno in _NO_SUCH_NAME
    except (OSError, UnicodeError):
        return False
    return False


def sink_url(sink: Sink, broker: Broker) -> str:
    """Return the URL of a destination's sink.

    A ref, or a uri without a scheme, names another place at the destination's broker.

    Raises:
        ConfigurationError: the native place has not been provisioned, the broker does not know the kind of a ref, or a
            uri relative to a ref names no other place there.
        BrokerError, Unsupported
    """
    if sink.ref is not None:
        base = broker.resolve(sink.ref)
        return _relative(sink.uri, base) if sink.uri else base
    if sink.uri == NATIVE:
        return broker.native_sink()
    return sink.uri if has_scheme(sink.uri) else broker.sibling(sink.uri)


def _relative(uri: str, base: str) -> str:
    """Return the URL that a relative uri means, by RFC 3986, section 5.

    Raises:
        ConfigurationError: it means another host, which would get the destination's credentials; the base itself; or a
            place without the base's query parameters, such as a queue or region.
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
    """Return a sink's URL as it will be opened: its own client options may name another server than `url` does."""
    return (there.canonical_url or url) if sink.options else url


def refuse_destination(url: str, there: Broker, destination: str, broker: Broker) -> None:
    """Refuse a sink that is the destination itself. URLs alone do not show it where options name the server.

    Raises:
        ConfigurationError
    """
    if there.is_at(broker) or (there.canonical_url is None and url == destination):
        raise ConfigurationError(f"deadLetterSink: {redact(url)} is the destination itself; name another place")


def sink_options(sink: Sink, broker: Broker, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return a sink's client options. A sink at the destination's broker shares the destination's options."""
    if sink.ref is not None or sink.uri == NATIVE or not has_scheme(sink.uri):
        return {**options, **prefixed(sink.options, broker.name)}
    own = prefixed(sink.options, registry.installed().by_url(sink.uri).name) if sink.options else {}
    return {**registry.common_options(options), **own}


def prefixed(options: Mapping[str, str], plugin: str) -> dict[str, str]:
    """Return a sink's client options under its plugin's prefix, which Connect's `producer.*` properties lack.

    Raises:
        ConfigurationError: an option is given with the prefix and without it.
    """
    prefix = f"{plugin}."
    found: dict[str, str] = {}
    for name, value in options.items():
        bare = name[len(prefix) :] if name.lower().startswith(prefix) else name
        if prefix + bare in found:
            raise ConfigurationError(f"the option {bare!r} of a sink is given twice; keep one of them")
        found[prefix + bare] = value
    return found
