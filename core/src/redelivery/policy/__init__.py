"""What follows from an error, and when: pure functions, with the time and randomness as arguments."""

from redelivery.policy.breaker import Breaker, Circuit
from redelivery.policy.decisions import (
    DEFAULT_TIMEOUT,
    GRACE,
    OPENING,
    SINK_RETRIES,
    SINK_RETRY_TIMEOUT,
    Abort,
    GiveUp,
    Isolate,
    TryAgain,
    asked_wait,
    attempt_timeout,
    budget_seconds,
    decide,
    for_sink,
    is_last,
    retries_that_do_not_fit,
    wait_of,
    worst_case_seconds,
)
from redelivery.policy.receive_outage import ReceiveOutage

__all__ = [
    "DEFAULT_TIMEOUT",
    "GRACE",
    "OPENING",
    "SINK_RETRIES",
    "SINK_RETRY_TIMEOUT",
    "Abort",
    "Breaker",
    "Circuit",
    "GiveUp",
    "Isolate",
    "ReceiveOutage",
    "TryAgain",
    "asked_wait",
    "attempt_timeout",
    "budget_seconds",
    "decide",
    "for_sink",
    "is_last",
    "retries_that_do_not_fit",
    "wait_of",
    "worst_case_seconds",
]
