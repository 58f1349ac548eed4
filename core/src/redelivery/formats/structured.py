"""Events in the values of many messages. Those of one cause differ in id and data, so the rest is checked once."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, Generic, TypeVar

from redelivery.contract.message import Batch
from redelivery.errors import Permanent
from redelivery.formats.cloudevents import from_json

T = TypeVar("T")

#: Attributes of so many events, of so many characters each, are remembered: anyone may write others.
_REMEMBERED: Final = 1_000
_LARGEST: Final = 4_096
#: Types of attributes that are equal only where they are the same.
_SIMPLE: Final = frozenset({str, int, bool, NoneType})


class SharedAttributes(Generic[T]):
    """Remembers what is made of the attributes of events, apart from their id.

    Args:
        make: makes it of a JSON form without id and data; None where that is not a valid event.
    """

    def __init__(self, make: Callable[[Mapping[str, Any]], T | None]) -> None:
        self._make = make
        self._known: dict[Hashable, T | None] = {}

    def of(self, form: dict[str, Any]) -> tuple[str, T, Any, Any] | None:
        """Return an event's id, what is made of its other attributes, and its data, as text or as base64.

        Args:
            form: the JSON form; id and data are taken out of it.

        Returns:
            None where it is not an event, or is an unusual one.

        Raises:
            TypeError, AttributeError: it is not a JSON object, or an attribute is not a simple value.
        """
        data, encoded, name = form.pop("data", None), form.pop("data_base64", None), form.pop("id", None)
        if type(name) is not str or not name:
            return None
        kinds = tuple(map(type, form.values()))
        alike = (*form.items(), kinds)
        if alike in self._known:
            made = self._known[alike]
        else:
            made = self._make(form) if _SIMPLE.issuperset(kinds) else None
            if len(self._known) < _REMEMBERED and len(str(form)) <= _LARGEST:
                self._known[alike] = made
        return None if made is None else (name, made, data, encoded)


def members(batch: Batch, rows: Sequence[int], alone: Callable[[int], Mapping[str, Any] | None]) -> list[Any]:
    """Return the names of the members of each event; worked out once for a column of values.

    Args:
        batch: messages.
        rows: those that declare their value to be an event.
        alone: returns the JSON form of one of these events; None where its value is not an event.

    Returns:
        For each row a tuple, which rows share; None where it is not an event.
    """
    known: dict[int, tuple[str, ...] | None] = batch.value.once("members", dict)
    shared: SharedAttributes[bool] = SharedAttributes(_is_valid)
    names: dict[tuple[str, ...], tuple[str, ...]] = {}
    values = batch.value.values
    for row in rows:
        if row not in known:
            form = _usual(values[row], shared) or alone(row)
            found = None if form is None else tuple(form)
            known[row] = found if found is None else names.setdefault(found, found)
    return [known[row] for row in rows]


def _usual(value: bytes | None, shared: SharedAttributes[bool]) -> tuple[str, ...] | None:
    """Return the names of the members of a usual event; None where it is an unusual one, or none."""
    try:
        form = _DECODE((value or b"").decode())
        names = tuple(form)
        found = shared.of(form)
        if found is None:
            return None
        _, _, data, encoded = found
        if data is None and encoded is not None:
            base64.b64decode(encoded)
    except (ValueError, TypeError, AttributeError, RecursionError):  # anyone may have written it
        return None
    return names


def _is_valid(form: Mapping[str, Any]) -> bool | None:
    try:
        from_json({**form, "id": "any"})
    except Permanent:
        return None
    return True


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


_DECODE: Final = json.JSONDecoder(parse_constant=_refuse).decode
