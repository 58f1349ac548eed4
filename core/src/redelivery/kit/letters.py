"""Error contexts: of letters that we wrote, of letters that cannot be decoded, and of messages the broker gave up.

Core writes contexts into headers and reads them. A plugin does so only where it stores letters in its own form:
`attach` adds a context to a message, `read` finds it, `strip` removes it, `included` returns the record and the
settings that it holds where a spec asked for them. `read_all` and `strip_all` do so for a batch, in less time.
`MARKERS` are the names of the header that a redriven message keeps.
"""

from __future__ import annotations

from typing import Any

from redelivery.codes import Code
from redelivery.contract.context import INVALID, KINDS, ErrorContext, checked
from redelivery.formats.dialects import MARKERS, attach, included, read, read_all, strip, strip_all

__all__ = [
    "KINDS",
    "MARKERS",
    "attach",
    "checked",
    "given_up",
    "included",
    "read",
    "read_all",
    "strip",
    "strip_all",
    "undecodable",
]


def undecodable(broker: str, reason: str) -> ErrorContext:
    """Return the context of a letter that cannot be decoded, or not all of it.

    Args:
        broker: the plugin's name.
        reason: which part cannot be decoded, for people.
    """
    return ErrorContext(kind=INVALID, code=Code.UNDECODABLE, reason=reason, broker=broker)


def given_up(broker: str, code: Code, reason: str, **more: Any) -> ErrorContext:
    """Return the context of a letter that the broker itself moved to the dead letters.

    Args:
        broker: the plugin's name.
        code: EXPIRED, DELIVERY_LIMIT, TERMINATED or another.
        reason: what the broker says, for people.
        more: further fields that the broker reports.
    """
    kind = KINDS.get(code, code.lower().replace("_", "-"))
    return ErrorContext(kind=kind, code=code, reason=reason, broker=broker, **more)
