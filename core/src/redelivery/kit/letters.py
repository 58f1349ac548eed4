"""Letters that no error context of ours explains: what cannot be decoded, and what the broker itself gave up."""

from __future__ import annotations

from typing import Any, Final

from redelivery.contract.codes import Code
from redelivery.contract.context import INVALID, ErrorContext

__all__ = ["KINDS", "given_up", "undecodable"]

#: Kinds of what a broker does by itself, with the code that says the same.
KINDS: Final = {Code.EXPIRED: "expired", Code.DELIVERY_LIMIT: "delivery-limit", Code.TERMINATED: "terminated"}


def undecodable(broker: str, reason: str) -> ErrorContext:
    """Return the context of a letter that cannot be decoded, or not all of it.

    Args:
        broker: the plugin's name.
        reason: what of it cannot, for people.
    """
    return ErrorContext(kind=INVALID, code=Code.UNDECODABLE, reason=reason, broker=broker)


def given_up(broker: str, code: Code, reason: str, **more: Any) -> ErrorContext:
    """Return the context of a letter that the broker itself moved to the dead letters.

    Args:
        broker: the plugin's name.
        code: EXPIRED, DELIVERY_LIMIT, TERMINATED or another.
        reason: what the broker says, for people.
        more: further fields, as far as the broker tells them.
    """
    return ErrorContext(kind=KINDS.get(code, code.lower()), code=code, reason=reason, broker=broker, **more)
