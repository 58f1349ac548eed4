"""redelivery: write from PySpark to any message broker, and account for every row.

What most programs need is here; Spark's side is `redelivery.spark`, and what a plugin needs `redelivery.broker`.
"""

from __future__ import annotations

from redelivery.deadletters import LetterBox, RedriveReport, dead_letters
from redelivery.errors import RedeliveryError, TerminalNack
from redelivery.message import Message
from redelivery.plugins import connect
from redelivery.report import DeliveryReport, SubscriptionReport
from redelivery.spec import DeliverySpec, DeliveryStatus, Sink
from redelivery.subscription import Subscription

__all__ = [
    "DeliveryReport",
    "DeliverySpec",
    "DeliveryStatus",
    "LetterBox",
    "Message",
    "RedeliveryError",
    "RedriveReport",
    "Sink",
    "Subscription",
    "SubscriptionReport",
    "TerminalNack",
    "connect",
    "dead_letters",
]
