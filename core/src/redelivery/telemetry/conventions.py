"""The names of spans, metrics and attributes, as constants.

Those of OpenTelemetry are its semantic conventions for messaging (status: development, version 1.38), those of Connect
KIP-298's. A name without a convention begins with `redelivery.`.
"""

from __future__ import annotations

from typing import Final

# --- attributes of OpenTelemetry ---
SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
SERVER_ADDRESS: Final = "server.address"
ERROR_TYPE: Final = "error.type"
#: An error without its own type.
OTHER_ERROR: Final = "_OTHER"

# --- attributes of ours ---
OUTCOME: Final = "redelivery.outcome"
ATTEMPT: Final = "redelivery.attempt"
HOP: Final = "redelivery.hop"
CODE: Final = "redelivery.code"
RUN: Final = "redelivery.run"
SUBSCRIPTION: Final = "redelivery.subscription"
#: Of a link: why it exists ("message": the context of a message, "failure": where it failed, "batch": its send).
LINK: Final = "redelivery.link"

# --- metrics ---
SENT: Final = "messaging.client.sent.messages"
CONSUMED: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
#: The buckets that the conventions advise for durations, in seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

#: KIP-298's counters, with what they count; `last-error-timestamp` is a gauge.
KIP_298: Final = {
    "total-record-failures": "Failed tries of records",
    "total-record-errors": "Records that failed for good",
    "total-records-skipped": "Records that were tolerated: dead-lettered or skipped",
    "total-retries": "Retries of records",
    "total-errors-logged": "Records that were logged, or written to a dead letter queue",
    "deadletterqueue-produce-requests": "Records sent to a dead letter queue",
    "deadletterqueue-produce-failures": "Records that a dead letter queue has not taken",
}
LAST_ERROR: Final = "last-error-timestamp"
#: Of the breaker of a subscription: whether receiving is paused now (a gauge, 1 or 0), and how often that began.
OUTAGE: Final = "redelivery.subscription.outage"
OUTAGES: Final = "redelivery.subscription.outages"
#: Messages that a handler gave up at once (PIP-372); those that ran out of retries are not counted.
TERMS: Final = "terms"
