"""The Spark side: the data source `redelivery`, `deliver()` and helpers.

Importing this package does not import pyspark: the first use of one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redelivery.spark.api import dead_letters, deliver, events, redrive, register, rows, undelivered
    from redelivery.spark.listener import DeliveryListener

__all__ = ["DeliveryListener", "dead_letters", "deliver", "events", "redrive", "register", "rows", "undelivered"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"redelivery.spark.{'listener' if name == 'DeliveryListener' else 'api'}"), name)
