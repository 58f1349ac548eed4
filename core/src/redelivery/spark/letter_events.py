"""Events in the values of letters as columns, many at a time: what `letter_rows.unpack` makes of each alone.

Events of one cause differ in their id and their data, so the rest is checked once.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redelivery.base.json import dumps, loads_strictly
from redelivery.errors import Permanent
from redelivery.formats import events
from redelivery.formats.structured import SharedAttributes
from redelivery.spark.cloudevents import default_way, is_json_type
from redelivery.spark.letter_rows import attribute_columns
from redelivery.spark.options import ENCODINGS


@dataclass(frozen=True, slots=True)
class _Known:
    """What events share that have the same attributes but for their id.

    Attributes:
        columns: their attributes as columns.
        type: the type of their data.
        is_json: it is JSON.
    """

    columns: Mapping[str, Any]
    type: str
    is_json: bool


class EventsInValues:
    """Unpacks events in JSON.

    Args:
        with_data: False: no data is asked for; it may be None.
    """

    def __init__(self, *, with_data: bool) -> None:
        self._with_data = with_data
        self._shared = SharedAttributes(_checked)

    def unpack(
        self, values: Sequence[bytes | None], rows: Sequence[int], attributes: dict[str, list[Any]]
    ) -> tuple[dict[int, bytes | None], list[int]]:
        """Put the attributes of events into columns, and return their data, by row.

        Args:
            values: of all messages.
            rows: those that declare their value to be an event.
            attributes: by the column's name, one value per message; filled here.

        Returns:
            The data, and the rows that must be looked at alone: unusual events, and what only says that it is one.
        """
        count, found, odd = len(values), dict[int, bytes | None](), list[int]()
        ids = attributes.setdefault("id", [None] * count)
        for row in rows:
            try:
                form = loads_strictly(values[row] or b"")
                event = self._shared.of(form)
                if event is None:
                    odd.append(row)
                    continue
                name, known, data, encoded = event
                found[row], way = self._data(known, data, encoded)
            except (ValueError, TypeError, AttributeError, RecursionError):  # anyone may have written it
                odd.append(row)
                continue
            ids[row] = name
            for column, value in known.columns.items():
                if column not in attributes:
                    attributes[column] = [None] * count
                attributes[column][row] = value
            if way is not None:
                ways = attributes.setdefault(ENCODINGS, [None] * count)
                ways[row] = {"data": way, **(ways[row] or {})}
        return found, odd

    def _data(self, known: _Known, data: Any, encoded: Any) -> tuple[bytes | None, str | None]:
        """Return data as bytes, and how it was written if a write would not do so by default. Raises ValueError."""
        if data is None:
            if encoded is None:
                return None, None
            value, way = base64.b64decode(encoded), "base64"
        elif isinstance(data, str) and not known.is_json:
            value, way = data.encode("utf-8", "surrogatepass"), "string"
        else:
            if known.is_json and not self._with_data:
                return None, None
            value, way = dumps(data).encode("utf-8", "surrogatepass"), "json"
        return value, None if way == ("json" if known.is_json else default_way(value, known.type)) else way


def _checked(form: Mapping[str, Any]) -> _Known | None:
    try:
        event = events.from_json({**form, "id": "any"})
    except Permanent:
        return None
    if event.get_type() == events.WRAPPED:
        return None
    kind = str(form.get("datacontenttype") or "")
    columns = attribute_columns(form, {})
    return _Known({name: each for name, each in columns.items() if name != "id"}, kind, is_json_type(kind))
