"""The sending engine: batches in, an account out.

A row travels: `Delivery.write` (the caller's thread) -> `Engine` (one thread a task) -> a `Lane` (the destination,
then each sink) -> `Sender.send` / `collect` -> settled, waiting for a retry, or handed to the next lane. What follows
from an error is decided in `redelivery.policy`, never here.
"""

from redelivery.delivery.delivery import Delivery
from redelivery.delivery.engine import Engine, Flow
from redelivery.delivery.lane import Bounds, Lane
from redelivery.delivery.opening import Borrow, connected
from redelivery.delivery.preflight import preflight
from redelivery.delivery.record import Origin
from redelivery.delivery.tolerance import settle_job

__all__ = ["Borrow", "Bounds", "Delivery", "Engine", "Flow", "Lane", "Origin", "connected", "preflight", "settle_job"]
