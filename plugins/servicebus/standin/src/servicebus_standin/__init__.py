"""A small server that speaks Service Bus's protocols, for tests. It is not Azure: its queues are in memory."""

from servicebus_standin.standin import Seen, StandIn

__all__ = ["Seen", "StandIn"]
