"""The client options."""

from __future__ import annotations

import math
from dataclasses import dataclass

from redelivery.kit.options import Options, flag, integer, seconds


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="sqlite"):
    """The parsed client options."""

    busy_timeout: float = seconds(
        5, "seconds to wait for another process's write lock before the batch counts as failed"
    )
    create: bool = flag("make the file and its queues where they are missing", default=True)
    max_deliveries: int = integer(
        0,
        "deliveries after which the broker moves a message to the dead letters where provisioning set no limit; "
        "0: none",
        least=0,
        most=1_000_000_000,
    )
    message_ttl: float = seconds(
        0, "seconds after which a sent message that nobody has handled goes to the dead letters; 0: never"
    )
    deduplication_window: float = seconds(86_400, "seconds for which the id of a removed message stays remembered")
    reserve: int = integer(
        16 << 20,
        "bytes kept, at most, beside the file, so that a queue on a full disk can still be drained",
        least=0,
        most=1_000_000_000,
    )

    @property
    def window_ms(self) -> int:
        """Return the deduplication window in milliseconds."""
        return round(self.deduplication_window * 1000)

    @property
    def ttl_ms(self) -> int:
        """Return how long a message lives, in milliseconds; 0: forever."""
        return math.ceil(round(self.message_ttl * 1000, 3))  # as a float, 1.1 gives 1100.0000000000002
