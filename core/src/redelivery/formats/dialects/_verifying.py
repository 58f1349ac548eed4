"""Which of many letters are signed: what letters of one cause share is written once."""

from __future__ import annotations

import hashlib
import hmac
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from redelivery.contract.message import Batch, Headers, Message
from redelivery.formats.cloudevents import is_structured
from redelivery.formats.dialects import _marker, _signature
from redelivery.formats.dialects._marker import Marker
from redelivery.formats.dialects._reader import (
    extension,
    forms_in,
    is_letter,
    known_dialects,
    mac_in,
    others_places,
    written_texts,
)
from redelivery.formats.dialects._writer import CONTEXT
from redelivery.formats.rows import headers_of, picker


def signed_rows(batch: Batch, keys: Sequence[bytes], alone: Callable[[Message], bool]) -> list[bool]:
    """Return whether each message is a letter that one of these keys has signed.

    Args:
        batch: messages as stored, whole.
        keys: the secrets.
        alone: tells it of one message.
    """
    every = headers_of(batch)
    values = batch.value.values
    names = [None] * len(batch) if batch.key is None else batch.key.values
    signed = [False] * len(batch)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for row, form in enumerate(forms_in(batch)):
        alike[form].append(row)
    for rows in alike.values():
        found = _marker.find(every[rows[0]])
        if found is None or found[1].mac is None or not is_letter(found[1]):
            continue
        parts = _Parts.of(every[rows[0]], *found)
        for row in rows:
            mac = None if parts is None else mac_in(every[row][parts.marker_at][1] or b"")
            if parts is None or mac is None:
                signed[row] = alone(batch.row(row))
                continue
            payload = parts.payload(every[row], names[row], values[row])
            signed[row] = any(hmac.compare_digest(_signature.seal(key, payload).encode(), mac) for key in keys)
    return signed


@dataclass(frozen=True, slots=True)
class _Parts:
    """Where the signed parts of letters are that have the same marker and the same names of headers.

    Attributes:
        marker_at: the index of the marker.
        marker: without its signature.
        texts: takes the text headers.
        documents: takes the JSON headers.
        headings: what is signed of a marker and these text headers.
    """

    marker_at: int
    marker: Marker
    texts: Callable[[Headers], Headers]
    documents: Callable[[Headers], Headers]
    headings: dict[Headers, bytes]

    @classmethod
    def of(cls, headers: Headers, at: int, marker: Marker) -> _Parts | None:
        """Return where they are; None where more than headers hold them."""
        dialects = known_dialects(marker)
        there = {name for name, _ in headers}
        structured = is_structured(Message(value=None, headers=headers))
        moved = structured and (any(each.extensions for each in dialects) or not there.issuperset(marker.headers))
        if marker.attributes or marker.inserted or marker.replaced or moved:
            return None
        others = others_places([name for name, _ in headers], marker, at)
        names = [(n, name, extension(name) or name) for n, (name, _) in enumerate(headers) if n not in others]
        texts = [n for n, name, key in names if any({name, key} & each.gives.keys() for each in dialects)]
        documents = [n for n, name, _ in names if name in CONTEXT and name in marker.headers]
        return cls(at, replace(marker, mac=None), picker(texts), picker(documents), {})

    def payload(self, headers: Headers, key: bytes | None, value: bytes | None) -> bytes:
        """Return what is signed of a letter."""
        texts = self.texts(headers)
        heading = self.headings.get(texts)
        if heading is None:
            said = written_texts(Message(value=None, headers=texts), self.marker)
            heading = self.headings[texts] = _signature.heading(self.marker.dump(), said)
        documents = [_signature.base64_of(each or b"") for _, each in self.documents(headers)]
        digest = hashlib.sha256(value or b"").digest()
        return heading + _signature.ending(documents, _signature.base64_of(key or b""), _signature.base64_of(digest))
