"""redelivery: write from PySpark to any message broker, and account for every row.

Most programs need only these names. Spark's side is `redelivery.spark`; plugins use `redelivery.contract`.
"""

from __future__ import annotations

from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Sink
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.deadletters.selection import Selection
from redelivery.errors import RedeliveryError, TerminalNack
from redelivery.receiving.subscription import Subscription
from redelivery.registry import connect
from redelivery.sending.report import DeliveryReport, SubscriptionReport

__all__ = [
    "DeadLetterQueue",
    "DeliveryReport",
    "DeliverySpec",
    "DeliveryStatus",
    "Message",
    "RedeliveryError",
    "RedriveReport",
    "RedriveSettings",
    "Selection",
    "Sink",
    "Subscription",
    "SubscriptionReport",
    "TerminalNack",
    "connect",
    "dead_letters",
]
