"""Turns Arrow batches into batches of messages, a column at a time, and separates rows that cannot become a message.

Only suspicious rows are examined one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redelivery.base.json import loads, loads_plainly
from redelivery.codes import Code
from redelivery.contract.broker import Capabilities
from redelivery.contract.context import UNRESOLVED, Stage
from redelivery.contract.message import ROW_OVERHEAD, Batch, Column, Headers
from redelivery.errors import Permanent
from redelivery.formats import dialects, events, identity
from redelivery.sending import Rejected
from redelivery.spark import cloudevents, rowjson, vectors
from redelivery.spark.columns import Layout
from redelivery.spark.ids import Ids

#: Where and why a row cannot become a message.
_Verdict: TypeAlias = tuple[Stage, Permanent]
#: Roughly what headers of an event weigh beyond the attributes' own bytes.
_EVENT_OVERHEAD: Final = 100
#: The text that a marker holds where `dialects.is_unresolved`.
_UNRESOLVED: Final = '"unresolved"'


@dataclass(frozen=True, slots=True)
class RejectedRows(Rejected):
    """Rows that cannot become messages, and failed at the same stage.

    Attributes:
        positions: their numbers in the partition.
    """

    positions: Sequence[int]


class Encoder:
    """Turns the Arrow batches of one partition into batches of messages.

    Args:
        layout: what each column means.
        capabilities: of the opened destination.
        prefix: of derived ids: the write and the partition.
        source: names the write in events about rows that could not become a message.
        require_attributes: attributes that must not be null.
    """

    def __init__(
        self,
        layout: Layout,
        capabilities: Capabilities,
        *,
        prefix: str,
        source: str,
        require_attributes: tuple[str, ...] = (),
    ) -> None:
        self._layout = layout
        self._capabilities = capabilities
        self._prefix = prefix
        self._source = source
        self._require = require_attributes
        self._position = 0
        self._bad_names = vectors.CONTROL
        if layout.mode != "raw":
            own = capabilities.cloudevents_prefix if layout.mode == "binary" else None
            self._bad_names += "|" + cloudevents.taken_names(own)

    @property
    def position(self) -> int:
        """How many rows it has encoded."""
        return self._position

    def encode(self, rows: Any) -> tuple[Batch | None, list[RejectedRows]]:
        """Encode the partition's next rows.

        Args:
            rows: an Arrow record batch of at least one row, its columns in the order of the layout.

        Returns:
            The good rows (None where no row is good), and the bad ones.

        Raises:
            ConfigurationError: a row is a letter that stands for a row.
        """
        rows = pa.record_batch([vectors.plain(vectors.as_array(each)) for each in rows.columns], rows.schema.names)
        positions = pa.array(np.arange(self._position, self._position + len(rows)))
        self._position += len(rows)
        rows, positions, rejected = self._without_unencoded(rows, positions)
        rows, positions, unreadable = self._without_unreadable(rows, positions)
        rejected += unreadable
        if not len(rows):
            return None, rejected
        piece = _Piece(rows, positions, self._layout, self._prefix)
        bad = self._judged(piece)
        if not bad:
            return self._batch(piece), rejected
        rejected += self._reject(piece, bad)
        if len(bad) == len(rows):
            return None, rejected
        keep = np.ones(len(rows), dtype=bool)
        keep[list(bad)] = False
        mask = pa.array(keep)
        good = _Piece(rows.filter(mask), positions.filter(mask), self._layout, self._prefix)
        return self._batch(good), rejected

    def in_order(self, rows: Any) -> Iterator[tuple[Batch | None, list[RejectedRows]]]:
        """Encode as `encode` does, each bad row alone, between those before and those behind it."""
        first = self._position
        batch, rejected = self.encode(rows)
        positions = [position for each in rejected for position in each.positions]
        if not positions or (batch is None and positions == sorted(positions)):
            yield batch, rejected
            return
        self._position, begin = first, 0
        for bad in sorted(position - first for position in positions):
            if bad > begin:
                yield self.encode(rows.slice(begin, bad - begin))
            yield self.encode(rows.slice(bad, 1))
            begin = bad + 1
        if begin < len(rows):
            yield self.encode(rows.slice(begin))

    # --- unreadable rows ---

    def _without_unreadable(self, rows: Any, positions: Any) -> tuple[Any, Any, list[RejectedRows]]:
        """Remove rows whose text is not UTF-8; a plain value or key need not be text."""
        at = self._layout.message
        free = () if self._layout.mode == "structured" else (at.get("value"), at.get("key"))
        bad = np.zeros(len(rows), dtype=bool)
        stages = np.full(len(rows), "", dtype=object)
        for position, column in enumerate(rows.columns):
            if position not in free and (mask := vectors.unreadable(column)) is not None:
                stages[mask & ~bad] = self._stage_of(position)
                bad |= mask
        if not bad.any():
            return rows, positions, []
        mask, keep = pa.array(bad), pa.array(~bad)
        rejected = self._reject_text(self._layout, rows.filter(mask), positions.filter(mask), stages[bad].tolist())
        return rows.filter(keep), positions.filter(keep), rejected

    def _without_unencoded(self, rows: Any, positions: Any) -> tuple[Any, Any, list[RejectedRows]]:
        """Remove rows that Spark itself could not encode, and the column that held them."""
        layout, at = self._layout, self._layout.unencoded
        if at is None or layout.source is None:
            return rows, positions, []
        column = rows.columns[at]
        rows = rows.select(list(range(at)))
        if column.null_count == len(column):
            return rows, positions, []
        bad, names = column.is_valid(), [str(index) for index in range(len(layout.source.names))]
        whole = pa.record_batch(column.filter(bad).flatten(), names=names)
        stages: list[Stage] = ["VALUE_CONVERTER"] * len(whole)
        rejected = self._reject_text(layout.source, whole, positions.filter(bad), stages)
        keep = column.is_null()
        return rows.filter(keep), positions.filter(keep), rejected

    def _reject_text(self, layout: Layout, rows: Any, positions: Any, stages: list[Stage]) -> list[RejectedRows]:
        """Reject rows for text that is not UTF-8."""
        # Treated as bytes, they can be handled; their JSON then shows text as base64, as it does all bytes.
        columns = [column.cast(vectors.text_as_bytes(column.type)) for column in rows.columns]
        message = {name: at for name, at in layout.message.items() if name in ("value", "key")}
        layout = replace(layout, mode="raw", message=message, json_from=None)
        names = [str(index) for index in range(len(columns))]
        piece = _Piece(pa.record_batch(columns, names=names), positions, layout, self._prefix)
        error = Permanent(
            "a text column of the row is not UTF-8 (the row is shown with text as base64)",
            code=Code.INVALID_MESSAGE,
            native_code="not-utf8",
        )
        return self._reject(piece, {index: (stage, error) for index, stage in enumerate(stages)})

    def _stage_of(self, position: int) -> Stage:
        """Return the stage that a column belongs to."""
        layout = self._layout
        if position == layout.message.get("key"):
            return "KEY_CONVERTER"
        if position == layout.message.get("headers"):
            return "HEADER_CONVERTER"
        if position in {layout.message.get("value"), *layout.row}:
            return "VALUE_CONVERTER"
        if position in {layout.extensions, *layout.attributes.values()}:
            return self._stage_of_attributes
        return "TRANSFORMATION"

    @property
    def _stage_of_attributes(self) -> Stage:
        """Return the stage of an event's attributes: they are headers, or members of its value."""
        return "VALUE_CONVERTER" if self._layout.mode == "structured" else "HEADER_CONVERTER"

    # --- judging rows ---

    def _judged(self, piece: _Piece) -> dict[int, _Verdict]:
        """Return the rows that cannot become messages, in their order, each with its stage and its error."""
        bad_headers = np.zeros(len(piece), dtype=bool)
        if piece.headers is not None:
            bad_headers = vectors.bad_headers(piece.headers, self._bad_names)
            bad_headers |= vectors.rows_with_text(piece.headers, dialects.MARKERS, _UNRESOLVED)
        suspicious = self._suspicious(piece) | bad_headers
        judged = self._judged_at_once(piece, suspicious & ~bad_headers) if suspicious.any() else {}
        for index in np.flatnonzero(suspicious).tolist():
            verdict = judged.get(index) or self._judge(piece, index)
            if verdict is not None:
                judged[index] = verdict
        return dict(sorted(judged.items()))

    def _judged_at_once(self, piece: _Piece, rows: Any) -> dict[int, _Verdict]:
        """Return what `_judge` returns of many rows that are at fault for the same reason.

        Args:
            piece: the rows.
            rows: a mask of those to judge; their headers are good.
        """
        structured = self._layout.mode == "structured"
        is_event = np.full(len(piece), self._layout.mode != "raw")
        if self._layout.mode != "raw" and piece.event.mask is not None:
            is_event = piece.event.mask.to_numpy(zero_copy_only=False)
        rows = rows & ~piece.standing_for_rows()
        judged: dict[int, _Verdict] = {}
        if not self._capabilities.null_value and piece.value.null_count:
            bad = rows & piece.value.is_null().to_numpy(zero_copy_only=False)
            if structured:
                bad &= ~is_event
            judged |= dict.fromkeys(np.flatnonzero(bad).tolist(), ("VALUE_CONVERTER", _null_value()))
            rows &= ~bad
        rows &= is_event
        for name in self._require if self._layout.mode != "raw" else ():
            bad = rows & cloudevents.lacking(piece.event, name)
            found = np.flatnonzero(bad).tolist()
            if found:
                judged |= dict.fromkeys(found, (self._stage_of_attributes, cloudevents.missing(name)))
            rows &= ~bad
        return judged

    def _suspicious(self, piece: _Piece) -> Any:
        """Return a mask of the rows that are not certainly good, whatever their headers are."""
        bad = np.zeros(len(piece), dtype=bool)
        if piece.value.null_count and not self._capabilities.null_value and self._layout.mode != "structured":
            bad |= piece.value.is_null().to_numpy(zero_copy_only=False)
        if self._layout.mode != "raw":
            bad |= cloudevents.suspicious(piece.event, self._require, check_data=self._layout.mode == "structured")
        return bad | piece.standing_for_rows()

    def _judge(self, piece: _Piece, index: int) -> _Verdict | None:
        """Return where and why a suspicious row cannot become a message; None where it can."""
        if piece.stands_for_row(index):
            text = (
                f"a letter of type {events.UNDELIVERABLE!r} is not written: it stands for a row that could not become "
                "a message; get the rows by redelivery.spark.rows, mend and write those, and leave out such letters"
            )
            return "TRANSFORMATION", Permanent(text, code=Code.INVALID_MESSAGE, native_code="stands-for-a-row")
        if piece.is_unresolved(index):
            text = (
                f"a letter of kind {UNRESOLVED!r} is not written: it only points to its message, which could not be "
                "read; leave out such letters"
            )
            return "TRANSFORMATION", Permanent(text, code=Code.INVALID_MESSAGE, native_code=UNRESOLVED)
        return self._judge_message(piece, index)

    def _judge_message(self, piece: _Piece, index: int) -> _Verdict | None:
        is_event = self._layout.mode != "raw" and piece.event.is_event(index)
        fault = self._header_fault(piece, index, is_event=is_event)
        if fault is not None:
            return "HEADER_CONVERTER", Permanent(fault, code=Code.INVALID_MESSAGE, native_code="invalid-header")
        in_json = is_event and self._layout.mode == "structured"
        if not in_json and not self._capabilities.null_value and not piece.value[index].is_valid:
            return "VALUE_CONVERTER", _null_value()
        if not is_event:
            return None
        check_data = self._layout.mode == "structured"
        error = cloudevents.judge(piece.event, index, self._require, check_data=check_data)
        return None if error is None else (self._stage_of_attributes, error)

    def _header_fault(self, piece: _Piece, index: int, *, is_event: bool) -> str | None:
        """Return why no message can have the headers of a row; None where one can."""
        for header in () if piece.headers is None else piece.headers[index].as_py() or ():
            name = header and header["key"]
            if name is None:
                return "a header has no name"
            if re.search(vectors.CONTROL, name):
                return f"the header name {name!r} holds a control character"
            if is_event and re.search(self._bad_names, name):
                return f"the header {name!r} is one that the event's own attributes are written to"
        return None

    def _reject(self, piece: _Piece, bad: Mapping[int, _Verdict]) -> list[RejectedRows]:
        """Return the rows that cannot become messages, by stage."""
        rejected = []
        for stage in dict.fromkeys(stage for stage, _ in bad.values()):
            rows = [index for index, verdict in bad.items() if verdict[0] == stage]
            errors = [bad[index][1] for index in rows]
            messages = events.undeliverable_all(
                piece.documents(rows),
                ids=[piece.ids.values[index] or "" for index in rows],
                errors=errors,
                keys=None if piece.key is None else vectors.to_list(vectors.as_binary(piece.key.take(rows))),
                headers=None if piece.headers is None else piece.printable_headers(rows),
                source=self._source,
            )
            several = len({id(error) for error in errors}) > 1
            positions = piece.positions.take(pa.array(rows)).to_pylist()
            rejected.append(RejectedRows(messages, errors if several else errors[:1], stage, positions))
        return rejected

    # --- encoding rows ---

    def _batch(self, piece: _Piece) -> Batch:
        layout = self._layout
        length = len(piece)
        structured = layout.mode == "structured"
        value = cloudevents.structured(piece.event, piece.ids.array) if structured else piece.value
        batch = Batch(
            number=0,
            length=length,
            nbytes=piece.nbytes,
            value=vectors.bytes_column(value),
            key=None if piece.key is None else vectors.bytes_column(piece.key),
            headers=self._headers(piece),
            id=piece.ids.column,
            destination=piece.column("destination", vectors.text_column),
            timestamp_ms=piece.column("timestamp", vectors.timestamp_column),
            extra={name: vectors.any_column(piece.columns[at]) for name, at in layout.extra.items()},
        )
        if not self._capabilities.deduplicate:
            return batch
        return replace(batch, identity=Column(length, lambda: self._identities(piece, batch)))

    def _identities(self, piece: _Piece, batch: Batch) -> list[str | None]:
        """Return the identities of rows with their own id that are events, or repaired letters of one id."""
        names: list[str | None] = [None] * len(piece)
        if piece.ids.explicit is None:
            return names  # a derived id already depends on all that distinguishes a row
        if self._layout.mode != "raw":
            names = vectors.to_list(cloudevents.identities(piece.event, piece.ids.explicit))
        if piece.headers is not None:
            for index in vectors.rows_with_header(piece.headers, dialects.MARKERS):
                message = batch.row(index)
                if dialects.history(message).hops:
                    names[index] = identity.of_redriven(message)
        return names

    def _headers(self, piece: _Piece) -> Column[Headers] | None:
        own = None if piece.headers is None else vectors.headers_column(piece.headers)
        if self._layout.mode == "raw":
            return own
        if self._layout.mode == "structured":
            return cloudevents.structured_headers(piece.event, own)
        return cloudevents.binary_headers(piece.event, piece.ids, own, self._capabilities.cloudevents_prefix or "")


