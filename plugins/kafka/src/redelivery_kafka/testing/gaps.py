"""Capabilities that librdkafka's mock cluster lacks. A real cluster has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ABSENT: Final[Mapping[str, str]] = {
    "provision": "it has no controller, so topics cannot be provisioned nor their settings read",
    "receive": "its coordinator waits a whole session for members that have left, and lets commits time out",
}
