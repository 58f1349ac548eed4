"""ISO-8601 durations as the delivery vocabulary has them: a fixed length, not negative.

Parsing itself is isodate's. Must not know which field a duration belongs to: the caller puts the field's name before
the error's sentence.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from redelivery.base.urls import redact
from redelivery.errors import InvalidSpec

#: Longer texts are not durations, and long runs of digits cost time.
_LONGEST: Final = 100
_EXAMPLES: Final = "as in 'PT5S' (5 seconds), 'PT0.3S' or 'PT1H30M'"
#: isodate takes these for 0, which the user hardly meant.
_UNFINISHED: Final = re.compile(r"P(.*T)?", re.DOTALL)


def parse(text: str) -> timedelta:
    """Return the duration that an ISO-8601 text names, to the microsecond.

    Raises:
        InvalidSpec: no such text, or negative, or in years or months, whose length is not fixed. The sentence names
            no field and ends with an example.
    """
    import isodate  # type: ignore[import-untyped]  # noqa: PLC0415 - it takes long, and has neither types nor stubs

    try:
        if len(text) > _LONGEST or _UNFINISHED.fullmatch(text):
            raise isodate.ISO8601Error
        duration = isodate.parse_duration(text)
    except OverflowError:
        raise InvalidSpec(f"{shown(text)} is too long a time; write less, {_EXAMPLES}") from None
    except ValueError:  # isodate's own error is one
        raise InvalidSpec(f"must be an ISO-8601 duration, {_EXAMPLES}, not {shown(text)}") from None
    if not isinstance(duration, timedelta):
        raise InvalidSpec(f"{shown(text)} counts years or months, which have no fixed length; write days, as in 'P30D'")
    if duration < timedelta(0):
        raise InvalidSpec(f"must not be negative, as {shown(text)} is; write a duration {_EXAMPLES}")
    return duration


def write(duration: timedelta) -> str:
    """Return the canonical ISO-8601 text of a duration; `parse` reads exactly the same duration back.

    Raises:
        InvalidSpec: it is negative.
    """
    if duration < timedelta(0):
        raise InvalidSpec(f"must not be negative, as {duration} is; write a duration {_EXAMPLES}")
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    exact = f"{seconds}.{duration.microseconds:06}".rstrip("0").rstrip(".")
    days = f"{duration.days}D" if duration.days else ""
    time = "".join(
        f"{count}{unit}" for count, unit in ((hours, "H"), (minutes, "M"), (exact, "S")) if str(count) != "0"
    )
    return f"P{days}" + (f"T{time}" if time else "") if duration else "P0D"


def shown(text: str) -> str:
    """Return a value as an error may quote it: redacted, and not longer than people want to read."""
    if text.lstrip().startswith(("{", "[")):
        return "a JSON text"  # too deep to be redacted for sure
    if len(text) > _LONGEST * 10:
        return f"a text of {len(text)} characters"
    text = redact(text)
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
