"""Which headers a stream does not keep: the broker stores all messages of streams as AMQP 1.0.

As seen of 3.10.8, 4.0.5 and 4.3.6: tables and arrays are dropped silently, from 4.0 on only those whose names do not
begin with `x-`; and a decimal, or a fraction that is not a number, makes the broker close the publisher's connection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from redelivery.codes import Code
from redelivery.errors import Permanent
from redelivery.kit.errors import quoted
from redelivery_rabbitmq.client.field_tables import EncodedField

#: From this version on a table or array stays, if its header's name begins like this.
_KEPT_SINCE: Final = (4, 0)
_KEPT_PREFIX: Final = "x-"


def unkept_header(headers: Mapping[Any, Any] | None, version: tuple[int, ...]) -> str | None:
    """Return the name of a header that no stream of a broker of this version keeps; None if it keeps all."""
    for name, value in (headers or {}).items():
        is_kept = version >= _KEPT_SINCE and isinstance(name, str) and name.startswith(_KEPT_PREFIX)
        if (isinstance(value, dict | list) and not is_kept) or _is_refused(value):
            return str(name)
    return None


def refused_header(headers: Mapping[Any, Any]) -> str | None:
    """Return the name of a header at which a broker closes the connection, if a stream gets it; None if none is."""
    return next((str(name) for name, value in headers.items() if _is_refused(value)), None)


def unkept_error(what: str, name: str) -> Permanent:
    """Return the error of a row or letter whose header a stream does not keep."""
    text = f"a stream does not keep its header {quoted(name)}, a table, array, decimal or not a number"
    verb = "stored" if what == "letter" else "sent"
    return Permanent(f"rabbitmq: this {what} cannot be {verb}: {text}", code=Code.INVALID_MESSAGE)


def _is_refused(value: Any) -> bool:
    """Whether the broker cannot store a value, or part of it. A value nested too deep to be read counts as refused."""
    if isinstance(value, dict):
        return any(map(_is_refused, value.values()))
    if isinstance(value, list):
        return any(map(_is_refused, value))
    return isinstance(value, Decimal | EncodedField) or (isinstance(value, float) and not math.isfinite(value))
