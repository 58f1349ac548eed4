"""Work that is done side by side: threads outlive a call, end when they have nothing to do, and are not inherited."""

from __future__ import annotations

import os
import threading
import time

import pytest

from redelivery_sqs.client import batch_requests
from redelivery_sqs.client.batch_requests import side_by_side


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_requests, "_helpers", batch_requests._Helpers())


def together(count: int) -> set[int]:
    """Do work that needs `count` threads at once; which they were."""
    seen: set[int] = set()
    all_there = threading.Barrier(count)

    def work() -> None:
        all_there.wait(10)
        seen.add(threading.get_ident())

    side_by_side(work, count)
    return seen


def test_as_many_work_as_are_asked_for_and_the_next_call_has_the_same_threads() -> None:
    first = together(4)
    assert len(first) == 4
    assert threading.get_ident() in first
    for _ in range(20):
        assert together(4) == first
    assert together(2) < first
    assert len(together(6) - first) == 2


def test_calls_at_once_wait_for_their_own_work_only() -> None:
    """One that hangs holds up no other."""
    release, began = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        release.wait(30)

    hanging = threading.Thread(target=side_by_side, args=(hang, 3), daemon=True)
    hanging.start()
    assert began.wait(10)
    assert len(together(3)) == 3
    release.set()
    hanging.join(10)
    assert not hanging.is_alive()


def test_an_error_of_the_callers_own_work_is_raised_when_the_others_have_ended() -> None:
    ended = threading.Event()
    caller = threading.get_ident()

    def work() -> None:
        if threading.get_ident() == caller:
            raise ValueError("mine")
        time.sleep(0.05)
        ended.set()

    with pytest.raises(ValueError, match="mine"):
        side_by_side(work, 2)
    assert ended.is_set()


def test_a_thread_without_work_ends_and_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_requests, "_IDLE", 0.05)
    first = together(3) - {threading.get_ident()}
    deadline = time.monotonic() + 10
    while first & {each.ident for each in threading.enumerate()} and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not first & {each.ident for each in threading.enumerate()}
    assert len(together(3)) == 3


def test_a_forked_child_starts_its_own() -> None:
    together(4)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(together(4)) == 4 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
