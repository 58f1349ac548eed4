"""Tables of client settings: known names, the client that each belongs to, replacements for those of Java's client.

A name that is missing here still works: librdkafka checks names itself, and these tables only improve the error texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: The largest message that the client sends by default (`message.max.bytes`), with its own overhead.
MESSAGE_BYTES: Final = 1_000_000
#: Bytes that the client adds for the frame of one record.
_FRAME: Final = 36
#: The plugin's own options, which are not the client's.
ORIGINALS: Final = "originals"
OWN: Final = frozenset({ORIGINALS})
#: The most used client options with their help. All others of librdkafka work too.
OPTIONS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "host:port, comma separated, where the URL names none",
    "security.protocol": "plaintext, ssl, sasl_plaintext or sasl_ssl (plaintext)",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER",
    "sasl.username": "for PLAIN and SCRAM",
    "sasl.password": "for PLAIN and SCRAM; a reference: env:NAME or file:PATH",
    "sasl.oauthbearer.method": "oidc: fetch tokens by client credentials",
    "sasl.oauthbearer.token.endpoint.url": "URL from which tokens are fetched",
    "sasl.oauthbearer.client.id": "the client's id at the token endpoint",
    "sasl.oauthbearer.client.secret": "the client's secret there; a reference: env:NAME or file:PATH",
    "sasl.oauthbearer.scope": "the scope to request",
    "sasl.kerberos.keytab": "path of the keytab, for GSSAPI",
    "sasl.kerberos.principal": "of the client, for GSSAPI",
    "sasl.kerberos.service.name": "of the brokers, for GSSAPI (kafka)",
    "ssl.ca.location": "path of the CA's certificates (PEM)",
    "ssl.certificate.location": "path of the client's certificate (PEM)",
    "ssl.key.location": "path of the client's key (PEM)",
    "ssl.key.password": "of the client's key; a reference",
    "ssl.keystore.location": "path of a PKCS#12 key store, in place of certificate and key",
    "ssl.keystore.password": "of the key store; a reference",
    "ssl.endpoint.identification.algorithm": "https: check the broker's name; none (https)",
    "client.id": "name of the client in the brokers' logs and quotas",
    "acks": "all; 1 only with enable.idempotence=false; 0 is refused (all)",
    "enable.idempotence": "false: the client's own retries may duplicate and reorder rows (true)",
    "linger.ms": "how long rows wait for others to fill a request (5)",
    "batch.size": "bytes of one request's rows for a partition (1000000)",
    "compression.type": "none, gzip, snappy, lz4 or zstd (none)",
    "message.max.bytes": "the largest message; the topic's max.message.bytes must allow it (1000000)",
    "message.timeout.ms": "how long the client tries to deliver, at most the spec's timeout",
    "partitioner": "how keys map to partitions: murmur2_random, as Java's client; consistent_random, murmur2, ...",
    "max.poll.interval.ms": "how long a consumer may work between two polls",
    ORIGINALS: "topics, or patterns as in a shell, whose records a letter may point to (the URL's own topic)",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Settings of the producer: other clients log a warning about them.
PRODUCER_ONLY: Final = _names(
    "acks batch.num.messages batch.size compression.codec compression.level compression.type delivery.timeout.ms "
    "enable.gapless.guarantee enable.idempotence linger.ms message.send.max.retries message.timeout.ms partitioner "
    "queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages "
    "queue.buffering.max.ms queuing.strategy request.required.acks request.timeout.ms retries "
    "sticky.partitioning.linger.ms transaction.timeout.ms"
)
#: Settings of the consumer: other clients log a warning about them.
CONSUMER_ONLY: Final = _names(
    "auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs coordinator.query.interval.ms "
    "enable.auto.commit fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes "
    "fetch.queue.backoff.ms fetch.wait.max.ms group.instance.id group.protocol group.protocol.type "
    "group.remote.assignor heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms "
    "partition.assignment.strategy queued.max.messages.kbytes queued.min.messages session.timeout.ms"
)
#: Settings that a share consumer refuses: most of them are the group's, at the broker.
NOT_FOR_SHARES: Final = _names(
    "allow.auto.create.topics auto.commit.enable auto.offset.reset consume.callback.max.messages enable.auto.commit "
    "enable.auto.offset.store enable.partition.eof fetch.error.backoff.ms fetch.queue.backoff.ms group.instance.id "
    "group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms isolation.level "
    "message.copy.max.bytes partition.assignment.strategy queued.max.messages.kbytes queued.min.messages "
    "session.timeout.ms socket.max.fails topic.blacklist"
)
#: Settings with which the client refuses to be idempotent, or other names of those that the producer of letters sets.
NOT_FOR_LETTERS: Final = _names(
    "max.in.flight max.in.flight.requests.per.connection message.send.max.retries queue.buffering.max.ms "
    "queuing.strategy request.required.acks retries"
)
_EITHER: Final = _names(
    "allow.auto.create.topics broker.address.family broker.address.ttl client.dns.lookup client.rack "
    "connections.max.idle.ms debug enable.ssl.certificate.verification https.ca.location max.in.flight "
    "max.in.flight.requests.per.connection metadata.max.age.ms receive.message.max.bytes reconnect.backoff.max.ms "
    "reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms sasl.mechanisms sasl.oauthbearer.config "
    "sasl.oauthbearer.extensions sasl.oauthbearer.grant.type socket.connection.setup.timeout.ms "
    "socket.keepalive.enable socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes "
    "socket.timeout.ms ssl.ca.certificate.stores ssl.ca.pem ssl.certificate.pem ssl.cipher.suites ssl.crl.location "
    "ssl.curves.list ssl.key.pem ssl.sigalgs.list topic.metadata.propagation.max.ms "
    "topic.metadata.refresh.interval.ms"
)
KNOWN: Final = frozenset(OPTIONS) | PRODUCER_ONLY | CONSUMER_ONLY | _EITHER

_ACCOUNT: Final = "the account of rows depends on it"
_FUNCTION: Final = "an option cannot be a function"
#: Settings that the plugin itself sets, and why users may not.
RESERVED: Final[Mapping[str, str]] = {
    "delivery.report.only.error": _ACCOUNT,
    "enable.auto.commit": "it would commit records that are not settled; settling commits",
    "auto.commit.enable": "it would commit records that are not settled; settling commits",
    "enable.auto.offset.store": "it would commit records that are not settled; settling commits",
    "enable.partition.eof": _ACCOUNT,
    "auto.offset.reset": "a new group begins with the first record; to begin elsewhere, commit its offsets first "
    "(kafka-consumer-groups.sh --reset-offsets)",
    "session.timeout.ms": "the lease is the session: Subscription(..., lease=timedelta(seconds=60))",
    "allow.auto.create.topics": "a topic that brokers create may delete letters early; 'redelivery apply' creates it",
    "group.id": "the URL names the group: kafka://host/topic?group=name",
    "transactional.id": "rows are not sent in transactions",
    "on_delivery": _FUNCTION,
    "on_commit": _FUNCTION,
    "logger": _FUNCTION,
    "default.topic.config": "write its settings as separate options",
    "default_topic_conf": "write its settings as separate options",
    "partitioner_callback": _FUNCTION,
    "opaque": _FUNCTION,
    "interceptors": _FUNCTION,
    "log.queue": "the client's log goes to Python's logging",
    "enabled_events": _ACCOUNT,
    "internal.termination.signal": "signals belong to the process, not to one of its clients",
    "plugin.library.paths": "an option must not load code",
}

#: Their values that change nothing, which are accepted.
HARMLESS: Final[Mapping[str, frozenset[str]]] = {
    "enable.auto.commit": frozenset({"false"}),
    "auto.commit.enable": frozenset({"false"}),
    "auto.offset.reset": frozenset({"earliest", "smallest", "beginning"}),
    "allow.auto.create.topics": frozenset({"false"}),
}

_STORE: Final = "write kafka.ssl.ca.location, the path of the CA's certificates in PEM, in place of a trust store"
_LEAVE_OUT: Final = "leave it out: it has no equivalent here"
_OIDC: Final = "write kafka.sasl.oauthbearer.method=oidc with .client.id, .client.secret and .token.endpoint.url"
_SERIALIZER: Final = "leave it out: keys and values are bytes"
#: Settings in the jobs of Spark users, and what to write in their place.
JAVA_ONLY: Final[Mapping[str, str]] = {
    "sasl.jaas.config": "write kafka.sasl.username and kafka.sasl.password (kafka.sasl.kerberos.* for Kerberos)",
    "sasl.login.callback.handler.class": _OIDC,
    "sasl.client.callback.handler.class": _OIDC,
    "sasl.login.class": _OIDC,
    "ssl.truststore.location": _STORE,
    "ssl.truststore.password": _STORE,
    "ssl.truststore.type": _STORE,
    "ssl.truststore.certificates": "write kafka.ssl.ca.pem",
    "ssl.keystore.type": "write kafka.ssl.certificate.location and kafka.ssl.key.location (PEM), or leave it out: "
    "kafka.ssl.keystore.location is PKCS#12",
    "ssl.keystore.key": "write kafka.ssl.key.pem",
    "ssl.keystore.certificate.chain": "write kafka.ssl.certificate.pem",
    "ssl.enabled.protocols": _LEAVE_OUT,
    "ssl.protocol": _LEAVE_OUT,
    "ssl.provider": "write kafka.ssl.providers",
    "security.providers": _LEAVE_OUT,
    "buffer.memory": "write kafka.queue.buffering.max.kbytes (maxInFlightBytes bounds what is in flight anyway)",
    "max.block.ms": "leave it out: the delivery spec's timeout bounds a batch",
    "max.request.size": "write kafka.message.max.bytes",
    "partitioner.class": "write kafka.partitioner; by default keys go where Java's client places them",
    "partitioner.ignore.keys": "leave the key out, or name partitions in the column 'partition'",
    "partitioner.adaptive.partitioning.enable": _LEAVE_OUT,
    "interceptor.classes": _LEAVE_OUT,
    "metric.reporters": _LEAVE_OUT,
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "key.deserializer": _SERIALIZER,
    "value.deserializer": _SERIALIZER,
    "send.buffer.bytes": "write kafka.socket.send.buffer.bytes",
    "receive.buffer.bytes": "write kafka.socket.receive.buffer.bytes",
    "default.api.timeout.ms": "write kafka.socket.timeout.ms",
    "max.poll.records": "leave it out: the subscription says how many records it takes",
}


def largest(message_bytes: int) -> int:
    """Return the largest message (value, key and headers) that a client with this `message.max.bytes` sends."""
    return message_bytes - _FRAME
