"""Header dialects: how an `ErrorContext` is written into a letter, read back, and taken out again.

One small module per dialect: `connect`, `deadletter`, `knativeerror`, `json_context`. Each maps fields to its own
names. Fields that a dialect has no name for go into one JSON header beside it, so that every dialect returns the whole
context. One letter may hold several dialects (`chosen` says which). `frameworks` and the plugins bring the dialects
that read other software's headers (`HeaderDialect`, passed in by `recognise`). A marker header lists what we wrote: a
user's own header is never overwritten, nor removed.
"""

from __future__ import annotations

from redelivery.formats.dialects._single import (
    MARKERS,
    NAMES,
    DeliveryHistory,
    are_signed,
    attach,
    attach_all,
    chosen,
    chosen_all,
    document,
    histories,
    history,
    included,
    is_cut,
    is_signed,
    is_unresolved,
    named,
    read,
    read_all,
    recognise,
    redriven,
    redriven_all,
    renamed,
    strip,
    strip_all,
    unresolved,
    unsent,
    with_own_id,
    wrap,
)

__all__ = [
    "MARKERS",
    "NAMES",
    "DeliveryHistory",
    "are_signed",
    "attach",
    "attach_all",
    "chosen",
    "chosen_all",
    "document",
    "histories",
    "history",
    "included",
    "is_cut",
    "is_signed",
    "is_unresolved",
    "named",
    "read",
    "read_all",
    "recognise",
    "redriven",
    "redriven_all",
    "renamed",
    "strip",
    "strip_all",
    "unresolved",
    "unsent",
    "with_own_id",
    "wrap",
]
