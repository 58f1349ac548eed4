"""`harmless`: an error of the program's SDK is logged, and reaches no job and no handler.

Span processors, samplers and metric views are code of others. The SDK runs them inside the calls that begin and end a
span, and lets their errors through.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

log = logging.getLogger("redelivery.telemetry")

_Arguments = ParamSpec("_Arguments")
_Returned = TypeVar("_Returned")
_Instead = TypeVar("_Instead")

#: Errors that were logged: such an error may happen for each message.
_told: Final[set[str]] = set()
_MOST_TOLD: Final = 100


def lost(error: Exception) -> None:
    """Log that telemetry is lost, once per kind and place of an error. Its text may hold anything, and is not shown."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = f"{type(error).__qualname__}{where}"
    if text not in _told and len(_told) < _MOST_TOLD:
        _told.add(text)
        log.warning("spans or metrics are lost: %s; this is said once", text)


def harmless(
    instead: _Instead,
) -> Callable[[Callable[_Arguments, _Returned]], Callable[_Arguments, _Returned | _Instead]]:
    """Make a function return `instead` where it raises an Exception."""

    def wrap(function: Callable[_Arguments, _Returned]) -> Callable[_Arguments, _Returned | _Instead]:
        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Returned | _Instead:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - of a processor, sampler or view
                lost(error)
                return instead

        return call

    return wrap
