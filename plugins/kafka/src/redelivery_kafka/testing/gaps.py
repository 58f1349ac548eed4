"""What librdkafka's mock cluster lacks of Kafka, as a whole.

This file must not excuse anything of a real cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ABSENT: Final[Mapping[str, str]] = {
    "provision": "it has no controller, so nothing can be provisioned or its settings be read",
    "receive": "its coordinator waits for a session's length for members that have left, and lets commits time out",
}