class _Piece:
    """Some rows of a partition, by the meaning of their columns."""

    def __init__(self, rows: Any, positions: Any, layout: Layout, prefix: str) -> None:
        self.columns = [vectors.as_array(column) for column in rows.columns]
        self._layout = layout
        self._length = len(rows)
        at = layout.message
        self.key = self.columns[at["key"]] if "key" in at else None
        self.headers = self.columns[at["headers"]] if "headers" in at else None
        self.value = self._value()
        attributes = {name: self.columns[position] for name, position in layout.attributes.items()}
        extensions = None if layout.extensions is None else self.columns[layout.extensions]
        encodings = None if layout.encodings is None else self.columns[layout.encodings]
        destination = [self.columns[at["destination"]]] if "destination" in at else []
        content = [*destination, *(each for each in (self.key, self.headers) if each is not None), self.value]
        explicit = self.columns[at["id"]] if "id" in at else None
        content += [attributes[name] for name in sorted(attributes)] + ([] if extensions is None else [extensions])
        content += [] if encodings is None else [encodings]
        # All that distinguishes a row: a retry that gets rows in another order must not give one's id to the other.
        content += [self.columns[position] for _, position in sorted(layout.extra.items())]
        content += [self.columns[at["timestamp"]]] if "timestamp" in at else []
        self.positions = positions
        self.ids = Ids(prefix, positions, content, explicit)
        self.event = cloudevents.Events(
            length=self._length,
            attributes=attributes,
            extensions=extensions,
            encodings=encodings,
            data=self.value,
            data_is_json=layout.value_is_json,
            explicit_id=explicit,
        )
        weighed = sum(int(array.nbytes) for array in content)
        self.nbytes = weighed + self._length * (ROW_OVERHEAD + (_EVENT_OVERHEAD if layout.mode != "raw" else 0))

    def __len__(self) -> int:
        return self._length

    def _value(self) -> Any:
        layout = self._layout
        if "value" in layout.message:
            return self.columns[layout.message["value"]]
        if not layout.row:
            return pa.nulls(self._length, pa.string() if layout.mode == "structured" else pa.binary())
        return rowjson.encode({layout.names[position]: self.columns[position] for position in layout.row})

    def column(self, name: str, make: Any) -> Any:
        """Return a column of the message, where the DataFrame has it."""
        position = self._layout.message.get(name)
        return None if position is None else make(self.columns[position])

    def standing_for_rows(self) -> Any:
        """Return a mask (numpy) of the rows that are letters that stand for a row, as they were read back."""
        if "type" not in self._layout.attributes:
            return np.zeros(self._length, dtype=bool)
        stands = pc.equal(self.event.texts["type"], pa.scalar(events.UNDELIVERABLE))
        return stands.fill_null(pa.scalar(value=False)).to_numpy(zero_copy_only=False)

    def stands_for_row(self, index: int) -> bool:
        """Whether a row is a letter that stands for a row, as it was read back."""
        return "type" in self._layout.attributes and self.event.texts["type"][index].as_py() == events.UNDELIVERABLE

    def printable_headers(self, rows: Sequence[int]) -> list[Headers]:
        """Return the headers of some rows whose names can be shown."""
        return [
            tuple((h["key"], h["value"]) for h in pairs or () if h and h["key"] and h["key"].isprintable())
            for pairs in self.columns[self._layout.message["headers"]].take(pa.array(rows)).to_pylist()
        ]

    def documents(self, rows: Sequence[int]) -> list[str]:
        """Return some rows as JSON, whatever their columns mean."""
        try:
            made = self._documents(rows)
        except (ValueError, TypeError, OverflowError):
            made = [events.row_json(self.row(index)) for index in rows]
        stands = self.standing_for_rows()
        if not stands.any():
            return made
        return [
            events.row_json(self._row_stood_for(index)) if stands[index] else each
            for index, each in zip(rows, made, strict=True)
        ]

    def _documents(self, rows: Sequence[int]) -> list[str]:
        """Return rows as JSON by column. Raises ValueError, TypeError, OverflowError: one is unusual."""
        indices = pa.array(rows)
        columns, names, own = [], [], None
        for name, column in zip(self._layout.names, self.columns, strict=True):
            values = column.take(indices)
            if name == self._layout.json_from:
                own = [loads_plainly(each or "{}") for each in values.to_pylist()]
            else:
                names.append(name)
                columns.append([_json_ready(each) for each in rowjson.plain_values(values)])
        found = [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)] or [{} for _ in rows]
        if own is not None:
            for row, members in zip(found, own, strict=True):
                row.update(members)
        return [events.row_json(each) for each in found]

    def is_unresolved(self, index: int) -> bool:
        """Whether a row is a letter that only points to its message, as it was read back."""
        if self.headers is None:
            return False
        pairs = self.headers[index].as_py() or ()
        return dialects.is_unresolved(tuple((each["key"], each["value"]) for each in pairs if each and each["key"]))

    def _row_stood_for(self, index: int) -> Mapping[str, Any]:
        """Return the row that a letter stands for: a letter of it is that letter again, and does not grow."""
        try:
            found = loads(vectors.as_binary(self.value.slice(index, 1))[0].as_py() or b"")
        except ValueError:
            found = None
        return found if isinstance(found, dict) else self.row(index)

    def row(self, index: int) -> Mapping[str, Any]:
        """Return a whole row as JSON-ready data, whatever its columns mean."""
        row: dict[str, Any] = {}
        for name, column in zip(self._layout.names, self.columns, strict=True):
            if name == self._layout.json_from:
                row.update(_json_ready(loads(column[index].as_py() or "{}")))
            else:
                row[name] = _json_ready(_plain(column, index))
        return row


def _null_value() -> Permanent:
    text = "the value is null, which this destination cannot carry"
    return Permanent(text, code=Code.INVALID_MESSAGE, native_code="null-value")


def _plain(column: Any, index: int) -> Any:
    """Return one value in its JSON form; text that is not UTF-8 (a plain value or key need not be) as bytes."""
    try:
        return rowjson.plain_scalar(column[index])
    except UnicodeDecodeError:
        raw = column.slice(index, 1).cast(vectors.text_as_bytes(column.type))
        return rowjson.plain_scalar(raw[0])


def _json_ready(value: Any) -> Any:
    """Return decimals as numbers where a float is equal, else as text, which Spark reads back as a decimal too."""
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(str(number)) == value else str(value)
    if isinstance(value, Mapping):
        return {name: _json_ready(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json_ready(each) for each in value]
    return value
