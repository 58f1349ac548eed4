"""The CloudEvents extensions of Knative's delivery design: who refused it, why, and after how many attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redelivery.contract.context import ErrorContext
from redelivery.formats.cloudevents import clean
from redelivery.formats.dialects._fields import subscriber_uri, whole

_URI: Final = "deadlettersubscriberuri"
_REASON: Final = "deadletterreason"
_RETRY: Final = "deadletterretry"  # counts attempts, the first included
#: The fields that each attribute gives.
GIVES: Final = {_URI: frozenset({"subscriber"}), _REASON: frozenset({"reason"}), _RETRY: frozenset({"attempts"})}


def write(context: ErrorContext) -> list[tuple[str, str | int]]:
    """Return the extension attributes for the known fields."""
    known = [(_REASON, clean(context.reason)), (_RETRY, context.attempts), (_URI, subscriber_uri(context))]
    return [(name, value) for name, value in known if value is not None and value != ""]


def read(found: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of these attributes."""
    out: dict[str, Any] = {}
    if _REASON in found:
        out["reason"] = found[_REASON]
    if _URI in found:
        out["subscriber"] = found[_URI]
    attempts = whole(found.get(_RETRY))
    if attempts is not None:
        out["attempts"] = attempts
    return out
