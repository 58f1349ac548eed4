"""A forked child: what Python workers are, and a process that can be killed at a chosen point.

This file must not state anything, besides that the child comes to an end.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from typing import Final

import pytest

from redelivery_conformance.subject import Subject

#: What a child says by its exit: it was killed where it was to be.
KILLED: Final = 9
#: Seconds that a child may take beyond the place's patience.
_MORE = 10.0


def in_a_fork(subject: Subject, work: Callable[[], object], *, reaches_broker: bool = True) -> int | None:
    """Run work in a forked child to its end; its exit code.

    Raises:
        NotApplicable: the child has to reach the broker, which lives within this process.
    """
    if reaches_broker:
        subject.other_processes()
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads: that is the point
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
    process.join(subject.place.patience * 2 + _MORE)
    hung = process.is_alive()
    if hung:
        process.kill()
        process.join()
    assert not hung, "the child never came to an end"
    return process.exitcode
