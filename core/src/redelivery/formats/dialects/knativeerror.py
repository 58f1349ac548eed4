"""The CloudEvents extensions that Knative's running code writes: destination, code, and base64 data of the answer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from redelivery.codes import Code, code_of
from redelivery.contract.context import ErrorContext
from redelivery.formats.cloudevents import clean
from redelivery.formats.dialects._fields import head, uri, whole

_DEST: Final = "knativeerrordest"
_CODE: Final = "knativeerrorcode"
_DATA: Final = "knativeerrordata"
#: The fields that each attribute may give.
GIVES: Final = {
    _DEST: frozenset({"destination"}),
    _CODE: frozenset({"code", "native_code"}),
    _DATA: frozenset({"reason"}),
}

#: Characters of base64, the most that Knative writes; so many bytes fill them exactly.
DATA_CHARACTERS: Final = 1024
DATA_BYTES: Final = DATA_CHARACTERS // 4 * 3


def write(context: ErrorContext) -> list[tuple[str, str | int]]:
    """Return the extension attributes for the known fields."""
    out: list[tuple[str, str | int]] = []
    native = context.native_code or ""
    number = whole(native)
    if number is not None and str(number) == native:
        out.append((_CODE, number))  # Knative's own is a status
    elif context.code or native:
        out.append((_CODE, clean(native if context.code in (None, Code.UNKNOWN) and native else context.code or "")))
    if context.reason:
        data = base64.b64encode(head(context.reason, DATA_BYTES).encode())
        out.append((_DATA, data.decode()[:DATA_CHARACTERS]))
    if context.destination:
        out.append((_DEST, uri(context.destination)))
    return out


def read(found: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of these attributes; data that was cut is read as far as it goes."""
    out: dict[str, Any] = {}
    if _DEST in found:
        out["destination"] = found[_DEST]
    if _CODE in found:
        code = code_of(found[_CODE])
        out |= {"native_code": found[_CODE]} if code is None else {"code": code}
    if _DATA in found:
        data = found[_DATA]
        try:
            out["reason"] = base64.b64decode(data[: len(data) // 4 * 4], validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            out["reason"] = data  # written as plain text
    return out
