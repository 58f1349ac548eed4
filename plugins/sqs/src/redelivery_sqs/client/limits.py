"""What SQS takes at most, and the name of the column with a message group: known without the client library."""

from __future__ import annotations

from typing import Final

#: Entries of one request at most.
MAX_ENTRIES: Final = 10
#: The column with the group of a row without a key: it brings a FIFO queue's letter back to its group.
GROUP: Final = "message_group"
#: Bytes of a message that are reserved for names, types and JSON's own characters.
RESERVE: Final = 4096


def binary_limit(max_bytes: int) -> int:
    """The largest value that fits as base64 where SQS takes `max_bytes`: base64 makes four bytes of three."""
    return max(0, max_bytes - RESERVE) // 4 * 3
