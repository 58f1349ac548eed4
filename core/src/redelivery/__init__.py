"""redelivery: write from PySpark to any message broker, and account for every row.

Most programs need only these names. Spark's side is `redelivery.spark`; plugins use `redelivery.contract`. Each name is
imported at its first use: a plugin, a worker and the command line pay only for what they use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redelivery.contract.message import Message
    from redelivery.contract.spec import DeliverySpec, DeliveryStatus, Sink
    from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
    from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
    from redelivery.deadletters.selection import Selection
    from redelivery.errors import RedeliveryError, TerminalNack
    from redelivery.policy.breaker import Breaker
    from redelivery.receiving.subscription import Subscription
    from redelivery.registry import connect
    from redelivery.sending.report import DeliveryReport, SubscriptionReport

__all__ = [
    "Breaker",
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

_HOMES: Final = {
    "Breaker": "policy.breaker",
    "DeadLetterQueue": "deadletters.queue",
    "DeliveryReport": "sending.report",
    "DeliverySpec": "contract.spec",
    "DeliveryStatus": "contract.spec",
    "Message": "contract.message",
    "RedeliveryError": "errors",
    "RedriveReport": "deadletters.redrive",
    "RedriveSettings": "deadletters.redrive",
    "Selection": "deadletters.selection",
    "Sink": "contract.spec",
    "Subscription": "receiving.subscription",
    "SubscriptionReport": "sending.report",
    "TerminalNack": "errors",
    "connect": "registry",
    "dead_letters": "deadletters.queue",
}


#: Packages that programs name: `redelivery.spark.deliver`.
_PACKAGES: Final = ("contract", "errors", "kit", "spark")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name == "__version__":
        found = import_module("importlib.metadata").version("redelivery-core")
    elif name in _HOMES:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, "__version__", *__all__, *_PACKAGES})
