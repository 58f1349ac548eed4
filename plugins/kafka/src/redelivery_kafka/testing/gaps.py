"""What librdkafka's mock cluster lacks, and what it does otherwise than Kafka: statements that are run and must fail.

This file must not excuse anything of a real cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ABSENT: Final[Mapping[str, str]] = {
    "provision": "it has no controller, so nothing can be provisioned or its settings be read"
}

GAPS: Final[Mapping[str, str]] = {
    "a_receiver_that_closes_leaves_its_partitions_to_the_next[[]*": (
        "the mock coordinator gave a waiting member nothing within 10 s of the other one's leaving"
    ),
}
