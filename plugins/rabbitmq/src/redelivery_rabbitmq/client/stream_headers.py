"""Which headers a stream does not keep: the broker stores all messages of streams as AMQP 1.0.

As seen of 3.10.8, 4.0.5 and 4.3.6: tables and arrays are dropped silently, from 4.0 on only those whose names do not
begin with `x-`; and a decimal, or a fraction that is not a number, makes the broker close the publisher's connection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

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


def _is_refused(value: Any) -> bool:
    """Whether the broker cannot store a value, or part of it; nobody knows of what is nested too deep to be read."""
    if isinstance(value, dict):
        return any(map(_is_refused, value.values()))
    if isinstance(value, list):
        return any(map(_is_refused, value))
    return isinstance(value, Decimal | EncodedField) or (isinstance(value, float) and not math.isfinite(value))
