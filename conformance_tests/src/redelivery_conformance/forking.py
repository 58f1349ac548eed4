"""Run work in a forked child, as Python workers do, or in a process that is killed at a chosen point."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from typing import Final

import pytest

from redelivery_conformance.subject import Subject

#: Exit code of a child that was killed at the chosen point.
KILLED: Final = 9
#: Seconds that a child may take in addition to the place's patience.
_MORE = 10.0


def in_a_fork(subject: Subject, work: Callable[[], object], *, reaches_broker: bool = True) -> int | None:
    """Run work in a forked child until it ends; return the child's exit code.

    Raises:
        NotApplicable: the child must reach the broker, but the broker lives inside this process.
    """
    if reaches_broker:
        subject.other_processes()
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads is the point
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
    process.join(subject.place.patience * 2 + _MORE)
    hung = process.is_alive()
    if hung:
        process.kill()
        process.join()
    assert not hung, "the child never came to an end"
    return process.exitcode
