"""Client instances and forked processes."""

from __future__ import annotations

import gc
import multiprocessing

import pytest
from confluent_kafka import Producer

from redelivery_kafka.client import instances


class Owner:
    """Has a client whose callback is a method of it."""

    def __init__(self) -> None:
        self.client = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": self.failed})
        self.client.poll(0.5)  # it has tried to connect

    def failed(self, error: object) -> None:
        pass


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_free_a_client_that_is_garbage_in_its_parent() -> None:
    """It waits for threads that only the parent has: the child hung, or ended by a signal."""
    gc.collect()
    gc.disable()
    try:
        owner = Owner()
        instances.release(owner.client)
        del owner
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        child.join()
    finally:
        gc.enable()
        gc.collect()
    assert not hangs
    assert child.exitcode == 0
