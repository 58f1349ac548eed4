"""What all tests share: none may pass on a defect that the library works around and only logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

#: Loggers whose exceptions are defects: letters are written and read whatever they hold, only more slowly or with less.
_LOGGERS = ("redelivery.dialects",)


class _Defects(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@pytest.fixture(autouse=True)
def logged_defects() -> Iterator[list[str]]:
    """Fails a test in which a defect was logged. A test that causes one asks for this list, checks and clears it."""
    found: list[str] = []
    handler = _Defects(found)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    yield found
    for name in _LOGGERS:
        logging.getLogger(name).removeHandler(handler)
    if found:
        pytest.fail(f"the library logged a defect: {found}")
