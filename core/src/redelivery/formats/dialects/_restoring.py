"""The messages of many letters: without what we wrote into them, and their history.

What `strip` and `redriven` do to a message depends on its marker, the names of its headers and its content type, and
not on other values. So each combination is worked out once, as the places of the headers that stay, and what is removed
from the body of an event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from redelivery.contract.message import Batch, Headers, Message
from redelivery.formats.cloudevents import is_structured
from redelivery.formats.dialects import _marker
from redelivery.formats.dialects._body import Inserted, Remover
from redelivery.formats.dialects._reader import EXTENSIONS, forms_in, inserted_in, is_letter, matters
from redelivery.formats.rows import Changes, picker

#: Fewer messages that look alike are not worth more than a look at each.
_FEWEST: Final = 3


def restored(batch: Batch, restore: Callable[[Message], Message]) -> Batch:
    """Return the batch with each row as `restore` returns it: `strip` or `redriven`."""
    changes = Changes(batch)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for row, form in enumerate(forms_in(batch)):
        alike[form].append(row)
    for rows in alike.values():
        way = _way(changes.before[rows[0]], restore) if len(rows) >= _FEWEST else None
        if way is None:
            for row in rows:
                message = batch.row(row)
                new = restore(message)
                if new is not message:
                    changes.put(row, new)
        elif not way.same:
            grown = way.grown(changes.before[rows[0]]) * len(rows)  # others differ little
            bodies = None if way.inside is None else way.inside.bodies(batch, rows, changes.before)
            if bodies is not None:
                grown += sum(len(each or b"") for each in bodies)
                grown -= sum(len(batch.value.values[row] or b"") for row in rows)
            changes.fill(rows, [way.of(changes.before[row]) for row in rows], bodies, grown)
    return changes.batch()


@dataclass(frozen=True, slots=True)
class _Inside:
    """What we inserted into the bodies of events.

    Attributes:
        marker_at: the index of the marker, which says where.
        where: what each of them says; None: each its own.
        remove: takes it out.
    """

    marker_at: int
    where: Inserted | None
    remove: Remover

    def bodies(self, batch: Batch, rows: Sequence[int], every: Sequence[Headers]) -> list[bytes | None]:
        """Return the bodies of some rows without it."""
        values, at = batch.value.values, self.marker_at
        found: list[bytes | None] = []
        for row in rows:
            value = values[row]
            where = self.where or inserted_in(every[row][at][1] or b"")
            found.append(None if value is None else self.remove(value, where))
        return found


@dataclass(frozen=True, slots=True)
class _Way:
    """How the messages of a form change.

    Attributes:
        of: returns the headers that a row gets.
        same: it gets those that it has.
        inside: what is removed from bodies; None where they stay.
    """

    of: Callable[[Headers], Headers]
    same: bool
    inside: _Inside | None = None

    def grown(self, headers: Headers) -> int:
        """Return by how many bytes the headers of a message with these headers grow."""
        return Message(value=None, headers=self.of(headers)).size - Message(value=None, headers=headers).size


def _way(headers: Headers, restore: Callable[[Message], Message]) -> _Way | None:
    """Return how messages with headers of one form change; None where more may change."""
    if sum(name in _marker.NAMES for name, _ in headers) > 1:  # the form leaves out in what the others differ
        return None
    found = _marker.find(headers)
    inside: _Inside | None = None
    if found is not None:
        at, marker = found
        structured = is_structured(Message(value=None, headers=headers))
        moved = structured and not {name for name, _ in headers}.issuperset(marker.headers)
        other = marker.mac or marker.attributes or marker.inserted
        if marker.wrapped or marker.retyped or marker.replaced or moved or (other and not is_letter(marker)):
            return None
        names = EXTENSIONS.intersection(marker.attributes)
        if structured and names:
            said = headers[at][1] or b""
            inside = _Inside(at, None if inserted_in(said) else marker.inserted, Remover(names))
    shown = tuple((name, value if matters(name) else b"%d" % at) for at, (name, value) in enumerate(headers))
    there = restore(Message(value=None, headers=shown)).headers
    if there == shown:
        return _Way(lambda every: every, same=True)
    new = tuple(header for header in there if header not in shown)
    if len(new) == len(there):  # of the headers that a row has, none stays
        return _Way(lambda _: there, same=False, inside=inside)
    pick = picker([(*shown, *new).index(header) for header in there])
    return _Way(lambda every: pick(every + new), same=False, inside=inside)
