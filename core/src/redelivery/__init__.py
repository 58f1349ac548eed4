"""redelivery: write from PySpark to any message broker, and account for every row.

What most programs need is here; Spark's side is `redelivery.spark`, and what a plugin needs `redelivery.broker`.
"""

from __future__ import annotations

from redelivery.deadletters import LetterBox, dead_letters
from redelivery.errors import RedeliveryError, TerminalNack
from redelivery.message import Message
from redelivery.plugins import connect
from redelivery.redriving import Pace, RedriveReport
from redelivery.report import DeliveryReport, SubscriptionReport
from redelivery.selection import Selection
from redelivery.spec import DeliverySpec, DeliveryStatus, Sink
from redelivery.subscription import Subscription

__all__ = [
    "DeliveryReport",
    "DeliverySpec",
    "DeliveryStatus",
    "LetterBox",
    "Message",
    "Pace",
    "RedeliveryError",
    "RedriveReport",
    "Selection",
    "Sink",
    "Subscription",
    "SubscriptionReport",
    "TerminalNack",
    "connect",
    "dead_letters",
]
