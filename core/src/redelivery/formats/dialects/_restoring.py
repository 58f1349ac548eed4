"""The messages of many letters: without what we wrote into them, and their history.

What `strip` and `redriven` do to a message depends on its marker, the names of its headers and its content type, and
not on other values, unless our text is in its body. So each combination is worked out once, as the places of the
headers that stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from redelivery.contract.message import Batch, Headers, Message
from redelivery.formats.cloudevents import is_structured
from redelivery.formats.dialects import _marker
from redelivery.formats.dialects._reader import forms_in, is_letter, matters
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
            grown = way.grown(changes.before[rows[0]])  # others differ little
            changes.fill(rows, [way.of(changes.before[row]) for row in rows], None, grown * len(rows))
    return changes.batch()


@dataclass(frozen=True, slots=True)
class _Way:
    """How the headers of a form change.

    Attributes:
        of: returns the headers that a row gets.
        same: it gets those that it has.
    """

    of: Callable[[Headers], Headers]
    same: bool

    def grown(self, headers: Headers) -> int:
        """Return by how many bytes a message with these headers grows."""
        return Message(value=None, headers=self.of(headers)).size - Message(value=None, headers=headers).size


def _way(headers: Headers, restore: Callable[[Message], Message]) -> _Way | None:
    """Return how headers of one form change; None where more than headers may change."""
    found = _marker.find(headers)
    if found is not None:
        marker, names = found[1], {name for name, _ in headers}
        moved = is_structured(Message(value=None, headers=headers)) and not names.issuperset(marker.headers)
        if (
            marker.wrapped
            or marker.retyped
            or marker.attributes
            or marker.replaced
            or moved
            or (marker.mac and not is_letter(marker))
        ):
            return None
    shown = tuple((name, value if matters(name) else b"%d" % at) for at, (name, value) in enumerate(headers))
    there = restore(Message(value=None, headers=shown)).headers
    if there == shown:
        return _Way(lambda every: every, same=True)
    new = tuple(header for header in there if header not in shown)
    pick = picker([(*shown, *new).index(header) for header in there])
    return _Way(lambda every: pick(every + new), same=False)
