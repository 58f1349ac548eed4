"""The sending engine: batches in, an account out.

A row travels: `Delivery.write` (the caller's thread) -> `Engine` (one thread per task) -> a `SendQueue` (of the
destination, then of each sink) -> `Sender.send` / `collect`. Then it is settled, waits for a retry, or goes to the next
queue. `redelivery.policy` decides what follows from an error.
"""

from redelivery.sending.connector import ConnectionFactory, connected
from redelivery.sending.delivery import Delivery
from redelivery.sending.engine import Engine, Flow, Rejected
from redelivery.sending.group import Origin
from redelivery.sending.preflight import preflight
from redelivery.sending.report import settle_job
from redelivery.sending.send_queue import Bounds, SendQueue

__all__ = [
    "Bounds",
    "ConnectionFactory",
    "Delivery",
    "Engine",
    "Flow",
    "Origin",
    "Rejected",
    "SendQueue",
    "connected",
    "preflight",
    "settle_job",
]
