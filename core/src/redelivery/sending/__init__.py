"""The sending engine: batches in, an account out.

A row travels: `Delivery.write` (the caller's thread) -> `Engine` (one thread a task) -> a `Lane` (the destination,
then each sink) -> `Sender.send` / `collect` -> settled, waiting for a retry, or handed to the next lane. What follows
from an error is decided in `redelivery.policy`, never here.
"""

from redelivery.sending.delivery import Delivery
from redelivery.sending.engine import Engine, Flow
from redelivery.sending.lane import Bounds, Lane
from redelivery.sending.opening import Borrow, connected
from redelivery.sending.preflight import preflight
from redelivery.sending.record import Origin
from redelivery.sending.report import settle_job

__all__ = ["Borrow", "Bounds", "Delivery", "Engine", "Flow", "Lane", "Origin", "connected", "preflight", "settle_job"]
