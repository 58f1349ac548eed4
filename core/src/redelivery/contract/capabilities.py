"""What a broker can do, and its limits, as data: one part of the plugin contract, whose other part is `broker.py`.

The one source for the engine, the conformance suite and the README's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal


class Support(StrEnum):
    """How well a broker does a thing."""

    NATIVE = "native"  #: the broker itself does it, in one step: nothing is between two places if the plugin dies
    EMULATED = "emulated"  #: by other means: several steps (send, confirm, then remove), or its own encoding
    LOWER_BOUND = "lower-bound"  #: a count that may be too low, never too high
    NONE = "none"  #: it does not: asking raises `Unsupported`

    def __bool__(self) -> bool:
        return self is not Support.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a broker takes at most. None: no limit of its own. Sizes are bytes.

    Attributes:
        message_bytes: value, key and headers together.
        batch_messages, batch_bytes: one request of the client. A `Batch` may be larger: its sender slices it.
        headers_bytes: all header names and values of a message together.
        header_value_bytes: one header's value.
        header_count: headers a message.
        id_bytes: a message id in UTF-8.
        key_bytes: a key.
        delay_max: the longest delay of a retry.
        delay_resolution: a delayed message may come this much early; a coarse clock says so here.
    """

    message_bytes: int | None = None
    batch_messages: int | None = None
    batch_bytes: int | None = None
    headers_bytes: int | None = None
    header_value_bytes: int | None = None
    header_count: int | None = None
    id_bytes: int | None = None
    key_bytes: int | None = None
    delay_max: timedelta | None = None
    delay_resolution: timedelta = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a broker can do: the one source for the engine, the conformance suite and the README's table.

    Roles: `send`, `receive`, `provision`, `browse` say whether a role is there at all; the suite tests that a role
    said to be `none` raises `Unsupported`.

    Attributes:
        send: the sender role.
        receive: the receiver role.
        provision: the admin role.
        browse: the dead letters role; `remove` and `purge` are its parts. Lower bound: letters may lie behind others
            (the first ones of a group), and are shown when those are removed.
        redrive: the broker itself moves all letters of the native place back to work, as they are (`move_back`).
        dead_letter: this destination has a native dead letter place (`deadLetterSink: native`).
        keys, headers, ids, timestamps, null_value: travel with the message and come back unchanged.
        destinations: a row may name a target other than the URL's.
        deduplicate: a message that is recognised as one already taken within `deduplication_window` is taken but not
            doubled. It is recognised by its `identity` where it has one, else by its id, and by nothing else.
        deduplication_window: how long it is recognised; None: for good, or not known. Retries that may go on for longer
            are warned of.
        reports_duplicates: `Settled.duplicates` counts the rows that were recognised; False: the broker does not tell.
        order: messages of one key are received in the order in which they were sent; one that comes again after a
            retry comes behind those given meanwhile. Native: so it stays when one fails, because the sender keeps
            `Batch.ordered`. Emulated: what is sent is stored in its order, but a failure is known only when later rows
            of its key are stored already (the broker confirms later), so the engine sends one row a key at a time.
        competing_consumers: several receivers of one destination share its messages one by one. None: a receiver
            owns whole partitions, and another one is given those when it closes.
        subscriptions: a named subscription gets its own copy of each message (`Broker.subscription`), at destinations
            that are for several: an exchange, a topic.
        settle_any_order: received messages may be settled in any order.
        attempts: the attempt number of a received message.
        first_delivery: `Received.first_ms` is told, so that a retry timeout can be kept across deliveries.
        delay: `Retry(delay)` keeps a message away for the delay.
        terminate: `Terminate(letter)` moves a received message to the dead letter place.
        reason: the native dead letter place keeps its own reason, besides our headers.
        extend: a lease can be prolonged.
        leases_as_asked: a lease lasts as long as was asked for; False: as long as the destination itself says, however
            it was asked for or prolonged, and `Received.expires` tells.
        ref_kinds: kinds of a `ref` that name a place here, each with its API group, as Kubernetes writes it
            ("Queue.carrier.example"), or without where no apiVersion is needed ("Queue"). See `Broker.resolve`.
        sink_partitions, sink_replication_factor: provisioning makes a dead letter place with as many partitions, or
            replicas, as the spec's field of this name says, and tells where one that exists has others.
        expiry: messages can expire, and then go to the dead letter place.
        delivery_limit: a native limit of deliveries catches what core cannot see.
        settles: "batch": `collect` tells of each batch as it is settled. "quiescence": the client reports errors
            only, so batches count as settled when its queue has emptied; the engine drains at its bound.
        networked: reachable from several hosts; False: a file of one host (refused on a cluster).
        depth_counts_leased: `Admin.depth` counts what receivers have under lease; False: the broker does not tell it.
        context_dialect: how an error context is written into headers here (a name in `redelivery.formats.dialects`).
        cloudevents_prefix: header prefix of CloudEvents attributes in binary mode; None: structured mode only.
        columns: the broker's own columns and their Python types, beyond those of `Message`.
        routes: those of `columns` that say where a row goes, as `destination` does: its letter goes without them.
        destination_column: the broker's own word for a row's `destination` ("topic"): that column means the same.
        limits: see `Limits`.
    """

    send: Support = Support.NONE
    receive: Support = Support.NONE
    provision: Support = Support.NONE
    browse: Support = Support.NONE
    remove: Support = Support.NONE
    purge: Support = Support.NONE
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
    settles: Literal["batch", "quiescence"] = "batch"
    networked: bool = True
    depth_counts_leased: bool = True
    context_dialect: str = "json"
    cloudevents_prefix: str | None = "ce-"
    columns: Mapping[str, type] = field(default_factory=dict)
    routes: frozenset[str] = frozenset()
    destination_column: str | None = None
    limits: Limits = field(default_factory=Limits)


#: The capabilities that say how well a thing is done.
FEATURES: Final = tuple(each.name for each in fields(Capabilities) if isinstance(each.default, Support))
