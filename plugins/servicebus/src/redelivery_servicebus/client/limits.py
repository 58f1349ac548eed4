"""Limits of the messages that Service Bus takes, and the column of its own that a row may have."""

from __future__ import annotations

from typing import Final

#: The column that says when a row's message becomes visible, in milliseconds since the epoch.
SCHEDULED: Final = "scheduled_enqueue_time_ms"
#: The longest id, in characters.
ID_LENGTH: Final = 128
#: Headers of a message, and one header's value: they fit into one property even as base64.
HEADERS_BYTES: Final = 23_000
HEADER_VALUE_BYTES: Final = 22_500
#: Kept free of a message's size for what AMQP and our JSON add.
RESERVE: Final = 16 << 10
#: Messages that Service Bus accepts in one batch.
BATCH: Final = 4_500
