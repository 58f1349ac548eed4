"""Broker capabilities and limits as data: one part of the plugin contract; `broker.py` is the other.

The engine, the conformance suite and the table in docs/brokers.md all read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

#: The header dialects that redelivery writes (`redelivery.formats.dialects`).
DIALECTS: Final = ("connect", "deadletter", "knativeerror", "json")


class Support(StrEnum):
    """How well a broker supports a feature."""

    NATIVE = "native"  #: the broker itself does it, in one step: no message is between two places if the plugin dies
    EMULATED = "emulated"  #: by other means: several steps (send, confirm, then remove), or its own encoding
    LOWER_BOUND = "lower-bound"  #: a count that may be too low, never too high
    NONE = "none"  #: not supported: asking raises `Unsupported`

    def __bool__(self) -> bool:
        return self is not Support.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest sizes and numbers that a broker takes. None: unlimited. Sizes are bytes.

    Attributes:
        message_bytes: value, key and headers together.
        batch_messages, batch_bytes: one request of the client. A `Batch` may be larger: its sender slices it.
        headers_bytes: all header names and values of a message together.
        header_value_bytes: one header's value.
        header_count: headers per message.
        repeated_headers: whether several headers of a message may have one name.
        id_bytes: a message id in UTF-8.
        key_bytes: a key.
        delay_max: the longest delay of a retry.
        delay_resolution: a delayed message may come this much early; brokers with a coarse clock set it.
    """

    message_bytes: int | None = None
    batch_messages: int | None = None
    batch_bytes: int | None = None
    headers_bytes: int | None = None
    header_value_bytes: int | None = None
    header_count: int | None = None
    repeated_headers: bool = True
    id_bytes: int | None = None
    key_bytes: int | None = None
    delay_max: timedelta | None = None
    delay_resolution: timedelta = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of a broker: the one source for the engine, the conformance suite and docs/brokers.md.

    Roles: `send`, `receive`, `provision`, `browse` say whether a role exists at all; the suite tests that a role
    declared `none` raises `Unsupported`.

    Attributes:
        send: the sender role.
        receive: the receiver role.
        provision: the admin role.
        browse: the dead letters role, with `remove` and `purge`. Lower bound: some letters may be hidden behind others
            (the first ones of a group), and appear when those are removed.
        splits: several readers may read the letters side by side, each its own range, and read it again
            (`DeadLetters.splits`). None: one reader at a time.
        cursors: letters have rising positions and are read again from a point, as a stream (`DeadLetters.cursor`).
        redrive: the broker itself moves all letters of the native place back to the source, unchanged (`move_back`).
        dead_letter: this destination has a native dead letter place (`deadLetterSink: native`).
        keys, headers, ids, timestamps, null_value: travel with the message and come back unchanged.
        destinations: a row may name a target other than the URL's.
        deduplicate: the broker accepts a message that it recognises as one of the last `deduplication_window`, and does
            not store it again. It recognises a message by its `identity`, else by its id, and by nothing else.
        deduplication_window: how long the broker recognises it; None: forever, or not known. Core warns of retries that
            may go on for longer.
        reports_duplicates: `Settled.duplicates` counts the rows that were recognised; False: the broker does not report
            them.
        order: messages of one key are received in the order in which they were sent; a retried message comes behind
            those delivered since. Native: a failure does not change the order, because the sender keeps
            `Batch.ordered`. Emulated: the broker stores messages in the order sent, but confirms later: a failure
            becomes known only after later rows of its key are stored. So the engine sends one row per key at a time.
        competing_consumers: several receivers of one destination share its messages one by one. Emulated: a receiver
            takes more than it was asked for, and keeps these until it is asked again or closes, or their leases end.
            None: a receiver owns whole partitions, and another receiver gets them when it closes.
        subscriptions: a named subscription gets its own copy of each message (`Broker.subscription`), at destinations
            with several readers: an exchange, a topic.
        settle_any_order: received messages may be settled in any order.
        attempts: the attempt number of a received message.
        first_delivery: the broker reports `Received.first_ms`, so that a retry timeout spans deliveries.
        delay: `Retry(delay)` keeps a message away for the delay.
        terminate: `Terminate(letter)` moves a received message to the dead letter queue.
        reason: the native dead letter queue stores its own reason, apart from our headers.
        extend: a lease can be prolonged.
        leases_as_asked: a lease lasts as long as requested; False: its length is set at the destination, whatever was
            requested, also when it is prolonged, and `Received.expires` reports it.
        ref_kinds: kinds of a `ref` that name a place here, each with its API group, as Kubernetes writes it
            ("Queue.carrier.example"), or without a group where no apiVersion is needed ("Queue"). See `Broker.resolve`.
        sink_partitions, sink_replication_factor: provisioning creates a dead letter queue with as many partitions, or
            replicas, as the spec's field of this name says, and reports where an existing one has another number.
        expiry: messages can expire, and then go to the dead letter queue.
        delivery_limit: a native limit of deliveries catches messages whose handlers never return to core. Lower bound:
            it may catch them earlier, as deliveries count that `receive` never returned.
        settles: "batch": `collect` reports each batch when it is settled. "quiescence": the client reports only errors,
            so batches count as settled when the client's queue is empty; the engine drains it at its bound.
        networked: reachable from several hosts; False: a file of one host (refused on a cluster).
        depth: `Admin.depth` counts the messages that wait.
        depth_counts_leased: it counts leased messages too; False: the broker does not report them.
        context_dialect: how an error context is written into headers here (one of `DIALECTS`).
        cloudevents_prefix: header prefix of CloudEvents attributes in binary mode; None: structured mode only.
        columns: the broker's own columns and their Python types, beyond those of `Message`.
        routes: those of `columns` that say where a row goes, as `destination` does. Its letter is sent without them.
        messaging_system: the broker in traces and metrics, as OpenTelemetry names it (`messaging.system`); None: by the
            plugin's name.
        destination_column: the broker's own name for a row's `destination` ("topic"): a column of this name means it.
        limits: see `Limits`.
    """

    send: Support = Support.NONE
    receive: Support = Support.NONE
    provision: Support = Support.NONE
    browse: Support = Support.NONE
    remove: Support = Support.NONE
    purge: Support = Support.NONE
    splits: Support = Support.NONE
    cursors: Support = Support.NONE
    redrive: Support = Support.NONE
    dead_letter: Support = Support.NONE
    keys: Support = Support.NONE
    headers: Support = Support.NONE
    ids: Support = Support.NONE
    timestamps: Support = Support.NONE
    null_value: Support = Support.NONE
    destinations: Support = Support.NONE
    deduplicate: Support = Support.NONE
    deduplication_window: timedelta | None = None
    reports_duplicates: bool = False
    order: Support = Support.NONE
    competing_consumers: Support = Support.NONE
    subscriptions: Support = Support.NONE
    settle_any_order: Support = Support.NONE
    attempts: Support = Support.NONE
    first_delivery: Support = Support.NONE
    delay: Support = Support.NONE
    terminate: Support = Support.NONE
    reason: Support = Support.NONE
    extend: Support = Support.NONE
    leases_as_asked: bool = True
    ref_kinds: tuple[str, ...] = ()
    sink_partitions: Support = Support.NONE
    sink_replication_factor: Support = Support.NONE
    expiry: Support = Support.NONE
    delivery_limit: Support = Support.NONE
    depth: Support = Support.NATIVE
    settles: Literal["batch", "quiescence"] = "batch"
    networked: bool = True
    depth_counts_leased: bool = True
    context_dialect: str = "json"
    cloudevents_prefix: str | None = "ce-"
    columns: Mapping[str, type] = field(default_factory=dict)
    routes: frozenset[str] = frozenset()
    destination_column: str | None = None
    messaging_system: str | None = None
    limits: Limits = field(default_factory=Limits)


#: The capabilities that are levels of support.
FEATURES: Final = tuple(each.name for each in fields(Capabilities) if isinstance(each.default, Support))
