"""JSON digit for digit: a number that a float cannot hold is read as a decimal, and written unchanged.

A number whose exponent is beyond a decimal's (18 digits) is read as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any


def loads(document: str | bytes) -> Any:
    """Return the value of JSON text: floats where exact, else decimals. Raises ValueError: it is not JSON."""
    return json.loads(document, parse_float=_number)


def loads_strictly(document: bytes) -> Any:
    """Return the value of JSON text as `loads`, in less time. Raises ValueError also for NaN and the infinities."""
    return _STRICT.decode(document.decode())


def loads_plainly(document: str) -> Any:
    """Return the value of JSON text without decimals: where a float is not exact, a number is its text.

    Raises ValueError also for NaN and the infinities.
    """
    return _PLAIN.decode(document)


def dumps(value: Any) -> str:
    """Return JSON text without blanks, decimals as numbers. Raises TypeError where a value has no such form."""
    try:
        return _ENCODE(value)
    except TypeError:
        return _written(value)


def is_exact(number: str) -> bool:
    """Whether a float is exactly the number that this text gives."""
    value = float(number)
    try:
        return math.isfinite(value) and Decimal(repr(value)) == Decimal(number)
    except InvalidOperation:
        return False


def _number(text: str) -> float | Decimal | str:
    if is_exact(text):
        return float(text)
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def _written(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _number_or_text(text: str) -> float | str:
    value = _number(text)
    if not isinstance(value, Decimal):
        return value
    number = float(value)
    return number if Decimal(str(number)) == value else str(value)


_STRICT = json.JSONDecoder(parse_float=_number, parse_constant=_refuse)
_PLAIN = json.JSONDecoder(parse_float=_number_or_text, parse_constant=_refuse)
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
