"""Creates librdkafka's client instances, and keeps each alive until it is released.

A child of a fork inherits the instances, but not their threads. One that is freed there waits for these threads
forever or ends the process (seen: librdkafka 2.16, SIGSEGV), so every instance is kept here: only its own process
releases it. One that was released, and waits in a reference cycle to be collected, is kept from the child's collector.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from redelivery.errors import ConfigurationError
from redelivery.kit.address import redact
from redelivery_kafka.address import Address
from redelivery_kafka.client.known_settings import CONSUMER_ONLY, NOT_FOR_SHARES, PRODUCER_ONLY
from redelivery_kafka.options import Settings

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

_Client = TypeVar("_Client", Producer, Consumer, "ShareConsumer", AdminClient)
OnError = Callable[[KafkaError], None]

log: Final = logging.getLogger("redelivery.kafka")


class _Demoted(logging.Filter):
    """Lowers librdkafka's own log to INFO, without the passwords of the URLs that it shows.

    In an outage it repeats itself many times per second. The call that an outage breaks raises an error of ours.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        if record.levelno > logging.INFO:
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True


_client_log: Final = logging.getLogger("redelivery.kafka.client")
_client_log.addFilter(_Demoted())

#: For every instance: it gives up a silent connection within these, which are below the contract's 30 s.
_TIMEOUTS: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": 20_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2_000,
}
#: Defaults of producers. The partitioner is Java's, so that its clients and ours place a key in the same partition.
_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 1_000_000,
    "topic.metadata.propagation.max.ms": 2_000,
}
#: Of every consumer: only settling commits, and what a transaction has aborted is not shown.
_CONSUMER: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
}
_MESSAGE_BYTES_MAX: Final = 1_000_000_000
#: The client counts some bytes per header in addition to name and value. The sender, which does not, refuses first.
_HEADERS_BYTES: Final = 4_096

_kept: Final[dict[int, object]] = {}
# The child never collects what it inherits. No other way keeps a client that is garbage already.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=gc.freeze)


def producer(
    settings: Settings,
    address: Address,
    *,
    timeout: float = 300.0,
    gapless: bool = False,
    on_error: OnError | None = None,
) -> Producer:
    """Create a producer that reports failed messages only, each within `timeout` seconds.

    A gapless one has one request in flight per broker and, if it is idempotent, stops at the first request that a
    broker refuses.

    Raises:
        ConfigurationError
    """
    bound = min(timeout, settings.message_timeout or timeout)
    conf = {
        **_PRODUCER,
        **_common(settings, address, CONSUMER_ONLY | {"message.timeout.ms", "delivery.timeout.ms"}),
        "message.timeout.ms": max(1, int(bound * 1000)),
        "message.max.bytes": min(settings.message_bytes + _HEADERS_BYTES, _MESSAGE_BYTES_MAX),
        "delivery.report.only.error": True,
        "error_cb": on_error or _log_error,
    }
    if gapless:
        conf.pop("max.in.flight", None)
        conf["max.in.flight.requests.per.connection"] = 1
        if settings.idempotent:
            conf["enable.gapless.guarantee"] = True
    if "linger.ms" not in conf and "queue.buffering.max.ms" not in conf:
        conf["linger.ms"] = min(5, conf["message.timeout.ms"])
    return _create(Producer, conf)


def consumer(settings: Settings, address: Address, **overrides: Any) -> Consumer:
    """Create a consumer in the address's group; `overrides` are settings that its role needs.

    Raises:
        ConfigurationError
    """
    conf = {
        **_common(settings, address, PRODUCER_ONLY),
        **_CONSUMER,
        "group.id": address.group,
        "error_cb": _log_error,
        **overrides,
    }
    return _create(Consumer, conf)


def share_consumer(settings: Settings, address: Address, **overrides: Any) -> ShareConsumer:
    """Create a share consumer in the address's share group; `overrides` are settings that its role needs.

    Raises:
        ConfigurationError
    """
    from confluent_kafka import ShareConsumer  # noqa: PLC0415 - older versions of the client have none

    common = _common(settings, address, PRODUCER_ONLY | NOT_FOR_SHARES)
    conf = {
        **{name: value for name, value in common.items() if name not in NOT_FOR_SHARES},
        "fetch.wait.max.ms": _CONSUMER["fetch.wait.max.ms"],
        "group.id": address.group,
        "error_cb": _log_error,
        **overrides,
    }
    return _create(ShareConsumer, conf)


def admin(settings: Settings, address: Address, *, on_error: OnError | None = None) -> AdminClient:
    """Create an admin client.

    Raises:
        ConfigurationError
    """
    conf = {**_common(settings, address, PRODUCER_ONLY | CONSUMER_ONLY), "error_cb": on_error or _log_error}
    return _create(AdminClient, conf)


def release(client: Producer | Consumer | ShareConsumer | AdminClient) -> None:
    """Keep an instance no longer. Must not be called in a child of the process that created it."""
    _kept.pop(id(client), None)


def _common(settings: Settings, address: Address, without: frozenset[str]) -> dict[str, Any]:
    return {
        **_TIMEOUTS,
        **settings.without(without),
        "bootstrap.servers": address.bootstrap,
        # Otherwise a request for a topic may create it, with the brokers' defaults, which delete letters early.
        "allow.auto.create.topics": False,
    }


def _create(client: type[_Client], conf: Mapping[str, Any]) -> _Client:
    try:
        made = client(dict(conf), logger=_client_log)
    except KafkaException as error:
        raise ConfigurationError(f"kafka: {redact(str(error.args[0].str())).strip()}") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"kafka: cannot create the client: {redact(str(error))}") from error
    _kept[id(made)] = made
    return made


def _log_error(error: KafkaError) -> None:
    """Log a connection error: the client recovers from it, and the call that it breaks raises an error of ours."""
    log.info("%s", redact(f"{error.name()}: {error.str()}"))
