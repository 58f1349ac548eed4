"""Capabilities that librdkafka's mock cluster lacks, and share groups at brokers that have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ABSENT: Final[Mapping[str, str]] = {
    "provision": "it has no controller, so topics cannot be provisioned nor their settings read",
    "receive": "its coordinator waits a whole session for members that have left, and lets commits time out",
}

#: For the harness of share groups. Sending and letters are the same there.
NO_SHARE_GROUPS: Final[Mapping[str, str]] = {
    "provision": "its brokers have no dead letter topics for groups, which came with Kafka 4.4",
    "receive": "its brokers have no share groups, or no dead letter topics for them, which came with Kafka 4.4",
}
